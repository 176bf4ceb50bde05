//! Which page goes: from which group, and what happens to dirty pages.
//!
//! Budgets are fixed at the start of an eviction: how many groups it looks at, of those that give
//! first, beginning where the last eviction stopped (the kernel's reclaim cookie), and how many
//! dirty pages it sets aside.

use std::ops::ControlFlow;
use std::sync::Arc;

use homing_mglru::density::{Missed, Swappiness, Victim};

use super::core::Core;
use super::fill::Demand;
use super::frame::{Flags, Key};
use super::group::{Counters, GroupState};
use super::local::Local;
use super::table::Table;
use crate::habits::Habits;
use crate::limits::Claim;

/// The most groups that are looked at for one victim.
const GROUPS_MAX: usize = 8;
/// The most dirty pages that are set aside for one victim.
const ASIDE_MAX: usize = 32;
/// The most dirty pages of a shard that wait to be written. Each group may have `NOMINATED_OWN` in
/// any case, so that a group with a slow disk keeps no other from its victims.
const NOMINATED_MAX: usize = 256;
const NOMINATED_OWN: usize = 8;

/// Why there is no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoFrame {
    /// The group has as many pages as it may have, and none of them in this shard can go.
    GroupFull,
    /// No page of this shard can go.
    ShardFull,
}

/// A group, how soon it has to give, and the worth of the page that it would give.
#[derive(Clone, Copy)]
struct Donor {
    claim: Claim,
    worth: f32,
    local: usize,
}

/// Groups that may have to give a frame, in the order in which they have to; the requester may be
/// last.
struct Donors {
    all: [Donor; GROUPS_MAX + 1],
    count: usize,
}

impl Donors {
    fn push(&mut self, donor: Donor) {
        self.all[self.count] = donor;
        self.count += 1;
    }

    fn found(&mut self) -> &mut [Donor] {
        &mut self.all[..self.count]
    }
}

impl Table {
    /// Finds a frame for a page of this group and puts the page there. The caller fills in the
    /// contents. The policy does not have the page yet.
    pub(super) fn admit(
        &mut self,
        group: &Arc<GroupState>,
        key: Key,
        flags: Flags,
        demand: Demand,
        habits: &Habits,
    ) -> Result<(usize, u32), NoFrame> {
        if self.is_short() {
            return Err(NoFrame::ShardFull);
        }
        let local = self.local(group, habits);
        let gained = group.gain() || self.evict_of(local, habits) && group.gain();
        if !gained {
            return Err(NoFrame::GroupFull);
        }
        self.claims.set(local, group.claim());
        // The background takes the frames that it keeps free from all groups. A hint must not use
        // them: otherwise it would take from others indirectly.
        let kept_free = if demand == Demand::Hint { Core::watermarks(self).1 } else { 0 };
        let room = self.free_count() > kept_free || self.evict(Some(local), demand, habits);
        if let Some(frame) = room.then(|| self.take_free()).flatten() {
            if self.occupy(local, frame, key, flags) {
                return Ok((local, frame));
            }
            self.give_free(frame);
        }
        group.lose();
        Err(NoFrame::ShardFull)
    }

    /// Whether a new page of this group takes the frame of another page, if `kept_free` frames are
    /// kept free.
    pub(super) fn is_scarce(&self, group: &GroupState, kept_free: usize) -> bool {
        self.free_count() <= kept_free || group.pages() >= group.max()
    }

    /// Whether missed pages of a group are not worth the frames that they would take from others,
    /// if putting one in costs as much as `price` hits save. If so they are remembered, and the
    /// caller must not put them in.
    pub(super) fn decline(
        &mut self,
        group: &Arc<GroupState>,
        keys: impl Iterator<Item = Key> + Clone,
        price: f32,
        habits: &Habits,
    ) -> bool {
        let Some(local) = self.known_local(group) else { return false };
        self.prepare(habits);
        let Some(least) = self.asked_least(local) else {
            self.policy.accept(local);
            return false;
        };
        let epoch = self.policy.epoch();
        let mut missed = Missed::default();
        for key in keys.clone() {
            let shadow = self.ghosts.get(self.hash(key), epoch);
            self.policy.weigh(local, shadow, &mut missed);
        }
        // Otherwise models would have to run long before anything is declined.
        let modelled = cfg!(shuttle) && keys.clone().all(|key| key.page() % 2 == 1);
        if !self.policy.decline(local, missed, least, price) && !modelled {
            return false;
        }
        for key in keys {
            let hash = self.hash(key);
            let shadow = self.ghosts.get(hash, epoch);
            let rest = self.policy.weigh(local, shadow, &mut Missed::default());
            habits.evicted(&mut self.policy, &mut self.ghosts, hash, rest);
        }
        true
    }

    /// The worth of the page that would go for a new page of this group. `None` if that page would
    /// come from a group that has to give before this one, or if this group has to give one in any
    /// case.
    fn asked_least(&mut self, local: usize) -> Option<f32> {
        let group = &self.locals[local].group;
        let claim = group.claim();
        if group.pages() >= group.max() {
            return self.policy.least(local);
        }
        if claim <= Claim::OverHigh {
            return None;
        }
        let mut donors = self.donors(Some(local), Demand::Read);
        let Donor { claim: theirs, worth, local: donor } = *donors.found().first()?;
        (donor == local || theirs == claim).then_some(worth)
    }

    /// Looks at up to [`GROUPS_MAX`] groups, in the order in which they have to give, and at last
    /// at the requester.
    fn donors(&mut self, requester: Option<usize>, demand: Demand) -> Donors {
        let kept = match demand {
            Demand::Read | Demand::Write => Claim::Protected,
            Demand::Ahead => Claim::OverMin,
            Demand::Hint => Claim::OverLow,
        };
        let none = Donor { claim: Claim::Protected, worth: f32::INFINITY, local: 0 };
        let mut donors = Donors { all: [none; GROUPS_MAX + 1], count: 0 };
        let Self { claims, locals, policy, cookie, nominated, .. } = self;
        let claim_of = |local: usize| locals[local].group.claim();
        claims.search(kept, *cookie, claim_of, |local, claim| {
            // Groups that have nothing to give are passed over and do not count.
            if !has_nominated_enough(nominated.len(), &locals[local])
                && let Some(worth) = policy.least(local)
            {
                donors.push(Donor { claim, worth, local });
            }
            if donors.count < GROUPS_MAX {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        donors.found().sort_by(|a, b| a.claim.cmp(&b.claim).then(a.worth.total_cmp(&b.worth)));
        if let Some(local) = requester
            && donors.found().iter().all(|donor| donor.local != local)
            && let Some(worth) = policy.least(local)
        {
            donors.push(Donor { claim: claim_of(local), worth, local });
        }
        donors
    }

    /// Frees a frame, for the `requester` if there is one. Pages that are read ahead take nothing
    /// that others have below their `low`, and hints only what they have above their `high`.
    /// Returns whether a frame was freed.
    pub(super) fn evict(
        &mut self,
        requester: Option<usize>,
        demand: Demand,
        habits: &Habits,
    ) -> bool {
        self.prepare(habits);
        let mut donors = self.donors(requester, demand);
        // The next search looks at one of these groups again: otherwise fixed sets of groups could
        // only ever be compared among themselves.
        self.cookie = self.cookie.wrapping_add(GROUPS_MAX - 1);
        for &mut Donor { local, .. } in donors.found() {
            if requester == Some(local) {
                if self.evict_of(local, habits) {
                    return true;
                }
                continue;
            }
            let swappiness = self.locals[local].group.swappiness();
            let Some(victim) = self.victim(local, swappiness, true) else { continue };
            // The count is lowered before the page goes, because other shards may be evicting pages
            // of the group too. It is lowered after the page was found: if it had to be raised
            // again, the group might be full by then.
            if self.locals[local].group.give() {
                self.let_go(local, victim, habits);
                return true;
            }
            self.put_back(local, victim.frame);
        }
        false
    }

    /// Frees frames until `frames` are in use, as far as that can be done at once. Dirty pages are
    /// nominated. If nothing goes, it gives up soon or, with `all`, once each group was asked: a
    /// single eviction asks only some of them.
    pub(super) fn evict_down_to(&mut self, frames: usize, all: bool, habits: &Habits) {
        let rounds = if all { self.locals.len() / (GROUPS_MAX - 1) + 1 } else { 0 };
        let mut vain = 0;
        while self.used() > frames && vain <= rounds {
            let nominated = self.nominated.len();
            let evicted = self.evict(None, Demand::Write, habits);
            vain = if evicted || self.nominated.len() > nominated { 0 } else { vain + 1 };
        }
    }

    /// Frees a frame of this group. Returns whether one was freed.
    pub(super) fn evict_of(&mut self, local: usize, habits: &Habits) -> bool {
        self.prepare(habits);
        let swappiness = self.locals[local].group.swappiness();
        self.evict_by(local, swappiness, true, habits)
    }

    /// The same, but takes only clean pages, whatever the dirty ones are worth: some of those may
    /// be impossible to write.
    pub(super) fn evict_clean_of(&mut self, local: usize, habits: &Habits) -> bool {
        self.prepare(habits);
        self.evict_by(local, Swappiness::CLEAN_FIRST, false, habits)
    }

    fn evict_by(
        &mut self,
        local: usize,
        swappiness: Swappiness,
        nominates: bool,
        habits: &Habits,
    ) -> bool {
        let victim = self.victim(local, swappiness, nominates);
        if let Some(victim) = victim {
            self.let_go(local, victim, habits);
            self.locals[local].group.lose();
        }
        victim.is_some()
    }

    /// Brings the policy up to date, and has it spare recently used pages (`min_ttl_ms`), unless
    /// the shard is being made smaller, so that pages have to go.
    fn prepare(&mut self, habits: &Habits) {
        self.listen(habits);
        let spares = self.used() <= self.limit;
        let spared = spares.then(|| habits.min_ttl.spared(self.policy.epoch())).flatten();
        self.policy.spare(spared);
    }

    /// Frees a frame of this group whose page was last used about `epochs` epochs ago or earlier.
    /// Returns whether one was freed.
    #[cfg(feature = "control")]
    pub(super) fn evict_old(
        &mut self,
        local: usize,
        epochs: u32,
        swappiness: Swappiness,
        habits: &Habits,
    ) -> bool {
        self.listen(habits);
        self.policy.spare(epochs.checked_sub(1));
        self.evict_by(local, swappiness, true, habits)
    }

    /// Frees the frame of a victim and remembers the page, unless it was read ahead and never used.
    fn let_go(&mut self, local: usize, victim: Victim, habits: &Habits) {
        let counters = &self.locals[local].group.counters;
        Counters::add(&counters.evictions, 1);
        if victim.wasted {
            Counters::add(&counters.read_ahead_wasted, 1);
        } else {
            let hash = self.hash(self.key(victim.frame));
            habits.evicted(&mut self.policy, &mut self.ghosts, hash, victim.shadow);
        }
        self.vacate(local, victim.frame);
    }

    /// Takes the clean page of a group that is worth least out of the policy. The caller lets it go
    /// or puts it back. Dirty pages that are worth less are nominated to be written if `nominates`;
    /// otherwise the first one ends the search.
    fn victim(&mut self, local: usize, swappiness: Swappiness, nominates: bool) -> Option<Victim> {
        self.policy.set_swappiness(local, swappiness);
        for _ in 0..ASIDE_MAX {
            // Looking at frames may make lists grow. If there is no room for that, only a caller
            // that makes the shard smaller may do it.
            let grows = self.is_short() && self.used() <= self.limit;
            if grows || has_nominated_enough(self.nominated.len(), &self.locals[local]) {
                return None;
            }
            let victim = self.policy.evict(local);
            self.watch(local);
            let victim = victim?;
            let flags = self.flags(victim.frame);
            self.set_flags(local, victim.frame, flags.or(Flags::OUT));
            if !flags.has(Flags::UNWRITTEN) {
                return Some(victim);
            }
            if !nominates {
                self.put_back(local, victim.frame);
                return None;
            }
            // A page that is being written is put back when the write has ended.
            if !flags.has(Flags::WRITING) {
                self.nominate(local, victim.frame);
            }
        }
        None
    }
}

/// Whether no more dirty pages of a group are to be nominated, in a shard that has nominated `all`
/// of all groups.
fn has_nominated_enough(all: usize, of: &Local) -> bool {
    all >= NOMINATED_MAX && of.nominated as usize >= NOMINATED_OWN
}
