//! What was written and what was acknowledged, and when; and whether a filesystem has it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use crate::contents;

/// The versions of all files, by their names below the root of the filesystem.
#[derive(Default)]
pub(crate) struct History(Mutex<BTreeMap<String, Vec<Written>>>);

/// A version of a file. Versions are numbered from 1.
struct Written {
    sectors: usize,
    /// The moment before its first byte was written.
    begun: usize,
    /// A moment at which its sync had completed.
    synced: Option<usize>,
}

impl History {
    /// Notes that the next version of a file is about to be written. Returns its number.
    pub(crate) fn begin(&self, name: &str, sectors: usize, moment: usize) -> u32 {
        let mut files = self.0.lock().unwrap();
        let versions = files.entry(name.to_owned()).or_default();
        versions.push(Written { sectors, begun: moment, synced: None });
        versions.len() as u32
    }

    /// Notes that a sync has completed that was asked for after the latest version was written.
    pub(crate) fn synced(&self, name: &str, moment: usize) {
        let mut files = self.0.lock().unwrap();
        let latest = files.get_mut(name).and_then(|versions| versions.last_mut()).unwrap();
        latest.synced = Some(moment);
    }

    /// The moments at which syncs had completed.
    pub(crate) fn moments_of_syncs(&self) -> Vec<usize> {
        let files = self.0.lock().unwrap();
        files.values().flatten().filter_map(|version| version.synced).collect()
    }

    /// What is missing below `root`, of what had been acknowledged when the power was cut, if
    /// anything.
    pub(crate) fn verify(&self, root: &Path, moment: usize) -> Option<String> {
        let files = self.0.lock().unwrap();
        let faults = files.iter().filter_map(|(name, versions)| {
            let had = |when: Option<usize>| when.is_some_and(|when| when <= moment);
            let newest = versions.iter().rposition(|version| had(version.synced))?;
            let begun = versions.iter().rposition(|version| version.begun <= moment)?;
            let sectors = versions[newest].sectors;
            let versions = newest as u32 + 1..=begun as u32 + 1;
            let found = match fs::read(root.join(name)) {
                Ok(bytes) => contents::verify(&bytes, name, sectors, &versions),
                Err(error) => Err(error.to_string()),
            };
            found.err().map(|fault| format!("{name} (versions {versions:?} may be there): {fault}"))
        });
        let faults: Vec<_> = faults.collect();
        let first = faults.first()?;
        Some(format!("{} files, of which {first}", faults.len()))
    }
}
