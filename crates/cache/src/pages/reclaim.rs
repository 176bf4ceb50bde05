//! Keeps some frames free and most pages clean: in the background and, where the background falls
//! behind, in the requests that need it.
//!
//! A shard below its low watermark of free frames is brought up to the high one. A group with more
//! dirty pages than its target has them written back until it is at the target. Between target and
//! trigger its writers write back a share of what they write, which grows to twice as much. Nobody
//! sleeps. If nothing can be written back, as on a full disk, writes above the trigger go past the
//! cache: the writer gets the error, and the group gets no more of the memory. When a group's `max`
//! is lowered, its excess is evicted by its own job, which is asked for at that time and whenever a
//! flush has written some of it.

use std::ops::Range;
use std::sync::Arc;

use super::background::{Present, Service};
use super::core::{CHUNK, Core};
use super::evict::NoFrame;
use super::files::FileState;
use super::fill::Demand;
use super::frame::Flags;
use super::group::{Counters, GroupState};
use super::shard::Shard;
use super::table::Table;
use crate::sync::atomic::Ordering::Relaxed;

/// One in this many frames of a shard is kept free: refilling begins below the first share, and
/// ends at the second.
const WATERMARKS: (usize, usize) = (256, 128);
/// The most frames of a shard that are kept free, as the second share.
const FREE_MAX: usize = 256;
/// The most frames that are freed under one hold of the lock.
const BATCH: usize = 32;
/// The fewest pages that a writer writes back at a time. A writer of one page pays for those before
/// it who owed less than this, so it is few.
const THROTTLE: u64 = 8;

/// Background work that was found necessary while a shard was locked. It is [asked
/// for](Core::ask_for) when the shard is unlocked, because the code that runs it is the program's,
/// and may wait.
#[must_use = "the work is still to be asked for"]
#[derive(Default)]
pub(super) struct Needs {
    refill: bool,
    writers: Vec<Arc<GroupState>>,
}

impl Core {
    pub(super) fn watermarks(table: &Table) -> (usize, usize) {
        let frames = table.limit;
        ((frames / WATERMARKS.0).min(FREE_MAX / 2), (frames / WATERMARKS.1).min(FREE_MAX))
    }

    /// The background work that a shard needs. Call this after frames were taken.
    pub(super) fn needs(&self, table: &Table) -> Needs {
        let refill = table.free_count() < Self::watermarks(table).0 && self.service.say();
        Needs { refill, ..Self::needs_of_groups(table) }
    }

    fn needs_of_groups(table: &Table) -> Needs {
        let writers = table.nominators().filter(|group| group.writer.say());
        Needs { refill: false, writers: writers.map(Arc::clone).collect() }
    }

    /// Asks for background work. Call this without a lock.
    pub(super) fn ask_for(&self, needs: &Needs) {
        if needs.refill {
            self.wake_service();
        }
        needs.writers.iter().for_each(|group| self.wake_writer(group));
    }

    fn wake_service(&self) {
        self.wake(&self.service, Self::work);
    }

    /// Each group has its own job that writes, because it may wait for the group's disk.
    pub(super) fn wake_writer(&self, group: &Arc<GroupState>) {
        let of = Arc::clone(group);
        self.wake(&group.writer, move |core| core.write_group(&of));
    }

    /// Each group has its own job that reads ahead.
    pub(super) fn wake_reader(&self, group: &Arc<GroupState>) {
        let of = Arc::clone(group);
        self.wake(&group.reader, move |core| core.read_ahead(&of));
    }

    fn wake(&self, service: &Arc<Service>, work: impl Fn(&Self) + Send + 'static) {
        if service.want() {
            let (core, present) = (self.this.clone(), Present::new(service));
            self.background.spawn(Box::new(move || {
                if let Some(core) = core.upgrade() {
                    present.serve(|| work(&core));
                }
            }));
        }
    }

    /// All background work except writing and reading ahead.
    fn work(&self) {
        self.shards.iter().for_each(|shard| self.refill(shard));
    }

    /// Has a group give up, in the background, what it has beyond its `max`.
    pub(super) fn hold_to_max(&self, group: &Arc<GroupState>) {
        if group.pages() > group.max() {
            self.wake_writer(group);
        }
    }

    /// Runs a flush and then [holds the group to its `max`](Self::hold_to_max), because pages that
    /// were written may go. After a flush that wrote nothing it does not: pages that cannot be
    /// written should not be tried again because of it.
    pub(super) fn holding_to_max<T>(
        &self,
        group: &Arc<GroupState>,
        flush: impl FnOnce() -> T,
    ) -> T {
        let before = group.unwritten.load(Relaxed);
        let flushed = flush();
        if group.unwritten.load(Relaxed) < before {
            self.hold_to_max(group);
        }
        flushed
    }

    /// Evicts up to `count` pages of a group. `evict` evicts one page of a shard, if it can. Dirty
    /// pages are written back for this.
    pub(super) fn reclaim(
        &self,
        group: &Arc<GroupState>,
        count: u64,
        evict: impl Fn(&mut Table, usize) -> bool,
    ) {
        // A budget, fixed at the start, because others may put pages in all the time.
        let mut left = count.min(group.pages() as u64);
        let mut shards: Vec<_> = self.shards.iter().collect();
        let at = self.next_shard.fetch_add(1, Relaxed) % shards.len();
        shards.rotate_left(at);
        while left > 0 && !shards.is_empty() {
            shards.retain(|shard| {
                let evicted = {
                    let mut table = shard.write();
                    let Some(local) = table.known_local(group) else { return false };
                    let one = |_: &u64| evict(&mut table, local);
                    (0..left.min(BATCH as u64)).take_while(one).count() as u64
                };
                left -= evicted;
                // Dirty pages have to be written before they can go.
                evicted > 0 || left > 0 && self.write_nominated(shard, Some(group)) > 0
            });
        }
    }

    /// The background work of a group that may have to write.
    fn write_group(&self, group: &Arc<GroupState>) {
        let excess = || group.pages().saturating_sub(group.max());
        self.reclaim(group, excess() as u64, |table, local| {
            excess() > 0 && table.evict_of(local, &self.habits)
        });
        // Dirty pages that cannot be written were in the way of clean ones that can go.
        self.reclaim(group, excess() as u64, |table, local| {
            excess() > 0 && table.evict_clean_of(local, &self.habits)
        });
        let nominated = self.shards.iter().map(|shard| self.write_nominated(shard, Some(group)));
        if nominated.sum::<usize>() > 0 {
            // The pages that were written can go now.
            self.wake_service();
        }
        let target = self.dirty_limit(group, self.dirty_shares().0);
        loop {
            let excess = group.unwritten.load(Relaxed).saturating_sub(target);
            if excess == 0 || self.write_some(group, excess.min(4 * CHUNK as usize)) == 0 {
                break;
            }
        }
        self.close_orphans(group);
    }

    /// Frees frames up to the high watermark.
    fn refill(&self, shard: &Shard) {
        let needs = loop {
            let mut table = shard.write();
            let (low, high) = Self::watermarks(&table);
            if table.free_count() >= high || low == 0 {
                break Self::needs_of_groups(&table);
            }
            let evicted = (0..BATCH)
                .take_while(|_| {
                    table.free_count() < high && table.evict(None, Demand::Write, &self.habits)
                })
                .count();
            if evicted == 0 {
                // Refilling goes on when some nominated pages have been written.
                break Self::needs_of_groups(&table);
            }
        };
        self.ask_for(&needs);
    }

    /// Writes back nominated pages, of all groups or of this one. Returns how many pages were
    /// written.
    pub(super) fn write_nominated(&self, shard: &Shard, of: Option<&Arc<GroupState>>) -> usize {
        let asked = |group: &Arc<GroupState>| of.is_none_or(|of| Arc::ptr_eq(of, group));
        if !shard.read().has_nominated(of) {
            return 0;
        }
        let mut table = shard.write();
        if !table.has_nominated(of) {
            return 0;
        }
        let nominated = table.take_nominated(of);
        let dirty = nominated.into_iter().filter(|&frame| table.flags(frame).has(Flags::DIRTY));
        let mut keys: Vec<_> = dirty.map(|frame| table.key(frame)).collect();
        drop(table);
        // A frame may hold another group's page by now.
        keys.retain(|key| self.file(key.file()).is_some_and(|file| asked(&file.group)));
        self.let_bad_be(&mut keys);
        self.write_ahead(keys)
    }

    /// Writes back some dirty pages of a group, beginning with those that were dirty for long.
    /// Returns how many pages were written, of whatever group.
    fn write_some(&self, group: &Arc<GroupState>, count: usize) -> usize {
        let first = self.shards.len() - 1;
        let at = self.next_shard.fetch_add(1, Relaxed);
        for shard in (0..=first).map(|next| &self.shards[(at + next) % (first + 1)]) {
            let keys = {
                let files = crate::sync::read(&self.files);
                let of_group =
                    |file: u16| files.get(file).is_some_and(|file| Arc::ptr_eq(&file.group, group));
                shard.write().next_dirty(count, of_group)
            };
            if !keys.is_empty() {
                return self.write_ahead(keys);
            }
        }
        0
    }

    /// Has a writer write pages back in return for those that it is about to make dirty. Returns
    /// whether it must not make them dirty, but write past the cache.
    pub(super) fn throttle(&self, file: &FileState, pages: Range<u64>) -> bool {
        let group = &file.group;
        let dirty = group.unwritten.load(Relaxed);
        let shares = self.dirty_shares();
        let target = self.dirty_limit(group, shares.0);
        if dirty <= target {
            return false;
        }
        self.wake_writer(group);
        let trigger = self.dirty_limit(group, shares.1).max(target + 1);
        // At the trigger, a writer owes as much as it writes; beyond, up to twice as much.
        let share = ((dirty - target) * 256 / (trigger - target)).min(512) as u64;
        let pages = pages.end - pages.start;
        group.debt.fetch_add(pages * share, Relaxed);
        let due = |debt: u64| (debt / 256).min(THROTTLE.max(2 * pages));
        let pay = |debt: u64| (due(debt) >= THROTTLE).then(|| debt - due(debt) * 256);
        if let Ok(debt) = group.debt.fetch_update(Relaxed, Relaxed, pay) {
            Counters::add(&group.counters.throttled, 1);
            let errors = || group.counters.write_back_errors.load(Relaxed);
            let before = errors();
            if self.write_some(group, due(debt) as usize) == 0 && errors() != before {
                group.stuck.store(true, Relaxed);
            }
        }
        dirty >= trigger && group.stuck.load(Relaxed)
    }

    /// Tries to free a frame for a request that found none. Returns whether it did anything.
    pub(super) fn make_room(&self, shard: &Shard, file: &FileState, none: NoFrame) -> bool {
        if none == NoFrame::GroupFull && self.evict_elsewhere(&file.group) {
            return true;
        }
        if none == NoFrame::ShardFull && shard.read().crowded {
            self.keep_bound(shard);
            return true;
        }
        // Only this group's pages: the jobs of other groups write theirs, so this request does not
        // wait for their disks.
        self.write_nominated(shard, Some(&file.group)) > 0
    }

    /// Frees a frame of a group, in any shard.
    fn evict_elsewhere(&self, group: &Arc<GroupState>) -> bool {
        let at = self.next_shard.fetch_add(1, Relaxed);
        let count = self.shards.len();
        (0..count).map(|next| &self.shards[(at + next) % count]).any(|shard| {
            let has_some = |table: &Table| {
                let local = table.known_local(group);
                local.filter(|&local| table.locals[local].pages > 0)
            };
            if has_some(&shard.read()).is_none() {
                return false;
            }
            let evicted = {
                let mut table = shard.write();
                has_some(&table).is_some_and(|local| table.evict_of(local, &self.habits))
            };
            evicted || self.write_nominated(shard, Some(group)) > 0
        })
    }
}
