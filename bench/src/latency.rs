//! Latencies, recorded where they arise: a histogram for each thread, put together at the end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;

type Shared = Arc<Mutex<Histogram<u64>>>;

/// The histograms of all threads.
struct Histograms(Mutex<Vec<Shared>>);

static ALL: Histograms = Histograms::new();

thread_local! {
    static MINE: Shared = ALL.add_one();
}

/// Records one latency. The lock is the thread's own: no other thread wants it meanwhile.
pub(crate) fn record(latency: Duration) {
    MINE.with(|mine| write_down(mine, latency));
}

/// Forgets the latencies recorded so far.
pub(crate) fn forget() {
    ALL.forget();
}

/// All recorded latencies, in nanoseconds.
pub(crate) fn recorded() -> Histogram<u64> {
    ALL.sum()
}

/// A histogram of only these, in nanoseconds.
pub(crate) fn of(latencies: &[Duration]) -> Histogram<u64> {
    let mut all = empty();
    for latency in latencies {
        all.saturating_record(nanoseconds(*latency));
    }
    all
}

fn write_down(histogram: &Shared, latency: Duration) {
    lock(histogram).saturating_record(nanoseconds(latency));
}

fn nanoseconds(latency: Duration) -> u64 {
    u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX)
}

impl Histograms {
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn add_one(&self) -> Shared {
        let one = Arc::new(Mutex::new(empty()));
        lock(&self.0).push(Arc::clone(&one));
        one
    }

    fn forget(&self) {
        for one in lock(&self.0).iter() {
            lock(one).reset();
        }
    }

    fn sum(&self) -> Histogram<u64> {
        let mut sum = empty();
        for one in lock(&self.0).iter() {
            // Both have the same bounds, so this cannot fail.
            let _ = sum.add(&*lock(one));
        }
        sum
    }
}

/// An empty histogram: up to a minute, to three significant digits.
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
        // The test has its own, since other tests of this process measure, too.
        let all = &Histograms::new();
        std::thread::scope(|scope| {
            for micros in [10, 20, 30] {
                scope.spawn(move || write_down(&all.add_one(), Duration::from_micros(micros)));
            }
        });
        assert_eq!(all.sum().len(), 3);
        assert_eq!(all.sum().value_at_quantile(0.5) / 1000, 20);
        all.forget();
        assert_eq!(all.sum().len(), 0);
    }
}
