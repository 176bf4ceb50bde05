//! Which reads and writes of the backing a request leads to.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use homing_cache::pages::{Backing, BuildError, CachedFile, FileError, OpenError, PageCache};

use crate::disk::{ByHand, Disk};

const PAGE: usize = 4096;

fn open(size: usize) -> (PageCache, Arc<Disk>, CachedFile) {
    let cache = PageCache::builder(8 << 20).background(ByHand::default()).build().unwrap();
    let group = cache.group("all").build();
    let disk = Disk::new(size);
    let file = cache.open(disk.clone(), &group).unwrap();
    (cache, disk, file)
}

#[test]
fn neighbours_that_are_missing_are_read_at_once_and_only_once() {
    let (cache, disk, file) = open(64 * PAGE);
    disk.fill(|at| (at / PAGE) as u8);
    let mut page = [0; 10];
    file.read((5 * PAGE + 7) as u64, &mut page).unwrap();
    assert_eq!((page, disk.counts.reads.load(SeqCst)), ([5; 10], 1));
    let mut all = vec![0; 64 * PAGE];
    file.read(0, &mut all).unwrap();
    assert!(all.iter().enumerate().all(|(at, &byte)| byte == (at / PAGE) as u8));
    // The pages before and after the one that was there took a read each.
    assert_eq!(disk.counts.reads.load(SeqCst), 3);
    file.read(100, &mut all[100..]).unwrap();
    assert_eq!(disk.counts.reads.load(SeqCst), 3);
    let stats = cache.stats().total;
    assert_eq!((stats.misses, stats.hits), (64, 65));
}

#[test]
fn a_write_of_whole_pages_reads_nothing() {
    let (_, disk, file) = open(10 * PAGE + 100);
    file.write(0, &[1; 4 * PAGE]).unwrap();
    // The last page ends with the file.
    file.write(10 * PAGE as u64, &[2; 100]).unwrap();
    assert_eq!(disk.counts.reads.load(SeqCst), 0);
    file.write(5 * PAGE as u64 + 1, &[3; PAGE]).unwrap();
    assert_eq!(disk.counts.reads.load(SeqCst), 2);
    assert_eq!(disk.counts.writes.load(SeqCst), 0);
}

#[test]
fn a_flush_writes_runs_in_order() {
    let (_, disk, file) = open(300 * PAGE + 100);
    for page in [200, 3, 1, 2, 64, 63, 300, 9] {
        let len = if page == 300 { 100 } else { PAGE };
        file.write((page * PAGE) as u64, &vec![page as u8; len]).unwrap();
    }
    file.flush(0, (100 * PAGE) as u64).unwrap();
    let run = |page: usize, pages: usize| ((page * PAGE) as u64, pages * PAGE);
    let log = || std::mem::take(&mut *disk.log.lock().unwrap());
    // Page 64 begins another chunk of 256 KiB.
    assert_eq!(log(), [run(1, 3), run(9, 1), run(63, 1), run(64, 1)]);
    file.flush_all().unwrap();
    assert_eq!(log(), [run(200, 1), ((300 * PAGE) as u64, 100)]);
    file.flush_all().unwrap();
    assert_eq!(log(), []);
    assert_eq!(disk.counts.flushes.load(SeqCst), 3);
    let durable = disk.durable();
    assert!(durable[200 * PAGE..201 * PAGE].iter().all(|&byte| byte == 200));
}

#[test]
fn a_durable_write_takes_along_nothing_but_its_own() {
    let (_, disk, file) = open(64 * PAGE);
    file.write(0, &[1; PAGE]).unwrap();
    file.write_through(8 * PAGE as u64 + 8, &[2; 2 * PAGE]).unwrap();
    assert_eq!(*disk.log.lock().unwrap(), [((8 * PAGE) as u64, 3 * PAGE)]);
    let durable = disk.durable();
    assert_eq!((durable[0], durable[8 * PAGE + 8]), (0, 2));
}

#[test]
fn closing_makes_durable_and_leaves_nothing() {
    let (cache, disk, file) = open(64 * PAGE);
    file.write(PAGE as u64, &[1; 100]).unwrap();
    file.close().unwrap();
    assert_eq!(disk.durable()[PAGE], 1);
    assert_eq!((cache.stats().used, cache.stats().total.usage), (0, 0));
}

#[test]
fn a_file_that_is_dropped_is_written() {
    let (cache, disk, file) = open(64 * PAGE);
    file.write(PAGE as u64, &[1; 100]).unwrap();
    drop(file);
    assert_eq!((disk.durable()[PAGE], cache.stats().used), (1, 0));
}

#[test]
fn what_cannot_be_is_refused_by_name_and_value() {
    let (cache, _, file) = open(100);
    let error = file.read(90, &mut [0; 11]).unwrap_err();
    assert!(matches!(error, FileError::OutOfRange { offset: 90, length: 11, size: 100 }));
    assert_eq!(error.to_string(), "11 bytes at 90 reach beyond the end of the file at 100");
    assert!(file.write(u64::MAX, &[0; 2]).is_err());
    assert!(file.discard(0, 101).is_err() && file.write_zeroes(101, 0).is_err());
    file.prefetch(1 << 40, 1 << 40);
    file.read(100, &mut []).unwrap();
    file.flush(0, 0).unwrap();
    let error = PageCache::builder(8 << 20).page_size(1000).build().unwrap_err();
    assert!(matches!(error, BuildError::PageSize(1000)));
    let foreign = PageCache::builder(8 << 20).build().unwrap().group("theirs").build();
    let error = cache.open(Disk::new(1), &foreign).unwrap_err();
    assert!(matches!(error, OpenError::ForeignGroup(name) if name == "theirs"));
}

/// A file that is as large as a file may be, and all zeroes.
struct Largest;

impl Backing for Largest {
    fn size(&self) -> u64 {
        (PAGE as u64) << 36
    }

    fn read(&self, _: u64, data: &mut [u8]) -> io::Result<()> {
        data.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_last_page_of_the_largest_file_is_written_back() {
    let jobs = ByHand::default();
    let builder = PageCache::builder(8 << 20).background(jobs.clone());
    let cache = builder.dirty(0, 100).build().unwrap();
    let group = cache.group("all").build();
    let file = cache.open(Arc::new(Largest), &group).unwrap();
    file.write(Largest.size() - 1, &[7]).unwrap();
    file.write(0, &[7]).unwrap();
    jobs.run();
    assert_eq!(group.dirty(), 0);
}

/// Whether they are looked up one by one or searched for among all dirty pages.
#[test]
fn pages_that_are_not_written_are_found_beside_those_of_others() {
    let jobs = ByHand::default();
    let cache = PageCache::builder(16 << 20).dirty(100, 100).background(jobs).build().unwrap();
    cache.set_readahead(false);
    let group = cache.group("all").build();
    let files = [(); 2].map(|()| cache.open(Disk::new(2000 * PAGE), &group).unwrap());
    let is_dirty =
        |file: usize, page: u64| file == 0 && page % 7 == 1 || file == 1 && !page.is_multiple_of(3);
    for (number, file) in files.iter().enumerate() {
        for page in (0..2000).filter(|page| is_dirty(number, *page)) {
            file.write(page * PAGE as u64, &[1; PAGE]).unwrap();
        }
    }
    for first in (0..2000).step_by(13) {
        for count in
            [0, 1, 5, 63, 64, 65, 200, 1500].into_iter().filter(|count| first + count <= 2000)
        {
            let found = files[0].unwritten(first * PAGE as u64, count * PAGE as u64).unwrap();
            let found: Vec<_> = found.into_iter().flat_map(|range| range.step_by(PAGE)).collect();
            let pages = (first..first + count).filter(|page| is_dirty(0, *page));
            assert!(pages.map(|page| page * PAGE as u64).eq(found), "{count} from {first}");
        }
    }
    files[0].flush_all().unwrap();
    assert_eq!(files[0].unwritten(0, 2000 * PAGE as u64).unwrap(), []);
    files[1].flush_all().unwrap();
    assert_eq!((files[1].unwritten(0, 2000 * PAGE as u64).unwrap(), group.dirty()), (vec![], 0));
}
