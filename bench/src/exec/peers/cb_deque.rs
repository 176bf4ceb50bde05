//! A minimal work-stealing pool: crossbeam's injector for items from outside, a deque for each
//! worker, one lock to sleep on.
//!
//! Why no wake-up is lost: a worker looks at all queues once more under the lock before it sleeps,
//! and a thread that has pushed an item looks for sleepers afterwards, both across a full fence.
//! Either the worker sees the item or the pusher sees the sleeper. And since the pusher takes the
//! lock to wake the sleeper, the sleeper waits by then.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use crossbeam_deque::{Injector, Steal, Stealer, Worker};

use super::Pool;

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The deque of the worker that this thread is.
    static LOCAL: OnceCell<Worker<Job>> = const { OnceCell::new() };
}

/// The pool. There is one in a process.
pub(crate) struct CbDeque(Arc<Shared>);

struct Shared {
    injector: Injector<Job>,
    stealers: Vec<Stealer<Job>>,
    sleep: Mutex<Sleep>,
    wake: Condvar,
    /// How many sleepers have not been told to wake: submitters look at this.
    to_wake: AtomicUsize,
}

#[derive(Default)]
struct Sleep {
    sleepers: usize,
    told: usize,
}

impl Pool for CbDeque {
    fn start(workers: usize) -> anyhow::Result<Self> {
        let deques: Vec<Worker<Job>> = (0..workers).map(|_| Worker::new_fifo()).collect();
        let shared = Arc::new(Shared {
            injector: Injector::new(),
            stealers: deques.iter().map(Worker::stealer).collect(),
            sleep: Mutex::default(),
            wake: Condvar::new(),
            to_wake: AtomicUsize::new(0),
        });
        for deque in deques {
            let shared = Arc::clone(&shared);
            thread::Builder::new().spawn(move || {
                LOCAL.with(|local| shared.work(local.get_or_init(|| deque)));
            })?;
        }
        Ok(Self(shared))
    }

    fn submit(&'static self, work: impl FnOnce() + Send + 'static) {
        let job: Job = Box::new(work);
        LOCAL.with(|local| match local.get() {
            Some(deque) => deque.push(job),
            None => self.0.injector.push(job),
        });
        fence(Ordering::SeqCst);
        if self.0.to_wake.load(Ordering::Relaxed) > 0 {
            self.0.wake_one();
        }
    }

    /// From a worker: pushes all items, and then looks for sleepers once.
    fn fan_out(&'static self, items: impl Iterator<Item = impl FnOnce() + Send + 'static>) {
        LOCAL.with(|local| {
            let deque = local.get().expect("an item fans out");
            items.for_each(|item| deque.push(Box::new(item)));
        });
        fence(Ordering::SeqCst);
        while self.0.to_wake.load(Ordering::Relaxed) > 0 {
            self.0.wake_one();
        }
    }
}

impl Shared {
    fn work(&self, deque: &Worker<Job>) {
        loop {
            match self.find(deque) {
                Some(job) => job(),
                None => self.sleep(),
            }
        }
    }

    fn find(&self, deque: &Worker<Job>) -> Option<Job> {
        deque.pop().or_else(|| {
            loop {
                let stolen: Steal<Job> = self.injector.steal_batch_and_pop(deque).or_else(|| {
                    self.stealers.iter().map(|other| other.steal_batch_and_pop(deque)).collect()
                });
                if !stolen.is_retry() {
                    return stolen.success();
                }
            }
        })
    }

    /// Sleeps until there may be something to do.
    fn sleep(&self) {
        let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        sleep.sleepers += 1;
        self.publish(&sleep);
        fence(Ordering::SeqCst);
        let nothing = self.injector.is_empty() && self.stealers.iter().all(Stealer::is_empty);
        if nothing {
            while sleep.told == 0 {
                sleep = self.wake.wait(sleep).unwrap_or_else(PoisonError::into_inner);
            }
            sleep.told -= 1;
        }
        sleep.sleepers -= 1;
        // A wake-up was for a worker that did not sleep after all, and no other sleeper needs it.
        sleep.told = sleep.told.min(sleep.sleepers);
        self.publish(&sleep);
    }

    #[cold]
    fn wake_one(&self) {
        let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        if sleep.told < sleep.sleepers {
            sleep.told += 1;
            self.publish(&sleep);
            self.wake.notify_one();
        }
    }

    fn publish(&self, sleep: &Sleep) {
        self.to_wake.store(sleep.sleepers - sleep.told, Ordering::Relaxed);
    }
}
