//! The memory of a shard's frames: anonymous mappings, with huge pages where the system has them.
//!
//! Memory that was never used takes none. Mappings are of exactly as many bytes as there are frames
//! for, so their sum is what the cache was given.

use std::io;

use memmap2::MmapMut;

/// The least and the most bytes of a mapping, which are powers of two. Within these bounds, a
/// mapping has about one in `MAPPINGS` of the initial frames, because the last mapping is made
/// anew, and copied, when the size changes. The system joins adjacent mappings, and has huge pages
/// for them.
const MAPPING: std::ops::RangeInclusive<usize> = 256 << 10..=16 << 20;
const MAPPINGS: usize = 128;
/// As many bytes, one of the system's pages or a part of one, are copied at a time, unless they are
/// all zero.
static ZEROES: [u8; 4096] = [0; 4096];

/// Whether the system provides this much memory, as far as it says so before the memory is used: it
/// refuses what is out of all proportion, or beyond a limit. An allocation of a list that fails
/// would end the process instead.
pub(super) fn check_room(bytes: usize) -> io::Result<()> {
    MmapMut::map_anon(bytes).map(drop)
}

/// Whether a huge page is no longer than a mapping. Where the system's own pages are longer than 4
/// KiB, one may have 32 or 512 MiB: the first use of any byte of it would take all that.
#[cfg(target_os = "linux")]
fn huge_pages_fit() -> bool {
    let path = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    let size = std::fs::read_to_string(path).ok().and_then(|size| size.trim().parse().ok());
    size.is_none_or(|size: usize| size <= *MAPPING.end())
}

#[derive(Debug, Default)]
pub(super) struct Arena {
    mappings: Vec<MmapMut>,
    /// Bytes of a page, and frames of a mapping, as powers of two.
    page: u32,
    per_mapping: u32,
    /// The most bytes that were ever taken at a time.
    #[cfg(test)]
    most: usize,
}

impl Arena {
    /// For frames of this many bytes, a power of two.
    pub(super) fn new(page_size: usize, frames: usize) -> io::Result<Self> {
        let page = page_size.ilog2();
        let mut arena = Self { page, ..Self::default() };
        arena.set_frames(frames)?;
        Ok(arena)
    }

    /// Changes the number of frames. Those that stay keep their contents. If this fails, there are
    /// as many as before.
    pub(super) fn set_frames(&mut self, frames: usize) -> io::Result<()> {
        let bytes = frames << self.page;
        if self.mappings.is_empty() {
            let (least, most) = (*MAPPING.start(), *MAPPING.end());
            let each = (bytes / MAPPINGS).next_power_of_two().clamp(least, most);
            self.per_mapping = each.ilog2().saturating_sub(self.page);
        }
        let mapping = 1 << (self.per_mapping + self.page);
        let (whole, rest) = (bytes / mapping, bytes % mapping);
        let count = whole + usize::from(rest > 0);
        let mut made = Vec::new();
        #[cfg(target_os = "linux")]
        let huge = huge_pages_fit();
        for at in 0..count {
            let len = if at < whole { mapping } else { rest };
            if self.mappings.get(at).is_some_and(|old| old.len() == len) {
                continue;
            }
            let new = MmapMut::map_anon(len)?;
            #[cfg(target_os = "linux")]
            if huge {
                // A hint: kernels without huge pages refuse it.
                let _ = new.advise(memmap2::Advice::HugePage);
            }
            made.push((at, new));
        }
        // Nothing fails from here on.
        self.mappings.truncate(count);
        #[cfg(test)]
        {
            let new: usize = made.iter().map(|(_, new)| new.len()).sum();
            self.most = self.most.max(self.memory() + new);
        }
        for (at, mut new) in made {
            if let Some(old) = self.mappings.get_mut(at) {
                // Memory that was never used is zero, and should not take any after the move
                // either.
                let kept = old.len().min(new.len());
                let pieces = old[..kept].chunks(ZEROES.len()).zip(new.chunks_mut(ZEROES.len()));
                for (old, new) in pieces.filter(|(old, _)| **old != ZEROES[..old.len()]) {
                    new[..old.len()].copy_from_slice(old);
                }
                *old = new;
            } else {
                self.mappings.push(new);
            }
        }
        Ok(())
    }

    /// How many more bytes this many frames would take.
    pub(super) fn growth(&self, frames: usize) -> usize {
        (frames << self.page).saturating_sub(self.memory())
    }

    /// The bytes of all mappings.
    pub(super) fn memory(&self) -> usize {
        self.mappings.iter().map(|mapping| mapping.len()).sum()
    }

    fn place(&self, frame: u32) -> (usize, std::ops::Range<usize>) {
        let at = ((frame & ((1 << self.per_mapping) - 1)) as usize) << self.page;
        ((frame >> self.per_mapping) as usize, at..at + (1 << self.page))
    }

    pub(super) fn get(&self, frame: u32) -> &[u8] {
        let (mapping, range) = self.place(frame);
        &self.mappings[mapping][range]
    }

    pub(super) fn get_mut(&mut self, frame: u32) -> &mut [u8] {
        let (mapping, range) = self.place(frame);
        &mut self.mappings[mapping][range]
    }

    /// Copies one frame to another.
    pub(super) fn copy(&mut self, from: u32, to: u32) {
        let ((source, bytes), (target, place)) = (self.place(from), self.place(to));
        if source == target {
            self.mappings[source].copy_within(bytes, place.start);
        } else if let Ok([source, target]) = self.mappings.get_disjoint_mut([source, target]) {
            target[place].copy_from_slice(&source[bytes]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_keep_their_contents_when_others_come_and_go() {
        let frames = MAPPING.start() / 4096 + 3;
        let mut arena = Arena::new(4096, frames).unwrap();
        assert_eq!(arena.memory(), frames * 4096);
        for frame in [0, frames / 2, frames - 1] {
            arena.get_mut(frame as u32).fill(frame as u8);
        }
        arena.copy(frames as u32 - 1, 1);
        arena.set_frames(2).unwrap();
        assert_eq!(arena.memory(), 2 * 4096);
        arena.set_frames(frames + 1000).unwrap();
        assert!(arena.get(0).iter().all(|&byte| byte == 0));
        assert!(arena.get(1).iter().all(|&byte| byte == (frames - 1) as u8));
        assert_eq!(arena.get(frames as u32)[0], 0);
    }

    #[test]
    fn a_change_takes_little_more_than_there_is() {
        for (bytes, step) in [(24 << 20, 1 << 20), (31 << 20, 64 << 10), (1 << 30, 1 << 20)] {
            let frames = |bytes: usize| bytes / 4096;
            let mut arena = Arena::new(4096, frames(bytes)).unwrap();
            for down in 1..20 {
                arena.set_frames(frames(bytes - down * step)).unwrap();
            }
            arena.set_frames(frames(bytes)).unwrap();
            assert!(arena.most <= bytes + bytes / MAPPINGS * 2, "{} of {bytes}", arena.most);
        }
    }
}
