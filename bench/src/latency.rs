//! Latencies, written down where they arise: a histogram for each thread, put together at the end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

type Shared = Arc<Mutex<Histogram<u64>>>;

/// Every thread's.
static ALL: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: Shared = {
        let mine = Arc::new(Mutex::new(empty()));
        lock(&ALL).push(Arc::clone(&mine));
        mine
    };
}

/// Writes one latency down. The lock is the thread's own: nobody else wants it meanwhile.
pub(crate) fn record(latency: Duration) {
    let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    MINE.with(|mine| lock(mine).saturating_record(nanoseconds));
}

/// Forgets what was written down so far.
pub(crate) fn forget() {
    for one in lock(&ALL).iter() {
        lock(one).reset();
    }
}

/// Everything that was written down, in nanoseconds.
pub(crate) fn recorded() -> Histogram<u64> {
    let mut sum = empty();
    for one in lock(&ALL).iter() {
        // Both have the same bounds, so this cannot fail.
        let _ = sum.add(&*lock(one));
    }
    sum
}

/// Up to a minute, to three significant digits.
fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are in order")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_wrote_down_comes_together_and_can_be_forgotten() {
        std::thread::scope(|scope| {
            for micros in [10, 20, 30] {
                scope.spawn(move || record(Duration::from_micros(micros)));
            }
        });
        assert_eq!(recorded().len(), 3);
        assert_eq!(recorded().value_at_quantile(0.5) / 1000, 20);
        forget();
        assert_eq!(recorded().len(), 0);
    }
}
