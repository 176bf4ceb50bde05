//! Groups: their limits, what they use, and the order in which they are visited.

/// The number of a group. It is reused after the group was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// What a group is guaranteed and allowed, in pages. The names are those of the kernel's
/// `memory.min` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Never reclaimed.
    pub min: u64,
    /// Reclaimed only if nothing else is left.
    pub low: u64,
    /// Above this, the group reclaims from itself.
    pub high: u64,
    /// The group does not get more.
    pub max: u64,
    /// How much eviction prefers dirty pages: 0 (never) to 200, or 201 (only dirty pages).
    pub swappiness: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self { min: 0, low: 0, high: u64::MAX, max: u64::MAX, swappiness: 60 }
    }
}

/// A group.
#[derive(Debug)]
pub struct Group<P> {
    /// Its pages.
    pub pages: P,
    /// What it is guaranteed and allowed. It may be changed at any time.
    pub limits: Limits,
    pub(super) usage: u64,
    pub(super) dead: bool,
}

impl<P> Group<P> {
    /// Pages that it uses.
    pub fn usage(&self) -> u64 {
        self.usage
    }

    /// Adds to the pages that it uses. Nothing is refused here: ask [`above_max`](Self::above_max)
    /// first.
    pub fn charge(&mut self, pages: u64) {
        self.usage += pages;
    }

    /// Subtracts from the pages that it uses. Reclaim counts its own pages; this is for other
    /// reasons.
    ///
    /// # Panics
    ///
    /// If it did not use that many.
    pub fn uncharge(&mut self, pages: u64) {
        assert!(pages <= self.usage, "{pages} pages less than {} in use", self.usage);
        self.usage -= pages;
    }

    /// How many pages above `high` the group would be with this many more.
    pub fn above_high(&self, more: u64) -> u64 {
        (self.usage + more).saturating_sub(self.limits.high)
    }

    /// How many pages above `max` the group would be with this many more.
    pub fn above_max(&self, more: u64) -> u64 {
        (self.usage + more).saturating_sub(self.limits.max)
    }

    /// Whether the group is to be emptied.
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Says that nobody uses the group any more: the next pass evicts all its pages, whatever its
    /// limits.
    pub fn kill(&mut self) {
        self.dead = true;
    }
}

/// All groups that share a memory.
#[derive(Debug)]
pub struct Groups<P> {
    slots: Vec<Option<Group<P>>>,
    /// The slot with which the next pass begins.
    pub(super) cookie: usize,
    /// How many milliseconds pages are protected after they came together; 0 for no protection.
    pub min_ttl_ms: u64,
}

impl<P> Default for Groups<P> {
    fn default() -> Self {
        Self { slots: Vec::new(), cookie: 0, min_ttl_ms: 0 }
    }
}

impl<P> Groups<P> {
    /// Makes an empty set of groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a group, which already uses this many pages.
    pub fn add(&mut self, pages: P, limits: Limits, usage: u64) -> GroupId {
        let group = Some(Group { pages, limits, usage, dead: false });
        let free = self.slots.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = group;
        GroupId(at as u32)
    }

    /// Removes a group with its pages.
    pub fn remove(&mut self, id: GroupId) -> Option<Group<P>> {
        self.slots.get_mut(id.0 as usize)?.take()
    }

    /// A group.
    pub fn group(&self, id: GroupId) -> Option<&Group<P>> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    /// A group, to change it.
    pub fn group_mut(&mut self, id: GroupId) -> Option<&mut Group<P>> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    /// All groups, by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (GroupId, &Group<P>)> {
        let groups = self.slots.iter().enumerate();
        groups.filter_map(|(at, group)| Some((GroupId(at as u32), group.as_ref()?)))
    }

    /// All groups, to change them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Group<P>> {
        self.slots.iter_mut().flatten()
    }

    /// The slots of all groups, and free ones.
    pub(super) fn slots(&mut self) -> &mut [Option<Group<P>>] {
        &mut self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again() {
        let mut groups = Groups::new();
        let ids: Vec<_> = (0..3).map(|n| groups.add(n, Limits::default(), 0)).collect();
        assert_eq!(groups.remove(ids[1]).unwrap().pages, 1);
        assert!(groups.remove(ids[1]).is_none() && groups.group(ids[1]).is_none());
        assert_eq!(groups.add(7, Limits::default(), 0), ids[1]);
        assert_eq!(groups.iter().map(|(_, group)| group.pages).collect::<Vec<_>>(), [0, 7, 2]);
    }

    #[test]
    fn limits_are_told_before_they_are_passed() {
        let mut groups = Groups::new();
        let limits = Limits { high: 10, max: 12, ..Limits::default() };
        let id = groups.add((), limits, 9);
        let group = groups.group_mut(id).unwrap();
        assert_eq!((group.above_high(1), group.above_high(3), group.above_max(3)), (0, 2, 0));
        group.charge(4);
        assert_eq!((group.above_high(0), group.above_max(0)), (3, 1));
        group.uncharge(13);
        assert_eq!(group.usage(), 0);
    }
}
