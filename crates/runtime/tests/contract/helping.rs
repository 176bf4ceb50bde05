//! If no thread can be created, a thread that waits runs other items meanwhile, and comes to no
//! harm by it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{CpuId, Features, JoinError, JoinHandle, Runtime, Scope, Workqueue};

use crate::helpers::{Door, all_but_one_blocked, on, until};

fn refusing(grid: &str) -> (Runtime, Arc<AtomicBool>) {
    let refuse = Arc::new(AtomicBool::new(false));
    let runtime = on(grid).refuse_threads(Arc::clone(&refuse)).build().unwrap();
    refuse.store(true, Ordering::Relaxed);
    (runtime, refuse)
}

/// Waits for the handle that somebody puts there, and takes it.
fn taken<T>(place: &Mutex<Option<JoinHandle<T>>>) -> JoinHandle<T> {
    loop {
        if let Some(handle) = place.lock().unwrap().take() {
            return handle;
        }
        thread::yield_now();
    }
}

/// Queues two items and returns the second, which waits for the first, which waits for a future
/// that is woken when the door opens.
fn one_waits_for_the_other(runtime: &Runtime, door: &Door) -> JoinHandle<u32> {
    let (wait, go) = mpsc::channel::<Waker>();
    let opened = Arc::new(AtomicBool::new(false));
    let (open, own, door) = (Arc::clone(&opened), runtime.events().clone(), door.clone());
    let first = Arc::new(Mutex::new(None));
    *first.lock().unwrap() = Some(runtime.queue(move || {
        let future = poll_fn(move |context| {
            _ = wait.send(context.waker().clone());
            if open.load(Ordering::SeqCst) { Poll::Ready(1) } else { Poll::Pending }
        });
        own.spawn(future).join().unwrap()
    }));
    thread::spawn(move || {
        let waker = go.recv().unwrap();
        door.pass();
        opened.store(true, Ordering::SeqCst);
        waker.wake();
    });
    runtime.queue(move || taken(&first).join().unwrap() + 1)
}

#[test]
fn a_thread_that_is_refused_once_has_nobody_run_on_top_of_another() {
    for _ in 0..100 {
        let (runtime, refuse) = refusing("1x1x1");
        let began = Instant::now();
        let door = Door::default();
        let second = one_waits_for_the_other(&runtime, &door);
        until("one is refused", || runtime.threads_refused() > 0);
        refuse.store(false, Ordering::Relaxed);
        // A round in which threads are refused for long does not count.
        let refused_for = began.elapsed();
        until("the second waits, too", || runtime.events().counters().started >= 3);
        door.open();
        match second.join() {
            Ok(sum) => return assert_eq!(sum, 2),
            Err(error) => assert!(refused_for > Duration::from_millis(9), "{error}"),
        }
    }
    println!("skipped: this machine is too busy for a short refusal");
}

#[test]
fn an_item_that_would_wait_for_the_one_beneath_it_is_told() {
    let (runtime, _refuse) = refusing("1x1x1");
    let door = Door::default();
    let second = one_waits_for_the_other(&runtime, &door);
    let Err(JoinError::Panicked(panic)) = second.join() else { panic!("it cannot end otherwise") };
    let message = panic.message().unwrap();
    assert!(message.contains("waits for itself; it may be that of an item beneath"), "{message}");
    door.open();
    runtime.events().flush();
}

#[test]
fn an_item_that_waits_for_itself_is_told() {
    let runtime = on("1x1x1").build().unwrap();
    let own = Arc::new(Mutex::new(None));
    let of = Arc::clone(&own);
    let (sender, panics) = mpsc::channel();
    let item = runtime.queue(move || {
        let handle: JoinHandle<()> = taken(&of);
        _ = sender.send(crate::helpers::panic_of(|| _ = handle.join()));
    });
    *own.lock().unwrap() = Some(item);
    assert_eq!(panics.recv().unwrap(), "an item waits for itself");
}

/// There are more items than fit on the stacks one on top of the other.
#[test]
fn many_that_each_wait_for_a_future_end_on_few_threads() {
    let (runtime, _refuse) = refusing("1x2x1");
    let runs = Arc::new(AtomicUsize::new(0));
    let items: Vec<_> = (0..3_000)
        .map(|_| {
            let (runs, own) = (Arc::clone(&runs), runtime.events().clone());
            runtime.queue(move || {
                let future = async move { runs.fetch_add(1, Ordering::Relaxed) };
                own.spawn(future).join().unwrap()
            })
        })
        .collect();
    for item in items {
        item.join().unwrap();
    }
    assert_eq!(runs.load(Ordering::Relaxed), 3_000);
}

/// The items that are waited for belong to a workqueue with a limit, so no thread that waits runs
/// them at once on its own stack.
#[test]
fn what_is_waited_for_comes_before_what_would_wait_in_turn() {
    let (runtime, _refuse) = refusing("1x1x1");
    let gated = runtime.workqueue("gated").max_active(512).build().unwrap();
    let items: Vec<_> = (0..400)
        .map(|number| {
            let gated = gated.clone();
            runtime.queue(move || gated.queue(move || number).join().unwrap())
        })
        .collect();
    assert!(items.into_iter().map(|item| item.join().unwrap()).eq(0..400));
}

/// Without the feature that lets workers pull from other pods of their cache.
#[test]
fn an_idle_thread_serves_a_cpu_from_which_it_may_not_pull() {
    let (runtime, _refuse) = refusing("1x2x1");
    runtime.set_features(Features::ALL.without(Features::SWQUEUE));
    let own = runtime.workqueue("own").affinity_scope(Scope::Cpu).build().unwrap();
    // One thread is left, and items wait at both CPUs by turns.
    let (door, blocked) = all_but_one_blocked(&runtime);
    for cpu in (0..8).map(|turn| CpuId::new(turn % 2).unwrap()) {
        let item = own.queue_on(cpu, || ()).unwrap();
        until("the one that is left comes", || item.is_finished());
    }
    door.open();
    for item in blocked {
        item.join().unwrap();
    }
}

/// The memory of an item without a handle is another item's before its closure has run.
#[test]
fn an_item_that_waits_for_one_in_its_own_place_is_not_taken_for_that() {
    fn waits<const WORDS: usize>(queue: &Workqueue, sums: &mpsc::Sender<u64>) {
        let (own, to, held) = (queue.clone(), sums.clone(), [1; WORDS]);
        queue.execute(move || {
            let handle = own.queue(|| 7);
            _ = to.send(handle.join().unwrap() + held.iter().sum::<u64>() - WORDS as u64);
        });
    }
    let runtime = on("1x1x1").build().unwrap();
    let (sender, sums) = mpsc::channel();
    for _ in 0..100 {
        let queue = runtime.events();
        waits::<0>(queue, &sender);
        waits::<2>(queue, &sender);
        waits::<4>(queue, &sender);
        waits::<6>(queue, &sender);
        waits::<8>(queue, &sender);
        waits::<10>(queue, &sender);
        waits::<16>(queue, &sender);
    }
    drop(sender);
    runtime.events().flush();
    assert_eq!(sums.into_iter().collect::<Vec<_>>(), [7; 700]);
}
