//! What the counters tell, where items go far, go back, or have their scope chosen for them.

mod waiting;

use std::time::{Duration, Instant};

use homing_runtime::{Counters, CpuCounters, CpuId, CpuSet, Reach, Runtime, Scope, blocking};
use homing_topology::Machine;

use waiting::wait_until;

fn spin(for_us: u64) {
    let began = Instant::now();
    while began.elapsed() < Duration::from_micros(for_us) {
        std::hint::spin_loop();
    }
}

fn taken(counters: &Counters, reach: Reach) -> u64 {
    let at = Reach::ALL.iter().position(|known| *known == reach).unwrap();
    counters.taken[at]
}

#[test]
fn what_is_taken_from_afar_is_counted_by_its_distance() {
    // Two CPUs with a cache each, in one node; and two nodes.
    for (grid, reach) in [("1x2x1x1", Reach::Node), ("2x1x1x1", Reach::Remote)] {
        let machine = Machine::from_grid(grid).unwrap();
        let runtime = Runtime::builder().on_machine(machine).build().unwrap();
        if runtime.cpus().len() < 2 {
            println!("skipped: only one CPU may be used");
            return;
        }
        let items = runtime.workqueue("items").affinity_scope(Scope::Cache).build().unwrap();
        let first = runtime.cpus().first().unwrap();
        for _ in 0..400 {
            drop(items.queue_on(first, || spin(500)).unwrap());
        }
        items.flush();
        wait_until("booking", || items.counters().completed == 400);
        let counters = items.counters();
        assert!(taken(&counters, Reach::Home) > 0, "{grid}: {counters:?}");
        assert!(taken(&counters, reach) > 0, "{grid}: {counters:?}");
        assert_eq!(counters.taken.iter().sum::<u64>(), 400);
        assert!(counters.woken > 0 && counters.cpu_time_ns > 0);
        assert_eq!(counters.cpu_times_ns.iter().sum::<u64>(), counters.cpu_time_ns);
        for (cpu, counters) in runtime.cpu_counters() {
            assert!(counters.items > 0 && counters.busy_ns > 0, "{cpu}: {counters:?}");
            assert!(counters.cpu_time_ns > 0, "{cpu}: {counters:?}");
        }
        // What the CPUs' workers did is what happened to the only workqueue.
        let sum = |of: fn(&CpuCounters) -> u64| -> u64 {
            runtime.cpu_counters().iter().map(|(_, counters)| of(counters)).sum()
        };
        wait_until("the last batch", || sum(|cpu| cpu.items) == 400 && sum(|cpu| cpu.running) == 0);
        assert_eq!(sum(|cpu| cpu.cpu_time_ns), items.counters().cpu_time_ns);
        assert_eq!(sum(|cpu| cpu.queue_age.count()), items.counters().queue_age.count());
        // A sleep counts when it is over.
        wait_until("sleeping", || {
            for cpu in runtime.cpus().iter() {
                items.queue_on(cpu, || ()).unwrap().join().unwrap();
            }
            runtime.cpu_counters().iter().all(|(_, cpu)| cpu.parks > 0 && cpu.parked_ns > 0)
        });
    }
}

#[cfg(target_os = "linux")]
#[test]
fn what_a_blocked_worker_has_taken_goes_back() {
    let one: CpuSet = CpuSet::of(Runtime::new().unwrap().cpus().first().unwrap());
    let runtime = Runtime::builder().cpus(one).build().unwrap();
    let items = runtime.workqueue("items").build().unwrap();
    // How many a worker takes at a time is up to it.
    wait_until("a worker that has taken more than it has begun", || {
        (0..1000).for_each(|_| items.execute(|| ()));
        items.execute(|| std::thread::sleep(Duration::from_millis(20)));
        (0..100).for_each(|_| items.execute(|| ()));
        items.flush();
        items.counters().repatriated > 0
    });
    let counters = items.counters();
    assert!(counters.blocked > 0, "{counters:?}");
    assert_eq!(counters.completed, counters.queued);
    wait_until("the batch that lost its CPU", || {
        let counters = runtime.cpu_counters()[0].1;
        counters.items == items.counters().completed && counters.running == 0
    });
    wait_until("booking what went back", || {
        runtime.cpu_counters()[0].1.repatriated == items.counters().repatriated
    });
}

#[test]
fn where_it_is_chosen_other_scopes_are_tried() {
    let machine = Machine::from_grid("2x2x2").unwrap();
    let runtime = Runtime::builder().on_machine(machine).build().unwrap();
    let items = runtime.workqueue("items").affinity_auto(true).build().unwrap();
    let first = items.affinity().scope;
    wait_until("trying another scope", || {
        items.execute_batch((0..100).map(|_| || spin(5)));
        items.flush();
        items.affinity().scope != first
    });
    assert!(items.affinity_auto());
    // And what the user fixes stays.
    items.set_affinity_scope(first).unwrap();
    let until = Instant::now() + Duration::from_millis(400);
    while Instant::now() < until {
        items.execute_batch((0..100).map(|_| || spin(5)));
        items.flush();
        assert_eq!(items.affinity().scope, first);
    }
}

#[test]
fn cpus_are_told_by_their_numbers() {
    let runtime = Runtime::new().unwrap();
    let told: Vec<CpuId> = runtime.cpu_counters().iter().map(|(cpu, _)| *cpu).collect();
    assert!(runtime.cpus().iter().all(|cpu| told.contains(&cpu)));
}

fn one_cpu() -> Runtime {
    let first = Runtime::new().unwrap().cpus().first().unwrap();
    Runtime::builder().cpus(CpuSet::of(first)).build().unwrap()
}

/// For work for which the elapsed time counts.
#[test]
fn time_asleep_in_blocking_is_no_cpu_time() {
    let runtime = one_cpu();
    let short = runtime.workqueue("short").build().unwrap();
    short.execute_batch((0..10_000).map(|_| || spin(1)));
    short.flush();
    let times = |items| {
        wait_until("booking", || runtime.cpu_counters()[0].1.items == items);
        [short.counters().cpu_time_ns, runtime.cpu_counters()[0].1.cpu_time_ns]
    };
    // Whatever else ran on the machine counts as well, but not in each try.
    let mut before = times(10_000);
    let mut tries = Vec::new();
    for items in 10_001..=10_010 {
        short.queue(|| blocking(|| std::thread::sleep(Duration::from_millis(300)))).join().unwrap();
        let now = times(items);
        let slept = [now[0] - before[0], now[1] - before[1]];
        if slept.iter().all(|slept| *slept < 150_000_000) {
            return;
        }
        tries.push(slept);
        before = now;
    }
    panic!("{tries:?}");
}

#[test]
fn each_workqueue_of_a_batch_has_its_own_time() {
    let runtime = one_cpu();
    let [heavy, light] = ["heavy", "light"].map(|name| runtime.workqueue(name).build().unwrap());
    // The items wait behind `gate`, so that batches have both kinds.
    let mut rounds = Vec::new();
    let mut before = [0, 0];
    for round in 1..=10 {
        let gate = runtime.queue(|| spin(2_000));
        for _ in 0..1_000 {
            heavy.execute(|| spin(5));
            light.execute(|| ());
        }
        gate.join().unwrap();
        heavy.flush();
        light.flush();
        wait_until("booking", || runtime.cpu_counters()[0].1.items >= round * 2_001);
        let now = [&heavy, &light].map(|workqueue| workqueue.counters().cpu_time_ns);
        rounds.push([now[0] - before[0], now[1] - before[1]]);
        before = now;
    }
    // Whatever else ran on the machine counts as well, and may have run within a light item, but
    // not in each round.
    assert!(before[0] > 45_000_000, "{rounds:?}");
    assert!(rounds.iter().any(|[heavy, light]| *light < heavy / 3), "{rounds:?}");
}

/// The monitor gives the item's CPU to another thread.
#[test]
fn who_loses_his_cpu_keeps_his_time() {
    let runtime = one_cpu();
    let items = runtime.workqueue("items").build().unwrap();
    for _ in 0..10 {
        items
            .queue(|| (spin(2_000), std::thread::sleep(Duration::from_millis(20))))
            .join()
            .unwrap();
    }
    wait_until("booking", || runtime.cpu_counters()[0].1.pulls.iter().sum::<u64>() >= 10);
    let (cpu, own) = (runtime.cpu_counters()[0].1, items.counters());
    // On a machine that does something else meanwhile, the items do not get all of their 2 ms.
    assert!(own.cpu_time_ns > 2_000_000 && own.cpu_time_ns < 100_000_000, "{own:?}");
    assert_eq!(cpu.cpu_time_ns, own.cpu_time_ns, "{cpu:?}");
}
