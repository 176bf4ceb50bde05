//! Reads past the cache without a trace: of pages that are new, where most of what is missed is declined
//! and reading takes hardly longer than remembering that.
//!
//! A page that comes again soon is looked at more closely, and so is one in [`LOOK`] in turn, to go on
//! learning. Nothing is marked, so that a read may meet a write of the same page: only backings that allow it
//! are read so.

use std::ops::Range;

use super::core::{CHUNK, Core};
use super::file::FileState;
use super::frame::Key;
use super::group::Counters;
use super::table::Table;

/// Pages of which one is looked at in any case, another one in each epoch.
const LOOK: u64 = 16;
/// How much putting a page in has to cost, as a share of what a hit saves. Measured on one machine: a
/// page that is declined and remembered costs a tenth to a fifth of what is then saved.
const PRICE_MIN: f32 = 0.2;

impl Core {
    /// The pages at the beginning of a range, of which the first is missing, that are to be read past
    /// the cache without a trace.
    pub(super) fn skim(
        &self,
        table: &Table,
        file: &FileState,
        wanted: Range<u64>,
    ) -> Option<Range<u64>> {
        if !file.backing.reads_may_meet_writes() || table.claimants > 0 {
            return None;
        }
        let local = table.known_local(&file.group)?;
        let is_dear = file.read_time.price(self.page_size()) >= PRICE_MIN;
        let declines = is_dear && table.policy.declines_most(local);
        // Else models would have to run for long before something is.
        let modelled = cfg!(shuttle) && wanted.start % 4 == 1;
        if !(declines || modelled) || !table.is_scarce(&file.group, Self::watermarks(table).1) {
            return None;
        }
        let key = |page| Key::new(file.number, page);
        let first = wanted.start;
        let missing = wanted.take_while(|&page| {
            (page == first || table.find(key(page)).is_none()) && !table.is_busy(key(page))
        });
        let pages = first..first + missing.count() as u64;
        let chunk = key(first - first % CHUNK);
        let its_turn =
            table.hash(key(first)) / (u64::MAX / LOOK + 1) == u64::from(self.habits.epoch()) % LOOK;
        if pages.is_empty() || its_turn || !table.recent.note(table.hash(chunk), &pages) {
            return None;
        }
        for page in pages.clone() {
            self.habits.used(table.hash(key(page)), false);
        }
        let Counters { misses, declined, skimmed, .. } = &file.group.counters;
        for counter in [misses, declined, skimmed] {
            Counters::add(counter, (pages.end - first) as usize);
        }
        Some(pages)
    }
}
