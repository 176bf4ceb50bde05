//! Many syncs that one issuer has begun and awaits, and when each of them ended.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use homing::{DurabilityError, Synced};

/// The issuer's thread. It sleeps until all syncs have ended, and is not woken for each.
struct Issuer {
    left: AtomicUsize,
    thread: Thread,
}

/// One sync.
struct Ended {
    at: OnceLock<Instant>,
    issuer: Arc<Issuer>,
}

impl Wake for Ended {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_first = self.at.set(Instant::now()).is_ok();
        if is_first && self.issuer.left.fetch_sub(1, Ordering::Release) == 1 {
            self.issuer.thread.unpark();
        }
    }
}

/// Begins `count` syncs by `begin`, which returns when it asked, and awaits them. Returns how long
/// each took.
pub(super) fn begin_and_await<E: From<DurabilityError>>(
    count: usize,
    begin: impl Fn(usize) -> Result<(Instant, Synced), E>,
) -> Result<Vec<Duration>, E> {
    let issuer = Issuer { left: AtomicUsize::new(count), thread: thread::current() };
    let issuer = Arc::new(issuer);
    let mut all = Vec::with_capacity(count);
    for number in 0..count {
        let (asked, mut synced) = begin(number)?;
        let ended = Arc::new(Ended { at: OnceLock::new(), issuer: Arc::clone(&issuer) });
        let waker = Waker::from(Arc::clone(&ended));
        if Pin::new(&mut synced).poll(&mut Context::from_waker(&waker)).is_ready() {
            waker.wake();
        }
        all.push((asked, synced, ended));
    }
    while issuer.left.load(Ordering::Acquire) > 0 {
        thread::park();
    }
    let latency = |(asked, synced, ended): (Instant, Synced, Arc<Ended>)| {
        synced.wait()?; // it has ended: this returns its verdict
        let at = ended.at.get().copied().unwrap_or_else(Instant::now);
        Ok(at.duration_since(asked))
    };
    all.into_iter().map(latency).collect()
}
