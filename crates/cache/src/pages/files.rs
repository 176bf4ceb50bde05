//! The files that are open, by number: how they are opened and closed.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use super::backing::Backing;
use super::bad_pages::BadPages;
use super::core::Core;
use super::error::{FileError, GroupInUse, OpenError};
use super::frame::{FILES_MAX, Flags, PAGES_MAX};
use super::group::{Group, GroupState};
use super::read_time::ReadTime;
use super::shard::Skims;
use super::streams::Streams;
use crate::panics::drop_quietly;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Mutex, lock, read, write};

/// What the cache knows of a file.
pub(super) struct FileState {
    pub(super) number: u16,
    /// Decides which shard its first chunk is in.
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) group: Arc<GroupState>,
    pub(super) backing: Arc<dyn Backing>,
    /// The first error of a write-back that no flush has returned yet.
    error: Mutex<Option<FileError>>,
    pub(super) bad_pages: BadPages,
    /// Looked at under the lock of a page's shard. Closing takes that lock after it has set this.
    closing: AtomicBool,
    /// Held by the thread that closes it after its handle was dropped.
    pub(super) orphan: Mutex<()>,
    /// If set, its number may be another file's. Looked at under the lock of a page's shard: a page
    /// of the other file was put there after this was set.
    closed: AtomicBool,
    pub(super) streams: Streams,
    pub(super) read_time: ReadTime,
    /// For each shard, made when it is first needed: most files are never read this way.
    pub(super) skims: OnceLock<Box<[Skims]>>,
}

impl FileState {
    pub(super) fn keep_error(&self, error: FileError) {
        let mut kept = lock(&self.error);
        // A lack of room may be over, so another error replaces it.
        if kept.as_ref().is_none_or(FileError::is_full) {
            *kept = Some(error);
        }
    }

    pub(super) fn take_error(&self) -> Option<FileError> {
        lock(&self.error).take()
    }

    /// What putting in a page of this many bytes costs, as a share of what a hit saves; 0 if that
    /// is not to count.
    pub(super) fn price(&self, page_size: usize) -> f32 {
        if self.backing.reads_may_meet_writes() { self.read_time.price(page_size) } else { 0.0 }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// Whether its number may be another file's. Ask this under the lock of the page's shard.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }
}

/// The files that are open, by number.
#[derive(Default)]
pub(super) struct Files {
    slots: Vec<Option<Arc<FileState>>>,
    next: usize,
}

impl Files {
    pub(super) fn get(&self, number: u16) -> Option<&Arc<FileState>> {
        self.slots.get(number as usize)?.as_ref()
    }

    /// Puts a file in its place.
    fn add(&mut self, file: &Arc<FileState>) {
        file.group.files.fetch_add(1, Relaxed);
        self.slots[file.number as usize] = Some(Arc::clone(file));
    }

    fn remove(&mut self, file: &FileState) {
        file.group.files.fetch_sub(1, Relaxed);
        self.slots[file.number as usize] = None;
    }

    /// How many files of a group are open.
    fn count_of(group: &GroupState) -> usize {
        group.files.load(Relaxed)
    }

    /// A free number. Numbers go round, so that what is remembered of a closed file's pages is not
    /// soon taken for another file's.
    fn free(&mut self) -> Option<usize> {
        let free = |number: &usize| self.slots.get(*number).is_none_or(Option::is_none);
        let number = (self.next..FILES_MAX).find(free).or_else(|| (0..self.next).find(free))?;
        self.next = number + 1;
        self.slots.resize(self.slots.len().max(number + 1), None);
        Some(number)
    }
}

impl Core {
    /// Closes a file whose handle was dropped. If the backing panics, closing has failed.
    pub(super) fn try_close(&self, file: &FileState) -> Result<(), FileError> {
        if cfg!(shuttle) {
            // Models are there to find panics.
            return self.close(file);
        }
        catch_unwind(AssertUnwindSafe(|| self.close(file))).unwrap_or_else(|payload| {
            drop_quietly(payload);
            Err(FileError::Flush(std::io::Error::other("what it is made of panicked")))
        })
    }

    pub(super) fn file(&self, number: u16) -> Option<Arc<FileState>> {
        read(&self.files).get(number).cloned()
    }

    pub(super) fn open(
        &self,
        backing: Arc<dyn Backing>,
        group: &Group,
    ) -> Result<Arc<FileState>, OpenError> {
        let Group(group) = group;
        self.close_orphans_like(&*backing, group).map_err(OpenError::Unwritten)?;
        let (size, page_size) = (backing.size(), self.page_size());
        let max = PAGES_MAX * page_size as u64;
        if size > max {
            return Err(OpenError::TooLarge { size, page_size, max });
        }
        let mut files = write(&self.files);
        // Checked under the lock under which groups are removed: none goes while a file of it is
        // opened.
        if !self.knows(group) {
            return Err(OpenError::ForeignGroup(group.name.clone()));
        }
        let number = files.free().ok_or(OpenError::TooManyFiles(FILES_MAX))?;
        let file = Arc::new(FileState {
            number: number as u16,
            start: (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32,
            size,
            group: Arc::clone(group),
            backing,
            error: Mutex::new(None),
            bad_pages: BadPages::default(),
            closing: AtomicBool::new(false),
            orphan: Mutex::new(()),
            closed: AtomicBool::new(false),
            streams: Streams::default(),
            read_time: ReadTime::default(),
            skims: OnceLock::new(),
        });
        files.add(&file);
        Ok(file)
    }

    /// Writes all of a file back and drops its pages. The file must not be used meanwhile.
    pub(super) fn close(&self, file: &FileState) -> Result<(), FileError> {
        let pages = self.pages_of(0, file.size);
        file.closing.store(true, Relaxed);
        let flushed = self.flush(file, &pages);
        if let Err(error) = flushed {
            file.closing.store(false, Relaxed);
            return Err(error);
        }
        self.drop_pages(file, &pages);
        Ok(())
    }

    /// Drops all pages of a file, written or not. The file must not be used meanwhile.
    pub(super) fn abandon(&self, file: &FileState) {
        let pages = self.pages_of(0, file.size);
        file.closing.store(true, Relaxed);
        // The closure does nothing, so this cannot fail.
        let _ = self.punch(file, &pages, "abandoning", |_, _| Ok(()));
        self.drop_pages(file, &pages);
    }

    /// Ends a file of which nothing is left to be written.
    fn drop_pages(&self, file: &FileState, pages: &Range<u64>) {
        for shard in &self.shards {
            loop {
                let mut table = shard.write();
                let Some(local) = table.known_local(&file.group) else { break };
                let frames = Self::frames_in(&table, file.number, pages);
                let moving = Flags::LOADING.or(Flags::UNWRITTEN);
                let (stay, go): (Vec<_>, Vec<_>) =
                    frames.into_iter().partition(|&frame| table.flags(frame).has(moving));
                let has_freed = !go.is_empty();
                for frame in go {
                    table.vacate(local, frame);
                    file.group.lose();
                }
                // Only pages that are being read ahead can be left.
                let ticket = (!stay.is_empty()).then(|| shard.ticket());
                drop(table);
                if has_freed {
                    // A thread that makes the shard smaller may wait for these frames.
                    shard.wake();
                }
                let Some(ticket) = ticket else { break };
                ticket.wait();
            }
        }
        file.closed.store(true, Relaxed);
        let mut files = write(&self.files);
        files.remove(file);
        let goes = file.group.passing && Files::count_of(&file.group) == 0;
        let gone = goes && self.forget_group(&file.group);
        drop(files);
        if gone {
            self.use_spare_memory();
        }
    }

    pub(super) fn remove_group(&self, group: &Group) -> Result<(), GroupInUse> {
        let files = write(&self.files);
        match Files::count_of(&group.0) {
            0 => {
                let gone = self.forget_group(&group.0);
                drop(files);
                if gone {
                    self.use_spare_memory();
                }
                Ok(())
            }
            open => Err(GroupInUse { group: group.0.name.clone(), files: open }),
        }
    }
}
