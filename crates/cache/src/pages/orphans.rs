//! Files that were dropped and could not be closed.

use std::sync::Arc;

use homing_mglru::density::EPOCHS;

use super::core::Core;
use super::file::FileState;
use super::group::GroupState;
use crate::sync::atomic::Ordering::{Relaxed, SeqCst};
use crate::sync::atomic::{AtomicU32, AtomicUsize};
use crate::sync::{Mutex, lock};

/// Files that were dropped and could not be closed. They are closed when all of them can be written, which
/// their groups' jobs try again and again: after an epoch, two, four, and in the end each cacheful of requests.
#[derive(Default)]
pub(super) struct Orphans {
    files: Mutex<Vec<Arc<FileState>>>,
    count: AtomicUsize,
    /// The epoch in which it was tried last.
    tried: AtomicU32,
    /// How many epochs after that it is tried again.
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
        if self.count.load(SeqCst) == 0 {
            return Vec::new();
        }
        let files = lock(&self.files);
        files.iter().filter(|file| Arc::ptr_eq(&file.group, group)).cloned().collect()
    }
}

impl Core {
    /// Has those try again who look after files that could not be closed, if it is time.
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

    /// Closes files of a group that could not be closed when they were dropped, as far as that can be done by now.
    /// There is one at a time who does: the job of the group.
    pub(super) fn close_orphans(&self, group: &Arc<GroupState>) {
        for file in self.orphans.of(group) {
            drop(file.take_error());
            if self.try_close(&file) {
                self.orphans.remove(&file);
            }
        }
    }

    /// Closes what is left of the files of all groups: nobody will try again.
    pub(super) fn close_all_orphans(&self) {
        self.orphans.groups().iter().for_each(|group| self.close_orphans(group));
    }
}
