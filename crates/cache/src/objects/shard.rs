//! A part of a cache, with its own lock.

mod compact;
mod room;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hash};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use hashbrown::HashTable;
use homing_mglru::density::{Ghosts, Mark, Ranking};

use self::room::Room;
use super::common::{Common, Terms};
use super::expiry::Times;
use super::flight::Flight;
use super::group::Group;
use super::index::Index;
use super::removal::{Cause, Departures};
use super::slots::{Entry, Slots};
use crate::claims::Claims;
use crate::habits::Told;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::Relaxed;

/// How many evicted entries are remembered for each entry that is held.
const GHOSTS: usize = 3;
/// There may be ghosts for at least this many entries.
const GHOSTS_FOR: usize = 32;
/// How many frames each insertion looks at for expired entries.
const LOOKS: usize = 2;

/// Entries by key, each in a frame, and everything that is known about them.
pub(super) struct Shard<K, V> {
    /// From hashes of keys to frames.
    index: Index,
    slots: Slots<K, V>,
    ranking: Ranking,
    ghosts: Ghosts,
    /// What the policy was told last.
    told: Told,
    /// The groups that the policy knows.
    groups: Vec<Arc<Group>>,
    /// Whether the groups' figures are kept: if there are several groups, or somebody has asked for
    /// the first one.
    pub(super) counts_groups: bool,
    claims: Claims,
    /// Where the next eviction begins to look for a group.
    cookie: usize,
    /// The weight that the shard may hold.
    capacity: u64,
    weight: u64,
    /// By frame; empty if all entries weigh 1.
    weights: Vec<u32>,
    /// The groups' numbers, by frame; empty if there is only one group.
    members: Vec<u32>,
    pub(super) times: Times,
    /// Frames that must not be evicted, with the number of guards of each.
    pins: BTreeMap<u32, Pin>,
    /// How many of these each group has, if any.
    pins_of: BTreeMap<usize, u32>,
    /// The weight of the pinned entries.
    pinned: u64,
    pins_made: u64,
    pub(super) flights: HashTable<InFlight<K, V>>,
    /// No remembered error expires before this.
    pub(super) errors_over: Duration,
    pub(super) counts: Counts,
}

#[derive(Clone, Copy)]
struct Pin {
    id: u64,
    guards: usize,
}

/// A value being loaded, or an error that is remembered until some time.
pub(super) struct InFlight<K, V> {
    pub(super) hash: u64,
    pub(super) key: K,
    pub(super) flight: Arc<Flight<V>>,
    pub(super) error_until: Option<Duration>,
}

/// What happened in a shard, except hits and misses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) insertions: u64,
    pub(super) evictions: u64,
    pub(super) expirations: u64,
    pub(super) refaults: u64,
    pub(super) rejections: u64,
    pub(super) declined: u64,
}

/// An entry to be inserted. It is made before the lock is taken, and dropped after the lock is
/// released, even if the program's code panics before the entry is in.
pub(super) struct Insertion<'a, K, V> {
    pub(super) hash: u64,
    entry: Option<(K, V)>,
    pub(super) terms: Terms,
    /// `None` for the default group.
    pub(super) group: Option<&'a Group>,
}

impl<'a, K, V> Insertion<'a, K, V> {
    pub(super) fn new(hash: u64, key: K, value: V, terms: Terms, group: Option<&'a Group>) -> Self {
        Self { hash, entry: Some((key, value)), terms, group }
    }

    pub(super) fn key(&self) -> &K {
        &self.entry.as_ref().expect("it is not in yet").0
    }

    pub(super) fn take(&mut self) -> (K, V) {
        self.entry.take().expect("it is not in yet")
    }
}

impl<K: Hash + Eq, V> Shard<K, V> {
    pub(super) fn new(capacity: u64, entries: usize) -> Self {
        Self {
            capacity,
            index: Index::with_capacity(entries),
            slots: Slots::with_capacity(entries),
            ranking: Ranking::default(),
            ghosts: Ghosts::new(0),
            told: Told::default(),
            groups: Vec::new(),
            counts_groups: false,
            claims: Claims::default(),
            cookie: 0,
            weight: 0,
            weights: Vec::new(),
            members: Vec::new(),
            times: Times::default(),
            pins: BTreeMap::new(),
            pins_of: BTreeMap::new(),
            pinned: 0,
            pins_made: 0,
            flights: HashTable::new(),
            errors_over: Duration::MAX,
            counts: Counts::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn weight(&self) -> u64 {
        self.weight
    }

    /// The frame of the entry with this key.
    #[inline]
    pub(super) fn find<Q>(&self, hash: u64, key: &Q) -> Option<u32>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.find_entry(hash, key).map(|(frame, _)| frame)
    }

    /// The frame of the entry with this key, and the entry.
    #[inline]
    pub(super) fn find_entry<Q>(&self, hash: u64, key: &Q) -> Option<(u32, Entry<'_, K, V>)>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let mut found = None;
        self.index.find(hash, |frame| {
            let entry = self.slots.get(frame).filter(|entry| entry.key.borrow() == key);
            found = entry.map(|entry| (frame, entry));
            found.is_some()
        });
        found
    }

    /// To be called when a key was not found, and may be inserted soon.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        self.ghosts.prefetch(by_other_bits(hash));
    }

    /// The entry in a frame that was found before.
    #[inline]
    pub(super) fn entry(&self, frame: u32) -> Entry<'_, K, V> {
        self.slots.get(frame).expect("frames that are found are held")
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (u32, Entry<'_, K, V>)> {
        self.slots.iter()
    }

    pub(super) fn group_of(&self, frame: u32) -> usize {
        self.members.get(frame as usize).map_or(0, |&group| group as usize)
    }

    /// The group, if figures of groups are kept: those of all groups are, or of none.
    #[inline]
    pub(super) fn counted(&self, group: usize) -> Option<&Group> {
        self.counts_groups.then(|| &*self.groups[group])
    }

    fn weight_of(&self, frame: u32) -> u32 {
        self.weights.get(frame as usize).copied().unwrap_or(1)
    }

    /// Lets the policy hear of what happened outside this shard.
    pub(super) fn catch_up<S>(&mut self, common: &Common<K, V, S>) {
        while self.groups.len() < common.groups.count() {
            self.ranking.add_group(common.habits.worth(self.groups.len()));
            self.groups.push(common.groups.get(self.groups.len()));
            self.claims.add();
        }
        if !self.counts_groups && common.groups.are_counted() {
            self.counts_groups = true;
            self.groups[0].add(self.weight);
        }
        let Self { ranking, slots, told, .. } = self;
        common.habits.tell(ranking, slots, 0..self.groups.len(), told);
    }

    /// The number of the group that gets an entry inserted for this one: the default one if it was
    /// removed.
    pub(super) fn number_of(group: Option<&Group>) -> usize {
        group.filter(|group| !group.is_removed()).map_or(0, |group| group.number)
    }

    /// Notes that this group has its number from now on, which another group may have had before.
    pub(super) fn replace_group(&mut self, group: &Arc<Group>) {
        if let Some(place) = self.groups.get_mut(group.number) {
            *place = Arc::clone(group);
        }
    }

    /// Hands everything that a group has to the default group, and forgets what is known about it.
    pub(super) fn disband<S>(&mut self, number: usize, common: &Common<K, V, S>) {
        for at in 0..self.members.len() {
            let frame = at as u32;
            if self.members[at] != number as u32 || self.slots.get(frame).is_none() {
                continue;
            }
            if !self.pins.contains_key(&frame) {
                self.ranking.remove(number, frame);
                self.ranking.put_back(0, frame, &self.slots);
            }
            self.members[at] = 0;
            let weight = self.weight_of(frame) as u64;
            self.groups[number].subtract(weight);
            self.groups[0].add(weight);
        }
        self.claims.set(0, self.groups[0].claim());
        let pins = self.pins_of.remove(&number).unwrap_or(0);
        if pins > 0 {
            *self.pins_of.entry(0).or_default() += pins;
        }
        self.ranking.reset_group(number, common.habits.worth(number));
    }

    /// Whether an entry of this weight fits if there is nothing else.
    pub(super) fn may_hold(&self, weight: u32) -> bool {
        weight as u64 <= self.capacity
    }

    /// Sets the weight that the shard may hold. The caller evicts what is too much then.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// Inserts an entry whose key is not there, and evicts what has to go for it. If there is no
    /// room for it, or it is not worth the place of another entry, it is turned away.
    pub(super) fn insert<S: BuildHasher>(
        &mut self,
        insertion: &mut Insertion<'_, K, V>,
        common: &Common<K, V, S>,
        gone: &mut Departures<K, V>,
    ) -> Option<u32> {
        let Insertion { hash, terms: Terms { weight, .. }, group, .. } = *insertion;
        let group = Self::number_of(group);
        let counts = match self.make_room(hash, weight, group, common, gone) {
            Room::Made => None,
            Room::None => Some(&mut self.counts.rejections),
            Room::Declined => Some(&mut self.counts.declined),
        };
        if let Some(count) = counts {
            *count += 1;
            let (key, value) = insertion.take();
            gone.push(key, value, Cause::Capacity);
            return None;
        }
        let mark = Mark::new(self.ranking.epoch());
        // The program's hasher is called first, because it may panic.
        let most = if common.weigher.is_none() { self.capacity } else { u64::MAX };
        let Self { index, slots, .. } = self;
        index.reserve(most, |frame| slots.get(frame).map_or(0, |entry| common.hash(entry.key)));
        let (key, value) = insertion.take();
        let frame = slots.insert(key, value, mark);
        index.insert(hash, frame);
        let shadow = self.ghosts.take(by_other_bits(hash), self.ranking.epoch());
        self.counts.refaults += u64::from(shadow.is_some());
        self.counts.insertions += 1;
        self.ranking.insert(group, frame, false, shadow);
        self.set_weight(frame, weight, common.weigher.is_some());
        self.weight += weight as u64;
        if self.counts_groups {
            let own = &self.groups[group];
            own.add(weight as u64);
            own.insertions.fetch_add(1, Relaxed);
            self.claims.set(group, own.claim());
        }
        if group != 0 || !self.members.is_empty() {
            let at = frame as usize;
            if at >= self.members.len() {
                self.members.resize(at + 1, 0);
            }
            self.members[at] = group as u32;
        }
        Some(frame)
    }

    fn set_weight(&mut self, frame: u32, weight: u32, weighed: bool) {
        if weighed {
            let at = frame as usize;
            if at >= self.weights.len() {
                self.weights.resize(at + 1, 0);
            }
            self.weights[at] = weight;
        }
    }

    /// Evicts the entry that the group would give next: for itself, or, if it can spare the entry,
    /// for another group. Returns whether it did.
    fn evict_from<S: BuildHasher>(
        &mut self,
        group: usize,
        for_itself: bool,
        common: &Common<K, V, S>,
        gone: &mut Departures<K, V>,
    ) -> bool {
        let now = common.now();
        let Some(victim) = self.ranking.evict(group, &self.slots) else { return false };
        // The program's hasher may panic, so it is called while the victim can still be put back.
        // Shards do not know of each other, so the group's count is lowered before the entry goes.
        let hash = catch_unwind(AssertUnwindSafe(|| common.hash(self.entry(victim.frame).key)));
        let weight = self.weight_of(victim.frame) as u64;
        let given =
            hash.is_ok() && self.counted(group).is_none_or(|group| group.give(weight, for_itself));
        if !given {
            self.ranking.put_back(group, victim.frame, &self.slots);
        }
        let hash = hash.unwrap_or_else(|panicked| resume_unwind(panicked));
        if !given {
            return false;
        }
        // If entries weigh more than they did, or are fewer, what is known about their time is of
        // another scale.
        if self.fit_ghosts() {
            common.entries_are(self.len());
        }
        self.ghosts.prefetch(by_other_bits(hash));
        let over =
            now.is_some_and(|now| self.times.is_over(victim.frame, now, common.lifetimes.idle));
        if over {
            self.counts.expirations += 1;
        } else {
            self.counts.evictions += 1;
            if let Some(group) = self.counted(group) {
                group.evictions.fetch_add(1, Relaxed);
            }
        }
        let (key, value) = self.vacate(hash, victim.frame);
        let Self { ranking, ghosts, .. } = self;
        common.habits.evicted(ranking, ghosts, by_other_bits(hash), victim.shadow);
        gone.push(key, value, if over { Cause::Expired } else { Cause::Capacity });
        true
    }

    /// Replaces the ghosts if they are far too few for the entries, or far too many. Returns
    /// whether it did.
    fn fit_ghosts(&mut self) -> bool {
        let fits = self.len() * GHOSTS / 2..=self.len().max(GHOSTS_FOR) * GHOSTS * 2;
        let other = !fits.contains(&self.ghosts.capacity());
        if other {
            self.ghosts = Ghosts::new(self.len() * GHOSTS);
        }
        other
    }

    /// Empties a frame that neither the policy nor the group's count knows any more.
    fn vacate(&mut self, hash: u64, frame: u32) -> (K, V) {
        self.index.remove(hash, frame);
        let weight = self.weight_of(frame) as u64;
        self.weight -= weight;
        self.slots.remove(frame)
    }

    /// Removes an entry that was found.
    pub(super) fn remove(&mut self, hash: u64, frame: u32) -> (K, V) {
        if self.pins.contains_key(&frame) {
            self.forget_pin(frame);
        } else {
            self.ranking.remove(self.group_of(frame), frame);
        }
        if let Some(group) = self.counted(self.group_of(frame)) {
            group.subtract(self.weight_of(frame) as u64);
        }
        self.vacate(hash, frame)
    }

    /// Gives an entry that was found another value and weight, and returns the old value. The
    /// caller evicts what is too much then.
    pub(super) fn replace<S>(
        &mut self,
        frame: u32,
        value: V,
        weight: u32,
        common: &Common<K, V, S>,
    ) -> V {
        if common.weigher.is_some() {
            let was = std::mem::replace(&mut self.weights[frame as usize], weight) as u64;
            self.weight = self.weight - was + weight as u64;
            if self.pins.contains_key(&frame) {
                self.pinned = self.pinned - was + weight as u64;
            }
            if let Some(group) = self.counted(self.group_of(frame)) {
                group.subtract(was);
                group.add(weight as u64);
            }
        }
        std::mem::replace(self.slots.value_mut(frame), value)
    }

    /// Looks at some frames, in turn, for expired entries, and removes these.
    pub(super) fn expire_some<S: BuildHasher>(
        &mut self,
        now: Duration,
        common: &Common<K, V, S>,
        gone: &mut Departures<K, V>,
    ) {
        for _ in 0..LOOKS {
            let Some(frame) = self.times.next() else { return };
            self.expire(frame, now, common, gone);
        }
    }

    /// Removes the entry in this frame if it has expired.
    pub(super) fn expire<S: BuildHasher>(
        &mut self,
        frame: u32,
        now: Duration,
        common: &Common<K, V, S>,
        gone: &mut Departures<K, V>,
    ) {
        let Some(entry) = self.slots.get(frame) else { return };
        if self.times.is_over(frame, now, common.lifetimes.idle) {
            let hash = common.hash(entry.key);
            let (key, value) = self.remove(hash, frame);
            self.counts.expirations += 1;
            gone.push(key, value, Cause::Expired);
        }
    }

    /// Removes all entries for which `keep` returns false, and those that have expired.
    pub(super) fn retain<S: BuildHasher>(
        &mut self,
        now: Option<Duration>,
        keep: &mut impl FnMut(&K, &V) -> bool,
        common: &Common<K, V, S>,
        gone: &mut Departures<K, V>,
    ) {
        for frame in 0..self.slots.frames() {
            if let Some(now) = now {
                self.expire(frame, now, common, gone);
            }
            if let Some(entry) = self.slots.get(frame)
                && !keep(entry.key, entry.value)
            {
                let hash = common.hash(entry.key);
                let (key, value) = self.remove(hash, frame);
                gone.push(key, value, Cause::Removed);
            }
        }
    }

    /// Detaches a load of this key that is under way, or its remembered error, from the cache, and
    /// returns it.
    pub(super) fn detach<Q>(&mut self, hash: u64, key: &Q) -> Option<InFlight<K, V>>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + ?Sized,
    {
        self.take_flight(hash, |it| it.hash == hash && it.key.borrow() == key)
    }

    /// Remembers the error of a failed load until this time.
    pub(super) fn remember_error(
        &mut self,
        hash: u64,
        is_it: impl FnMut(&InFlight<K, V>) -> bool,
        until: Duration,
    ) {
        if let Some(flight) = self.flights.find_mut(hash, is_it) {
            flight.error_until = Some(until);
            self.errors_over = self.errors_over.min(until);
        }
    }

    /// Moves the errors whose time is over to `over`.
    pub(super) fn forget_errors(&mut self, now: Duration, over: &mut Vec<InFlight<K, V>>) {
        let is_over = |it: &mut InFlight<K, V>| it.error_until.is_some_and(|until| until <= now);
        over.extend(self.flights.extract_if(is_over));
        let left = self.flights.iter().filter_map(|it| it.error_until).min();
        self.errors_over = left.unwrap_or(Duration::MAX);
    }

    pub(super) fn take_flight(
        &mut self,
        hash: u64,
        is_it: impl FnMut(&InFlight<K, V>) -> bool,
    ) -> Option<InFlight<K, V>> {
        if self.flights.is_empty() {
            return None;
        }
        let found = self.flights.find_entry(hash, is_it).ok()?;
        Some(found.remove().0)
    }

    /// Keeps the entry in this frame from eviction. Returns the `id` for [`unpin`](Self::unpin).
    pub(super) fn pin(&mut self, frame: u32) -> u64 {
        if let Some(pin) = self.pins.get_mut(&frame) {
            pin.guards += 1;
            return pin.id;
        }
        self.ranking.remove(self.group_of(frame), frame);
        self.pinned += self.weight_of(frame) as u64;
        self.pins_made += 1;
        self.pins.insert(frame, Pin { id: self.pins_made, guards: 1 });
        *self.pins_of.entry(self.group_of(frame)).or_default() += 1;
        self.pins_made
    }

    /// Forgets that the entry in this frame is pinned.
    fn forget_pin(&mut self, frame: u32) {
        self.pins.remove(&frame);
        self.pinned -= self.weight_of(frame) as u64;
        let group = self.group_of(frame);
        if let Some(pins) = self.pins_of.get_mut(&group) {
            *pins -= 1;
            if *pins == 0 {
                self.pins_of.remove(&group);
            }
        }
    }

    /// To be called when a guard is dropped. After an entry's last guard, evicts what the group or
    /// the shard has too much, which may not have been possible before. Does nothing if the entry
    /// was removed.
    pub(super) fn unpin<S: BuildHasher>(
        &mut self,
        frame: u32,
        id: u64,
        common: &Common<K, V, S>,
        gone: &mut Departures<K, V>,
    ) {
        let Some(pin) = self.pins.get_mut(&frame).filter(|pin| pin.id == id) else { return };
        pin.guards -= 1;
        if pin.guards == 0 {
            self.forget_pin(frame);
            let group = self.group_of(frame);
            self.ranking.put_back(group, frame, &self.slots);
            self.claims.set(group, self.groups[group].claim());
            self.shrink_to_fit(group, common, gone);
        }
    }

    /// Bytes that the shard uses to remember evicted entries.
    pub(super) fn ghost_memory(&self) -> usize {
        self.ghosts.memory()
    }
}

/// The hash for the ghosts. These use the highest bits and some low ones, in which the keys of a
/// shard are alike, or which the index uses; so the bits are rotated.
fn by_other_bits(hash: u64) -> u64 {
    hash.rotate_left(24)
}
