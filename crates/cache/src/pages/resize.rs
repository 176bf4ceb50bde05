//! Another size while requests go on: shard by shard, under its lock, with as few pages moved as can
//! be. Frames that are needed elsewhere are emptied first: of these, the pages that are worth least
//! leave, and others move down.

use super::core::Core;
use super::error::{BuildError, ResizeError};
use super::fill::Demand;
use super::frame::Flags;
use super::shard::Shard;
use super::sizing::{HEADROOM, Sizing};
use super::table::Table;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{lock, read};

/// How often a shard is tried of whose pages none goes.
const TRIES_MAX: usize = 8;

/// What is done about pages that cannot go or move at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// They are written, and waited for.
    Waits,
    /// The shard stays as it is.
    Gives,
}

impl Core {
    pub(super) fn set_size(&self, bytes: usize) -> Result<(), ResizeError> {
        let max = self.bytes_max.load(Relaxed);
        if bytes > max {
            return Err(ResizeError::AboveMax { bytes, max });
        }
        let resizing = lock(&self.resizing);
        let (each, _) = self.sizing.check(bytes)?;
        let mut result = Ok(());
        for shard in &self.shards {
            let lists = Self::lists(&shard.read());
            result = self.resize(shard, self.sizing.frames(each, lists), each, Patience::Waits);
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() {
            self.bytes.store(bytes, Relaxed);
        }
        self.count_pages();
        drop(resizing);
        result
    }

    fn count_pages(&self) {
        let pages = self.shards.iter().map(|shard| shard.read().limit).sum();
        self.pages.store(pages, Relaxed);
        self.habits.set_capacity(pages);
    }

    /// What the groups' lists take.
    fn lists(table: &Table) -> usize {
        let frames = table.frame_count() * super::sizing::POLICY;
        table.policy.memory() - frames
    }

    /// What a shard takes.
    pub(super) fn shard_memory(table: &Table) -> usize {
        Sizing::beside_table() + table.memory()
    }

    /// Gives up frames if the lists of groups have grown so much that they need the room, where that can be
    /// done at once: a request does not wait for the disks of others. Else it is tried again an epoch later.
    #[cold]
    pub(super) fn keep_bound(&self, shard: &Shard) {
        // If the size is being changed, that sees to it; or the next request does.
        let Ok(resizing) = self.resizing.try_lock() else { return };
        let (each, excess, frames) = {
            let mut table = shard.write();
            table.crowded = false;
            (table.bytes(), table.excess(HEADROOM / 2), table.frame_count())
        };
        if excess > 0 {
            let bytes = excess + Self::step(each);
            let too_many = bytes.div_ceil(self.page_size());
            let frames = frames.saturating_sub(too_many).max(1);
            if self.resize(shard, frames, each, Patience::Gives).is_ok() {
                self.count_pages();
            }
        }
        drop(resizing);
    }

    /// Makes frames of what the lists of groups took that are gone, where it is worth the copying.
    pub(super) fn use_spare_memory(&self) {
        let Ok(resizing) = self.resizing.try_lock() else { return };
        let mut grown = false;
        for shard in &self.shards {
            let (each, frames, fit) = {
                let table = shard.read();
                let fit = self.sizing.frames(table.bytes(), Self::lists(&table));
                (table.bytes(), table.frame_count(), fit)
            };
            if fit > frames && (fit - frames) * self.page_size() >= Self::step(each) {
                // If it fails there are as many as before.
                grown |= self.resize(shard, fit, each, Patience::Gives).is_ok();
            }
        }
        if grown {
            self.count_pages();
        }
        drop(resizing);
    }

    /// How many bytes of a shard change their use at once, at least: it takes some copying.
    fn step(bytes: usize) -> usize {
        (bytes / 64).clamp(HEADROOM / 2, 2 * HEADROOM)
    }

    /// Makes a shard this many frames. If it fails, it has as many as before.
    fn resize(
        &self,
        shard: &Shard,
        frames: usize,
        bytes: usize,
        patience: Patience,
    ) -> Result<(), ResizeError> {
        let (before, mut left) = {
            let table = shard.read();
            (table.frame_count(), (table.used(), table.unwritten_count()))
        };
        let mut tries = 0;
        while tries < TRIES_MAX {
            let files = read(&self.files);
            let group_of = |file: u16| files.get(file).map(|file| &file.group);
            let mut table = shard.write();
            table.limit = table.limit.min(frames);
            while table.used() > frames && table.evict(None, Demand::Write, &self.habits) {}
            if table.used() <= frames && table.move_down(frames, group_of) {
                let resized = table.set_frames(frames, bytes);
                if resized.is_err() {
                    table.limit = before;
                }
                return resized.map_err(|source| BuildError::Memory { bytes, source }.into());
            }
            if patience == Patience::Gives {
                table.limit = before;
                let (pages, needs) = (table.used().saturating_sub(frames), self.needs(&table));
                drop((table, files));
                self.ask_for(&needs);
                return Err(ResizeError::Held { pages });
            }
            // Those that have to be written are a few at a time, and may be worth more than others once
            // they are; above the limit none comes.
            let now = (table.used(), table.unwritten_count());
            tries = if now.0 < left.0 || now.1 < left.1 { 0 } else { tries + 1 };
            // The least there ever were: others may write meanwhile.
            left = (left.0.min(now.0), left.1.min(now.1));
            let moving = Flags::LOADING.or(Flags::WRITING);
            let ticket = table.occupied(0).any(|frame| table.flags(frame).has(moving));
            let ticket = ticket.then(|| shard.ticket());
            drop((table, files));
            if self.write_nominated(shard, None) == 0
                && let Some(ticket) = ticket
            {
                ticket.wait();
            }
        }
        let mut table = shard.write();
        table.limit = before;
        Err(ResizeError::Held { pages: table.used().saturating_sub(frames) })
    }
}
