//! What a user of workqueues may rely on, a test for each promise.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use homing_runtime::{
    CpuSet, JoinError, JoinHandle, Runtime, Scope, Workqueue, consume_budget, yield_now,
};

fn queue_of(runtime: &Runtime) -> Workqueue {
    runtime.workqueue("test").build().unwrap()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_result_is_handed_over_by_join_and_by_await() {
    let runtime = Runtime::new().unwrap();
    let queue = queue_of(&runtime);
    assert_eq!(queue.queue(|| 6 * 7).join().unwrap(), 42);
    assert_eq!(block_on(queue.queue(|| "homing".len())).unwrap(), 6);
}

#[test]
fn a_panic_reaches_the_handle_and_no_worker_dies() {
    let runtime = Runtime::new().unwrap();
    let queue = queue_of(&runtime);
    for _ in 0..20 {
        let error = queue.queue(|| panic!("on purpose")).join().unwrap_err();
        assert!(error.to_string().contains("on purpose"), "{error}");
    }
    assert_eq!(queue.queue(|| 1).join().unwrap(), 1);
    let counters = queue.counters();
    assert_eq!((counters.panicked, counters.completed), (20, 21));
}

#[test]
fn dropping_the_runtime_waits_for_what_is_queued() {
    let ran = Arc::new(AtomicUsize::new(0));
    let runtime = Runtime::new().unwrap();
    let queue = queue_of(&runtime);
    for _ in 0..1000 {
        let ran = Arc::clone(&ran);
        queue.queue(move || ran.fetch_add(1, Ordering::Relaxed)).detach();
    }
    drop(runtime);
    assert_eq!(ran.load(Ordering::Relaxed), 1000);
    assert!(matches!(queue.queue(|| ()).join(), Err(JoinError::Cancelled)));
}

#[test]
fn shutdown_now_cancels_what_has_not_begun() {
    let runtime = Runtime::new().unwrap();
    let queue = queue_of(&runtime);
    let workers = runtime.cpus().len();
    let (busy, release) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..workers {
        let (busy, release) = (Arc::clone(&busy), Arc::clone(&release));
        queue.execute(move || {
            busy.fetch_add(1, Ordering::Relaxed);
            // Busy, not blocked: an item that sleeps would lose its CPU to a spare thread.
            while release.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
        });
    }
    while busy.load(Ordering::Relaxed) < workers {
        thread::yield_now();
    }
    let mut late: Vec<_> = (0..10).map(|_| queue.queue(|| ())).collect();
    let stopper = thread::spawn(move || runtime.shutdown_now());
    // A worker freed before the flag is set may run one of these. Once it is, more are refused.
    while !late.last().unwrap().is_finished() {
        thread::sleep(Duration::from_millis(1));
        late.push(queue.queue(|| ()));
    }
    release.store(1, Ordering::Relaxed);
    stopper.join().unwrap();
    for handle in late {
        assert!(matches!(handle.join(), Err(JoinError::Cancelled)));
    }
}

#[test]
fn shutdown_now_ends_what_an_item_that_runs_waits_for() {
    let one = Runtime::new().unwrap().cpus().first().into_iter().collect();
    for flushes in [false, true] {
        let runtime = Runtime::builder().cpus(one).build().unwrap();
        let (queue, events) = (queue_of(&runtime), runtime.events().clone());
        let (begin, begun) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let waits = runtime.queue(move || {
            // Neither can begin, because this item has the only CPU.
            let (future, item) = (events.spawn(async { 1 }), queue.queue(|| 1));
            begin.send(()).unwrap();
            while wait.try_recv() == Err(mpsc::TryRecvError::Empty) {
                thread::yield_now();
            }
            if flushes {
                queue.flush();
            }
            (future.join().is_err(), item.join().is_err())
        });
        begun.recv().unwrap();
        let (end, ended) = mpsc::channel();
        thread::spawn(move || {
            runtime.shutdown_now();
            end.send(()).unwrap();
        });
        thread::sleep(Duration::from_millis(20));
        drop(go);
        ended.recv_timeout(Duration::from_secs(30)).expect("the item waits for ever");
        assert_eq!(waits.join().unwrap(), (true, true));
    }
}

#[test]
fn an_item_may_wait_for_another_on_a_single_cpu() {
    let all = Runtime::new().unwrap();
    let one: CpuSet = all.cpus().first().into_iter().collect();
    let runtime = Runtime::builder().cpus(one).build().unwrap();
    let queue = queue_of(&runtime);
    let inner = queue.clone();
    let depth_3 = queue.queue(move || {
        let innermost = inner.clone();
        let middle = inner.queue(move || innermost.queue(|| 1).join().unwrap() + 1);
        middle.join().unwrap() + 1
    });
    assert_eq!(depth_3.join().unwrap(), 3);
}

#[test]
fn an_item_may_own_the_runtime_and_drop_it() {
    let runtime = Runtime::new().unwrap();
    let queue = queue_of(&runtime);
    queue.queue(move || drop(runtime)).join().unwrap();
    // The worker that ran this is on its way out: the item runs or is refused, never forgotten.
    let late = queue.queue(|| 1).join();
    assert!(matches!(late, Ok(1) | Err(JoinError::Cancelled)));
}

#[test]
fn the_scope_changes_while_items_flow_and_none_is_lost() {
    let runtime = Runtime::new().unwrap();
    let queue = queue_of(&runtime);
    let changer = {
        let queue = queue.clone();
        thread::spawn(move || {
            for round in 0..600 {
                queue.set_affinity_scope(Scope::ALL[round % 6]).unwrap();
                queue.set_affinity_strict(round % 5 == 0).unwrap();
                thread::yield_now();
            }
        })
    };
    let handles: Vec<_> = (0..20_000_u64).map(|n| queue.queue(move || n)).collect();
    let sum: u64 = handles.into_iter().map(|handle| handle.join().unwrap()).sum();
    assert_eq!(sum, 20_000 * 19_999 / 2);
    changer.join().unwrap();
    assert_eq!(queue.counters().completed, 20_000);
}

#[test]
fn strict_work_runs_on_its_own_cpu() {
    let runtime = Runtime::new().unwrap();
    let queue = runtime
        .workqueue("strict")
        .affinity_scope(Scope::Cpu)
        .affinity_strict(true)
        .build()
        .unwrap();
    // What an item queues is issued by its worker's CPU, so it must all run on one thread.
    let inner = queue.clone();
    let threads = queue.queue(move || {
        let ids: Vec<_> = (0..200).map(|_| inner.queue(|| thread::current().id())).collect();
        (thread::current().id(), ids)
    });
    let (issuer, ids) = threads.join().unwrap();
    let seen: HashSet<_> = ids.into_iter().map(|handle| handle.join().unwrap()).collect();
    assert_eq!(seen, HashSet::from([issuer]));
}

#[test]
fn names_are_checked_and_cpus_that_do_not_exist_are_named() {
    let runtime = Runtime::new().unwrap();
    for bad in ["", "a/b", ".hidden", "x".repeat(33).as_str()] {
        let error = runtime.workqueue(bad).build().unwrap_err().to_string();
        assert!(error.contains(bad), "{error}");
    }
    let error = Runtime::builder().thread_name("a\0b").build().unwrap_err().to_string();
    assert!(error.contains(r"a\0b"), "{error}");
    let error = Runtime::builder().cpus("1023".parse().unwrap()).build().unwrap_err().to_string();
    assert!(error.contains("1023"), "{error}");
}

#[test]
fn a_handle_polled_before_and_after_completion_wakes_once_ready() {
    let runtime = Runtime::new().unwrap();
    let queue = queue_of(&runtime);
    let gate = Arc::new(Barrier::new(2));
    let inner = Arc::clone(&gate);
    let mut handle = queue.queue(move || inner.wait().is_leader());
    let first = std::pin::Pin::new(&mut handle).poll(&mut Context::from_waker(Waker::noop()));
    assert!(first.is_pending() && !handle.is_finished());
    gate.wait();
    block_on(handle).unwrap();
}

#[test]
fn a_future_finds_the_one_of_many_handles_that_has_ended() {
    let runtime = Runtime::new().unwrap();
    for others in 1..300 {
        let pending = (0..others).map(|_| runtime.spawn(std::future::pending()));
        let mut handles: Vec<_> = pending.chain([runtime.spawn(async { 7 })]).collect();
        let first = runtime.spawn(std::future::poll_fn(move |context| {
            let mut polled =
                handles.iter_mut().map(|handle| std::pin::Pin::new(handle).poll(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        }));
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while !first.is_finished() {
            assert!(std::time::Instant::now() < deadline, "it never gets to the last one");
            thread::yield_now();
        }
        assert_eq!(first.join().unwrap().unwrap(), 7);
    }
}

#[test]
fn a_runtime_that_an_item_builds_has_all_cpus() {
    let runtime = Runtime::new().unwrap();
    let mask = || rustix::thread::sched_getaffinity(None).unwrap();
    let (before, built, after) = runtime
        .queue(move || {
            let before = mask();
            let built = Runtime::new().unwrap().cpus();
            (before, built, mask())
        })
        .join()
        .unwrap();
    assert_eq!(built, runtime.cpus());
    assert!(before == after, "its own worker stays on its CPU");
}

#[test]
fn other_executors_may_poll_any_number_of_handles() {
    let runtime = Runtime::new().unwrap();
    let queue = queue_of(&runtime);
    let all = move || (0..1000).all(|n| block_on(queue.queue(move || n)).is_ok_and(|m| m == n));
    // On a thread of their own, within an item, and within a future.
    let foreign = thread::spawn(all.clone());
    let within = [runtime.queue(all.clone()), runtime.spawn(async move { all() })];
    let ended = || foreign.is_finished() && within.iter().all(JoinHandle::is_finished);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !ended() {
        assert!(std::time::Instant::now() < deadline, "they spin for want of budget");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(foreign.join().unwrap() && within.into_iter().all(|item| item.join().unwrap()));
}

#[test]
fn a_future_that_never_waits_gives_way() {
    let one = Runtime::new().unwrap().cpus().first().into_iter().collect();
    let runtime = Runtime::builder().cpus(one).build().unwrap();
    let queue = queue_of(&runtime);
    let begun = Arc::new(Barrier::new(2));
    let holds = Arc::clone(&begun);
    queue.execute(move || _ = holds.wait());
    // Nothing else runs on the only CPU until the future gives way.
    let goes = [true, false].map(|by_budget| {
        let told = Arc::new(AtomicUsize::new(0));
        let heard = Arc::clone(&told);
        let looks = queue.spawn(async move {
            let mut looked = 0_usize;
            while heard.load(Ordering::Relaxed) == 0 && looked < 1_000_000 {
                looked += 1;
                if by_budget { consume_budget().await } else { yield_now().await }
            }
            looked
        });
        queue.execute(move || _ = told.fetch_add(1, Ordering::Relaxed));
        looks
    });
    begun.wait();
    let [by_budget, at_once] = goes.map(|looks| looks.join().unwrap());
    assert!((129..=10 * 129).contains(&by_budget), "gave way after {by_budget}");
    assert!((1..10).contains(&at_once), "gave way after {at_once}");
}

/// The workqueue is destroyed, so the abort itself drops the future.
#[test]
fn a_future_may_look_at_its_own_handle_when_it_is_aborted() {
    struct Looks(Arc<OnceLock<JoinHandle<()>>>, Arc<AtomicUsize>);
    impl Drop for Looks {
        fn drop(&mut self) {
            let finished = self.0.get().is_some_and(JoinHandle::is_finished);
            self.1.fetch_add(1 + usize::from(finished), Ordering::Relaxed);
        }
    }
    let runtime = Runtime::new().unwrap();
    let queue = queue_of(&runtime);
    let (handle, dropped) = (Arc::new(OnceLock::new()), Arc::new(AtomicUsize::new(0)));
    let looks = Looks(Arc::clone(&handle), Arc::clone(&dropped));
    let never = queue.spawn(async move {
        std::future::pending::<()>().await;
        drop(looks);
    });
    assert!(handle.set(never).is_ok());
    queue.destroy();
    assert!(handle.get().unwrap().abort());
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
}

/// Each item waits for the next one, which nobody has begun.
#[test]
fn however_many_items_wait_for_each_other_the_stack_suffices() {
    const COUNT: usize = 20_000;
    let one = Runtime::new().unwrap().cpus().first().into_iter().collect();
    let runtime = Runtime::builder().cpus(one).build().unwrap();
    let handles: Arc<Vec<Mutex<Option<JoinHandle<usize>>>>> =
        Arc::new((0..=COUNT).map(|_| Mutex::new(None)).collect());
    let all_queued = Arc::new(Barrier::new(2));
    let holds = Arc::clone(&all_queued);
    runtime.events().execute(move || _ = holds.wait());
    for number in 0..COUNT {
        let rest = Arc::clone(&handles);
        let handle = runtime.queue(move || {
            // It may begin before the next one is queued.
            let next = || rest[number + 1].lock().unwrap().take();
            let next = (number + 1 < COUNT)
                .then(|| std::iter::repeat_with(next).find_map(|next| next).unwrap());
            next.map_or(0, |next| next.join().unwrap()) + 1
        });
        *handles[number].lock().unwrap() = Some(handle);
    }
    all_queued.wait();
    let first = handles[0].lock().unwrap().take().unwrap();
    assert_eq!(first.join().unwrap(), COUNT);
}

#[test]
fn shutdown_tells_of_what_a_thread_cancels_as_it_ends() {
    struct Slow(Arc<AtomicUsize>);
    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.store(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(100));
        }
    }
    let runtime = Runtime::new().unwrap();
    let [runs, again, drops] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
    let wait_for = |count: &AtomicUsize| {
        while count.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
    };
    let work = {
        let [runs, again, drops] = [&runs, &again, &drops].map(Arc::clone);
        queue_of(&runtime).work(move |_| {
            runs.fetch_add(1, Ordering::Relaxed);
            while again.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            std::panic::resume_unwind(Box::new(Slow(Arc::clone(&drops))));
        })
    };
    assert!(work.queue());
    wait_for(&runs);
    assert!(work.queue(), "once more");
    // Another worker, if there is one, finds that the work item runs, and leaves the instance to
    // the thread that runs it.
    thread::sleep(Duration::from_millis(50));
    again.store(1, Ordering::Relaxed);
    wait_for(&drops);
    // By the counters the first run is over, and nobody but its thread finds the second instance.
    let error = runtime.shutdown(Duration::ZERO).unwrap_err();
    assert_eq!(error.cancelled, 1, "{error}");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}
