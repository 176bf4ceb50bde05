//! Everything that can be queued, and how: batches, named CPUs and nodes, scopes, futures, aborts.

mod waiting;

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{CpuId, CpuSet, Features, JoinError, Nice, NodeId, Runtime, Scope, Workqueue};

use waiting::wait_until;

/// A runtime with one worker, which is held until the flag is set.
fn held() -> (Runtime, Arc<AtomicBool>) {
    let one: CpuSet = Runtime::new().unwrap().cpus().first().into_iter().collect();
    let runtime = Runtime::builder().cpus(one).build().unwrap();
    let (release, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (releasing, holding) = (Arc::clone(&release), Arc::clone(&held));
    runtime.events().execute(move || {
        holding.store(true, Ordering::Relaxed);
        // Not asleep: an item that sleeps would lose its CPU.
        while !releasing.load(Ordering::Relaxed) {
            thread::yield_now();
        }
    });
    wait_until("holding", || held.load(Ordering::Relaxed));
    (runtime, release)
}

#[test]
fn a_batch_runs_once_each_in_whatever_order() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("batch").build().unwrap();
    let handles = queue.queue_batch((0..10_000_u64).map(|n| move || n));
    let sum: u64 = handles.into_iter().map(|handle| handle.join().unwrap()).sum();
    assert_eq!(sum, 10_000 * 9_999 / 2);
    let count = Arc::new(AtomicUsize::new(0));
    queue.execute_batch((0..1000).map(|_| {
        let count = Arc::clone(&count);
        move || _ = count.fetch_add(1, Ordering::Relaxed)
    }));
    wait_until("all running", || count.load(Ordering::Relaxed) == 1000);
    drop(runtime);
    let counters = queue.counters();
    assert_eq!((counters.queued, counters.started, counters.completed), (11_000, 11_000, 11_000));
    assert_eq!((counters.in_flight(), counters.taken.iter().sum::<u64>()), (0, 11_000));
    assert!(queue.queue_batch([|| 1]).pop().unwrap().join().is_err(), "it is shut down");
    assert_eq!(queue.counters().cancelled, 1);
}

#[test]
fn an_item_named_for_a_cpu_runs_there_if_it_may_not_leave() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime.workqueue("named").affinity_scope(Scope::Cpu).affinity_strict(true);
    let queue = queue.build().unwrap();
    for cpu in runtime.cpus().iter() {
        let here = queue.queue_on(cpu, || CpuId::new(rustix::thread::sched_getcpu()));
        assert_eq!(here.unwrap().join().unwrap(), Some(cpu));
    }
    let node = runtime.machine().cpus()[0].numa_nodes[0];
    assert_eq!(queue.queue_on_node(node, || 1).unwrap().join().unwrap(), 1);
    let error = queue.queue_on_node(NodeId(77), || ()).unwrap_err().to_string();
    assert!(error.contains("77") && error.contains(&node.0.to_string()), "{error}");
    assert_eq!(queue.counters().queued, runtime.cpus().len() as u64 + 1);
}

#[test]
fn items_named_for_a_node_take_turns_among_its_cpus() {
    // No thread of this machine runs on the second node of that one.
    let grid = homing_topology::Machine::from_grid("16x1x4x1").unwrap();
    let runtime = Runtime::builder().on_machine(grid).build().unwrap();
    let queue = runtime.workqueue("node").affinity_scope(Scope::Cpu).affinity_strict(true);
    let queue = queue.build().unwrap();
    let node = runtime.machine().cpus()[60].numa_nodes[0];
    for _ in 0..64 {
        queue.queue_on_node(node, || ()).unwrap().detach();
    }
    let ran = || {
        let counters = runtime.cpu_counters();
        let of_node = counters.iter().filter(|(cpu, _)| (60..64).contains(&cpu.index()));
        of_node.map(|(_, counters)| counters.items).collect::<Vec<_>>()
    };
    wait_until("booking", || ran().iter().sum::<u64>() == 64);
    // Not equally often: a CPU that is idle at the moment comes first.
    assert!(ran().iter().all(|items| *items >= 4), "{:?}", ran());
}

#[test]
fn a_scope_lends_the_stack_and_waits_even_when_it_panics() {
    let runtime = Runtime::new().unwrap();
    let mut squares: Vec<u64> = (0..1000).collect();
    let total = AtomicUsize::new(0);
    runtime.scope(|scope| {
        for square in &mut squares {
            let total = &total;
            scope.queue(move || {
                *square *= *square;
                // Items may queue more.
                scope.queue(|| _ = total.fetch_add(1, Ordering::Relaxed));
            });
        }
    });
    assert!(squares.iter().enumerate().all(|(n, square)| *square == (n * n) as u64));
    assert_eq!(total.into_inner(), 1000);

    let ran = AtomicUsize::new(0);
    let body = std::panic::AssertUnwindSafe(|| {
        runtime.scope(|scope| {
            scope.queue(|| panic!("on purpose"));
            (0..100).for_each(|_| scope.queue(|| _ = ran.fetch_add(1, Ordering::Relaxed)));
        });
    });
    let panic = std::panic::catch_unwind(body).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    assert_eq!(ran.load(Ordering::Relaxed), 100, "the others ran to their end");
}

#[test]
fn a_scope_within_an_item_needs_no_second_cpu() {
    let one: CpuSet = Runtime::new().unwrap().cpus().first().into_iter().collect();
    let runtime = Runtime::builder().cpus(one).build().unwrap();
    let queue = runtime.events().clone();
    let sum = runtime.queue(move || {
        let sum = AtomicUsize::new(0);
        let (queue, sum) = (&queue, &sum);
        queue.scope(|scope| {
            for n in 0..10 {
                scope.queue(move || {
                    queue.scope(|inner| {
                        inner.queue(move || _ = sum.fetch_add(n, Ordering::Relaxed));
                    });
                });
            }
        });
        sum.load(Ordering::Relaxed)
    });
    assert_eq!(sum.join().unwrap(), 45);
}

#[test]
fn what_has_not_begun_can_be_aborted_and_is_counted() {
    let (runtime, release) = held();
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let handle = runtime.queue(move || count.fetch_add(1, Ordering::Relaxed));
    let Err(handle) = handle.try_join() else { panic!("it cannot have run") };
    assert!(handle.abort() && !handle.abort() && handle.is_finished());
    assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
    release.store(true, Ordering::Relaxed);
    let events = runtime.events().clone();
    drop(runtime);
    assert_eq!(ran.load(Ordering::Relaxed), 0);
    assert_eq!((events.counters().cancelled, events.counters().in_flight()), (1, 0));
}

#[test]
fn an_item_that_is_bound_to_its_handle_ends_with_it() {
    let (runtime, release) = held();
    let ran = Arc::new(AtomicUsize::new(0));
    let bound = |by: usize| {
        let count = Arc::clone(&ran);
        runtime.queue(move || count.fetch_add(by, Ordering::Relaxed)).abort_on_drop()
    };
    let [dropped, awaited, given_back, moved] = [1, 10, 100, 1000].map(bound);
    drop(dropped);
    drop(given_back.into_inner());
    // In a future that is dropped, as that of a request whose client has gone.
    drop(async move { moved.await.unwrap() });
    release.store(true, Ordering::Relaxed);
    runtime.spawn(awaited).join().unwrap().unwrap();
    drop(runtime);
    assert_eq!(ran.load(Ordering::Relaxed), 110);
}

#[test]
fn high_priority_is_served_first_and_the_rest_is_not_starved() {
    let (runtime, release) = held();
    let order = Arc::new(Mutex::new(Vec::new()));
    let queue_all = |name: &str, nice: Nice| {
        let queue = runtime.workqueue(name).nice(nice).build().unwrap();
        for _ in 0..300 {
            let order = Arc::clone(&order);
            queue.execute(move || {
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(100) {}
                order.lock().unwrap().push((nice, Instant::now()));
            });
        }
    };
    // Not in the pool of the item that has held the worker, because that pool has had its share.
    let low_nice = Nice::new(1).unwrap();
    queue_all("low", low_nice);
    queue_all("high", Nice::HIGHPRI);
    let began = Instant::now();
    release.store(true, Ordering::Relaxed);
    drop(runtime);
    let order = order.lock().unwrap();
    let last_high = order.iter().rposition(|(nice, _)| *nice == Nice::HIGHPRI).unwrap();
    let low = order[..last_high].iter().filter(|(nice, _)| *nice == low_nice).count();
    // By weight the others get one part in 108 of the time while there are both. Whatever else ran
    // on the machine counts as time of the item that it interrupted, so single items may take long.
    let (took, item) = (order[last_high].1 - began, Duration::from_micros(100));
    let most = 20 + took.as_micros() / (108 * item.as_micros());
    assert!((1..=most).contains(&(low as u128)), "{low} of {last_high}, in {took:?}");
}

#[test]
fn a_future_goes_on_where_it_is_woken_and_may_panic() {
    let runtime = Runtime::new().unwrap();
    let events = runtime.events().clone();
    let sum = runtime.spawn(async move {
        let mut sum = 0;
        for n in 0..1000_u64 {
            sum += events.queue(move || n).await.unwrap();
        }
        sum
    });
    assert_eq!(sum.join().unwrap(), 499_500);
    let error = runtime.spawn(async { panic!("on purpose") }).join().unwrap_err();
    assert!(error.to_string().contains("on purpose"));
    let inner = runtime.spawn(async { 1 });
    let outer = runtime.spawn(async move { inner.await.unwrap() + 1 });
    assert_eq!(outer.join().unwrap(), 2);
}

#[test]
fn a_future_that_is_always_ready_gives_way() {
    let (runtime, release) = held();
    let events = runtime.events().clone();
    let (polls, other_after) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counting = Arc::clone(&polls);
    let greedy = runtime.spawn(async move {
        let mut handles = events.queue_batch((0..1000).map(|_| || ()));
        // On the only worker, so all of them are finished before the first is awaited.
        let mut passed = false;
        poll_fn(|context| {
            context.waker().wake_by_ref();
            if std::mem::replace(&mut passed, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        for handle in handles.drain(..) {
            handle.await.unwrap();
            counting.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (seen, after) = (Arc::clone(&polls), Arc::clone(&other_after));
    let second = runtime.events().clone();
    let other = runtime.queue(move || {
        // Behind the thousand, and behind the future's first go.
        second.queue(move || second_look(&seen, &after))
    });
    release.store(true, Ordering::Relaxed);
    other.join().unwrap().join().unwrap();
    greedy.join().unwrap();
    let seen = other_after.load(Ordering::Relaxed);
    assert!(seen < 1000, "{seen} handles were awaited before anybody else had a turn");
}

fn second_look(polls: &AtomicUsize, after: &AtomicUsize) {
    after.store(polls.load(Ordering::Relaxed), Ordering::Relaxed);
}

#[test]
fn runtimes_stand_side_by_side_and_queue_to_each_other() {
    let (first, second) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let other = second.events().clone();
    let sum = first.queue(move || other.queue(|| 1).join().unwrap() + 1);
    assert_eq!(sum.join().unwrap(), 2);
    assert_eq!(second.events().counters().completed, 1);
    assert!(Runtime::builder().build_global().is_ok());
    assert!(Runtime::builder().build_global().is_err(), "it can be started once");
}

#[test]
fn every_feature_can_be_switched_off_and_work_still_runs() {
    let runtime = Runtime::new().unwrap();
    for bits in 0..16 {
        runtime.set_features(Features::from_bits(bits));
        let handles = runtime.events().queue_batch((0..200).map(|n| move || n));
        let sum: u32 = handles.into_iter().map(|handle| handle.join().unwrap()).sum();
        assert_eq!(sum, 19_900, "{:?}", runtime.features());
    }
}

#[test]
fn counters_of_cpus_add_up() {
    let runtime = Runtime::builder().pinned(false).build().unwrap();
    for n in 0..1000_u32 {
        assert_eq!(runtime.queue(move || n).join().unwrap(), n);
    }
    let count = || runtime.cpu_counters().iter().map(|(_, counters)| counters.items).sum::<u64>();
    // The last batch is booked after its result is out.
    wait_until("booking", || count() == 1000);
    let busy: u64 = runtime.cpu_counters().iter().map(|(_, counters)| counters.busy_ns).sum();
    assert!(busy > 0);
    let age = runtime.events().counters().queue_age;
    assert!(age.count() > 0 && age.quantile_ns(0.5).is_some());
}

#[cfg(target_os = "linux")]
#[test]
fn a_change_of_the_cpu_mask_is_followed() {
    let runtime = Runtime::builder().thread_name("masktest").build().unwrap();
    let before = runtime.cpus();
    if before.len() < 2 {
        println!("skipped: only one CPU may be used");
        return;
    }
    // Names are cut off at 15 bytes, and set by the thread itself.
    let find = || {
        let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
        tasks.find(|task| {
            std::fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|name| name.trim_end() == "masktest/monito")
        })
    };
    wait_until("the monitor", || find().is_some());
    let tid: i32 = find().unwrap().file_name().to_str().unwrap().parse().unwrap();
    let set_mask = |cpus: &CpuSet| {
        let mut set = rustix::thread::CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(cpu.index()));
        rustix::thread::sched_setaffinity(rustix::thread::Pid::from_raw(tid), &set).unwrap();
    };
    let one: CpuSet = before.iter().skip(1).take(1).collect();
    set_mask(&one);
    // The monitor rests while nobody works.
    let works_on = |cpus: &CpuSet| runtime.queue(|| ()).join().is_ok() && runtime.cpus() == *cpus;
    wait_until("leaving the other CPUs", || works_on(&one));
    let strict = runtime.workqueue("strict").affinity_scope(Scope::Cpu).affinity_strict(true);
    let strict = strict.build().unwrap();
    for cpu in before.iter() {
        assert_eq!(strict.queue_on(cpu, || 1).unwrap().join().unwrap(), 1, "CPU {cpu}");
    }
    set_mask(&before);
    wait_until("coming back", || works_on(&before));
    for cpu in before.iter() {
        let here = strict.queue_on(cpu, || CpuId::new(rustix::thread::sched_getcpu()));
        assert_eq!(here.unwrap().join().unwrap(), Some(cpu));
    }
}

#[test]
fn threads_that_are_not_pinned_keep_the_mask_that_they_are_given() {
    let runtime = Runtime::builder().pinned(false).thread_name("free").build().unwrap();
    let before = runtime.cpus();
    let masks = |change: Option<usize>| {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
        let ours = tasks.filter(|task| {
            std::fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|name| name.starts_with("free/"))
        });
        let mask = |task: std::fs::DirEntry| {
            let tid = rustix::thread::Pid::from_raw(task.file_name().to_str()?.parse().ok()?);
            if let Some(cpu) = change {
                let mut one = rustix::thread::CpuSet::new();
                one.set(cpu);
                rustix::thread::sched_setaffinity(tid, &one).ok()?;
            }
            Some(rustix::thread::sched_getaffinity(tid).ok()?.count() as usize)
        };
        ours.filter_map(mask).collect::<Vec<_>>()
    };
    // Names are set by the threads themselves.
    wait_until("starting", || masks(None).len() == before.len() + 1);
    let one = before.first().unwrap();
    masks(Some(one.index()));
    let alone = || runtime.queue(|| ()).join().is_ok() && runtime.cpus().len() == 1;
    wait_until("leaving the other CPUs", alone);
    for _ in 0..20 {
        let pause = || homing_runtime::blocking(|| thread::sleep(Duration::from_millis(1)));
        let pauses = [runtime.queue(pause), runtime.queue(pause)];
        for pause in pauses {
            pause.join().unwrap();
        }
    }
    assert!(masks(None).into_iter().all(|len| len == 1), "{:?}", masks(None));
}

/// Queues an item for a CPU that spins a little, counts itself, and is queued again.
fn again(queue: &Workqueue, cpu: CpuId, lane: usize, ran: &Arc<[AtomicUsize; 2]>) {
    let (queue_again, ran) = (queue.clone(), Arc::clone(ran));
    let item = move || {
        (0..500).for_each(|_| std::hint::spin_loop());
        ran[lane].fetch_add(1, Ordering::SeqCst);
        if ran.iter().map(|ran| ran.load(Ordering::SeqCst)).sum::<usize>() < 20_000 {
            again(&queue_again, cpu, lane, &ran);
        }
    };
    queue.queue_on(cpu, item).unwrap().detach();
}

#[test]
fn items_for_a_cpu_without_a_worker_get_their_share() {
    let cpus: Vec<_> = Runtime::new().unwrap().cpus().iter().take(2).collect();
    let [first, second] = cpus[..] else {
        println!("skipped: there is one CPU only");
        return;
    };
    let runtime = Runtime::builder().cpus(CpuSet::of(first)).build().unwrap();
    let queue = runtime.workqueue("shares").build().unwrap();
    let ran = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    for _ in 0..32 {
        again(&queue, first, 0, &ran);
        again(&queue, second, 1, &ran);
    }
    queue.drain();
    let [own, others] = [0, 1].map(|lane| ran[lane].load(Ordering::SeqCst));
    assert!(own < 2 * others && others < 2 * own, "{own} and {others}");
}
