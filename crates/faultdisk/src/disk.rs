//! A disk with a cache: what is written is answered at once, and durable after a flush.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::image::Image;
use crate::record::{Event, Record};

/// The disk. All of it lives in memory.
#[derive(Debug)]
pub struct Disk {
    state: Mutex<State>,
    flush_delay: Duration,
}

#[derive(Debug)]
struct State {
    image: Image,
    /// While there is one, what comes is recorded.
    record: Option<Record>,
}

impl Disk {
    /// With these contents, and flushes that take so long.
    pub fn new(image: Image, flush_delay: Duration) -> Self {
        Self { state: Mutex::new(State { image, record: None }), flush_delay }
    }

    /// How many bytes it has.
    pub fn size(&self) -> u64 {
        self.state().image.size()
    }

    /// From now on all that comes is remembered, and what it holds now is taken to be durable.
    pub fn start_recording(&self) {
        let mut state = self.state();
        state.record = Some(Record { base: state.image.clone(), events: Vec::new() });
    }

    /// The present moment of the recording: how many events have come. 0 where there is none.
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
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut state = self.state();
        state.image.write(offset, bytes);
        if let Some(record) = &mut state.record {
            record.events.push(Event::Write { offset, bytes: bytes.into() });
        }
    }

    /// Makes durable what was written before, in its time.
    pub fn flush(&self) {
        let covers = self.moment();
        if !self.flush_delay.is_zero() {
            thread::sleep(self.flush_delay);
        }
        if let Some(record) = &mut self.state().record {
            record.events.push(Event::Flush { covers });
        }
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
        disk.write(0, &[1; 512]);
        disk.start_recording();
        disk.write(512, &[2; 512]);
        disk.flush();
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
    fn a_flush_does_not_cover_what_comes_meanwhile() {
        // The write may come too early, or too late.
        let found = (0..20).any(|_| {
            let disk = Disk::new(Image::new(8192), Duration::from_millis(50));
            disk.start_recording();
            thread::scope(|scope| {
                scope.spawn(|| disk.flush());
                thread::sleep(Duration::from_millis(10));
                disk.write(0, &[1; 512]);
            });
            let events = disk.stop_recording().unwrap().events;
            matches!(events[..], [Event::Write { .. }, Event::Flush { covers: 0 }])
        });
        assert!(found);
    }

    #[test]
    fn a_flush_takes_its_time() {
        let disk = Disk::new(Image::new(8192), Duration::from_millis(5));
        let began = Instant::now();
        disk.flush();
        assert!(began.elapsed() >= Duration::from_millis(5));
    }
}
