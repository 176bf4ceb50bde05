//! No decision allocates, on any machine.

mod counting;

use homing_sched::{
    Affinity, Attributes, Auto, Facts, HandOffFacts, Idle, ItemLength, Layout, Nice, PoolId,
    QueueId, Reach, Running, Search, Shares, Snapshot, Taken, Window, before_park, hand_off, home,
    issuer_waits, overdue, start, submit, tick,
};
use homing_topology::{CpuId, CpuSet, Machine, Scope};

#[test]
fn decisions_allocate_nothing() {
    for grid in ["1x1x1", "1x1x2x1", "2x4x4x2", "8x8x8x2"] {
        let layout = Layout::new(&Machine::from_grid(grid).unwrap()).unwrap();
        let online = *layout.machine().online();
        let (first, last) = (online.first().unwrap(), online.iter().last().unwrap());
        for (masked, full_at) in [(false, None), (false, Some(first)), (true, Some(last))] {
            for idle in [CpuSet::EMPTY, CpuSet::of(last), online] {
                let attributes: Vec<_> = Affinity::ALL.map(Attributes::new).to_vec();
                let mut facts = Snapshot::new(&layout, &attributes);
                (facts.now_ns, facts.idle, facts.item_ns) = (1_000_000_000, idle, 10_000);
                facts.masks = vec![masked.then_some(online); attributes.len()];
                for pool in 0..attributes.len() as u8 {
                    let pool = PoolId(pool);
                    facts.waiting.clear();
                    if let Some(cpu) = full_at {
                        facts.queue_items(&layout, pool, cpu, 9, 0);
                    }
                    let queue = home(&layout, &facts, first, pool);
                    // A worker's table of what each pool has had grows with the pools.
                    let mut shares = Shares::default();
                    shares.ran(pool, Nice::NORMAL, 1);
                    for cpu in [first, last] {
                        let decide = || decide(&layout, &facts, queue, cpu, &mut shares);
                        let allocated = counting::during(decide);
                        assert_eq!(allocated, 0, "{grid}, idle {idle}, {pool:?}, CPU {cpu}");
                    }
                }
            }
        }
    }
}

fn decide(layout: &Layout, facts: &Snapshot, queue: QueueId, cpu: CpuId, shares: &mut Shares) {
    submit(layout, facts, cpu, queue.pool);
    start(layout, facts, queue, cpu);
    overdue(layout, facts);
    issuer_waits(layout, facts, cpu);
    let called = Idle::Called(Reach::Home, 999_999_999);
    for idle in [Idle::Any, called, Idle::Since(999_999_999)] {
        before_park(layout, facts, cpu, idle, shares);
    }
    shares.ran(queue.pool, facts.attributes(queue.pool).nice, 10_000);
    before_park(layout, facts, cpu, Idle::Any, shares);
    let _ = ItemLength::default().complete(10_000, 3).batch(100);
    let mut search = Search::UNKNOWN;
    search.woken(5_000);
    let _ = (search.search_ns(false), search.takes());
    hand_off(&HandOffFacts {
        item_ns: 10_000,
        issuer_has_more: true,
        spare_cpu_count: 3,
        spare_of_late: 3,
        idle_of_late: true,
    });
    tick(&Running {
        running_for_ns: 20_000_000,
        used_ns: 15_000_000,
        elapsed_ns: 2_000_000,
        on_cpu_ns: 0,
        ready_ns: 0,
        asleep_now: true,
        cpu_intensive_ns: 10_000_000,
    });
}

#[test]
fn choosing_a_scope_allocates_nothing_once_it_has_begun() {
    let layout = Layout::new(&Machine::from_grid("8x8x8x2").unwrap()).unwrap();
    let mut auto = Auto::new(&layout, Scope::Cache);
    let allocated = counting::during(|| {
        for number in 0..1_000 {
            let mut window = Window { elapsed_ns: auto.window_ns(), ..Window::default() };
            let ran_ns = 10_000 + 500 * auto.scope() as u64 + number % 100;
            window.taken[Reach::Home as usize] = Taken { items: 1_000, ran_ns: 1_000 * ran_ns };
            auto.note(&window);
        }
    });
    assert_eq!((allocated, auto.scope()), (0, Scope::Cpu));
}

/// If this did not hold, the other tests would show nothing.
#[test]
fn what_allocates_is_counted() {
    assert_eq!(counting::during(|| vec![1_u8; 100]), 1);
}
