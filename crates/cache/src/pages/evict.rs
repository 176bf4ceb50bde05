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

/// Groups that are looked at for one victim.
const GROUPS_MAX: usize = 8;
/// Dirty pages that are set aside for one victim.
const ASIDE_MAX: usize = 32;
/// Dirty pages that wait to be written, in a shard; but each group may have so many of its own: one
/// whose disk is slow keeps no other from its victims.
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

/// A group, how soon it gives, and what the page is worth that it would give.
#[derive(Clone, Copy)]
struct Donor {
    claim: Claim,
    worth: f32,
    local: usize,
}

/// Groups that may have to give a frame, those first that give first, and the requester.
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
    /// Finds a frame for a page of this group and puts the page there; its contents are up to the
    /// caller. The policy does not have it yet.
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
        // What the background keeps free it takes from all: hints would live off others by that.
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

    /// Whether a page of this group takes the frame of another one, where so many are kept free.
    pub(super) fn is_scarce(&self, group: &GroupState, kept_free: usize) -> bool {
        self.free_count() <= kept_free || group.pages() >= group.max()
    }

    /// Whether pages of a group that were missed are not worth the frames that they would take from
    /// others, where putting one in costs as much as `price` hits save. Then they are remembered, and not
    /// to be put in.
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
        // Else models would have to run for long before something is declined.
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

    /// What the page is worth that would go for one of this group; `None` where it would be one that another
    /// group has no right to, or that this group has to give whatever comes.
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

    /// Looks at so many groups, those first that give first; in the end at the requester.
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
            // Who has nothing to give is passed over, however many these are.
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

    /// Frees a frame, for a group if it is for one. What nobody has asked for yet takes nothing of
    /// others that is below their `low`, and a hint only what is above their `high`. Returns whether it could.
    pub(super) fn evict(
        &mut self,
        requester: Option<usize>,
        demand: Demand,
        habits: &Habits,
    ) -> bool {
        self.prepare(habits);
        let mut donors = self.donors(requester, demand);
        // One of these is looked at again: else some groups could stay among themselves.
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
            // Counted before it goes, as others may be at its pages in other shards; and after it was found, as
            // the group may have as many as it may by the time at which the count would be raised again.
            if self.locals[local].group.give() {
                self.let_go(local, victim, habits);
                return true;
            }
            self.put_back(local, victim.frame);
        }
        false
    }

    /// Frees frames until so many are left, as far as that can be done at once. Dirty pages are nominated. Where
    /// nothing goes it ends soon or, if it is to ask them `all`, when each group was asked: an eviction asks some.
    pub(super) fn evict_down_to(&mut self, frames: usize, all: bool, habits: &Habits) {
        let rounds = if all { self.locals.len() / (GROUPS_MAX - 1) + 1 } else { 0 };
        let mut vain = 0;
        while self.used() > frames && vain <= rounds {
            let nominated = self.nominated.len();
            let evicted = self.evict(None, Demand::Write, habits);
            vain = if evicted || self.nominated.len() > nominated { 0 } else { vain + 1 };
        }
    }

    /// Frees a frame of this group. Returns whether it could.
    pub(super) fn evict_of(&mut self, local: usize, habits: &Habits) -> bool {
        self.prepare(habits);
        let swappiness = self.locals[local].group.swappiness();
        self.evict_by(local, swappiness, true, habits)
    }

    /// The same, but of clean pages alone, whatever dirty ones are worth: some may be such that cannot be written.
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

    /// Brings the policy up to date, and has it spare what was used not long ago; but where the shard is
    /// made smaller pages have to go.
    fn prepare(&mut self, habits: &Habits) {
        self.listen(habits);
        let spares = self.used() <= self.limit;
        let spared = spares.then(|| habits.min_ttl.spared(self.policy.epoch())).flatten();
        self.policy.spare(spared);
    }

    /// Frees a frame of this group, of a page that was last used at least so many epochs ago, or about
    /// that. Returns whether it could.
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

    /// Frees the frame of a victim, which is remembered.
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

    /// The clean page of a group that is worth least, taken from the policy: to be let go or put back. Dirty
    /// ones that are worth less are nominated to be written, or else end it.
    fn victim(&mut self, local: usize, swappiness: Swappiness, nominates: bool) -> Option<Victim> {
        self.policy.set_swappiness(local, swappiness);
        for _ in 0..ASIDE_MAX {
            // Lists may grow as frames are looked at: where there is no room for that, only by who makes some.
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
            // What is being written comes back when that has ended.
            if !flags.has(Flags::WRITING) {
                self.nominate(local, victim.frame);
            }
        }
        None
    }
}

/// Whether no more dirty pages of a group are to be nominated in a shard that has so many of all groups.
fn has_nominated_enough(all: usize, of: &Local) -> bool {
    all >= NOMINATED_MAX && of.nominated as usize >= NOMINATED_OWN
}
