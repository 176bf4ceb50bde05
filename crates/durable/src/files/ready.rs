//! The files of one filesystem that can be synced now. Those of callers that asked for one file
//! come before those of batches: one of them beside ten thousand waits for a sync that ends, not
//! for all. Pure.

use std::collections::VecDeque;

use crate::files::file_id::FileId;

/// See the module. Within each kind, files are in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    /// Files of callers that asked for one.
    single: VecDeque<FileId>,
    batched: VecDeque<FileId>,
    /// The last one taken was `single` although others waited: the next one is not, so that these
    /// are not overtaken for ever.
    overtook: bool,
}

impl Ready {
    /// One more file waits.
    pub(crate) fn push(&mut self, id: FileId, is_single: bool) {
        if is_single { self.single.push_back(id) } else { self.batched.push_back(id) }
    }

    /// Takes the next file to be synced by itself.
    pub(crate) fn pop(&mut self) -> Option<FileId> {
        let yields = self.overtook && !self.batched.is_empty();
        let first = if yields { None } else { self.pop_single() };
        self.overtook = first.is_some() && !self.batched.is_empty();
        first.or_else(|| self.batched.pop_front())
    }

    /// Takes the next file of a caller that asked for one.
    pub(crate) fn pop_single(&mut self) -> Option<FileId> {
        self.single.pop_front()
    }

    /// How many wait of callers that asked for one.
    pub(crate) fn singles(&self) -> usize {
        self.single.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.single.len() + self.batched.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// In which order does not matter.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &FileId> {
        self.single.iter().chain(&self.batched)
    }

    /// Takes a file out. Returns whether it was there.
    pub(crate) fn remove(&mut self, id: FileId) -> bool {
        let waiting = self.len();
        self.single.retain(|ready| *ready != id);
        self.batched.retain(|ready| *ready != id);
        self.len() < waiting
    }

    /// Takes all that can be part of a commit. A commit would write nothing of what is no file of
    /// the filesystem.
    pub(crate) fn take_plain(&mut self) -> Vec<FileId> {
        let mut taken = Vec::with_capacity(self.len());
        for files in [&mut self.single, &mut self.batched] {
            let is_plain = |id: &&FileId| id.is.is_of_filesystem();
            taken.extend(files.iter().filter(is_plain));
            files.retain(|id| !id.is.is_of_filesystem());
        }
        taken
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::files::file_id::Is;

    fn id(inode: u64) -> FileId {
        FileId { device: 7, inode, is: if inode == 5 { Is::Device } else { Is::Plain } }
    }

    #[test]
    fn a_single_file_comes_before_a_batch_but_not_always() {
        let mut ready = Ready::default();
        (100..104).for_each(|inode| ready.push(id(inode), false));
        (1..=3).for_each(|inode| ready.push(id(inode), true));
        let mut order = Vec::new();
        while let Some(next) = ready.pop() {
            order.push(next.inode);
        }
        assert_eq!(order, [1, 100, 2, 101, 3, 102, 103]);
        ready.push(id(4), true);
        assert_eq!(ready.pop(), Some(id(4)), "it keeps nobody waiting");
    }

    #[test]
    fn a_commit_takes_what_is_on_the_filesystem() {
        let mut ready = Ready::default();
        for (inode, is_single) in [(1, false), (5, false), (2, true)] {
            ready.push(id(inode), is_single);
        }
        assert_eq!(ready.take_plain(), [id(2), id(1)]);
        assert_eq!((ready.len(), ready.singles()), (1, 0));
        assert!(ready.remove(id(5)) && !ready.remove(id(5)) && ready.is_empty());
    }
}
