//! In which order the replacements of a file were asked for.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Result;

use crate::files::file_id::FileId;
use crate::sync::{Mutex, lock};

/// A directory, and a name in it.
type Name = (FileId, OsString);

/// The replacements that are under way.
#[derive(Debug, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<Name, Known>>>);

/// The order of a file's replacements, and how many there are.
type Known = (Arc<Order>, usize);

#[derive(Debug, Default)]
struct Order {
    last: AtomicU64,
    /// The number of the last one that has renamed its file. Held while one does.
    renamed: Mutex<u64>,
}

/// The place of a replacement among those of its file.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Turns,
    of: Name,
    order: Arc<Order>,
    number: u64,
}

impl Turns {
    #[cfg(all(test, not(shuttle)))]
    pub(super) fn are_over(&self) -> bool {
        lock(&self.0).is_empty()
    }

    pub(super) fn take(&self, parent: FileId, name: &OsStr) -> Turn {
        let of = (parent, name.to_owned());
        let mut all = lock(&self.0);
        let (order, users) = all.entry(of.clone()).or_default();
        *users += 1;
        let order = Arc::clone(order);
        drop(all);
        let number = order.last.fetch_add(1, Ordering::Relaxed) + 1;
        Turn { turns: Self(Arc::clone(&self.0)), of, order, number }
    }
}

impl Turn {
    /// Renames, unless a later one has renamed its file. Returns whether it did.
    pub(super) fn rename(&self, rename: impl FnOnce() -> Result<()>) -> Result<bool> {
        let mut renamed = lock(&self.order.renamed);
        let is_next = *renamed < self.number;
        if is_next {
            rename()?;
            *renamed = self.number;
        }
        Ok(is_next)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = lock(&self.turns.0);
        if let Some((_, users)) = all.get_mut(&self.of) {
            *users -= 1;
            if *users == 0 {
                all.remove(&self.of);
            }
        }
    }
}
