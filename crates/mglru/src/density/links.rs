//! Which frames are before and behind each other in their lists.

use super::ranking::resize_exact;

/// No frame.
pub(super) const NONE: u32 = u32::MAX;

/// The neighbours of frames in their lists. A frame is in at most one list, of any group.
#[derive(Debug, Default)]
pub(super) struct Links(Vec<Link>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) previous: u32,
    pub(super) next: u32,
}

impl Links {
    /// Makes room for this many frames.
    pub(super) fn grow(&mut self, frames: usize) {
        self.0.resize(frames.max(self.0.len()), Link { previous: NONE, next: NONE });
    }

    /// Makes room for exactly this many frames.
    pub(super) fn set_frames(&mut self, frames: usize) {
        resize_exact(&mut self.0, frames, || Link { previous: NONE, next: NONE });
    }

    /// The bytes that they take.
    pub(super) fn memory(&self) -> usize {
        self.0.capacity() * size_of::<Link>()
    }
}

impl std::ops::Index<u32> for Links {
    type Output = Link;

    fn index(&self, frame: u32) -> &Link {
        &self.0[frame as usize]
    }
}

impl std::ops::IndexMut<u32> for Links {
    fn index_mut(&mut self, frame: u32) -> &mut Link {
        &mut self.0[frame as usize]
    }
}
