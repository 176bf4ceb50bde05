//! The lowest layer: a range of a file.

use std::any::Any;
use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Instant;

use homing_durable::{Durable, Pace, Way};
use rustix::fs::{Advice, FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use crate::block::{Block, BlockError, Done, Durability, Extent, Write, check_range};
use crate::forced::Forced;
use crate::length::Length;
use crate::syncs::{SyncError, Syncs};

/// Copying in and out of the page cache, in bytes per nanosecond. Measured: 8 to 12 on current
/// servers, system call included.
const COPY_BYTES_PER_NS: u64 = 8;
/// A system call and its way through the file system. Measured: 300 to 600.
const CALL_NS: u64 = 500;
/// How often a writer lets other threads go first before it sleeps. Guessed: a turn takes a few
/// microseconds, about as long as letting two others go.
const YIELDS_MAX: usize = 16;
/// Bytes of zeroes in one write.
const ZEROES_LEN: usize = 256 << 10;

/// The bytes `start..start + size` of a file, with blocks of `block_size`.
#[derive(Debug)]
pub struct File {
    file: Arc<fs::File>,
    start: u64,
    size: u64,
    block_size: u32,
    /// Whether and how its length can be told.
    length: Length,
    is_writable: bool,
    syncs: Syncs,
    forced: Arc<Forced>,
    /// Held while writing: see [`File::turn`].
    writing: Mutex<()>,
    /// Keeps others from the file as long as it lives.
    lock: Option<Box<dyn Any + Send + Sync>>,
}

impl File {
    /// Uses `size` bytes of `file` from `start` on.
    ///
    /// Panics if `block_size` is not a power of two or does not divide both.
    pub fn new(file: Arc<fs::File>, start: u64, size: u64, block_size: u32) -> Self {
        let whole = |bytes: u64| bytes.is_multiple_of(u64::from(block_size));
        assert!(block_size.is_power_of_two() && whole(start) && whole(size));
        let forced = Arc::new(Forced::new(Pace::new(Way::Beside)));
        let (syncs, writing) = (Syncs::new(&file), Mutex::new(()));
        let length = Length::of(&file);
        // If it cannot be told, a sync tells.
        let is_writable = rustix::fs::fcntl_getfl(&*file)
            .map_or(true, |flags| flags & OFlags::ACCMODE != OFlags::RDONLY);
        Self {
            file,
            start,
            size,
            block_size,
            length,
            is_writable,
            syncs,
            forced,
            writing,
            lock: None,
        }
    }

    /// Keeps the lock as long as the file.
    #[cfg(target_os = "linux")]
    pub(crate) fn keep_locked(&mut self, lock: impl Any + Send + Sync) {
        self.lock = Some(Box::new(lock));
    }

    /// Waits for the turn to write. The kernel lets one thread at a time write to a file, and the
    /// others spin; on few CPUs it is better to let threads with other work go first. Measured with
    /// 24 clients on 2 CPUs: 8 % more throughput, p99 down by a third. Better still is other work
    /// of this thread itself, which `meanwhile` does.
    fn turn(&self, meanwhile: &mut dyn FnMut() -> bool) -> MutexGuard<'_, ()> {
        let mut yields = 0;
        while yields < YIELDS_MAX {
            match self.writing.try_lock() {
                Ok(turn) => return turn,
                Err(TryLockError::Poisoned(turn)) => return turn.into_inner(),
                Err(TryLockError::WouldBlock) if meanwhile() => {}
                Err(TryLockError::WouldBlock) => {
                    thread::yield_now();
                    yields += 1;
                }
            }
        }
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to say of a file that was cut off. A later write behind its end would make it longer
    /// again, with zeroes for what is gone, and nobody would be told: so none is accepted any more.
    fn has_shrunk(&self) -> io::Error {
        self.syncs.poison();
        io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter than the volume")
    }

    /// Fails if the file was cut off.
    fn check_length(&self) -> Result<(), BlockError> {
        let length = self.length.now(&self.file);
        let is_short = length.is_some_and(|length| length < self.start + self.size);
        if is_short { Err(BlockError::Flush(self.has_shrunk())) } else { Ok(()) }
    }

    /// Fails if the file was cut off: before a write, which might hide that.
    fn check_before_write(&self) -> Result<(), BlockError> {
        self.syncs.check_health()?;
        self.check_length()
    }

    /// Nothing was written to a file that is open for reading alone, and filesystems that can only
    /// be read refuse to sync.
    fn nothing_to_sync(&self) -> Result<(), BlockError> {
        self.syncs.check_health()
    }

    fn write_in_turn(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        let result = self.file.write_all_at(data, self.start + offset);
        result.map_err(|error| io_error("write", offset, data.len(), error))
    }

    /// Does one durable write: by `RWF_DSYNC` if the system has it, otherwise by a flush after it.
    fn write_durably(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        let write_error = |error| io_error("write", offset, data.len(), error);
        self.syncs.run_as("pwritev2", |file| {
            let mut done = 0;
            while done < data.len() {
                let at = self.start + offset + done as u64;
                let rest = &data[done..];
                match rustix::io::pwritev2(file, &[IoSlice::new(rest)], at, ReadWriteFlags::DSYNC) {
                    Ok(0) => return Err(SyncError::NotBegun(write_error(write_zero()))),
                    Ok(count) => done += count,
                    Err(Errno::INTR) => {}
                    Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                        let written = file.write_all_at(rest, at);
                        written.map_err(|error| SyncError::NotBegun(write_error(error)))?;
                        return file.sync_data().map_err(SyncError::Lost);
                    }
                    // Either there was no room for this write, or the write-back of another one
                    // failed: the same write without DSYNC does not tell, since there may be room
                    // by now. Another description tells, and makes this write durable if it was
                    // accepted now.
                    Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                        let again = file.write_all_at(rest, at);
                        let refused = again.map_err(|_| write_error(errno.into()));
                        return Err(SyncError::Unclear(refused));
                    }
                    Err(errno) => return Err(SyncError::Lost(errno.into())),
                }
            }
            Ok(())
        })
    }
}

impl Block for File {
    fn size(&self) -> u64 {
        self.size
    }

    fn identity(&self) -> Option<(u64, u64)> {
        let stat = rustix::fs::fstat(&*self.file).ok()?;
        // A device may have several nodes.
        let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device();
        Some(if is_device { (stat.st_rdev, u64::MAX) } else { (stat.st_dev, stat.st_ino) })
    }

    fn block_size(&self) -> u32 {
        self.block_size
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), BlockError> {
        check_range(self, offset, data.len() as u64);
        let result = self.file.read_exact_at(data, self.start + offset);
        let error = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.has_shrunk(),
            _ => error,
        };
        result.map_err(|of| io_error("read", offset, data.len(), error(of)))
    }

    fn write(
        &self,
        offset: u64,
        data: &mut [u8],
        durability: Durability,
    ) -> Result<(), BlockError> {
        check_range(self, offset, data.len() as u64);
        self.check_before_write()?;
        if durability == Durability::Flushed {
            return self.write_durably(offset, data);
        }
        self.forced.left_dirty(data.len());
        let _turn = self.turn(&mut || false);
        self.write_in_turn(offset, data)
    }

    fn write_batch(&self, writes: &mut [Write<'_>], meanwhile: &mut dyn FnMut() -> bool) {
        let (mut turn, mut health) = (None, self.check_before_write());
        for Write { offset, data, result } in writes.iter_mut().filter(|w| w.result.is_ok()) {
            check_range(self, *offset, data.len() as u64);
            let checked = std::mem::replace(&mut health, Ok(()));
            *result = checked.and_then(|()| self.syncs.check_health()).and_then(|()| {
                self.forced.left_dirty(data.len());
                turn.get_or_insert_with(|| self.turn(meanwhile));
                self.write_in_turn(*offset, data)
            });
        }
    }

    fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        durability: Durability,
    ) -> Result<(), BlockError> {
        check_range(self, offset, length);
        let mut zeroes = vec![0; length.min(ZEROES_LEN as u64) as usize];
        for at in (0..length).step_by(ZEROES_LEN) {
            let count = (length - at).min(ZEROES_LEN as u64) as usize;
            self.write(offset + at, &mut zeroes[..count], Durability::Written)?;
        }
        if durability == Durability::Flushed { self.flush() } else { Ok(()) }
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.forced.syncs();
        self.check_length()?;
        if !self.is_writable {
            return self.nothing_to_sync();
        }
        self.syncs.run(|file| file.sync_data().map_err(SyncError::Lost))
    }

    fn flush_through(&self, durable: &Durable, done: Done) {
        self.forced.syncs();
        match self.check_length() {
            Ok(()) if !self.is_writable => done(self.nothing_to_sync()),
            Ok(()) => self.syncs.run_shared(durable, done),
            Err(error) => done(Err(error)),
        }
    }

    fn write_through(&self, durable: &Durable, offset: u64, data: &mut [u8], done: Done) {
        let forced = Arc::clone(&self.forced);
        let way = forced.begin(durable.sharing(), Instant::now());
        let done: Done = Box::new(move |result| {
            forced.end(Instant::now());
            done(result);
        });
        if way == Way::Beside {
            return done(self.write(offset, data, Durability::Flushed));
        }
        match self.write(offset, data, Durability::Written) {
            Ok(()) => self.flush_through(durable, done),
            Err(error) => done(Err(error)),
        }
    }

    fn report_to(&self, durable: &Durable) {
        self.syncs.report_to(durable);
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        check_range(self, offset, length);
        self.syncs.check_health()?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punch = || rustix::fs::fallocate(self.file.as_fd(), flags, self.start + offset, length);
        match retry_on_intr(punch) {
            // A file system without holes, or a part of a disk's block: ignoring a discard is
            // allowed.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(errno) => Err(io_error("discard", offset, length as usize, errno.into())),
        }
    }

    fn prefetch(&self, offset: u64, length: u64) {
        check_range(self, offset, length);
        let length = std::num::NonZeroU64::new(length);
        // A hint that fails is a hint not taken.
        let _ =
            rustix::fs::fadvise(self.file.as_fd(), self.start + offset, length, Advice::WillNeed);
    }

    fn extents(
        &self,
        offset: u64,
        length: u64,
        count_max: usize,
    ) -> Result<Vec<Extent>, BlockError> {
        check_range(self, offset, length);
        let block = u64::from(self.block_size);
        let (begin, end) = (self.start + offset, self.start + offset + length);
        let seek = |to| match rustix::fs::seek(self.file.as_fd(), to) {
            Ok(found) => Ok(found.min(end)),
            Err(Errno::NXIO) => Ok(end), // a hole to the end of the file
            // A block device knows of no holes: all of it is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(match to {
                SeekFrom::Data(at) => at,
                _ => end,
            }),
            Err(errno) => {
                Err(io_error("the search for holes", offset, length as usize, errno.into()))
            }
        };
        let mut extents = Vec::new();
        let mut at = begin;
        while at < end && extents.len() < count_max {
            // A block that is data only in part is an allocated block.
            let data = seek(SeekFrom::Data(at))? / block * block;
            let (allocated, next) = if data > at {
                (false, data)
            } else {
                (true, seek(SeekFrom::Hole(at))?.next_multiple_of(block).max(at + block))
            };
            let next = next.min(end);
            extents.push(Extent { length: next - at, allocated });
            at = next;
        }
        Ok(extents)
    }

    fn cost_ns(&self, length: u64) -> u64 {
        CALL_NS + length / COPY_BYTES_PER_NS
    }
}

fn io_error(action: &'static str, offset: u64, length: usize, source: io::Error) -> BlockError {
    BlockError::Io { action, offset, length: length as u64, source }
}

fn write_zero() -> io::Error {
    io::Error::new(
        io::ErrorKind::WriteZero,
        "the file took none of the bytes: is its disk full, or the file at its largest?",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use homing_durable::{Failure, Kind, Sharing, System};
    use homing_runtime::Runtime;

    use super::*;

    fn device(size: u64) -> (Arc<fs::File>, File) {
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.set_len(8192 + size).unwrap();
        (Arc::clone(&file), File::new(file, 8192, size, 4096))
    }

    #[test]
    fn reads_and_writes_its_own_range() {
        let (file, device) = device(64 << 10);
        for durability in [Durability::Written, Durability::Flushed] {
            device.write(4096, &mut vec![7; 8192], durability).unwrap();
            let mut data = vec![0; 16384];
            device.read(0, &mut data).unwrap();
            assert!(
                data[..4096].iter().all(|b| *b == 0) && data[4096..12288].iter().all(|b| *b == 7)
            );
            device.write_zeroes(4096, 8192, durability).unwrap();
        }
        let mut before = vec![0; 8192];
        file.read_exact_at(&mut before, 0).unwrap();
        assert!(before.iter().all(|byte| *byte == 0), "bytes before the range were written");
    }

    #[test]
    fn a_file_that_was_cut_off_is_not_made_longer_again() {
        for notices in ["a read", "a flush", "a write at the end", "a durable one"] {
            let (file, device) = device(64 << 10);
            file.set_len(8192 + (32 << 10)).unwrap();
            let mut data = [1; 4096];
            let error = match notices {
                "a read" => device.read(60 << 10, &mut data),
                "a flush" => device.flush(),
                "a durable one" => device.write(60 << 10, &mut data, Durability::Flushed),
                _ => device.write(60 << 10, &mut data, Durability::Written),
            };
            let error = error.unwrap_err();
            assert!(error.to_string().contains("shorter than the volume"), "{notices}: {error}");
            let refused = device.write(60 << 10, &mut [1; 4096], Durability::Written);
            assert!(matches!(refused, Err(BlockError::Poisoned)), "{notices}: {refused:?}");
            assert!(device.flush().is_err());
            assert_eq!(file.metadata().unwrap().len(), 8192 + (32 << 10));
        }
    }

    /// On squashfs, say, a sync fails.
    #[test]
    fn a_file_that_can_only_be_read_is_not_synced() {
        let runtime = Runtime::new().unwrap();
        let durable = Durable::with_system(&runtime, Fails(1.into())).unwrap();
        let path = tempfile::NamedTempFile::new().unwrap();
        path.as_file().set_len(4096).unwrap();
        let device = File::new(Arc::new(fs::File::open(&path).unwrap()), 0, 4096, 4096);
        device.report_to(&durable);
        device.flush().unwrap();
        let (sender, receiver) = mpsc::channel();
        device.flush_through(&durable, Box::new(move |result| sender.send(result).unwrap()));
        receiver.recv().unwrap().unwrap();
        assert_eq!(durable.counters().asked, 0);
        path.as_file().set_len(10).unwrap();
        assert!(device.flush().is_err(), "it was cut off");
    }

    #[test]
    fn holes_are_found_and_made() {
        let (_, device) = device(1 << 20);
        device.write(256 << 10, &mut vec![1; 64 << 10], Durability::Written).unwrap();
        let lengths = |device: &File| {
            let extents = device.extents(0, 1 << 20, 10).unwrap();
            assert_eq!(extents.iter().map(|e| e.length).sum::<u64>(), 1 << 20);
            extents.iter().map(|e| (e.length >> 10, e.allocated)).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&device), [(256, false), (64, true), (704, false)]);
        assert_eq!(device.extents(0, 1 << 20, 1).unwrap().len(), 1);
        device.discard(0, 1 << 20).unwrap();
        assert_eq!(lengths(&device), [(1024, false)]);
        device.prefetch(0, 4096);
    }

    #[test]
    fn a_batch_waits_for_its_turn_with_other_work() {
        let (_, device) = device(64 << 10);
        let mut data = [[1; 4096], [2; 4096], [3; 4096]];
        let [a, b, c] = &mut data;
        let refused = Err(BlockError::Poisoned);
        let mut writes = [
            Write { offset: 0, data: a, result: Ok(()) },
            Write { offset: 8192, data: b, result: refused },
            Write { offset: 0, data: c, result: Ok(()) },
        ];
        let (mut turn, mut rest) = (Some(device.writing.lock().unwrap()), 3);
        device.write_batch(&mut writes, &mut || {
            rest -= 1;
            if rest == 0 {
                turn = None;
            }
            rest > 0
        });
        assert_eq!(rest, 0, "its turn came before the other's end");
        assert!(writes.each_ref().map(|w| w.result.is_ok()) == [true, false, true]);
        let mut back = vec![0; 12288];
        device.read(0, &mut back).unwrap();
        let (first, rest) = back.split_at(4096);
        assert!(first.iter().all(|b| *b == 3) && rest.iter().all(|b| *b == 0));
    }

    #[test]
    fn a_failed_flush_is_sticky() {
        let (_, device) = device(4096);
        let lost = |_: &fs::File| Err::<(), _>(SyncError::Lost(io::Error::from_raw_os_error(5)));
        assert!(device.syncs.run(lost).is_err());
        for _ in 0..2 {
            assert!(matches!(device.flush(), Err(BlockError::Poisoned)));
            let write = device.write(0, &mut [0; 4096], Durability::Written);
            assert!(matches!(write, Err(BlockError::Poisoned)));
        }
        let mut data = [0; 4096];
        let mut writes = [Write { offset: 0, data: &mut data, result: Ok(()) }];
        device.write_batch(&mut writes, &mut || false);
        assert!(matches!(writes[0].result, Err(BlockError::Poisoned)));
        device.read(0, &mut [0; 4096]).unwrap();
    }

    #[test]
    fn durable_zeroes_are_synced() {
        let (_, mut device) = device(8 << 20);
        device.forced = Arc::new(Forced::new(Pace::new(Way::Together)));
        for (durability, way) in
            [(Durability::Written, Way::Beside), (Durability::Flushed, Way::Together)]
        {
            device.write_zeroes(0, 8 << 20, durability).unwrap();
            device.forced.begin(Sharing::Auto, Instant::now());
            // `Beside` only if much is dirty.
            assert_eq!(device.forced.begin(Sharing::Auto, Instant::now()), way);
            (0..2).for_each(|_| device.forced.end(Instant::now()));
        }
    }

    /// A disk whose second sync fails, and which looks at what it is to make durable.
    struct Fails(std::sync::atomic::AtomicU64);

    impl System for Fails {
        fn sync(&self, file: &fs::File, _: Kind) -> Result<(), Failure> {
            let mut data = [0; 4096];
            file.read_exact_at(&mut data, 8192).unwrap();
            let count = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(data, [count as u8 + 1; 4096], "synced before it was written");
            let error = io::Error::from_raw_os_error(5);
            if count == 0 { Ok(()) } else { Err(Failure { operation: "fdatasync", error }) }
        }
        fn sync_filesystem(&self, _: &fs::File) -> Result<(), Failure> {
            unreachable!()
        }
        fn check(&self, _: &fs::File) -> Result<(), Failure> {
            unreachable!()
        }
        fn flush_device(&self, _: &fs::File) -> Result<(), Failure> {
            unreachable!()
        }
    }

    #[test]
    fn a_durable_write_shares_a_sync_and_its_failure_or_goes_by_itself() {
        let runtime = Runtime::new().unwrap();
        let durable = Durable::with_system(&runtime, Fails(0.into())).unwrap();
        let (_, mut device) = device(64 << 10);
        device.forced = Arc::new(Forced::new(Pace::new(Way::Together)));
        let write = |byte: u8| {
            let (sender, receiver) = mpsc::channel();
            let done = Box::new(move |result| sender.send(result).unwrap());
            device.write_through(&durable, 0, &mut [byte; 4096], done);
            receiver.recv().unwrap()
        };
        device.report_to(&durable);
        // Nobody is there to share with.
        write(9).unwrap();
        assert_eq!(durable.counters().asked, 1, "it is counted all the same");
        // Two others are under way.
        for _ in 0..2 {
            device.forced.begin(Sharing::Auto, Instant::now());
        }
        write(1).unwrap();
        assert_eq!(durable.counters().asked, 2);
        assert!(matches!(write(2), Err(BlockError::Flush(_))));
        assert!(matches!(write(3), Err(BlockError::Poisoned)));
        (0..2).for_each(|_| device.forced.end(Instant::now()));
        assert!(matches!(write(4), Err(BlockError::Poisoned)), "also by itself");
        assert_eq!(durable.counters().asked, 3);
    }

    #[test]
    fn a_durable_write_by_itself_that_fails_is_among_the_engines_failures() {
        let runtime = Runtime::new().unwrap();
        let durable = Durable::new(&runtime).unwrap();
        let path = tempfile::NamedTempFile::new().unwrap();
        path.as_file().set_len(4096).unwrap();
        // It is not open for writing.
        let device = File::new(Arc::new(fs::File::open(&path).unwrap()), 0, 4096, 4096);
        device.report_to(&durable);
        let (sender, receiver) = mpsc::channel();
        let done = Box::new(move |result| sender.send(result).unwrap());
        device.write_through(&durable, 0, &mut [1; 4096], done);
        assert!(matches!(receiver.recv().unwrap(), Err(BlockError::Flush(_))));
        assert!(matches!(device.flush(), Err(BlockError::Poisoned)));
        assert_eq!((durable.counters().asked, durable.counters().failed), (1, 1));
        let is_it =
            |error: &homing_durable::DurabilityError| error.errno == Errno::BADF.raw_os_error();
        assert!(durable.failures().iter().any(is_it));
    }

    #[test]
    fn a_file_that_shrank_is_an_error_not_zeroes() {
        let (file, device) = device(64 << 10);
        file.set_len(9000).unwrap();
        let error = device.read(0, &mut [0; 8192]).unwrap_err().to_string();
        assert!(error.contains("read of 8192 bytes at 0"), "{error}");
    }
}
