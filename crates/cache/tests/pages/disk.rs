//! A backing that fails when it is told to, and knows what a power cut would leave.

use std::io;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex};

use homing_cache::pages::{Background, Backing, BuildError, Builder, Job, PageCache};

/// A disk in memory. What was flushed is kept separately.
pub(crate) struct Disk {
    state: Mutex<State>,
    /// One in this many operations of a kind fails; none if 0.
    pub(crate) failing: Failing,
    random: AtomicU64,
    pub(crate) counts: Counts,
    /// Whether writes fail for want of room.
    pub(crate) is_full: AtomicBool,
    /// Whether a page may be read while it is written.
    pub(crate) meets: AtomicBool,
    /// Reads that begin at this offset wait until it changes.
    held: Mutex<Option<u64>>,
    let_go: Condvar,
    /// Whether writes wait until this is false again.
    hangs: Mutex<bool>,
    /// Ranges that were written, in order.
    pub(crate) log: Mutex<Vec<(u64, usize)>>,
}

#[derive(Default)]
pub(crate) struct Failing {
    pub(crate) reads: AtomicUsize,
    pub(crate) writes: AtomicUsize,
    pub(crate) flushes: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) reads: AtomicUsize,
    pub(crate) writes: AtomicUsize,
    pub(crate) flushes: AtomicUsize,
}

struct State {
    now: Vec<u8>,
    durable: Vec<u8>,
}

impl Disk {
    pub(crate) fn new(size: usize) -> Arc<Self> {
        let state = State { now: vec![0; size], durable: vec![0; size] };
        Arc::new(Self {
            state: Mutex::new(state),
            failing: Failing::default(),
            random: AtomicU64::new(0x2545_f491_4f6c_dd1d),
            counts: Counts::default(),
            is_full: AtomicBool::new(false),
            meets: AtomicBool::new(false),
            held: Mutex::default(),
            let_go: Condvar::new(),
            hangs: Mutex::default(),
            log: Mutex::default(),
        })
    }

    fn random(&self) -> u64 {
        let next = |x: u64| Some(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        self.random.fetch_update(SeqCst, SeqCst, next).unwrap() >> 33
    }

    fn fails(&self, one_of: &AtomicUsize) -> bool {
        let one_of = one_of.load(SeqCst) as u64;
        one_of > 0 && self.random().is_multiple_of(one_of)
    }

    /// What a power cut leaves.
    pub(crate) fn durable(&self) -> Vec<u8> {
        self.state.lock().unwrap().durable.clone()
    }

    pub(crate) fn now(&self) -> Vec<u8> {
        self.state.lock().unwrap().now.clone()
    }

    /// Fills the disk, past the cache.
    pub(crate) fn fill(&self, byte: impl Fn(usize) -> u8) {
        let mut state = self.state.lock().unwrap();
        let bytes: Vec<_> = (0..state.now.len()).map(byte).collect();
        state.durable.copy_from_slice(&bytes);
        state.now = bytes;
    }

    /// Has reads that begin at this offset wait, and lets those go on that waited before.
    pub(crate) fn hold(&self, offset: Option<u64>) {
        *self.held.lock().unwrap() = offset;
        self.let_go.notify_all();
    }

    /// Has writes wait, or lets them go on.
    pub(crate) fn hang(&self, hangs: bool) {
        *self.hangs.lock().unwrap() = hangs;
        self.let_go.notify_all();
    }

    /// Nothing fails while this runs.
    pub(crate) fn calm<T>(&self, run: impl FnOnce() -> T) -> T {
        let Failing { reads, writes, flushes } = &self.failing;
        let kept = [reads, writes, flushes].map(|one_of| one_of.swap(0, SeqCst));
        let result = run();
        for (one_of, kept) in [reads, writes, flushes].into_iter().zip(kept) {
            one_of.store(kept, SeqCst);
        }
        result
    }
}

impl Backing for Disk {
    fn size(&self) -> u64 {
        self.state.lock().unwrap().now.len() as u64
    }

    fn reads_may_meet_writes(&self) -> bool {
        self.meets.load(SeqCst)
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.counts.reads.fetch_add(1, SeqCst);
        let held = self.held.lock().unwrap();
        drop(self.let_go.wait_while(held, |held| *held == Some(offset)).unwrap());
        let state = self.state.lock().unwrap();
        data.copy_from_slice(&state.now[offset as usize..][..data.len()]);
        if self.fails(&self.failing.reads) {
            data.fill(0xee);
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.counts.writes.fetch_add(1, SeqCst);
        let hangs = self.hangs.lock().unwrap();
        drop(self.let_go.wait_while(hangs, |hangs| *hangs).unwrap());
        self.log.lock().unwrap().push((offset, data.len()));
        let failed = self.fails(&self.failing.writes);
        let len = if failed { self.random() as usize % data.len() } else { data.len() };
        self.state.lock().unwrap().now[offset as usize..][..len].copy_from_slice(&data[..len]);
        // As a layer that encrypts in place does.
        data.fill(0xdd);
        match failed {
            true if self.is_full.load(SeqCst) => Err(io::ErrorKind::StorageFull.into()),
            true => Err(io::Error::from_raw_os_error(5)), // EIO
            false => Ok(()),
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.counts.flushes.fetch_add(1, SeqCst);
        if self.fails(&self.failing.flushes) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let State { now, durable } = &mut *self.state.lock().unwrap();
        durable.copy_from_slice(now);
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        if self.fails(&self.failing.writes) {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.state.lock().unwrap().now[offset as usize..][..length as usize].fill(0x55);
        Ok(())
    }
}

/// Keeps jobs until they are to run, or forever.
#[derive(Clone, Default)]
pub(crate) struct ByHand(Arc<Mutex<Vec<Job>>>);

impl ByHand {
    /// Runs the jobs that there are. Returns how many these were.
    pub(crate) fn run(&self) -> usize {
        let jobs = std::mem::take(&mut *self.0.lock().unwrap());
        jobs.into_iter().map(|job| job()).count()
    }
}

impl Background for ByHand {
    fn spawn(&self, job: Job) {
        self.0.lock().unwrap().push(job);
    }
}

/// The smallest cache with these settings, and its size.
pub(crate) fn smallest(builder: impl Fn(usize) -> Builder) -> (PageCache, usize) {
    let Err(BuildError::TooSmall { least, .. }) = builder(0).build() else {
        panic!("a cache of no bytes")
    };
    (builder(least).build().unwrap(), least)
}

/// A disk that panics the first few times that it is written to.
pub(crate) struct Shaky {
    pub(crate) disk: Arc<Disk>,
    pub(crate) panics: AtomicUsize,
}

impl Shaky {
    pub(crate) fn new(disk: Arc<Disk>, panics: usize) -> Arc<Self> {
        Arc::new(Self { disk, panics: AtomicUsize::new(panics) })
    }
}

impl Backing for Shaky {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.disk.read(offset, data)
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let left = self.panics.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "a backing that panics");
        self.disk.write(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.disk.flush()
    }
}
