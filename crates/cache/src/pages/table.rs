//! The pages of a shard: everything that its lock guards. Each call changes one state of one page.
//! The callers decide what follows from that, and when. `README.md` has the states.

use std::ops::Range;
use std::sync::Arc;

use homing_mglru::density::{Ghosts, Shard as Policy};
use homing_mglru::prefetch;

use super::arena::{Arena, check_room};
use super::fill::Demand;
use super::frame::{Flags, Frame, Key};
use super::group::{Counters, GroupState};
use super::index::Index;
use super::local::Local;
use super::recent::Recent;
use super::sizing::{HEADROOM, Sizing};
use crate::claims::{Claims, push, trim};
use crate::habits::{Habits, Told};
use crate::sync::atomic::Ordering::Relaxed;

mod unwritten;

/// No frame: the end of the list of free frames.
const NONE: u32 = u32::MAX;
/// Stands in `numbers` for a group that has no page here.
const ABSENT: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Table {
    seed: u64,
    index: Index,
    frames: Vec<Frame>,
    /// A bit for each frame: whether its page is dirty or being written.
    unwritten: Vec<u64>,
    unwritten_count: usize,
    free: u32,
    used: usize,
    /// How many frames may be used: fewer than there are while the cache is made smaller.
    pub(super) limit: usize,
    /// The bytes that the whole table may take. If it takes too many, frames must go (`crowded`);
    /// if it takes far too many, no new group or page may come in (`short`).
    bytes: usize,
    pub(super) crowded: bool,
    short: bool,
    pub(super) arena: Arena,
    pub(super) policy: Policy,
    pub(super) ghosts: Ghosts,
    told: Told,
    pub(super) recent: Recent,
    /// Groups that have or had pages here, indexed by the policy's numbers.
    pub(super) locals: Vec<Local>,
    /// The policy's number of each group, indexed by the cache's number of the group.
    numbers: Vec<u32>,
    pub(super) claims: Claims,
    /// Where the next search for a victim begins among the groups.
    pub(super) cookie: usize,
    /// Dirty pages that would have been victims, to be written before others: the group's number
    /// and the frame of each.
    pub(super) nominated: Vec<(u32, u32)>,
    /// Callers that wait until pages are not busy: the turn, file and pages of each.
    pub(super) claimants: Vec<(u64, u16, Range<u64>)>,
    turns: u64,
    /// Ranges of pages, by file, that must not be loaded now.
    pub(super) busy: Vec<(u16, Range<u64>)>,
    /// The frame up to which dirty pages were looked for.
    hand: usize,
}

impl Table {
    /// A table with this many frames, all of which may take this many bytes.
    pub(super) fn new(
        seed: u64,
        page_size: usize,
        frames: usize,
        bytes: usize,
    ) -> std::io::Result<Self> {
        let mut table = Self {
            seed,
            index: Index::new(0),
            frames: Vec::new(),
            unwritten: Vec::new(),
            unwritten_count: 0,
            free: NONE,
            used: 0,
            limit: frames,
            bytes,
            crowded: false,
            short: false,
            arena: Arena::new(page_size, 0)?,
            policy: Policy::new(),
            ghosts: Ghosts::new(0),
            told: Told::default(),
            recent: Recent::new(0),
            locals: Vec::new(),
            numbers: Vec::new(),
            claims: Claims::default(),
            cookie: 0,
            nominated: Vec::new(),
            claimants: Vec::new(),
            turns: 0,
            busy: Vec::new(),
            hand: 0,
        };
        table.set_frames(frames, bytes)?;
        Ok(table)
    }

    /// Changes the number of frames. Those that go must be free. What is remembered of evicted
    /// pages is forgotten if it does not fit any more. If this fails, nothing changes.
    pub(super) fn set_frames(&mut self, frames: usize, bytes: usize) -> std::io::Result<()> {
        debug_assert!(self.occupied(frames).next().is_none());
        let same_size = self.bytes == bytes;
        // If only a few frames go, to make room for something else, index and ghosts may stay.
        let entries = self.index.entries();
        let few = same_size && (entries - entries / 16..=entries).contains(&frames);
        let stays = few && self.ghosts.memory() > 0;
        check_room(Sizing::beside_pages(frames) + self.arena.growth(frames))?;
        let index = if stays { None } else { Some(self.index_for(frames)?) };
        self.arena.set_frames(frames)?;
        // Nothing fails from here on.
        if let Some(index) = index {
            self.index = index;
            self.ghosts = Ghosts::new(frames * super::sizing::GHOSTS);
        }
        self.policy.set_frames(frames);
        self.frames.reserve_exact(frames.saturating_sub(self.frames.len()));
        self.frames.resize(frames, Frame::free(NONE));
        self.frames.shrink_to_fit();
        self.recent = Recent::new(frames);
        self.unwritten.resize(frames.div_ceil(64), 0);
        self.unwritten.shrink_to_fit();
        let nominated = std::mem::take(&mut self.nominated);
        self.locals.iter_mut().for_each(|local| local.nominated = 0);
        for (number, frame) in nominated.into_iter().filter(|(_, frame)| (*frame as usize) < frames)
        {
            self.nominate(self.numbers[number as usize] as usize, frame);
        }
        self.bytes = bytes;
        self.limit = frames;
        self.hand = 0;
        self.link_free();
        self.check_bytes();
        // At the same size, a table that is still too large is looked at again an epoch later. At a
        // new size, groups that came while it was waited for still need room.
        self.crowded &= !same_size;
        Ok(())
    }

    /// An index with room for this many entries, which contains all pages.
    fn index_for(&self, frames: usize) -> std::io::Result<Index> {
        let mut index = Index::new(frames);
        let mut insert = |frame| index.insert(self.key(frame).hash(self.seed), frame);
        if self.occupied(0).all(&mut insert) {
            return Ok(index);
        }
        Err(std::io::Error::other(format!(
            "an index of {frames} frames has no room for one of its pages"
        )))
    }

    /// The bytes that the table takes.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.arena.memory()
            + self.policy.memory()
            + self.ghosts.memory()
            + Index::memory(self.index.entries())
            + self.frames.capacity() * size_of::<Frame>()
            + self.unwritten.capacity() * size_of::<u64>()
            + Recent::memory(self.frames.len())
            + self.beside_policy()
    }

    /// The bytes that groups take here: their lists, and what is known of them.
    pub(super) fn groups_memory(&self) -> usize {
        let of_frames = self.frames.len() * super::sizing::POLICY;
        self.policy.memory().saturating_sub(of_frames) + self.beside_policy()
    }

    /// The bytes that groups take here besides what the policy has of them.
    fn beside_policy(&self) -> usize {
        self.locals.capacity() * size_of::<Local>()
            + self.nominated.capacity() * size_of::<(u32, u32)>()
            + self.numbers.capacity() * size_of::<u32>()
            + self.claims.memory()
    }

    /// The groups of which pages are nominated; a group may appear more than once.
    pub(super) fn nominators(&self) -> impl Iterator<Item = &Arc<GroupState>> {
        // Each request asks this, so the shorter list is searched: there may be many groups, and
        // the nominated pages of a group whose disk hangs stay in the other list.
        let (pages, locals) = match &*self.nominated {
            pages if pages.len() < self.locals.len() => (pages, &[][..]),
            _ => (&[][..], &*self.locals),
        };
        let local = |pages: &[(u32, u32)]| &self.locals[self.numbers[pages[0].0 as usize] as usize];
        let of_pages = pages.chunk_by(|one, other| one.0 == other.0).map(local);
        let of_locals = locals.iter().filter(|local| local.nominated > 0);
        of_pages.chain(of_locals).map(|local| &local.group)
    }

    /// Whether pages are nominated: of any group, or of this one. The group may be gone, and its
    /// number another group's.
    pub(super) fn has_nominated(&self, of: Option<&Arc<GroupState>>) -> bool {
        let Some(group) = of else { return !self.nominated.is_empty() };
        let local = self.known_local(group).map(|local| &self.locals[local]);
        local.is_some_and(|local| local.nominated > 0 && Arc::ptr_eq(&local.group, group))
    }

    /// Nominates a dirty page of this group: it is to be written before others.
    pub(super) fn nominate(&mut self, local: usize, frame: u32) {
        let room = self.nominated.capacity();
        push(&mut self.nominated, (self.locals[local].group.number as u32, frame));
        self.locals[local].nominated += 1;
        if self.nominated.capacity() > room {
            self.check_bytes();
        }
    }

    /// Takes the nominated pages: of all groups, or of this one.
    pub(super) fn take_nominated(&mut self, of: Option<&Arc<GroupState>>) -> Vec<u32> {
        let asked = |number: usize| of.is_none_or(|group| group.number == number);
        for local in self.locals.iter_mut().filter(|local| asked(local.group.number)) {
            local.nominated = 0;
        }
        let all = std::mem::take(&mut self.nominated);
        let (taken, left) = all.into_iter().partition(|(number, _)| asked(*number as usize));
        self.nominated = left;
        Vec::into_iter(taken).map(|(_, frame)| frame).collect()
    }

    /// By how many bytes the table exceeds its bound if it is to have this many to `spare`.
    pub(super) fn excess(&self, spare: usize) -> usize {
        (Sizing::beside_table() + self.memory() + spare).saturating_sub(self.bytes)
    }

    /// Compares what the table takes with its bound. Call it when something may have grown: the
    /// policy decides when lists of groups grow.
    pub(super) fn check_bytes(&mut self) {
        self.crowded = self.excess(HEADROOM / 2) > 0;
        self.short = self.excess(HEADROOM / 4) > 0;
    }

    /// Whether nothing new may come in, because frames could not be given up as fast as lists grew.
    pub(super) fn is_short(&self) -> bool {
        self.short
    }

    /// Sets how many bytes the table may take. Later requests make it fit.
    pub(super) fn set_bytes(&mut self, bytes: usize) {
        self.bytes = bytes;
        self.check_bytes();
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn frame_count(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// How many more frames may be used.
    pub(super) fn free_count(&self) -> usize {
        self.limit.saturating_sub(self.used)
    }

    pub(super) fn hash(&self, key: Key) -> u64 {
        key.hash(self.seed)
    }

    /// The frame and the flags of a page.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<(u32, Flags)> {
        let is_it = |frame: u32| self.frames[frame as usize].key() == key;
        let frame = self.index.find(key.hash(self.seed), is_it)?;
        Some((frame, self.frames[frame as usize].flags()))
    }

    /// Asks for the memory that [`find`](Self::find) will look at for each of these pages, so that
    /// the CPU waits for all at a time.
    pub(super) fn expect(&self, file: u16, pages: Range<u64>) {
        let hash = |page| self.hash(Key::new(file, page));
        if pages.end - pages.start < 2 {
            return;
        }
        pages.clone().for_each(|page| self.index.prefetch(hash(page)));
        for frame in pages.filter_map(|page| self.index.find(hash(page), |_| true)) {
            prefetch(&self.frames[frame as usize]);
        }
    }

    /// The frame of a page that was in frame `was` when a read or write of it began. The page may
    /// have moved since, if the cache was made smaller.
    pub(super) fn frame_of(&self, key: Key, was: u32) -> Option<u32> {
        let stays = self.frames.get(was as usize).is_some_and(|frame| frame.key() == key);
        if stays { Some(was) } else { self.find(key).map(|(frame, _)| frame) }
    }

    pub(super) fn key(&self, frame: u32) -> Key {
        self.frames[frame as usize].key()
    }

    pub(super) fn flags(&self, frame: u32) -> Flags {
        self.frames[frame as usize].flags()
    }

    /// Whether this page must not be loaded now.
    pub(super) fn is_busy(&self, key: Key) -> bool {
        let covers =
            |(file, pages): &(u16, Range<u64>)| *file == key.file() && pages.contains(&key.page());
        self.busy.iter().any(covers)
    }

    /// Takes a turn in the queue of callers that want these pages for themselves.
    pub(super) fn queue(&mut self, file: u16, pages: Range<u64>) -> u64 {
        self.turns += 1;
        self.claimants.push((self.turns, file, pages));
        self.turns
    }

    pub(super) fn leave_queue(&mut self, turn: u64) {
        self.claimants.retain(|(other, ..)| *other != turn);
    }

    /// Whether a caller with an earlier turn waits for some of these pages.
    pub(super) fn is_claimed(&self, file: u16, pages: &Range<u64>, before: u64) -> bool {
        let meets = |(turn, other, range): &(u64, u16, Range<u64>)| {
            *turn < before && *other == file && range.start < pages.end && pages.start < range.end
        };
        self.claimants.iter().any(meets)
    }

    /// Whether a caller waits for pages of this file.
    pub(super) fn has_claimants(&self, file: u16) -> bool {
        self.claimants.iter().any(|(_, other, _)| *other == file)
    }

    /// The policy's number of a group, which is added if it is not known here.
    pub(super) fn local(&mut self, group: &Arc<GroupState>, habits: &Habits) -> usize {
        if let Some(local) = self.known_local(group) {
            return local;
        }
        let local = self.policy.add_group(habits.worth(group.number));
        self.claims.add();
        let group = Arc::clone(group);
        let number = group.number;
        push(&mut self.locals, Local::new(group));
        while self.numbers.len() <= number {
            push(&mut self.numbers, ABSENT);
        }
        self.numbers[number] = local as u32;
        self.check_bytes();
        local
    }

    /// The policy's number of a group that has or had pages here.
    pub(super) fn known_local(&self, group: &GroupState) -> Option<usize> {
        let local = *self.numbers.get(group.number)?;
        (local != ABSENT).then_some(local as usize)
    }

    /// Forgets groups that have no pages here. They are added again when they need pages.
    pub(super) fn forget_idle(&mut self) {
        // A removed group's number goes to the last group, which this loop has already looked at.
        for local in (0..self.locals.len()).rev() {
            if self.locals[local].pages == 0 {
                let group = Arc::clone(&self.locals[local].group);
                self.remove_group(&group);
            }
        }
        self.check_bytes();
    }

    /// Evicts all pages that groups can give up, and forgets the groups that have none left.
    pub(super) fn forget_all(&mut self, habits: &Habits) {
        let limit = std::mem::replace(&mut self.limit, 0);
        self.evict_down_to(0, true, habits);
        self.limit = limit;
        self.forget_idle();
    }

    /// Forgets a group that has no pages here. The last group takes its number.
    pub(super) fn remove_group(&mut self, group: &GroupState) {
        let Some(local) = self.known_local(group) else { return };
        let Local { pages, hits, .. } = &self.locals[local];
        debug_assert_eq!(*pages, 0, "{} has pages", group.name);
        Counters::add(&group.counters.hits, hits.load(Relaxed) as usize);
        self.policy.remove_group(local);
        self.claims.remove(local);
        self.locals.swap_remove(local);
        self.numbers[group.number] = ABSENT;
        let known = self.numbers.iter().rposition(|&local| local != ABSENT);
        self.numbers.truncate(known.map_or(0, |last| last + 1));
        trim(&mut self.numbers);
        self.nominated.retain(|(number, _)| *number as usize != group.number);
        if let Some(moved) = self.locals.get(local) {
            self.numbers[moved.group.number] = local as u32;
        }
        trim(&mut self.locals);
    }

    /// Brings the policy up to date with what all shards have learnt.
    pub(super) fn listen(&mut self, habits: &Habits) {
        if habits.epoch() != self.policy.epoch() {
            self.check_bytes();
        }
        let groups = self.locals.iter().map(|local| local.group.number);
        let (ranking, marks) = self.policy.parts();
        habits.tell(ranking, marks, groups, &mut self.told);
    }

    /// Takes a free frame, if there is one.
    pub(super) fn take_free(&mut self) -> Option<u32> {
        if self.used >= self.limit || self.free == NONE {
            return None;
        }
        let frame = self.free;
        self.free = self.frames[frame as usize].key().page() as u32;
        self.used += 1;
        Some(frame)
    }

    /// Gives back a frame that holds no page.
    pub(super) fn give_free(&mut self, frame: u32) {
        self.frames[frame as usize] = Frame::free(self.free);
        self.free = frame;
        self.used -= 1;
    }

    /// Puts the page in this frame. The policy does not have it yet. Returns whether the index had
    /// room for it.
    pub(super) fn occupy(&mut self, local: usize, frame: u32, key: Key, flags: Flags) -> bool {
        if !self.index.insert(key.hash(self.seed), frame) {
            return false;
        }
        self.frames[frame as usize] = Frame::new(key, Flags::OUT);
        self.set_flags(local, frame, flags.or(Flags::OUT));
        self.locals[local].pages += 1;
        true
    }

    /// Gives the page to the policy, with what is remembered of it.
    pub(super) fn enter(&mut self, local: usize, frame: u32, demand: Demand) {
        let (key, flags) = (self.key(frame), self.flags(frame));
        let shadow = self.ghosts.take(key.hash(self.seed), self.policy.epoch());
        if shadow.is_some() {
            Counters::add(&self.locals[local].group.counters.refaults, 1);
        }
        match demand {
            Demand::Ahead | Demand::Hint => self.policy.insert_ahead(local, frame, shadow),
            _ => self.policy.insert(local, frame, flags.has(Flags::DIRTY), shadow),
        }
        self.set_flags(local, frame, flags.without(Flags::OUT));
        self.watch(local);
    }

    /// Checks the table's bound if the lists of this group have grown.
    pub(super) fn watch(&mut self, local: usize) {
        if self.policy.take_grown(local) {
            self.check_bytes();
        }
    }

    /// Makes the page a possible victim again.
    pub(super) fn put_back(&mut self, local: usize, frame: u32) {
        let flags = self.flags(frame);
        if flags.has(Flags::OUT) {
            self.policy.put_back(local, frame);
            self.set_flags(local, frame, flags.without(Flags::OUT));
        }
    }

    /// Drops the page, and what was dirty of it.
    pub(super) fn vacate(&mut self, local: usize, frame: u32) {
        let flags = self.flags(frame);
        if !flags.has(Flags::OUT) {
            self.policy.remove(local, frame);
        }
        self.set_flags(local, frame, Flags::NONE);
        self.index.remove(self.key(frame).hash(self.seed), frame);
        self.locals[local].pages -= 1;
        self.give_free(frame);
    }

    /// Moves all pages to the first `frames` frames, of which enough must be free. A thread that
    /// reads or writes one of them looks [where it is](Self::frame_of) afterwards.
    pub(super) fn move_down<'a>(
        &mut self,
        frames: usize,
        group_of: impl Fn(u16) -> Option<&'a Arc<GroupState>>,
    ) {
        // All are found before any of them moves.
        let local_of = |from: u32| {
            let group = group_of(self.key(from).file()).expect("pages are of open files");
            (from, self.known_local(group).expect("who has pages is known"))
        };
        let mut free = 0;
        for (from, local) in self.occupied(frames).map(local_of).collect::<Vec<_>>() {
            while !self.frames[free as usize].is_free() {
                free += 1;
            }
            self.relocate(local, from, free);
        }
        self.link_free();
    }

    /// Moves a page to a free frame. The caller has to make the list of free frames anew.
    fn relocate(&mut self, local: usize, from: u32, to: u32) {
        // The policy does not know pages that are being read.
        if !self.flags(from).has(Flags::LOADING) {
            self.put_back(local, from);
            self.policy.move_page(local, from, to);
        }
        let held = self.frames[from as usize];
        let flags = held.flags();
        self.index.replace(held.key().hash(self.seed), from, to);
        self.arena.copy(from, to);
        // A flush looks at a group's count without this lock. One page more is counted meanwhile;
        // otherwise a group's only dirty page would seem to be on the disk.
        let group = Arc::clone(&self.locals[local].group);
        group.unwritten.fetch_add(1, Relaxed);
        self.set_flags(local, from, Flags::NONE);
        self.frames[from as usize] = Frame::free(NONE);
        self.frames[to as usize] = Frame::new(held.key(), Flags::NONE);
        self.set_flags(local, to, flags);
        group.unwritten.fetch_sub(1, Relaxed);
    }

    /// Makes the list of free frames, in ascending order.
    fn link_free(&mut self) {
        self.free = NONE;
        for frame in (0..self.frames.len() as u32).rev() {
            if self.frames[frame as usize].is_free() {
                self.frames[frame as usize] = Frame::free(self.free);
                self.free = frame;
            }
        }
    }

    /// Frames with pages, of those from `first` on.
    pub(super) fn occupied(&self, first: usize) -> impl Iterator<Item = u32> {
        let frames = self.frames.iter().enumerate().skip(first);
        frames.filter(|(_, frame)| !frame.is_free()).map(|(frame, _)| frame as u32)
    }

    /// Whether there are pages that can go, or be tried again, once a disk has answered. The search
    /// begins at frame `from`, wraps around, and leaves `from` at the page found, so that repeated
    /// calls go round once.
    pub(super) fn is_at_work(&self, from: &mut usize) -> bool {
        let at_work = |frame: &Frame| {
            let flags = frame.flags();
            let nominated = flags.has(Flags::DIRTY) && flags.has(Flags::OUT);
            flags.has(Flags::LOADING.or(Flags::WRITING)) || nominated
        };
        let (before, after) = self.frames.split_at(*from);
        let found = after.iter().chain(before).position(at_work);
        *from = (*from + found.unwrap_or(0)) % self.frames.len();
        found.is_some()
    }
}
