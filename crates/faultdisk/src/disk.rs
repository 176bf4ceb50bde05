//! A disk with a cache: a write is answered at once, and is durable after a flush. Writes of marked
//! sectors and flushes can be made to fail.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::image::Image;
use crate::record::{Event, Record};

/// A sector, which is bad as a whole, has this many bytes.
const SECTOR: usize = 512;

/// A sector that holds only this byte cannot be written while sectors are bad
/// ([`Disk::set_bad_sectors`]).
pub const BAD: u8 = 0xBD;

/// The disk reports that it cannot do this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The disk. All of it lives in memory.
#[derive(Debug)]
pub struct Disk {
    state: Mutex<State>,
    flush_delay: Duration,
    bad_sectors: AtomicBool,
    bad_flushes: AtomicBool,
    interrupted_flushes: AtomicU32,
    /// Whether flushes hang; and who waits for them to go on.
    hung: Mutex<bool>,
    goes_on: Condvar,
}

#[derive(Debug)]
struct State {
    image: Image,
    /// While there is one, writes and flushes are recorded.
    record: Option<Record>,
    /// How many recordings there were.
    recordings: u64,
}

impl Disk {
    /// A disk with these contents, whose flushes take `flush_delay`.
    pub fn new(image: Image, flush_delay: Duration) -> Self {
        Self {
            state: Mutex::new(State { image, record: None, recordings: 0 }),
            flush_delay,
            bad_sectors: AtomicBool::new(false),
            bad_flushes: AtomicBool::new(false),
            interrupted_flushes: AtomicU32::new(0),
            hung: Mutex::new(false),
            goes_on: Condvar::new(),
        }
    }

    /// Sets whether sectors that hold only [`BAD`] cannot be written. So a file's contents decide
    /// whether its data can be written, wherever the file lies.
    pub fn set_bad_sectors(&self, bad: bool) {
        self.bad_sectors.store(bad, Ordering::Relaxed);
    }

    /// Sets whether flushes fail, and make nothing durable.
    pub fn set_bad_flushes(&self, bad: bool) {
        self.bad_flushes.store(bad, Ordering::Relaxed);
    }

    /// Sets whether flushes hang. Those that do go on when it is unset.
    pub fn hang_flushes(&self, hang: bool) {
        *self.hung.lock().unwrap_or_else(PoisonError::into_inner) = hang;
        self.goes_on.notify_all();
    }

    /// Lets the next `count` flushes be interrupted: the thread that serves them says so before
    /// they begin.
    pub fn interrupt_flushes(&self, count: u32) {
        self.interrupted_flushes.store(count, Ordering::Relaxed);
    }

    /// Whether this flush is one of those that are interrupted.
    pub(crate) fn is_interrupted(&self) -> bool {
        let one_less = |count: u32| count.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.interrupted_flushes.fetch_update(set, fetch, one_less).is_ok()
    }

    /// How many bytes it has.
    pub fn size(&self) -> u64 {
        self.state().image.size()
    }

    /// From now on, all writes and flushes are recorded, and what the disk holds now is taken to be
    /// durable.
    pub fn start_recording(&self) {
        let mut state = self.state();
        state.recordings += 1;
        state.record = Some(Record { base: state.image.clone(), events: Vec::new() });
    }

    /// The present moment of the recording: how many events have come. 0 if there is no recording.
    pub fn moment(&self) -> usize {
        self.state().record.as_ref().map_or(0, |record| record.events.len())
    }

    /// Ends the recording.
    pub fn stop_recording(&self) -> Option<Record> {
        self.state().record.take()
    }

    /// Reads.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.state().image.read(offset, into);
    }

    /// Writes to the cache.
    ///
    /// # Errors
    /// If a sector is bad: then nothing is written.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Broken> {
        let is_bad = |sector: &[u8]| sector.iter().all(|byte| *byte == BAD);
        let mut sectors = bytes.chunks_exact(SECTOR);
        if self.bad_sectors.load(Ordering::Relaxed) && sectors.any(is_bad) {
            return Err(Broken);
        }
        let mut state = self.state();
        state.image.write(offset, bytes);
        if let Some(record) = &mut state.record {
            record.events.push(Event::Write { offset, bytes: bytes.into() });
        }
        Ok(())
    }

    /// Makes durable what was written before. This takes the delay that was given.
    ///
    /// # Errors
    /// If flushes are bad.
    pub fn flush(&self) -> Result<(), Broken> {
        let (recording, begins) = {
            let state = self.state();
            (state.recordings, state.record.as_ref().map_or(0, |record| record.events.len()))
        };
        if !self.flush_delay.is_zero() {
            thread::sleep(self.flush_delay);
        }
        let hung = self.hung.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.goes_on.wait_while(hung, |hung| *hung));
        if self.bad_flushes.load(Ordering::Relaxed) {
            return Err(Broken);
        }
        let mut state = self.state();
        // What the flush covers of an earlier recording is in that one.
        let covers = if recording == state.recordings { begins } else { 0 };
        if let Some(record) = &mut state.record {
            record.events.push(Event::Flush { covers });
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_comes_is_recorded_in_order_from_when_it_is_asked_for() {
        let disk = Disk::new(Image::new(8192), Duration::ZERO);
        disk.write(0, &[1; 512]).unwrap();
        disk.start_recording();
        disk.write(512, &[2; 512]).unwrap();
        disk.flush().unwrap();
        assert_eq!(disk.moment(), 2);
        let record = disk.stop_recording().unwrap();
        assert!(matches!(record.events[0], Event::Write { offset: 512, .. }));
        assert!(matches!(record.events[1], Event::Flush { covers: 1 }));
        let mut cut = record.cuts();
        cut.move_to(2);
        assert_eq!(cut.volatile(), 0);
        assert!(disk.stop_recording().is_none());
    }

    #[test]
    fn a_flush_of_the_recording_before_covers_nothing_of_this_one() {
        let disk = Disk::new(Image::new(8192), Duration::from_millis(50));
        disk.start_recording();
        disk.write(0, &[1; 512]).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| disk.flush().unwrap());
            thread::sleep(Duration::from_millis(10));
            disk.start_recording();
        });
        let record = disk.stop_recording().unwrap();
        record.cuts().move_to(record.events.len());
    }

    #[test]
    fn a_flush_does_not_cover_what_comes_meanwhile() {
        // The write may come too early, or too late.
        let found = (0..20).any(|_| {
            let disk = Disk::new(Image::new(8192), Duration::from_millis(50));
            disk.start_recording();
            thread::scope(|scope| {
                scope.spawn(|| disk.flush().unwrap());
                thread::sleep(Duration::from_millis(10));
                disk.write(0, &[1; 512]).unwrap();
            });
            let events = disk.stop_recording().unwrap().events;
            matches!(events[..], [Event::Write { .. }, Event::Flush { covers: 0 }])
        });
        assert!(found);
    }

    #[test]
    fn what_fails_changes_nothing() {
        let disk = Disk::new(Image::new(8192), Duration::ZERO);
        disk.write(0, &[BAD; 1024]).unwrap();
        disk.start_recording();
        disk.set_bad_sectors(true);
        let mut some_bad = [1; 1536];
        some_bad[512..1024].fill(BAD);
        assert_eq!(disk.write(0, &some_bad), Err(Broken));
        let mut almost_bad = [BAD; 512];
        almost_bad[511] = 0;
        disk.write(0, &almost_bad).unwrap();
        disk.set_bad_flushes(true);
        assert_eq!(disk.flush(), Err(Broken));
        let mut found = [0; 1536];
        disk.read(0, &mut found);
        assert!(found[..511].iter().all(|byte| *byte == BAD) && found[511] == 0);
        assert!(found[512..1024].iter().all(|byte| *byte == BAD) && found[1024] == 0);
        disk.set_bad_sectors(false);
        disk.set_bad_flushes(false);
        disk.write(0, &some_bad).unwrap();
        disk.flush().unwrap();
        assert_eq!(disk.stop_recording().unwrap().events.len(), 3);
    }

    #[test]
    fn a_flush_takes_its_time() {
        let disk = Disk::new(Image::new(8192), Duration::from_millis(5));
        let began = Instant::now();
        disk.flush().unwrap();
        assert!(began.elapsed() >= Duration::from_millis(5));
    }

    /// As `a_flush_of_the_recording_before_covers_nothing_of_this_one`, with something to cover.
    #[test]
    fn what_comes_after_a_flush_of_the_recording_before_is_not_sure_to_stay() {
        // The second recording may begin too early, or too late.
        let found = (0..20).any(|_| {
            let disk = Disk::new(Image::new(8192), Duration::from_millis(50));
            disk.start_recording();
            disk.write(0, &[1; 512]).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| disk.flush().unwrap());
                thread::sleep(Duration::from_millis(10));
                disk.start_recording();
                disk.write(512, &[2; 512]).unwrap();
            });
            let record = disk.stop_recording().unwrap();
            let [Event::Write { .. }, Event::Flush { covers }] = record.events[..] else {
                return false;
            };
            let mut base = [0; 512];
            record.base.read(0, &mut base);
            assert_eq!(base, [1; 512], "what was there before is there");
            covers == 0
        });
        assert!(found);
    }

    #[test]
    fn as_many_flushes_are_interrupted_as_was_asked_for() {
        let disk = Disk::new(Image::new(8192), Duration::ZERO);
        assert!(!disk.is_interrupted());
        disk.interrupt_flushes(2);
        assert_eq!([0; 4].map(|_| disk.is_interrupted()), [true, true, false, false]);
    }
}
