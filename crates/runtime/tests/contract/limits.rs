//! Order, `max_active`, freezing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use homing_runtime::{CpuId, CpuSet, Nice, Runtime, Scope, WorkqueueError, blocking};

use crate::helpers::{Crowd, Door, on, panic_of, until};

#[test]
fn an_ordered_workqueue_keeps_its_order_while_its_attributes_change() {
    let runtime = on("2x2x2").build().unwrap();
    let queue = runtime.workqueue("ordered").ordered().build().unwrap();
    let (order, inside) = (Arc::new(Mutex::new(Vec::new())), Crowd::default());
    let stop = Arc::new(AtomicBool::new(false));
    let changer = {
        let (queue, stop) = (queue.clone(), Arc::clone(&stop));
        thread::spawn(move || {
            let mut round: usize = 0;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                queue.set_affinity_scope(Scope::ALL[round % 6]).unwrap();
                queue.set_affinity_strict(round.is_multiple_of(3)).unwrap();
                queue.set_nice(Nice::new((round % 3) as i8 - 1).unwrap()).unwrap();
                let mask = CpuSet::of(CpuId::new(round % 8).unwrap());
                queue.set_cpumask(round.is_multiple_of(2).then_some(mask)).unwrap();
            }
        })
    };
    for number in 0..20_000 {
        let (order, inside) = (Arc::clone(&order), inside.clone());
        queue.execute(move || {
            inside.enter();
            order.lock().unwrap().push(number);
            inside.leave();
        });
    }
    queue.flush();
    stop.store(true, Ordering::Relaxed);
    changer.join().unwrap();
    assert_eq!(inside.most(), 1);
    assert!(order.lock().unwrap().iter().copied().eq(0..20_000));
}

#[test]
fn an_item_of_an_ordered_workqueue_that_is_cancelled_and_queued_again_goes_to_the_end() {
    let runtime = on("1x1x1").build().unwrap();
    let queue = runtime.workqueue("ordered").ordered().build().unwrap();
    let (door, order) = (Door::default(), Arc::new(Mutex::new(Vec::new())));
    let at = door.clone();
    queue.execute(move || at.pass());
    let works = ['a', 'b'].map(|name| {
        let order = Arc::clone(&order);
        queue.work(move |_| order.lock().unwrap().push(name))
    });
    for work in &works {
        assert!(work.queue());
    }
    assert!(works[0].cancel() && works[0].queue());
    door.open();
    queue.flush();
    assert_eq!(*order.lock().unwrap(), ['b', 'a']);
}

#[test]
fn waiting_for_what_comes_after_in_an_ordered_workqueue_panics_and_names_it() {
    let runtime = on("1x1x1").build().unwrap();
    let queue = runtime.workqueue("ordered").ordered().build().unwrap();
    let inner = queue.clone();
    let messages = queue.queue(move || {
        let later = inner.queue(|| ());
        let work = inner.work(|_| ());
        assert!(work.queue());
        [
            panic_of(|| _ = later.join()),
            panic_of(|| _ = work.flush()),
            panic_of(|| inner.scope(|scope| scope.queue(|| ()))),
        ]
    });
    for message in messages.join().unwrap() {
        assert!(message.contains("ordered workqueue") && message.contains("wait"), "{message}");
    }
    queue.flush();
    assert_eq!(queue.counters().completed, 3);
}

#[test]
fn never_more_than_max_active_run_and_the_limit_rises_and_falls_under_load() {
    let runtime = on("1x8x1").build().unwrap();
    let queue = runtime.workqueue("limited").max_active(3).build().unwrap();
    let (crowd, door) = (Crowd::default(), Door::default());
    let queue_some = |count: usize, door: &Door| {
        for _ in 0..count {
            let (crowd, door) = (crowd.clone(), door.clone());
            queue.execute(move || {
                crowd.enter();
                door.pass();
                crowd.leave();
            });
        }
    };
    queue_some(20, &door);
    until("three run", || crowd.now() == 3);
    thread::sleep(Duration::from_millis(10));
    assert_eq!((crowd.most(), queue.is_congested()), (3, true));
    queue.set_max_active(Some(7)).unwrap();
    until("seven run", || crowd.now() == 7);
    queue.set_max_active(Some(2)).unwrap();
    assert_eq!(crowd.now(), 7, "none that runs is stopped");
    door.open();
    queue.flush();
    assert_eq!(crowd.most(), 7);
    let again = Door::default();
    let crowd_before = crowd.most();
    queue_some(10, &again);
    until("two run", || crowd.now() == 2);
    queue.set_max_active(None).unwrap();
    until("all run", || crowd.now() == 10);
    again.open();
    queue.flush();
    assert!(crowd_before < 10 && !queue.is_congested());
    for bad in [0, 2049] {
        let error = queue.set_max_active(Some(bad)).unwrap_err();
        assert!(matches!(error, WorkqueueError::Limit { value, .. } if value == bad), "{error}");
    }
    assert_eq!(queue.max_active(), None, "a refused value changes nothing");
}

#[test]
fn nodes_share_max_active_but_each_has_min_active() {
    let runtime = on("2x1x4x1").build().unwrap();
    let queue = runtime
        .workqueue("nodes")
        .affinity_scope(Scope::Numa)
        .affinity_strict(true)
        .max_active(4)
        .build()
        .unwrap();
    queue.set_min_active(1).unwrap();
    let door = Door::default();
    let crowds = [0, 4].map(|cpu| {
        let crowd = Crowd::default();
        for _ in 0..10 {
            let (crowd, door) = (crowd.clone(), door.clone());
            let item = move || {
                crowd.enter();
                door.pass();
                crowd.leave();
            };
            queue.queue_on(CpuId::new(cpu).unwrap(), item).unwrap().detach();
        }
        crowd
    });
    until("each node has its half", || crowds.iter().all(|crowd| crowd.now() == 2));
    thread::sleep(Duration::from_millis(10));
    assert_eq!(crowds.each_ref().map(Crowd::most), [2, 2]);
    queue.set_min_active(3).unwrap();
    until("each node has the minimum", || crowds.iter().all(|crowd| crowd.now() == 3));
    assert!(queue.set_min_active(5).is_err());
    door.open();
    queue.flush();
    assert_eq!(crowds.each_ref().map(Crowd::most), [3, 3]);
}

/// The kernel's async resume deadlocked with 8: the minimum can be raised.
#[test]
fn a_chain_of_nine_items_that_wait_for_each_other_gets_on_with_a_minimum_of_nine() {
    let runtime = on("2x1x4x1").build().unwrap();
    let queue =
        runtime.workqueue("chain").affinity_scope(Scope::Numa).max_active(9).build().unwrap();
    assert_eq!(queue.min_active(), 8);
    let doors: Vec<_> = (0..10).map(|_| Door::default()).collect();
    for number in 0..9 {
        let (at, opens) = (doors[number + 1].clone(), doors[number].clone());
        let item = move || {
            at.pass();
            opens.open();
        };
        // Each waits for the next one; all on one node.
        queue.queue_on(CpuId::new(0).unwrap(), item).unwrap().detach();
    }
    doors[9].open();
    // The ninth is beyond its node's share, until the minimum is nine.
    thread::sleep(Duration::from_millis(20));
    assert_eq!(queue.counters().completed, 0);
    queue.set_min_active(9).unwrap();
    doors[0].pass();
    queue.flush();
}

#[test]
fn a_frozen_workqueue_accepts_and_begins_nothing_until_it_is_thawed() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("frozen").freezable().build().unwrap();
    let door = Door::default();
    let at = door.clone();
    let running = queue.queue(move || at.pass());
    until("it runs", || queue.counters().started == 1);
    let error = queue.freeze(Duration::from_millis(10)).unwrap_err();
    assert!(matches!(error, WorkqueueError::FreezeTimeout { active: 1, .. }), "{error}");
    assert!(!queue.is_frozen(), "it has been thawed");
    queue.queue(|| ()).join().unwrap();
    door.open();
    running.join().unwrap();
    queue.freeze(Duration::from_secs(20)).unwrap();
    let waits: Vec<_> = (0..10).map(|number| queue.queue(move || number)).collect();
    let work = queue.work(|_| ());
    assert!(work.queue());
    thread::sleep(Duration::from_millis(5));
    assert!(waits.iter().all(|wait| !wait.is_finished()) && work.is_pending());
    assert!(work.cancel() && work.queue());
    queue.thaw();
    assert!(waits.into_iter().map(|wait| wait.join().unwrap()).eq(0..10));
    work.flush();
    let error = runtime.events().freeze(Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("events is not freezable"), "{error}");
}

#[test]
fn all_freezable_workqueues_freeze_together_also_new_ones_and_those_let_go() {
    let runtime = on("1x2x1").build().unwrap();
    let make = |name| runtime.workqueue(name).freezable().build().unwrap();
    let (first, second) = (make("first"), make("second"));
    let plain = runtime.workqueue("plain").build().unwrap();
    let to = second.clone();
    runtime.freeze_workqueues(Duration::from_secs(20)).unwrap();
    let third = make("third");
    let waits: Vec<_> = [first, second, third].map(|queue| queue.queue(|| ())).into();
    plain.queue(|| ()).join().unwrap();
    thread::sleep(Duration::from_millis(5));
    assert!(to.is_frozen() && waits.iter().all(|wait| !wait.is_finished()));
    runtime.thaw_workqueues();
    for wait in waits {
        wait.join().unwrap();
    }
    make("fourth").queue(|| ()).join().unwrap();
}

#[test]
fn a_freeze_that_is_refused_freezes_none() {
    let runtime = Arc::new(on("1x2x1").build().unwrap());
    let first = runtime.workqueue("first").freezable().build().unwrap();
    let second = runtime.workqueue("second").freezable().build().unwrap();
    let own = Arc::clone(&runtime);
    let freeze = move || panic_of(|| _ = own.freeze_workqueues(Duration::from_secs(1)));
    let message = second.queue(freeze).join().unwrap();
    assert!(message.contains("second"), "{message}");
    assert!(!first.is_frozen() && !second.is_frozen());
}

#[test]
fn nothing_is_frozen_any_more_once_the_runtime_ends() {
    let runtime = on("1x2x1").build().unwrap();
    let queue = runtime.workqueue("frozen").freezable().max_active(1).build().unwrap();
    let door = Door::default();
    let at = door.clone();
    let running = queue.queue(move || at.pass());
    let waits: Vec<_> = (0..10).map(|number| queue.queue(move || number)).collect();
    let stopper = thread::spawn(move || runtime.shutdown(Duration::from_secs(20)));
    until("it ends", || match queue.freeze(Duration::ZERO).unwrap_err() {
        WorkqueueError::ShuttingDown { name } => name == "frozen",
        _ => false,
    });
    door.open();
    stopper.join().unwrap().unwrap();
    running.join().unwrap();
    assert!(waits.into_iter().map(|wait| wait.join().unwrap()).eq(0..10));
}

#[test]
fn what_is_frozen_is_thawed_and_run_when_the_runtime_ends() {
    let runtime = on("1x2x1").build().unwrap();
    let queue = runtime.workqueue("frozen").freezable().build().unwrap();
    queue.freeze(Duration::from_secs(20)).unwrap();
    let waits = queue.queue(|| 1);
    runtime.shutdown(Duration::from_secs(20)).unwrap();
    assert_eq!(waits.join().unwrap(), 1);
}

#[test]
fn an_item_waits_for_another_one_of_its_limited_workqueue_without_breaking_the_limit() {
    let runtime = on("1x2x1").build().unwrap();
    let queue = runtime.workqueue("limited").max_active(2).build().unwrap();
    let crowd = Crowd::default();
    let handles: Vec<_> = (0..20)
        .map(|_| {
            let (queue, crowd) = (queue.clone(), crowd.clone());
            runtime.queue(move || {
                let inner = queue.queue(move || {
                    crowd.enter();
                    blocking(|| thread::sleep(Duration::from_micros(300)));
                    crowd.leave();
                });
                inner.join().unwrap();
            })
        })
        .collect();
    for handle in handles {
        handle.join().unwrap();
    }
    assert_eq!(crowd.most(), 2);
}

#[test]
fn what_waits_behind_a_limit_at_shutdown_is_run_or_cancelled_and_never_forgotten() {
    for now in [false, true] {
        let runtime = on("1x2x1").build().unwrap();
        let queue = runtime.workqueue("limited").max_active(1).build().unwrap();
        let handles: Vec<_> = (0..100).map(|_| queue.queue(|| ())).collect();
        if now {
            runtime.shutdown_now();
        } else {
            drop(runtime);
        }
        let ran = handles.into_iter().filter_map(|handle| handle.join().ok()).count();
        assert!(now || ran == 100, "{ran}");
        assert_eq!(queue.counters().in_flight(), 0);
    }
}

#[test]
fn what_waits_on_a_node_that_has_lost_its_cpus_runs() {
    let runtime = on("2x1x2x1").build().unwrap();
    let queue = runtime.workqueue("limited").max_active(2).affinity_scope(Scope::Numa);
    let queue = queue.build().unwrap();
    queue.set_min_active(0).unwrap();
    let cpu = |number| CpuId::new(number).unwrap();
    let (go, goes) = mpsc::channel::<()>();
    // Node 1 may have one at a time.
    let first = queue.queue_on(cpu(2), move || _ = goes.recv()).unwrap();
    let second = queue.queue_on(cpu(2), || ()).unwrap();
    queue.set_cpumask(Some(CpuSet::of(cpu(0)))).unwrap();
    drop(go);
    first.join().unwrap();
    queue.queue(|| ()).join().unwrap();
    until("the second one runs", || second.is_finished());
}

#[test]
fn frozen_means_that_nothing_runs_also_where_it_was_thawed_in_between() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("freezes").freezable().build().unwrap();
    let (go, goes) = mpsc::channel::<()>();
    let item = queue.queue(move || blocking(|| _ = goes.recv()));
    thread::sleep(Duration::from_millis(20));
    let froze_beside = {
        let queue = queue.clone();
        thread::spawn(move || queue.freeze(Duration::from_secs(2)))
    };
    thread::sleep(Duration::from_millis(50));
    queue.thaw();
    let again = {
        let queue = queue.clone();
        thread::spawn(move || queue.freeze(Duration::from_secs(1)))
    };
    let said = froze_beside.join().unwrap();
    assert!(said.is_err() || item.is_finished(), "it is frozen, and an item runs");
    drop(go);
    _ = again.join().unwrap();
}
