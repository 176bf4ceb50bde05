//! What clients have asked of an export and how it went: requests, bytes, failures and times, by
//! operation.
//!
//! Threads of different CPUs count in parts of their own, so that counting costs none of them a
//! cache line of another's. Each number is exact; together they may not be from the same instant.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread;
use std::time::Instant;

use homing_nbd::Command;
use homing_socket::RateLimit;

/// Parts at most, of some 8 KiB each; more CPUs share them.
const PARTS_MAX: usize = 16;

/// What is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
    WriteZeroes,
    Trim,
    Flush,
    /// Block status, reading ahead, and fast zeroes, which are refused.
    Other,
}

impl Operation {
    pub(crate) const ALL: [Self; 6] =
        [Self::Read, Self::Write, Self::WriteZeroes, Self::Trim, Self::Flush, Self::Other];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::WriteZeroes => "write_zeroes",
            Self::Trim => "trim",
            Self::Flush => "flush",
            Self::Other => "other",
        }
    }
}

/// A request that is being carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) cookie: u64,
    operation: Operation,
    bytes: u32,
    came: Instant,
}

/// A request, and whether it was done.
pub(crate) type Answer = (Asked, bool);

impl Asked {
    /// All of it had come at that time, but for the data of a write.
    pub(crate) fn new(cookie: u64, command: &Command, came: Instant) -> Self {
        let (operation, bytes) = match *command {
            Command::Read { length, .. } => (Operation::Read, length),
            Command::Write { length, .. } => (Operation::Write, length),
            // It is refused, as clients expect who ask for it.
            Command::WriteZeroes { fast: true, .. } => (Operation::Other, 0),
            Command::WriteZeroes { length, .. } => (Operation::WriteZeroes, length),
            Command::Trim { length, .. } => (Operation::Trim, length),
            Command::Flush => (Operation::Flush, 0),
            Command::Cache { .. } | Command::BlockStatus { .. } | Command::Disconnect => {
                (Operation::Other, 0)
            }
        };
        Self { cookie, operation, bytes, came }
    }

    /// Its data has come only at that time: until then the client was waited for.
    pub(crate) fn came_later(&mut self, came: Instant) {
        self.came = came;
    }
}

/// What a client has asked for so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    begun: AtomicU64,
    answered: AtomicU64,
    bytes: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tallied {
    /// Requests that are answered.
    pub(crate) answered: u64,
    /// Bytes of those that were done.
    pub(crate) bytes: u64,
    /// Requests that have come and are not answered.
    pub(crate) in_flight: u64,
}

impl Tally {
    /// A request begins. It ends with an answer, with being given up, or with the connection.
    pub(crate) fn note_request(&self) {
        self.begun.fetch_add(1, Relaxed);
    }

    pub(crate) fn note_answers(&self, answers: &[Answer]) {
        let done = answers.iter().filter(|(_, is_done)| *is_done);
        self.bytes.fetch_add(done.map(|(asked, _)| u64::from(asked.bytes)).sum(), Relaxed);
        self.answered.fetch_add(answers.len() as u64, Release);
    }

    /// A request of a client that is gone was given up.
    pub(crate) fn note_given_up(&self) {
        self.answered.fetch_add(1, Release);
    }

    pub(crate) fn read(&self) -> Tallied {
        // Read first, so that none counts as answered and not as begun.
        let answered = self.answered.load(Acquire);
        let bytes = self.bytes.load(Relaxed);
        let in_flight = self.begun.load(Relaxed).saturating_sub(answered);
        Tallied { answered, bytes, in_flight }
    }
}

/// An export's counters.
#[derive(Debug)]
pub(crate) struct ExportCounters {
    pub(crate) name: String,
    /// A full disk makes every write fail, and a broken one every request. Neither may hide the
    /// other, nor what is wrong with another export.
    pub(crate) fulls: RateLimit,
    pub(crate) failures: RateLimit,
    parts: Box<[OnceLock<Box<Part>>]>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Part([Counts; Operation::ALL.len()]);

#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    time_ns: AtomicU64,
    times: Times,
}

impl ExportCounters {
    pub(crate) fn new(name: String) -> Self {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let parts = cpus.next_power_of_two().min(PARTS_MAX);
        let parts = (0..parts).map(|_| OnceLock::new()).collect();
        Self { name, fulls: RateLimit::new(), failures: RateLimit::new(), parts }
    }

    /// These requests have ended: their replies are ready to be sent.
    pub(crate) fn note(&self, answers: &[Answer]) {
        let now = Instant::now();
        // By the C library, which mostly knows without a call, on all architectures.
        let cpu = nix::sched::sched_getcpu().unwrap_or(0);
        let part = &self.parts[cpu % self.parts.len()];
        let part = part.get_or_init(Box::default);
        for (asked, is_done) in answers {
            let took = now.saturating_duration_since(asked.came);
            let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            let counts = &part.0[asked.operation as usize];
            counts.requests.fetch_add(1, Relaxed);
            counts.time_ns.fetch_add(took_ns, Relaxed);
            counts.times.note(took_ns);
            if *is_done {
                counts.bytes.fetch_add(asked.bytes.into(), Relaxed);
            } else {
                counts.errors.fetch_add(1, Relaxed);
            }
        }
    }

    pub(crate) fn read(&self, operation: Operation) -> Totals {
        let mut totals = Totals::default();
        for part in self.parts.iter().filter_map(OnceLock::get) {
            let counts = &part.0[operation as usize];
            totals.requests += counts.requests.load(Relaxed);
            totals.bytes += counts.bytes.load(Relaxed);
            totals.errors += counts.errors.load(Relaxed);
            totals.time_ns = totals.time_ns.saturating_add(counts.time_ns.load(Relaxed));
            for (sum, count) in totals.times.iter_mut().zip(&counts.times.0) {
                *sum += count.load(Relaxed);
            }
        }
        totals
    }
}

/// The sums of one operation.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    /// Requests that have ended, and those of them that failed.
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    /// Of the requests that did not fail.
    pub(crate) bytes: u64,
    /// Of all requests together.
    pub(crate) time_ns: u64,
    times: [u64; BUCKETS],
}

impl Default for Totals {
    fn default() -> Self {
        Self { requests: 0, errors: 0, bytes: 0, time_ns: 0, times: [0; BUCKETS] }
    }
}

impl Totals {
    /// The buckets that are not empty: a time in nanoseconds that none of its requests reached, and
    /// how many these are. Bounds are at most a fourth apart.
    pub(crate) fn times(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let all = self.times.iter().enumerate();
        all.filter(|(_, count)| **count > 0).map(|(bucket, count)| (bound(bucket), *count))
    }

    /// How many requests took less than this, which must be a power of two.
    pub(crate) fn below(&self, bound_ns: u64) -> u64 {
        debug_assert!(bound_ns.is_power_of_two(), "other times lie within buckets");
        self.times().take_while(|(below, _)| *below <= bound_ns).map(|(_, count)| count).sum()
    }
}

/// How many requests took how long.
#[derive(Debug)]
struct Times([AtomicU64; BUCKETS]);

/// Each doubling of the time has four buckets. The last one is for 2^42 and more: more than an
/// hour.
const BUCKETS: usize = 165;
const TIME_MAX: u64 = 1 << 42;

impl Default for Times {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Times {
    fn note(&self, ns: u64) {
        self.0[bucket(ns)].fetch_add(1, Relaxed);
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.min(TIME_MAX);
    let doublings = ns.max(4).ilog2() - 2;
    // The three highest bits: from 4 to 7, or less for times below 4 ns.
    let highest = (ns >> doublings) as usize;
    4 * doublings as usize + highest
}

/// The least time that is too long for a bucket.
fn bound(bucket: usize) -> u64 {
    if bucket == BUCKETS - 1 {
        return u64::MAX;
    }
    let doublings = (bucket / 4).saturating_sub(1);
    ((bucket - 4 * doublings + 1) as u64) << doublings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_time_has_a_bucket_whose_bounds_hold_it() {
        let mut times: Vec<u64> = (0..5000).collect();
        times.extend((0..42).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) * 5 / 4]));
        for ns in times {
            let bucket = bucket(ns);
            assert!(ns < bound(bucket), "{ns} in {bucket}");
            assert!(bucket == 0 || bound(bucket - 1) <= ns, "{ns} in {bucket}");
        }
        let last = [TIME_MAX, u64::MAX].map(bucket);
        assert_eq!(last, [BUCKETS - 1; 2]);
    }

    #[test]
    fn bounds_grow_by_at_most_a_fourth() {
        for bucket in 4..BUCKETS - 1 {
            let (before, bound) = (bound(bucket - 1), bound(bucket));
            assert!(bound > before && bound - before <= before / 4 + 1, "{before} {bound}");
        }
    }

    #[test]
    fn requests_are_counted_by_operation_and_outcome() {
        let counters = ExportCounters::new("disk".to_owned());
        let write = Command::Write { offset: 0, length: 4096, fua: false };
        let came = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        let asked = Asked::new(7, &write, came);
        counters.note(&[(asked, true), (asked, false)]);
        counters.note(&[(Asked::new(8, &Command::Flush, came), true)]);
        let of = |operation| {
            let Totals { requests, errors, bytes, .. } = counters.read(operation);
            (requests, errors, bytes)
        };
        assert_eq!(of(Operation::Write), (2, 1, 4096));
        assert_eq!(of(Operation::Flush), (1, 0, 0));
        assert_eq!(of(Operation::Read), (0, 0, 0));
        let writes = counters.read(Operation::Write);
        assert_eq!(writes.times().map(|(_, count)| count).sum::<u64>(), 2);
        assert_eq!((writes.below(TIME_MAX), writes.below(1)), (2, 0));
    }
}
