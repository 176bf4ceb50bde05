//! The disk under a tenant's pages: a file, and the extra time of a disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use homing::pages::Backing;

use super::PAGE;

/// A file whose reads and writes take longer once it is told so.
pub(crate) struct Disk {
    file: File,
    size: u64,
    latency: Duration,
    slow: AtomicBool,
    reads: AtomicU64,
    writes: AtomicU64,
    requests: AtomicU64,
    waited_ns: AtomicU64,
}

/// What a disk did since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Pages.
    pub(crate) reads: u64,
    /// Pages.
    pub(crate) writes: u64,
    /// Reads and writes that were slow.
    requests: u64,
    waited_ns: u64,
}

impl Disk {
    /// Opens `path`. Later its requests will take `latency` longer, and as much as a sleep adds.
    pub(crate) fn open(path: &Path, latency: Duration) -> anyhow::Result<Self> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = opened.with_context(|| format!("cannot open {}", path.display()))?;
        let size = file.metadata()?.len();
        let [reads, writes, requests, waited_ns] = [const { AtomicU64::new(0) }; 4];
        let slow = AtomicBool::new(false);
        Ok(Self { file, size, latency, slow, reads, writes, requests, waited_ns })
    }

    /// From now on its requests take the latency that it was opened with.
    pub(crate) fn be_slow(&self) {
        self.slow.store(!self.latency.is_zero(), Relaxed);
    }

    /// What it did so far.
    pub(crate) fn counts(&self) -> Counts {
        let [reads, writes, requests, waited_ns] =
            [&self.reads, &self.writes, &self.requests, &self.waited_ns].map(|n| n.load(Relaxed));
        Counts { reads, writes, requests, waited_ns }
    }

    /// The thread sleeps, which leaves the CPU as free for others as a working disk does. The time
    /// is measured, since a sleep takes longer than it is asked to.
    fn wait(&self) {
        if self.slow.load(Relaxed) {
            let began = Instant::now();
            thread::sleep(self.latency);
            self.requests.fetch_add(1, Relaxed);
            self.waited_ns.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
        }
    }
}

impl Counts {
    /// What was done after `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            requests: self.requests - before.requests,
            waited_ns: self.waited_ns - before.waited_ns,
        }
    }

    /// The mean extra time of slow requests of two disks, in microseconds; not finite if there were
    /// none.
    pub(crate) fn mean_wait_us(self, other: Self) -> f64 {
        let requests = self.requests + other.requests;
        (self.waited_ns + other.waited_ns) as f64 / 1e3 / requests as f64
    }
}

impl Backing for Disk {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(data.len() as u64 / PAGE, Relaxed);
        self.wait();
        self.file.read_exact_at(data, offset)
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.writes.fetch_add(data.len() as u64 / PAGE, Relaxed);
        self.wait();
        self.file.write_all_at(data, offset)
    }

    /// The data need not outlive the run.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_does_is_counted_and_takes_as_long_as_said_once_it_is_slow() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4 * PAGE).unwrap();
        let disk = Disk::open(file.path(), Duration::from_micros(50)).unwrap();
        let mut pages = vec![7; 2 * PAGE as usize];
        disk.write(PAGE, &mut pages).unwrap();
        let before = disk.counts();
        assert!(before.mean_wait_us(Counts::default()).is_nan(), "{before:?}");
        disk.be_slow();
        disk.read(PAGE, &mut pages[..PAGE as usize]).unwrap();
        assert_eq!(pages[0], 7);
        let counts = disk.counts().since(before);
        assert_eq!((before.writes, counts.writes, counts.reads), (2, 0, 1));
        assert!(counts.mean_wait_us(Counts::default()) >= 50.0, "{counts:?}");
    }
}
