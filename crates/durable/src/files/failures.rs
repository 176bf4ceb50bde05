//! The failures that nobody has acknowledged. All engines of a process share them: the kernel tells
//! a description of an error once, so what one engine was told, no other would hear of.
//!
//! A failure is noted before anybody is told of it, and a sync looks for one before it begins and
//! when it ends. What remains open: two engines may sync one description at the same time, and one
//! of them be told by the kernel what the other has not noted yet; and somebody may acknowledge a
//! failure before callers of another engine, which wait, come to look. So a file is best synced by
//! one engine only.

use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, OnceLock};

use crate::error::DurabilityError;
use crate::files::file_id::FileId;
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// How a file failed, and the description that heard of it: it is kept, unless the process was out
/// of descriptors, so that the inode is not used for another file.
pub(crate) type Failed = (DurabilityError, Option<Arc<File>>);

#[derive(Debug, Default)]
struct All {
    /// How many there are, to be read without the lock: mostly none.
    count: AtomicUsize,
    /// With the numbers of the engines that noted each.
    known: Mutex<HashMap<FileId, (Vec<usize>, Failed)>>,
}

/// An engine's access to the failures. A failure is forgotten when all engines have gone that heard
/// of it themselves.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    all: Arc<All>,
    engine: usize,
}

impl Failures {
    /// Shares those of the process.
    pub(crate) fn of_process() -> Self {
        // The standard library's, not the model checker's: its engines share nothing.
        static ALL: OnceLock<Arc<All>> = OnceLock::new();
        Self::sharing(ALL.get_or_init(Arc::default))
    }

    fn sharing(all: &Arc<All>) -> Self {
        static ENGINES: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let engine = ENGINES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Self { all: Arc::clone(all), engine }
    }

    /// Another engine's access to the same failures.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) fn another(&self) -> Self {
        Self::sharing(&self.all)
    }

    /// How a file failed.
    pub(crate) fn of(&self, id: FileId) -> Option<DurabilityError> {
        if self.all.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        lock(&self.all.known).get(&id).map(|(_, (error, _))| error.clone())
    }

    /// Notes that this engine has heard of a file's failure; the first one that is noted stays.
    pub(crate) fn note(&self, id: FileId, failed: impl FnOnce() -> Failed) {
        let mut known = lock(&self.all.known);
        let (engines, _) = known.entry(id).or_insert_with(|| (Vec::new(), failed()));
        if !engines.contains(&self.engine) {
            engines.push(self.engine);
        }
        self.all.count.store(known.len(), Ordering::Release);
    }

    /// Forgets a failure if `is_it` says so. Returns it; closing its file may take long.
    pub(crate) fn take(
        &self,
        id: FileId,
        is_it: impl FnOnce(&DurabilityError) -> bool,
    ) -> Option<Failed> {
        let mut known = lock(&self.all.known);
        let is_known = known.get(&id).is_some_and(|(_, (error, _))| is_it(error));
        let taken = if is_known { known.remove(&id) } else { None };
        self.all.count.store(known.len(), Ordering::Release);
        taken.map(|(_, failed)| failed)
    }

    /// All of them, in no order.
    pub(crate) fn all(&self) -> Vec<DurabilityError> {
        lock(&self.all.known).values().map(|(_, (error, _))| error.clone()).collect()
    }
}

impl Drop for Failures {
    fn drop(&mut self) {
        let mut known = lock(&self.all.known);
        let is_last = |_: &FileId, (engines, _): &mut (Vec<usize>, Failed)| {
            engines.retain(|engine| *engine != self.engine);
            engines.is_empty()
        };
        let own: Vec<_> = known.extract_if(is_last).collect();
        self.all.count.store(known.len(), Ordering::Release);
        drop(known);
        // Closing files may take long.
        drop(own);
    }
}
