//! Reads past the cache without a trace. This is for new pages, when most missed pages are declined
//! and reading takes hardly longer than remembering that.
//!
//! Three kinds of pages are looked at more closely: pages that come again soon, pages of which
//! something is remembered, and one page in [`LOOK`], in turn, so that something is remembered of
//! it. A change of habits is thus noticed within a few cachefuls. Nothing is marked, so a read may
//! meet a write of the same page: only backings that allow this are read this way.

use std::ops::Range;

use homing_mglru::density::EPOCHS;

use super::core::{CHUNK, Core};
use super::files::FileState;
use super::frame::Key;
use super::group::Counters;
use super::shard::{Shard, Skims};
use super::table::Table;

/// One in this many pages is looked at more closely: different ones in each epoch.
const LOOK: u64 = 32;
/// What is remembered of a page counts up to this age, in cachefuls of requests.
const SHADOW_MAX: u32 = 2;
/// Pages are read without a trace only if putting one in costs at least this share of what a hit
/// saves. Measured on one machine: declining and remembering a page costs a tenth to a fifth of
/// what is then saved.
const PRICE_MIN: f32 = 0.2;

/// A read without a trace that is under way.
pub(super) struct Skim<'a> {
    shard: &'a Shard,
    skims: &'a Skims,
    pub(super) pages: Range<u64>,
}

impl Skim<'_> {
    /// How many pages it reads.
    pub(super) fn len(&self) -> u64 {
        self.pages.end - self.pages.start
    }
}

impl Drop for Skim<'_> {
    fn drop(&mut self) {
        self.shard.end_skim(self.skims);
    }
}

impl Core {
    /// The pages at the beginning of a range, of which the first is missing, if they are to be read
    /// past the cache without a trace. Call this with the shard locked.
    pub(super) fn skim<'a>(
        &self,
        shard: &'a Shard,
        table: &Table,
        file: &'a FileState,
        wanted: Range<u64>,
    ) -> Option<Skim<'a>> {
        // A claimant may be waiting for such reads to end.
        if !file.backing.reads_may_meet_writes() || table.has_claimants(file.number) {
            return None;
        }
        let local = table.known_local(&file.group)?;
        let declines =
            table.policy.declines_most(local) && file.price(self.page_size()) >= PRICE_MIN;
        // Otherwise models would have to run long before anything is declined.
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
        if pages.is_empty()
            || self.is_looked_at(table, key(first))
            || !table.recent.note(table.hash(chunk), &pages)
        {
            return None;
        }
        for page in pages.clone() {
            self.habits.used(table.hash(key(page)), Some(file.group.number), false);
        }
        let Counters { misses, declined, skimmed, .. } = &file.group.counters;
        for counter in [misses, declined, skimmed] {
            Counters::add(counter, (pages.end - first) as usize);
        }
        let skims = self.skims_of(file, first);
        skims.begin();
        Some(Skim { shard, skims, pages })
    }

    /// Whether this page is to be looked at more closely, even if it did not come lately.
    fn is_looked_at(&self, table: &Table, key: Key) -> bool {
        let (hash, epoch) = (table.hash(key), self.habits.epoch());
        let kind = hash / (u64::MAX / LOOK + 1);
        let its_turn = kind == u64::from(epoch) % LOOK;
        let shadow = || table.ghosts.get(hash, epoch);
        let reach = SHADOW_MAX * EPOCHS as u32;
        its_turn || shadow().is_some_and(|it| it.age(epoch) <= reach)
    }
}
