//! Files that were dropped and could not be closed.

use std::sync::Arc;

use homing_mglru::density::EPOCHS;

use super::PageCache;
use super::backing::Backing;
use super::core::Core;
use super::error::FileError;
use super::files::FileState;
use super::group::{Group, GroupState};
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicU32, AtomicUsize};
use crate::sync::{Mutex, lock, unless_taken};

/// Files that were dropped and could not be closed. Each is closed once all of it can be written.
/// The jobs of their groups try that again and again: after an epoch, two, four, and in the end
/// each cacheful of requests.
#[derive(Default)]
pub(super) struct Orphans {
    files: Mutex<Vec<Arc<FileState>>>,
    count: AtomicUsize,
    /// The epoch of the last try.
    tried: AtomicU32,
    /// How many epochs after the last try the next one comes.
    wait: AtomicU32,
}

impl Orphans {
    pub(super) fn add(&self, file: &Arc<FileState>) {
        let mut files = lock(&self.files);
        files.push(Arc::clone(file));
        self.wait.store(1, Relaxed);
        self.count.store(files.len(), SeqCst);
    }

    fn remove(&self, file: &Arc<FileState>) {
        let mut files = lock(&self.files);
        files.retain(|other| !Arc::ptr_eq(other, file));
        self.count.store(files.len(), SeqCst);
    }

    fn groups(&self) -> Vec<Arc<GroupState>> {
        let mut groups: Vec<Arc<GroupState>> = Vec::new();
        for file in &*lock(&self.files) {
            if !groups.iter().any(|group| Arc::ptr_eq(group, &file.group)) {
                groups.push(Arc::clone(&file.group));
            }
        }
        groups
    }

    fn of(&self, group: &Arc<GroupState>) -> Vec<Arc<FileState>> {
        let mut files = self.all();
        files.retain(|file| Arc::ptr_eq(&file.group, group));
        files
    }

    fn all(&self) -> Vec<Arc<FileState>> {
        if self.count.load(SeqCst) == 0 { Vec::new() } else { lock(&self.files).clone() }
    }

    fn has(&self, file: &Arc<FileState>) -> bool {
        lock(&self.files).iter().any(|other| Arc::ptr_eq(other, file))
    }

    /// Ends a file if it is still there. If `end` fails, the file stays. One thread at a time does
    /// this.
    fn end(
        &self,
        file: &Arc<FileState>,
        end: impl FnOnce() -> Result<(), FileError>,
    ) -> Option<Result<(), FileError>> {
        let _one = lock(&file.orphan);
        if !self.has(file) {
            return None;
        }
        let ended = end();
        if ended.is_ok() {
            self.remove(file);
        }
        Some(ended)
    }
}

/// Whether a dropped file is the same as one that is being opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Likeness {
    None,
    /// It may be.
    Maybe,
    Sure,
}

fn likeness(file: &FileState, backing: &dyn Backing, group: &Arc<GroupState>) -> Likeness {
    let identities = file.backing.identity().zip(backing.identity());
    let is_same = std::ptr::addr_eq(Arc::as_ptr(&file.backing), backing);
    if is_same || identities.is_some_and(|(a, b)| a == b) {
        Likeness::Sure
    } else if identities.is_none() && Arc::ptr_eq(&file.group, group) && file.size == backing.size()
    {
        Likeness::Maybe
    } else {
        Likeness::None
    }
}

impl Core {
    /// If it is time, has the jobs of groups try again to close their files.
    pub(super) fn try_orphans(&self) {
        let Orphans { count, tried, wait, .. } = &self.orphans;
        if count.load(Relaxed) == 0 {
            return;
        }
        let (epoch, waits) = (self.habits.epoch(), wait.load(Relaxed));
        let is_time = epoch.wrapping_sub(tried.load(Relaxed)) >= waits;
        if is_time && tried.swap(epoch, Relaxed) != epoch {
            wait.store((2 * waits).min(EPOCHS as u32), Relaxed);
            self.orphans.groups().iter().for_each(|group| self.wake_writer(group));
        }
    }

    /// Closes the dropped files of a group that can be closed by now.
    pub(super) fn close_orphans(&self, group: &Arc<GroupState>) {
        for file in self.orphans.of(group) {
            self.orphans.end(&file, || {
                drop(file.take_error());
                self.try_close(&file)
            });
        }
    }

    /// Closes dropped files that are, or may be, the one that is being opened: otherwise they would
    /// later write over what that one writes. Fails only for a file that is surely the same.
    pub(super) fn close_orphans_like(
        &self,
        backing: &dyn Backing,
        group: &Arc<GroupState>,
    ) -> Result<(), FileError> {
        // Backings are asked without the lock, because they are the program's code.
        for file in self.orphans.all() {
            let likeness = likeness(&file, backing, group);
            if likeness == Likeness::None {
                continue;
            }
            let is_sure = likeness == Likeness::Sure;
            if !is_sure && unless_taken(file.orphan.try_lock()).is_none() {
                // Another thread is closing it, and may be waiting for its disk.
                continue;
            }
            // A kept error is returned only once. The second try may succeed: all may be written by
            // now.
            let closed = self
                .orphans
                .end(&file, || self.try_close(&file).or_else(|_| self.try_close(&file)));
            if let Some(Err(error)) = closed
                && is_sure
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Gives up the dropped files of a group. Returns how many there were.
    pub(super) fn abandon_orphans(&self, group: &Arc<GroupState>) -> usize {
        let files = self.orphans.of(group);
        let abandoned = files.iter().filter_map(|file| {
            self.orphans.end(file, || {
                self.abandon(file);
                Ok(())
            })
        });
        abandoned.count()
    }

    /// Closes the dropped files of all groups, as far as possible: nobody will try again.
    pub(super) fn close_all_orphans(&self) {
        self.orphans.groups().iter().for_each(|group| self.close_orphans(group));
    }
}

impl PageCache {
    /// Gives up what dropped files of a group could not write. That data is lost, and the files are
    /// closed. Returns how many files there were. Without this call, the cache tries again and
    /// again until the data can be written.
    ///
    /// ```
    /// use homing_cache::pages::PageCache;
    /// # use std::{fs::File, io::Result, os::unix::fs::FileExt, sync::Arc};
    /// # struct Disk(File);
    /// # impl homing_cache::pages::Backing for Disk {
    /// #     fn size(&self) -> u64 { 1 << 20 }
    /// #     fn read(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.read_exact_at(data, at) }
    /// #     fn write(&self, at: u64, data: &mut [u8]) -> Result<()> { self.0.write_all_at(data, at) }
    /// #     fn flush(&self) -> Result<()> { self.0.sync_data() }
    /// # }
    /// # let cache = PageCache::builder(4 << 20).build()?;
    /// # let temporary = tempfile::NamedTempFile::new()?;
    ///
    /// let group = cache.group("tenant").build();
    /// let read_only = Disk(File::open(temporary.path())?);
    /// let file = cache.open(Arc::new(read_only), &group)?;
    /// file.write(0, &[7; 4096])?;
    /// drop(file);
    /// assert!(cache.remove_group(&group).is_err());
    /// assert_eq!(cache.abandon_dropped(&group), 1);
    /// cache.remove_group(&group)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn abandon_dropped(&self, group: &Group) -> usize {
        self.core().abandon_orphans(&group.0)
    }
}
