//! Counters. Each is written by one thread with plain stores, and may be read by any thread.
//!
//! The exception is the number of items queued, because any thread queues. It is split by CPU.

use homing_sched::Reach;
use homing_topology::CpuId;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::item::{Books, Tag};
use crate::sync;

/// Adds to a counter that only this thread writes, without a locked instruction.
fn add(counter: &AtomicU64, count: u64) {
    // To measure what counting costs: RUSTFLAGS="--cfg homing_uncounted".
    if cfg!(homing_uncounted) {
        return;
    }
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    // Acquire: a thread that has seen an item's result sees it counted.
    counter.load(Ordering::Acquire)
}

/// What has happened to the items of a workqueue. Each count is exact; the description of each time
/// says how exact it is. The values need not all be of one instant.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// let logs = runtime.workqueue("logs").build()?;
/// logs.queue(|| ()).join()?;
/// logs.queue(|| -> u32 { panic!("no disk") }).join().unwrap_err();
/// let counters: homing_runtime::Counters = logs.counters();
/// assert_eq!((counters.queued, counters.completed, counters.panicked), (2, 2, 1));
/// assert_eq!(counters.taken.iter().sum::<u64>(), 2, "from near or far");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Items queued.
    pub queued: u64,
    /// Items begun.
    pub started: u64,
    /// Items ended, by returning or by a panic.
    pub completed: u64,
    /// Items that panicked.
    pub panicked: u64,
    /// Items aborted, or refused or left over at shutdown.
    pub cancelled: u64,
    /// Items taken by a worker of their home pod, of another pod of the same cache, of another
    /// cache of the same node, and of another node: in the order of [`Reach::ALL`].
    pub taken: [u64; Reach::ALL.len()],
    /// CPUs woken for an item, by its issuer or by a worker that began the item before it.
    pub woken: u64,
    /// Items that a worker had taken and that went back to their queue, because the item before
    /// them blocked or ran for long.
    pub repatriated: u64,
    /// Items that blocked without saying so, and lost their CPU to a spare thread.
    pub blocked: u64,
    /// Items that used their CPU for longer than the runtime's `cpu_intensive_thresh`. Those of a
    /// per-CPU workqueue lost their CPU to a spare thread.
    pub cpu_intensive: u64,
    /// Times that the rescuer was called: because no thread could be created, or because items
    /// waited behind others that compute for long.
    pub mayday: u64,
    /// Items that the rescuer ran.
    pub rescued: u64,
    /// CPU time of the items, in nanoseconds. If items usually take 50 to 500 us, it is read for
    /// one batch in 8, which stands for all. If they take less, it is the elapsed time without the
    /// time that they spent asleep in [`blocking`](crate::blocking), which is cheaper to read. So
    /// it is for a batch below 50 us where items usually take longer than 500 us.
    pub cpu_time_ns: u64,
    /// The same, broken down by how far away the items were taken: in the order of [`Reach::ALL`].
    pub cpu_times_ns: [u64; Reach::ALL.len()],
    /// How long items waited in their queue, sampled from one item in 64.
    pub queue_age: QueueAges,
}

impl Counters {
    /// Items queued that have not ended.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// let logs = runtime.workqueue("logs").build()?;
    /// let (end, ended) = std::sync::mpsc::channel::<()>();
    /// let item = logs.queue(move || ended.recv());
    /// assert_eq!(logs.counters().in_flight(), 1);
    /// end.send(())?;
    /// item.join()??;
    /// assert_eq!(logs.counters().in_flight(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_flight(&self) -> u64 {
        self.queued.saturating_sub(self.completed + self.cancelled)
    }

    /// Items that are being run.
    pub(crate) fn running(&self) -> u64 {
        self.started.saturating_sub(self.completed)
    }
}

/// How long sampled items waited: a histogram whose buckets double.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// let logs = runtime.workqueue("logs").build()?;
/// let ages: homing_runtime::QueueAges = logs.counters().queue_age;
/// assert_eq!((ages.count(), ages.quantile_ns(0.5)), (0, None));
/// logs.execute_batch((0..1_000).map(|_| || ()));
/// logs.flush();
/// let ages = logs.counters().queue_age;
/// assert!(ages.count() > 0);
/// assert!(ages.quantile_ns(0.5) <= ages.quantile_ns(0.99));
/// println!("{} ns on average", ages.sum_ns() / ages.count());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueAges {
    counts: [u64; Self::BUCKETS],
    sum_ns: u64,
}

impl QueueAges {
    /// The last bucket is for about 1 s and more.
    const BUCKETS: usize = 32;

    fn bucket(ns: u64) -> usize {
        (u64::BITS - ns.leading_zeros()).min(Self::BUCKETS as u32 - 1) as usize
    }

    /// How many items were measured.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the ages of all of them, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The mean age in nanoseconds of those measured since `before`; 0 where there were none.
    pub(crate) fn mean_since_ns(&self, before: &Self) -> u64 {
        // Sums and counts are not read at one instant.
        let sum_ns = self.sum_ns.saturating_sub(before.sum_ns);
        sum_ns.checked_div(self.count().saturating_sub(before.count())).unwrap_or(0)
    }

    /// The age in nanoseconds that the share `quantile` (0 to 1) of the items did not exceed,
    /// rounded up to a power of two; `None` before any was measured.
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        let wanted = (self.count() as f64 * quantile.clamp(0.0, 1.0)).max(1.0);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen as f64 >= wanted
        })?;
        Some(1 << bucket)
    }
}

/// One thread's part of a workqueue's counters.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkqueueBooks {
    #[cfg(feature = "tracing")]
    name: Box<str>,
    started: AtomicU64,
    completed: AtomicU64,
    panicked: AtomicU64,
    cancelled: AtomicU64,
    /// Items that have ended, in whatever way, and whose handles have been told: for flushes.
    ended: ByColour,
    taken: [AtomicU64; Reach::ALL.len()],
    woken: AtomicU64,
    cpu_times_ns: [AtomicU64; Reach::ALL.len()],
    queue_age: SharedQueueAges,
}

#[derive(Debug)]
struct SharedQueueAges {
    counts: [AtomicU64; QueueAges::BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for SharedQueueAges {
    fn default() -> Self {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        Self { counts, sum_ns: AtomicU64::new(0) }
    }
}

impl SharedQueueAges {
    fn add(&self, ns: u64) {
        add(&self.counts[QueueAges::bucket(ns)], 1);
        let sum_ns = self.sum_ns.load(Ordering::Relaxed).saturating_add(ns);
        self.sum_ns.store(sum_ns, Ordering::Relaxed);
    }

    fn read(&self) -> QueueAges {
        QueueAges { counts: self.counts.each_ref().map(read), sum_ns: read(&self.sum_ns) }
    }
}

/// A counter for each colour of items. Flushes read them, so the model checkers see them too.
#[derive(Debug, Default)]
pub(crate) struct ByColour([sync::AtomicU64; Tag::COLOURS]);

impl ByColour {
    /// For counters that one thread writes.
    fn add(&self, tag: Tag) {
        let counter = &self.0[tag.colour()];
        // Release: a thread that sees that the item has ended sees what it did, and that it was
        // queued.
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// For counters that any thread writes.
    pub(crate) fn add_shared(&self, tag: Tag) {
        self.0[tag.colour()].fetch_add(1, Ordering::Release);
    }

    pub(crate) fn add_to(&self, sums: &mut [u64; Tag::COLOURS]) {
        // Acquire: as in `read`.
        let counts = self.0.iter().map(|count| count.load(Ordering::Acquire));
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
}

impl Books for WorkqueueBooks {
    fn started(&self) {
        add(&self.started, 1);
    }

    fn completed(&self, panicked: bool) {
        if panicked {
            add(&self.panicked, 1);
        }
        add(&self.completed, 1);
    }

    fn aborted(&self) {
        add(&self.cancelled, 1);
    }
}

impl WorkqueueBooks {
    #[cfg_attr(not(feature = "tracing"), allow(unused_variables))]
    pub(crate) fn of(name: &str) -> Self {
        Self {
            #[cfg(feature = "tracing")]
            name: name.into(),
            ..Self::default()
        }
    }

    /// The workqueue's name.
    #[cfg(feature = "tracing")]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Counts an item that was taken from there, and whether somebody was woken for the next one.
    pub(crate) fn taken(&self, reach: Reach, woken: bool) {
        add(&self.taken[reach as usize], 1);
        if woken {
            add(&self.woken, 1);
        }
    }

    /// Counts how long one of the sampled items waited.
    pub(crate) fn waited(&self, ns: u64) {
        self.queue_age.add(ns);
    }

    pub(crate) fn ran(&self, reach: Reach, cpu_time_ns: u64) {
        add(&self.cpu_times_ns[reach as usize], cpu_time_ns);
    }

    /// Adds, by colour, the items that have ended in whatever way.
    pub(crate) fn add_ended_to(&self, sums: &mut [u64; Tag::COLOURS]) {
        self.ended.add_to(sums);
    }

    /// Counts an item that has ended, and whose handle has been told.
    pub(crate) fn ended(&self, tag: Tag) {
        self.ended.add(tag);
    }

    pub(crate) fn add_to(&self, sum: &mut Counters) {
        sum.completed += read(&self.completed);
        sum.started += read(&self.started);
        sum.panicked += read(&self.panicked);
        sum.cancelled += read(&self.cancelled);
        for (sum, taken) in sum.taken.iter_mut().zip(&self.taken) {
            *sum += read(taken);
        }
        sum.woken += read(&self.woken);
        let mut total_ns = 0;
        for (sum, cpu_time_ns) in sum.cpu_times_ns.iter_mut().zip(&self.cpu_times_ns) {
            let cpu_time_ns = read(cpu_time_ns);
            *sum += cpu_time_ns;
            total_ns += cpu_time_ns;
        }
        sum.cpu_time_ns += total_ns;
        let (ages, own) = (&mut sum.queue_age, self.queue_age.read());
        ages.counts.iter_mut().zip(own.counts).for_each(|(sum, count)| *sum += count);
        ages.sum_ns = ages.sum_ns.saturating_add(own.sum_ns);
    }
}

/// What a CPU's workers have done.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// for (cpu, counters) in runtime.cpu_counters() {
///     let idle_ns = counters.parked_ns + counters.searched_ns;
///     let load = counters.busy_ns as f64 / (counters.busy_ns + idle_ns).max(1) as f64;
///     println!("CPU {cpu}: {} items, {:.0} % busy", counters.items, load * 100.0);
///     assert!((0.0..=1.0).contains(&load));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuCounters {
    /// Items that have begun. Of a batch under way, one counts.
    pub started: u64,
    /// Items that have ended, in batches that have ended.
    pub items: u64,
    /// 1 while a batch is under way, else 0.
    pub running: u64,
    /// Batches taken, by how far away their queue was: in the order of [`Reach::ALL`].
    pub pulls: [u64; Reach::ALL.len()],
    /// Time spent running items, in nanoseconds.
    pub busy_ns: u64,
    /// CPU time of the items, in nanoseconds, as in [`Counters::cpu_time_ns`]. It includes the CPU
    /// time of items that had lost the CPU meanwhile.
    pub cpu_time_ns: u64,
    /// Items that its workers had taken and that went back to their queue.
    pub repatriated: u64,
    /// Time spent asleep, in nanoseconds; the present sleep not included.
    pub parked_ns: u64,
    /// How often the worker slept; the present sleep not included.
    pub parks: u64,
    /// How often it was woken, rather than waking up by itself.
    pub wakes: u64,
    /// Time spent awake without work before falling asleep, in nanoseconds.
    pub searched_ns: u64,
    /// How long the items that its workers took had waited, sampled from one item in 64.
    pub queue_age: QueueAges,
}

/// Written by the thread that owns the CPU's slot.
#[derive(Debug, Default)]
pub(crate) struct CpuBooks {
    started: AtomicU64,
    items: AtomicU64,
    running: AtomicU64,
    pulls: [AtomicU64; Reach::ALL.len()],
    busy_ns: AtomicU64,
    cpu_time_ns: AtomicU64,
    parked_ns: AtomicU64,
    parks: AtomicU64,
    wakes: AtomicU64,
    searched_ns: AtomicU64,
    queue_age: SharedQueueAges,
    /// Written by the thread that takes items back, and by threads that have lost the slot
    /// meanwhile.
    repatriated: AtomicU64,
    started_elsewhere: AtomicU64,
    items_elsewhere: AtomicU64,
    pulls_elsewhere: [AtomicU64; Reach::ALL.len()],
    cpu_time_elsewhere_ns: AtomicU64,
}

impl CpuBooks {
    /// A batch begins. Until it is over, only its first item counts as begun.
    pub(crate) fn begins(&self) {
        add(&self.started, 1);
        self.running.store(1, Ordering::Relaxed);
    }

    /// [`CpuBooks::begins`] for a thread that has lost the CPU before.
    pub(crate) fn begins_elsewhere(&self) {
        self.started_elsewhere.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ran(&self, reach: Reach, items: u32, busy_ns: u64, cpu_time_ns: u64) {
        add(&self.started, u64::from(items) - 1);
        add(&self.items, items.into());
        add(&self.busy_ns, busy_ns);
        add(&self.cpu_time_ns, cpu_time_ns);
        add(&self.pulls[reach as usize], 1);
        // Release: a thread that sees that the batch is over sees what it came to.
        self.running.store(0, Ordering::Release);
    }

    /// [`CpuBooks::ran`] for a thread that has lost the CPU meanwhile, or before.
    pub(crate) fn ran_elsewhere(&self, reach: Reach, items: u32, cpu_time_ns: u64) {
        self.started_elsewhere.fetch_add(u64::from(items) - 1, Ordering::Relaxed);
        self.items_elsewhere.fetch_add(items.into(), Ordering::Relaxed);
        self.cpu_time_elsewhere_ns.fetch_add(cpu_time_ns, Ordering::Relaxed);
        self.pulls_elsewhere[reach as usize].fetch_add(1, Ordering::Release);
    }

    /// To be called when another thread serves the CPU from now on.
    pub(crate) fn changes_hands(&self) {
        self.running.store(0, Ordering::Relaxed);
    }

    /// Counts how long one of the sampled items waited.
    pub(crate) fn waited(&self, ns: u64) {
        self.queue_age.add(ns);
    }

    /// Counts items that went back to their queue.
    pub(crate) fn repatriated(&self, items: u64) {
        self.repatriated.fetch_add(items, Ordering::Relaxed);
    }

    pub(crate) fn parked(&self, parked_ns: u64, woken: bool) {
        add(&self.parks, 1);
        add(&self.parked_ns, parked_ns);
        add(&self.wakes, woken.into());
    }

    pub(crate) fn searched(&self, searched_ns: u64) {
        add(&self.searched_ns, searched_ns);
    }

    pub(crate) fn busy_ns(&self) -> u64 {
        read(&self.busy_ns)
    }

    pub(crate) fn read(&self) -> CpuCounters {
        let items = read(&self.items) + read(&self.items_elsewhere);
        CpuCounters {
            started: items.max(read(&self.started) + read(&self.started_elsewhere)),
            items,
            running: read(&self.running),
            pulls: std::array::from_fn(|at| {
                read(&self.pulls[at]) + read(&self.pulls_elsewhere[at])
            }),
            busy_ns: read(&self.busy_ns),
            cpu_time_ns: read(&self.cpu_time_ns) + read(&self.cpu_time_elsewhere_ns),
            repatriated: read(&self.repatriated),
            parked_ns: read(&self.parked_ns),
            parks: read(&self.parks),
            wakes: read(&self.wakes),
            searched_ns: read(&self.searched_ns),
            queue_age: self.queue_age.read(),
        }
    }
}

/// Counters by colour that every thread may add to, divided by CPU.
#[derive(Debug)]
pub(crate) struct Spread {
    parts: Box<[Part]>,
}

/// As long as its distance to its neighbors has to be anyway.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Part([sync::AtomicU64; Tag::COLOURS]);

impl Spread {
    /// Counters for threads on `cpus` CPUs. More than 64 share parts.
    pub(crate) fn new(cpus: usize) -> Self {
        let parts = cpus.next_power_of_two().min(64);
        Self { parts: (0..parts).map(|_| Part::default()).collect() }
    }

    /// Counts items before they are queued. `SeqCst`: an issuer that then looks at the workqueue's
    /// mode is counted, or sees that the workqueue drains.
    pub(crate) fn add(&self, cpu: CpuId, tag: Tag, count: u64) {
        let part = cpu.index() & (self.parts.len() - 1);
        self.parts[part].0[tag.colour()].fetch_add(count, Ordering::SeqCst);
    }

    pub(crate) fn sum(&self) -> u64 {
        self.sums().iter().sum()
    }

    pub(crate) fn sums(&self) -> [u64; Tag::COLOURS] {
        let mut sums = [0; Tag::COLOURS];
        for part in &self.parts {
            for (sum, count) in sums.iter_mut().zip(&part.0) {
                *sum += count.load(Ordering::SeqCst);
            }
        }
        sums
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_queue_ages_are_upper_bounds() {
        let books = WorkqueueBooks::default();
        let mut sum = Counters::default();
        assert_eq!(sum.queue_age.quantile_ns(0.5), None);
        (0..99).for_each(|_| books.waited(900));
        books.waited(u64::MAX);
        books.add_to(&mut sum);
        assert_eq!(sum.queue_age.count(), 100);
        assert_eq!(sum.queue_age.quantile_ns(0.99), Some(1024));
        assert_eq!(sum.queue_age.quantile_ns(1.0), Some(1 << 31));
        assert_eq!(sum.queue_age.sum_ns(), u64::MAX, "no overflow");
    }
}
