//! Attributes that change while items are queued and run.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use homing_runtime::{CpuId, CpuSet, Nice, PullCost, Runtime, Scope, Workqueue, WorkqueueError};

use crate::helpers::{Door, on, until};

/// The thread's name, which is its worker's as long as nothing blocks.
fn worker() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}

#[test]
fn workqueues_of_the_default_scope_follow_it_and_others_do_not() {
    let runtime = on("2x2x2").build().unwrap();
    let (follows, own) = (
        runtime.workqueue("follows").build().unwrap(),
        runtime.workqueue("own").affinity_scope(Scope::Smt).build().unwrap(),
    );
    assert_eq!(follows.affinity().scope, Scope::CacheShard);
    runtime.set_default_affinity_scope(Scope::Cache).unwrap();
    assert_eq!((follows.affinity().scope, own.affinity().scope), (Scope::Cache, Scope::Smt));
    let born = runtime.workqueue("born").build().unwrap();
    assert_eq!(born.affinity().scope, Scope::Cache);
    follows.set_affinity_scope(Scope::System).unwrap();
    own.set_affinity_default().unwrap();
    runtime.set_default_affinity_scope(Scope::Numa).unwrap();
    assert_eq!((follows.affinity().scope, own.affinity().scope), (Scope::System, Scope::Numa));
    assert!(own.affinity_is_default() && !follows.affinity_is_default());
}

#[test]
fn items_run_on_the_cpus_of_their_mask_alone() {
    let runtime = on("1x4x1").build().unwrap();
    let name_of = |cpu: usize| {
        let queue = runtime.workqueue("find").per_cpu().build().unwrap();
        queue.queue_on(CpuId::new(cpu).unwrap(), worker).unwrap().join().unwrap()
    };
    let names: Vec<_> = (0..4).map(name_of).collect();
    let queue = runtime.workqueue("masked").build().unwrap();
    for allowed in ["1", "0,3", "2-3"] {
        let mask: CpuSet = allowed.parse().unwrap();
        queue.set_cpumask(Some(mask)).unwrap();
        let handles: Vec<_> = (0..400)
            .map(|number| queue.queue_on(CpuId::new(number % 4).unwrap(), worker).unwrap())
            .collect();
        for handle in handles {
            let ran_on = handle.join().unwrap();
            let cpu = names.iter().position(|name| *name == ran_on);
            // A worker that seemed to block was replaced by a thread that has no name here.
            let known = cpu.and_then(CpuId::new);
            assert!(known.is_none_or(|cpu| mask.contains(cpu)), "{known:?} is not of {allowed}");
        }
    }
    let error = queue.set_cpumask(Some("77".parse().unwrap())).unwrap_err();
    assert!(matches!(error, WorkqueueError::Cpumask { .. }), "{error}");
    assert_eq!(queue.cpumask(), Some("2-3".parse().unwrap()), "it stays as it was");
    queue.set_cpumask(None).unwrap();
    queue.queue(|| ()).join().unwrap();
}

#[test]
fn attributes_change_under_load_and_nothing_is_lost_or_left() {
    let runtime = on("2x2x2").build().unwrap();
    let queue = runtime.workqueue("busy").build().unwrap();
    let (stop, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let changer = {
        let (queue, stop) = (queue.clone(), Arc::clone(&stop));
        thread::spawn(move || {
            let mut round = 0_usize;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                match round % 7 {
                    0 => queue.set_affinity_scope(Scope::ALL[round / 7 % 6]).unwrap(),
                    1 => queue.set_affinity_strict(round.is_multiple_of(2)).unwrap(),
                    2 => queue.set_nice(Nice::new((round / 7 % 4) as i8).unwrap()).unwrap(),
                    3 => queue.set_max_active([None, Some(1), Some(4)][round / 7 % 3]).unwrap(),
                    4 => queue.set_localize(round.is_multiple_of(2)).unwrap(),
                    5 => queue.set_affinity_default().unwrap(),
                    _ => {
                        let mask = CpuSet::of(CpuId::new(round % 8).unwrap());
                        queue.set_cpumask((round / 7).is_multiple_of(2).then_some(mask)).unwrap();
                    }
                }
                thread::yield_now();
            }
        })
    };
    for _ in 0..30_000 {
        let ran = Arc::clone(&ran);
        queue.execute(move || _ = ran.fetch_add(1, Ordering::Relaxed));
    }
    queue.flush();
    assert_eq!(ran.load(Ordering::Relaxed), 30_000);
    stop.store(true, Ordering::Relaxed);
    changer.join().unwrap();
    assert_eq!(queue.counters().in_flight(), 0);
}

#[test]
fn what_was_queued_before_a_change_is_not_held_up_by_it() {
    let runtime = on("1x2x1").build().unwrap();
    let queue = runtime.workqueue("queue").build().unwrap();
    let (door, order) = (Door::default(), Arc::new(Mutex::new(Vec::new())));
    for _ in 0..2 {
        let at = door.clone();
        queue.execute(move || at.pass());
    }
    until("both run", || queue.counters().started == 2);
    for number in 0..10 {
        let order = Arc::clone(&order);
        queue.execute(move || order.lock().unwrap().push(number));
    }
    queue.set_affinity_scope(Scope::Cpu).unwrap();
    queue.set_max_active(Some(1)).unwrap();
    queue.flush_others(&door);
    assert_eq!(order.lock().unwrap().len(), 10);
}

/// Ends an item when this is dropped, whatever happens.
#[derive(Default)]
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Even items that are waited for: a worker runs what it waits for only if it may.
#[test]
fn what_was_queued_for_some_cpus_keeps_to_them_when_others_are_allowed() {
    let runtime = on("1x2x1").build().unwrap();
    let queue = runtime.workqueue("bound").affinity_scope(Scope::Cpu).build().unwrap();
    let pinned = runtime.workqueue("pinned").per_cpu().build().unwrap();
    let [first, second] = [0, 1].map(|cpu| CpuId::new(cpu).unwrap());
    let bind: [fn(&Workqueue, bool); 2] = [
        |queue, is| queue.set_affinity_strict(is).unwrap(),
        |queue, is| queue.set_cpumask(is.then(|| "0".parse().unwrap())).unwrap(),
    ];
    for bind in bind {
        let (began, began_to_wait) = (queue.counters().started, pinned.counters().started);
        bind(&queue, true);
        // The item keeps its CPU busy. If it waited, another thread would take the CPU.
        let over = Over::default();
        let ends = Arc::clone(&over.0);
        let busy = queue.queue_on(first, move || while !ends.load(Ordering::Relaxed) {}).unwrap();
        until("it runs", || queue.counters().started > began);
        let own = queue.queue_on(first, || thread::current().id()).unwrap();
        bind(&queue, false);
        let waits = pinned.queue_on(second, move || (thread::current().id(), own.join().unwrap()));
        let waits = waits.unwrap();
        until("it waits", || pinned.counters().started > began_to_wait);
        drop(over);
        let (waiter, ran) = waits.join().unwrap();
        assert_ne!(ran, waiter);
        busy.join().unwrap();
    }
}

trait FlushOthers {
    fn flush_others(&self, door: &Door);
}

impl FlushOthers for homing_runtime::Workqueue {
    fn flush_others(&self, door: &Door) {
        until("the others ran", || self.counters().completed >= 10);
        door.open();
        self.flush();
    }
}

#[cfg(feature = "control")]
#[test]
fn attributes_that_nobody_has_any_more_cost_workers_nothing() {
    let runtime = on("1x2x1").build().unwrap();
    let queue = runtime.workqueue("queue").build().unwrap();
    for level in -20..20 {
        queue.set_nice(Nice::new(level).unwrap()).unwrap();
        queue.queue(|| ()).join().unwrap();
    }
    let pools = || {
        let all = homing_control::AttributeTree::list(&runtime.attributes());
        all.iter().filter(|attribute| attribute.path.starts_with("pool/")).count()
    };
    until("the others are passed over", || {
        // The monitor looks while somebody works.
        queue.queue(|| ()).join().unwrap();
        pools() == 2
    });
    queue.set_nice(Nice::new(-7).unwrap()).unwrap();
    queue.queue(|| ()).join().unwrap();
    // Items of an issuer that was about to queue in a pool while that was left out are found, too.
    for round in 0..2000_i32 {
        queue.set_nice(Nice::new((round % 40 - 20) as i8).unwrap()).unwrap();
        let handles: Vec<_> = (0..4).map(|_| queue.queue(|| ())).collect();
        for handle in handles {
            handle.join().unwrap();
        }
    }
    for level in 0..7 {
        let _ = queue.set_affinity_strict(level % 2 == 0);
        for scope in Scope::ALL {
            let _ = queue.set_affinity_scope(scope);
            for nice in -20..20 {
                let _ = queue.set_nice(Nice::new(nice).unwrap());
            }
        }
    }
    let error = queue.set_localize(true).unwrap_err();
    assert!(matches!(error, WorkqueueError::TooManyPools { .. }), "{error}");
    queue.queue(|| ()).join().unwrap();
    let mut refused = 0;
    for scope in Scope::ALL {
        let before = runtime.default_affinity_scope();
        let set = runtime.set_default_affinity_scope(scope);
        let after = if set.is_ok() { scope } else { before };
        assert_eq!(runtime.default_affinity_scope(), after);
        assert_eq!(runtime.events().affinity().scope, after);
        refused += usize::from(set.is_err());
    }
    assert!(refused > 0);
    runtime.workqueue("plain").build().unwrap();
}

#[test]
fn a_second_workqueue_of_the_name_gets_a_name_of_its_own() {
    let runtime = Runtime::new().unwrap();
    let first = runtime.workqueue("twin").build().unwrap();
    let second = runtime.workqueue("twin").build().unwrap();
    assert_eq!(first.name(), "twin");
    assert!(second.name().starts_with("twin~"));
    drop(first);
    assert_eq!(runtime.workqueue("twin").build().unwrap().name(), "twin");
}

#[test]
fn contradictory_kinds_are_refused_by_name() {
    let runtime = Runtime::new().unwrap();
    let make = || runtime.workqueue("odd");
    for (builder, words) in [
        (make().ordered().per_cpu(), ["ordered", "per-CPU"]),
        (make().ordered().max_active(2), ["ordered", "max_active"]),
        (make().per_cpu().affinity_scope(Scope::Numa), ["per-CPU", "scope"]),
        (make().per_cpu().cpumask(runtime.cpus()), ["per-CPU", "cpumask"]),
        (make().per_cpu().affinity_auto(true), ["per-CPU", "automatic"]),
    ] {
        let message = builder.build().unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
        assert!(message.contains("odd"), "{message}");
    }
    let ordered = make().ordered().build().unwrap();
    assert!(ordered.set_max_active(Some(2)).is_err());
    assert_eq!(ordered.max_active(), Some(1));
}

#[test]
fn a_setter_that_is_refused_leaves_the_choice_to_what_is_measured() {
    let runtime = on("1x8x1").build().unwrap();
    let chosen = runtime.workqueue("chosen").affinity_auto(true).build().unwrap();
    let other = runtime.workqueue("other").build().unwrap();
    let mask = |bits: u32| {
        (0..8).filter(move |bit| bits >> bit & 1 == 1).filter_map(CpuId::new).collect::<CpuSet>()
    };
    let refused = (1..256).find_map(|bits| other.set_cpumask(Some(mask(bits))).err());
    let text = refused.expect("a runtime has 255 pools").to_string();
    assert!(text.contains("workqueue other") && text.contains("pull cost"), "{text}");
    chosen.set_affinity_scope(Scope::Cpu).unwrap_err();
    let dearest = PullCost::ALL.into_iter().next_back().unwrap();
    chosen.set_pull_cost(dearest).unwrap_err();
    assert!(chosen.affinity_auto(), "nothing has changed");
}
