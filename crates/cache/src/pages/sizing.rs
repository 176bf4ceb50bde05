//! How many frames a cache of a given number of bytes has: everything that the cache takes is
//! counted.

use homing_mglru::density::Learner;

use super::error::BuildError;
use super::index::{FRAMES_MAX, Index};
use super::recent::Recent;
use super::shard::Shard;
use super::table::Table;

/// Shadows of evicted pages for each frame.
pub(super) const GHOSTS: usize = 3;
/// The bytes that the policy has for each frame: history, mark, links.
pub(super) const POLICY: usize = 20;
/// The bytes of a frame's key and flags.
const FRAME: usize = 7;
/// Frames of the smallest shard.
const FRAMES_MIN: usize = 64;
/// The fewest frames that a shard is left with if groups take the room of frames.
pub(super) const FRAMES_LEAST: usize = 16;
/// The fewest bytes and frames of a shard, if the cache chooses the number of shards.
const SHARD: (usize, usize) = (4 << 20, 16 * FRAMES_MIN);
/// Bytes of a shard that are kept for groups to come, because nobody knows beforehand what their
/// lists will take. When less than half of this is left, the shard gives up frames.
pub(super) const HEADROOM: usize = 16 << 10;

/// The settings from which all sizes follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizing {
    pub(super) page_size: usize,
    pub(super) shards: usize,
    /// How many keys the learner follows, and of how many groups it learns separately.
    pub(super) sample: usize,
    pub(super) apart: usize,
}

impl Sizing {
    /// The default number of shards: as many as threads may want at a time, but none of them small.
    pub(super) fn shards_for(bytes: usize, page_size: usize) -> usize {
        let cpus = crate::cpus::count();
        (bytes / SHARD.0.max(SHARD.1.saturating_mul(page_size))).clamp(1, 8 * cpus)
    }

    /// The bytes that a shard of this many frames takes, if `lists` of them are for the lists of
    /// its groups.
    pub(super) fn shard_memory(self, frames: usize, lists: usize) -> usize {
        let fixed = Self::beside_table() + size_of::<Table>() + HEADROOM + lists;
        fixed + frames * self.page_size + Self::beside_pages(frames)
    }

    /// The bytes for what is known of this many frames, and remembered of pages that left.
    pub(super) fn beside_pages(frames: usize) -> usize {
        // The last line of ghosts may be incomplete.
        let ghosts = (frames * GHOSTS).div_ceil(10) * 64;
        let bits = frames.div_ceil(64) * 8;
        let found = Index::memory(frames) + Recent::memory(frames);
        frames * (POLICY + FRAME) + bits + ghosts + found
    }

    /// The bytes that a shard takes besides its table.
    pub(super) fn beside_table() -> usize {
        size_of::<Shard>() - size_of::<Table>()
    }

    /// The frames of a shard of this many bytes, if `lists` of them are for the lists of its
    /// groups.
    pub(super) fn frames(self, bytes: usize, lists: usize) -> usize {
        // More frames are refused anyway, and their bytes might not fit in a number.
        let (mut fit, mut too_many) = (0, (bytes / self.page_size).min(FRAMES_MAX) + 1);
        while too_many - fit > 1 {
            let frames = fit.midpoint(too_many);
            if self.shard_memory(frames, lists) <= bytes { fit = frames } else { too_many = frames }
        }
        fit
    }

    /// The bytes that learning takes.
    pub(super) fn learner_memory(self) -> usize {
        Learner::memory_max(self.sample, self.apart)
    }

    /// The bytes of each shard, if the cache has this many.
    pub(super) fn shard_bytes(self, bytes: usize) -> usize {
        bytes.saturating_sub(self.learner_memory()) / self.shards
    }

    /// The bytes of the smallest cache, if groups take `groups` bytes of each shard.
    pub(super) fn least(self, groups: usize) -> usize {
        let each = self.shard_memory(FRAMES_MIN, 0).max(self.shard_memory(FRAMES_LEAST, groups));
        each.saturating_mul(self.shards).saturating_add(self.learner_memory())
    }

    /// The bytes of each shard, and its frames, if a cache can have this size.
    pub(super) fn check(self, bytes: usize) -> Result<(usize, usize), BuildError> {
        let Self { page_size, shards, .. } = self;
        if !page_size.is_power_of_two() || !(512..=65536).contains(&page_size) {
            return Err(BuildError::PageSize(page_size));
        }
        let each = self.shard_bytes(bytes);
        let frames = self.frames(each, 0);
        if frames < FRAMES_MIN {
            return Err(BuildError::TooSmall { bytes, least: self.least(0) });
        }
        if frames >= FRAMES_MAX {
            return Err(BuildError::TooLarge { bytes, shards });
        }
        Ok((each, frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The learner, and what a shard takes in any case, come on top: `docs/measured-cache.md`.
    #[test]
    fn each_further_frame_takes_at_most_32_bytes_beside_its_page_and_each_shadow_8() {
        let sizing = Sizing { page_size: 4096, shards: 1, sample: 4096, apart: 1 };
        let frames = 1 << 18;
        let all = sizing.shard_memory(frames, 0) - sizing.shard_memory(0, 0);
        let ghosts = (frames * GHOSTS).div_ceil(10) * 64;
        let beside = all - frames * 4096 - ghosts;
        assert!(beside <= 32 * frames, "{}", beside as f64 / frames as f64);
        assert!(ghosts <= 8 * GHOSTS * frames);
    }

    #[test]
    fn as_many_frames_as_fit_and_no_more() {
        for (bytes, page_size) in [(1 << 20, 512), (10 << 20, 4096), (64 << 30, 4096)] {
            let sizing = Sizing { page_size, shards: 1, sample: 4096, apart: 1 };
            let frames = sizing.frames(bytes, 10_000);
            assert!(sizing.shard_memory(frames, 10_000) <= bytes);
            assert!(sizing.shard_memory(frames + 1, 10_000) > bytes, "{bytes} {page_size}");
        }
    }

    #[test]
    fn pages_of_any_size_fit_in_the_shards_that_are_made() {
        for page_size in (9..=16).map(|bits| 1 << bits) {
            for bytes in [8 << 20, 64 << 20, 1 << 30, 64 << 30] {
                let shards = Sizing::shards_for(bytes, page_size);
                let sizing = Sizing { page_size, shards, sample: 4096, apart: 1 };
                assert!(sizing.check(bytes).is_ok(), "{bytes} bytes, pages of {page_size}");
            }
        }
    }

    #[test]
    fn what_is_too_small_says_what_would_do() {
        let sizing = Sizing { page_size: 4096, shards: 2, sample: 4096, apart: 1 };
        let Err(BuildError::TooSmall { least, .. }) = sizing.check(4096) else { panic!() };
        assert!(sizing.check(least).is_ok());
    }
}
