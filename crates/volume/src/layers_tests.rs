//! What a power cut leaves of durable data, in all layers; and that nobody else changes a block
//! while a part of it is changed.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use homing_cache::pages::PageCache;
use homing_durable::Durable;
use homing_runtime::Runtime;

use crate::block::{Block, BlockError, Durability, Write};
use crate::xts::{Cipher, SectorSize, XtsKey};
use crate::{Bytes, Cached, Crypt, File, WritePolicy};

const BLOCK: usize = 4096;

/// A disk in memory, with a cache that a power cut loses.
struct Disk {
    /// The contents now, and what a power cut leaves.
    both: Mutex<[Vec<u8>; 2]>,
    /// Writes that begin here fail.
    fails_at: AtomicU64,
    /// Whether reads report themselves and wait until they are let go.
    holds_reads: AtomicBool,
    reading: Mutex<mpsc::Sender<()>>,
    let_go: Mutex<mpsc::Receiver<()>>,
}

/// Learns of reads that are held, and lets them go.
struct Hand(mpsc::Receiver<()>, mpsc::Sender<()>);

#[derive(Clone)]
struct Shared(Arc<Disk>);

impl Shared {
    fn new(content: Vec<u8>) -> (Self, Hand) {
        let (reading, told) = mpsc::channel();
        let (goes_on, let_go) = mpsc::channel();
        let disk = Disk {
            both: Mutex::new([content.clone(), content]),
            fails_at: AtomicU64::new(u64::MAX),
            holds_reads: AtomicBool::new(false),
            reading: Mutex::new(reading),
            let_go: Mutex::new(let_go),
        };
        (Self(Arc::new(disk)), Hand(told, goes_on))
    }

    fn after_power_cut(&self) -> Self {
        Self::new(self.0.both.lock().unwrap()[1].clone()).0
    }
}

impl Block for Shared {
    fn size(&self) -> u64 {
        self.0.both.lock().unwrap()[0].len() as u64
    }

    fn block_size(&self) -> u32 {
        BLOCK as u32
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> Result<(), BlockError> {
        data.copy_from_slice(&self.0.both.lock().unwrap()[0][offset as usize..][..data.len()]);
        if self.0.holds_reads.load(Ordering::SeqCst) {
            self.0.reading.lock().unwrap().send(()).unwrap();
            self.0.let_go.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &mut [u8], d: Durability) -> Result<(), BlockError> {
        if offset == self.0.fails_at.load(Ordering::SeqCst) {
            let source = io::Error::from_raw_os_error(5);
            return Err(BlockError::Io { action: "write", offset, length: 1, source });
        }
        let mut both = self.0.both.lock().unwrap();
        let written = if d == Durability::Flushed { &mut both[..] } else { &mut both[..1] };
        for bytes in written {
            bytes[offset as usize..][..data.len()].copy_from_slice(data);
        }
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64, d: Durability) -> Result<(), BlockError> {
        self.write(offset, &mut vec![0; length as usize], d)
    }

    fn flush(&self) -> Result<(), BlockError> {
        let [now, durable] = &mut *self.0.both.lock().unwrap();
        durable.copy_from_slice(now);
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), BlockError> {
        self.write_zeroes(offset, length, Durability::Written)
    }

    fn cost_ns(&self, length: u64) -> u64 {
        length
    }
}

fn encrypted<B: Block>(disk: B) -> Bytes<Crypt<B>> {
    let key = XtsKey::new(&std::array::from_fn::<u8, 64, _>(|i| i as u8)).unwrap();
    Bytes::new(Crypt::new(disk, Cipher::new(&key, SectorSize::B4096), true))
}

fn wait_for(begin: impl FnOnce(crate::block::Done)) -> Result<(), BlockError> {
    let (sender, receiver) = mpsc::channel();
    begin(Box::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap()
}

#[test]
fn what_was_durable_survives_a_power_cut_in_all_its_parts_through_all_layers() {
    const SIZE: usize = 24 << 20;
    const MIB: usize = 1 << 20;
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    for is_cached in [false, true] {
        let (disk, _) = Shared::new(vec![0; SIZE]);
        let below = encrypted(disk.clone());
        below.write(0, &mut vec![1; SIZE], Durability::Flushed).unwrap();
        let cache = PageCache::builder(16 << 20).build().unwrap();
        let group = cache.group("test").build();
        let layers: Box<dyn Block> = if is_cached {
            Box::new(Cached::new(below, &cache, &group, WritePolicy::Back).unwrap())
        } else {
            Box::new(below)
        };
        let mut model = vec![1; SIZE];
        let ranges = [
            (10, 20),
            (BLOCK - 3, 6),
            (2 * BLOCK, BLOCK),
            (5 * BLOCK + 7, 3 * BLOCK),
            (MIB, 700 << 10),
            (2 * MIB + 1, 17 * MIB),
        ];
        for (round, (offset, length)) in (0..3).flat_map(|_| ranges).enumerate() {
            let (kind, byte, at) = (round / ranges.len(), 2 + round as u8, offset as u64);
            let mut data = vec![byte; length];
            match kind {
                0 => layers.write(at, &mut data, Durability::Flushed).unwrap(),
                1 => {
                    layers.write(at, &mut data, Durability::Written).unwrap();
                    layers.write_zeroes(at, length as u64, Durability::Flushed).unwrap();
                }
                _ => {
                    wait_for(|done| layers.write_through(&durable, at, &mut data, done)).unwrap();
                }
            }
            model[offset..offset + length].fill(if kind == 1 { 0 } else { byte });
            let (mut left, told) = (vec![0; length], (kind, offset, length, is_cached));
            encrypted(disk.after_power_cut()).read(at, &mut left).unwrap();
            assert!(left == model[offset..offset + length], "{told:?}");
            layers.read(at, &mut left).unwrap();
            assert!(left == model[offset..offset + length], "{told:?}");
        }
    }
}

#[test]
fn the_engine_counts_every_durable_write_through_all_layers() {
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let below = encrypted(File::new(Arc::new(file), 0, 1 << 20, BLOCK as u32));
    let cache = PageCache::builder(16 << 20).build().unwrap();
    let device =
        Cached::new(below, &cache, &cache.group("test").build(), WritePolicy::Back).unwrap();
    device.report_to(&durable);
    let mut asked = 0;
    let mut is_counted = || std::mem::replace(&mut asked, durable.counters().asked) < asked;
    device.write(9000, &mut [1; 100], Durability::Flushed).unwrap();
    assert!(is_counted());
    device.write_zeroes(9000, 100, Durability::Flushed).unwrap();
    assert!(is_counted());
    wait_for(|done| device.write_through(&durable, 9000, &mut [2; 100], done)).unwrap();
    assert!(is_counted());
}

/// The parts that can be written are durable all the same, and the caller of the flush is told of
/// the rest.
#[test]
fn a_flush_of_which_a_part_cannot_be_written_makes_the_rest_durable_and_tells() {
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    let (disk, _) = Shared::new(vec![0; 1 << 20]);
    let cache = PageCache::builder(16 << 20).build().unwrap();
    let group = cache.group("test").build();
    let below = Bytes::new(disk.clone());
    let device = Cached::new(below, &cache, &group, WritePolicy::Back).unwrap();
    device.write(0, &mut [7; 4 * BLOCK], Durability::Written).unwrap();
    disk.0.fails_at.store(0, Ordering::SeqCst);
    let flushed = wait_for(|done| device.flush_through(&durable, done));
    assert!(matches!(flushed, Err(BlockError::Io { .. })), "{flushed:?}");
    let mut left = [0; 3 * BLOCK];
    disk.after_power_cut().read(BLOCK as u64, &mut left).unwrap();
    assert!(left == [7; 3 * BLOCK]);
    disk.0.fails_at.store(u64::MAX, Ordering::SeqCst);
    wait_for(|done| device.flush_through(&durable, done)).unwrap();
    disk.after_power_cut().read(0, &mut left).unwrap();
    assert!(left == [7; 3 * BLOCK]);
}

/// `BYTES-1` and `BYTES-2`: nobody else changes a block between reading it and writing it.
#[test]
fn nobody_changes_a_block_while_a_part_of_it_is_changed() {
    type Change = fn(&Bytes<Shared>, &Durable);
    const AT: u64 = 2 * BLOCK as u64;
    let firsts: [Change; 2] = [
        |bytes, _| bytes.write(AT + 10, &mut [8; 10], Durability::Written).unwrap(),
        |bytes, _| bytes.write_zeroes(AT + 10, 10, Durability::Written).unwrap(),
    ];
    let seconds: [Change; 7] = [
        |bytes, _| bytes.write(AT, &mut [9; BLOCK], Durability::Written).unwrap(),
        |bytes, _| {
            let mut data = [9; BLOCK];
            let mut writes = [Write { offset: AT, data: &mut data, result: Ok(()) }];
            bytes.write_batch(&mut writes, &mut || false);
            assert!(writes[0].result.is_ok());
        },
        |bytes, durable| {
            let mut data = [9; BLOCK];
            wait_for(|done| bytes.write_through(durable, AT, &mut data, done)).unwrap();
        },
        |bytes, _| bytes.write_zeroes(AT, BLOCK as u64, Durability::Written).unwrap(),
        |bytes, _| bytes.discard(AT, BLOCK as u64).unwrap(),
        |bytes, _| bytes.write(AT + 100, &mut [9; 10], Durability::Written).unwrap(),
        |bytes, _| bytes.write_zeroes(AT + 100, 10, Durability::Written).unwrap(),
    ];
    let runtime = Runtime::new().unwrap();
    let durable = Durable::new(&runtime).unwrap();
    for (number, first) in firsts.iter().enumerate() {
        for (other, second) in seconds.iter().enumerate() {
            let (disk, Hand(reading, go)) = Shared::new(vec![1; 8 * BLOCK]);
            let bytes = Bytes::new(disk.clone());
            disk.0.holds_reads.store(true, Ordering::SeqCst);
            thread::scope(|scope| {
                scope.spawn(|| first(&bytes, &durable));
                reading.recv_timeout(Duration::from_secs(20)).unwrap();
                // Later reads are not held, so only that block holds up the requests that come now.
                disk.0.holds_reads.store(false, Ordering::SeqCst);
                let after = scope.spawn(|| second(&bytes, &durable));
                thread::sleep(Duration::from_millis(30));
                let is_early = after.is_finished();
                go.send(()).unwrap();
                assert!(!is_early, "{other} beside {number}");
            });
        }
    }
}
