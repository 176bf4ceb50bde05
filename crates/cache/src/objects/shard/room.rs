//! Makes room for new entries: decides which groups give entries for it, and how many.

use std::hash::{BuildHasher, Hash};
use std::ops::ControlFlow;

use homing_mglru::density::Missed;

use super::{Shard, by_other_bits};
use crate::limits::Claim;
use crate::objects::common::Common;
use crate::objects::removal::Departures;
use crate::sync::atomic::Ordering::Relaxed;

/// The most groups that an eviction looks at.
const CANDIDATES: usize = 8;

/// If the limit of a group was lowered, the group gives at least this many of the entries above it
/// for each new one. Other shards do the same meanwhile, so the entries go evenly.
const TRIMMED: usize = 16;

/// Whether there is room for a new entry.
pub(super) enum Room {
    Made,
    None,
    /// The entry is not worth the room.
    Declined,
}

impl<K: Hash + Eq, V> Shard<K, V> {
    /// Makes room for a new entry of a group, unless it would take the place of an entry of its
    /// group and is not worth that.
    pub(super) fn make_room<S: BuildHasher>(
        &mut self,
        hash: u64,
        weight: u32,
        group: usize,
        common: &Common<K, V, S>,
        gone: &mut Departures<K, V>,
    ) -> Room {
        let weight = weight as u64;
        // Checked first, so that nothing is evicted in vain.
        let Some(left) = self.capacity.checked_sub(weight) else { return Room::None };
        if self.pinned > left {
            return Room::None;
        }
        if self.counted(group).is_some_and(|group| !group.may_have(weight)) {
            // The limit may have been lowered, to nothing even.
            self.trim(group, weight, common, gone);
            return Room::None;
        }
        let is_trimmed = !self.is_full(group, 0) || self.trim(group, weight, common, gone);
        if self.is_full(group, weight) {
            if self.declines(hash, group, common) {
                return Room::Declined;
            }
            if is_trimmed {
                self.make_room_in(group, weight, common, gone);
            }
        }
        // Each shard may exceed a group's limit by one entry. But if pinned entries cannot go, it
        // must not exceed it by one entry after the other.
        if self.is_full(group, weight) && self.pins_of.contains_key(&group) {
            return Room::None;
        }
        if self.weight <= left {
            return Room::Made;
        }
        let giver = self.giver(group, &[]);
        if giver == Some(group) && self.declines(hash, group, common) {
            return Room::Declined;
        }
        if self.shrink(left, group, giver, common, gone) { Room::Made } else { Room::None }
    }

    /// Whether a group may not have this much more.
    fn is_full(&self, group: usize, weight: u64) -> bool {
        self.counted(group).is_some_and(|group| !group.has_room_for(weight))
    }

    /// Whether a new entry is not worth the place of the one that its group would give. If so, it
    /// is remembered as if it had been evicted.
    fn declines<S>(&mut self, hash: u64, group: usize, common: &Common<K, V, S>) -> bool {
        let Self { ranking, ghosts, .. } = self;
        let Some(least) = ranking.least(group) else { return false };
        let hash = by_other_bits(hash);
        let mut missed = Missed::default();
        let rest = ranking.weigh(group, ghosts.get(hash, ranking.epoch()), &mut missed);
        let declined = ranking.decline(group, missed, least, 0.0);
        if declined {
            common.habits.evicted(ranking, ghosts, hash, rest);
            if let Some(group) = self.counted(group) {
                group.declined.fetch_add(1, Relaxed);
            }
        }
        declined
    }

    /// Evicts some of what a group has above its limit, and at least twice the weight of the new
    /// entry. Returns whether nothing is above the limit any more.
    fn trim<S: BuildHasher>(
        &mut self,
        group: usize,
        weight: u64,
        common: &Common<K, V, S>,
        gone: &mut Departures<K, V>,
    ) -> bool {
        let (before, mut count) = (self.weight, 0);
        while self.is_full(group, 0)
            && (count < TRIMMED || before - self.weight < weight.saturating_mul(2))
            && self.evict_from(group, true, common, gone)
        {
            count += 1;
        }
        !self.is_full(group, 0)
    }

    /// Evicts entries of a group until it may have this much more, or has nothing left to give in
    /// this shard.
    fn make_room_in<S: BuildHasher>(
        &mut self,
        group: usize,
        weight: u64,
        common: &Common<K, V, S>,
        gone: &mut Departures<K, V>,
    ) {
        while self.is_full(group, weight) {
            if !self.evict_from(group, true, common, gone) {
                break;
            }
        }
    }

    /// Evicts until no more than this weight is left, beginning with `giver` if it is already known
    /// which group gives. Returns whether that could be done.
    fn shrink<S: BuildHasher>(
        &mut self,
        weight: u64,
        group: usize,
        mut giver: Option<usize>,
        common: &Common<K, V, S>,
        gone: &mut Departures<K, V>,
    ) -> bool {
        // Groups that cannot spare their next victim.
        let mut barred = Vec::new();
        while self.weight > weight {
            let giver = giver.take().or_else(|| self.giver(group, &barred));
            let Some(giver) = giver else { return false };
            if self.evict_from(giver, giver == group, common, gone) {
                continue;
            }
            if giver == group {
                return false;
            }
            barred.push(giver);
        }
        true
    }

    /// Which group gives an entry so that `to` gets one. Groups that are `barred` do not.
    fn giver(&mut self, to: usize, barred: &[usize]) -> Option<usize> {
        let Self { groups, ranking, claims, cookie, .. } = self;
        if groups.len() == 1 {
            return Some(0);
        }
        let start = *cookie;
        // The next search looks at one of these groups again: otherwise fixed sets of groups could
        // only ever be compared among themselves.
        *cookie = start.wrapping_add(CANDIDATES - 1);
        let mut best: Option<(Claim, f32, usize)> = None;
        let (mut seen, mut empty) = (0, Vec::new());
        let claim_of = |number: usize| groups[number].claim();
        claims.search(Claim::Protected, start, claim_of, |number, claim| {
            if best.is_some_and(|(other, ..)| claim > other) {
                return ControlFlow::Break(()); // nor is any that follows sooner
            }
            match ranking.least(number) {
                None => empty.push(number),
                Some(worth) if number == to || !barred.contains(&number) => {
                    if best.is_none_or(|(other, than, _)| (claim, worth) < (other, than)) {
                        best = Some((claim, worth, number));
                    }
                    seen += 1;
                }
                Some(_) => {}
            }
            if seen < CANDIDATES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        // Empty groups must not be in the way of others until they have something here again: there
        // may be thousands of them.
        for number in empty {
            claims.set(number, Claim::Protected);
        }
        // A group may always give what is its own.
        best.map_or_else(|| ranking.least(to).map(|_| to), |(_, _, number)| Some(number))
    }

    /// Evicts what the group has too much, and then what the shard has too much.
    pub(in crate::objects) fn shrink_to_fit<S: BuildHasher>(
        &mut self,
        group: usize,
        common: &Common<K, V, S>,
        gone: &mut Departures<K, V>,
    ) {
        self.make_room_in(group, 0, common, gone);
        self.shrink(self.capacity, group, None, common, gone);
    }

    /// Evicts what the shard still has too much, from each group in turn, whatever they are
    /// guaranteed.
    pub(in crate::objects) fn shrink_in_any_case<S: BuildHasher>(
        &mut self,
        common: &Common<K, V, S>,
        gone: &mut Departures<K, V>,
    ) {
        if self.weight <= self.capacity {
            return;
        }
        let has_some = |group: &usize| self.ranking.least(*group).is_some();
        let mut givers: Vec<usize> = (0..self.groups.len()).filter(has_some).collect();
        while self.weight > self.capacity && !givers.is_empty() {
            givers.retain(|&group| {
                self.weight <= self.capacity || self.evict_from(group, true, common, gone)
            });
        }
    }
}
