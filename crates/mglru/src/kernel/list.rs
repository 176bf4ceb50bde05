//! The ends of a list of frames; the links are in the table of frames.
//!
//! A frame is on one list at most. Which one is for the caller to know.

use super::frames::{Frame, Frames, NIL};

/// A list, from the newest frame to the oldest.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    newest: Frame,
    oldest: Frame,
}

impl List {
    pub(super) const EMPTY: Self = Self { newest: NIL, oldest: NIL };

    pub(super) const fn is_empty(self) -> bool {
        self.oldest == NIL
    }

    pub(super) fn oldest(self) -> Option<Frame> {
        (self.oldest != NIL).then_some(self.oldest)
    }

    /// Puts a frame that is on no list at the head: the young end.
    pub(super) fn push_head(&mut self, frames: &Frames, frame: Frame) {
        frames.set_newer(frame, NIL);
        frames.set_older(frame, self.newest);
        if self.newest == NIL {
            self.oldest = frame;
        } else {
            frames.set_newer(self.newest, frame);
        }
        self.newest = frame;
    }

    /// Puts a frame that is on no list at the tail: the old end.
    pub(super) fn push_tail(&mut self, frames: &Frames, frame: Frame) {
        frames.set_older(frame, NIL);
        frames.set_newer(frame, self.oldest);
        if self.oldest == NIL {
            self.newest = frame;
        } else {
            frames.set_older(self.oldest, frame);
        }
        self.oldest = frame;
    }

    /// Takes a frame off, which must be on this list.
    pub(super) fn remove(&mut self, frames: &Frames, frame: Frame) {
        let (newer, older) = (frames.newer(frame), frames.older(frame));
        if newer == NIL {
            self.newest = older;
        } else {
            frames.set_older(newer, older);
        }
        if older == NIL {
            self.oldest = newer;
        } else {
            frames.set_newer(older, newer);
        }
    }

    /// The frames, the oldest first.
    pub(super) fn iter(self, frames: &Frames) -> impl Iterator<Item = Frame> + '_ {
        let next = |frame| (frame != NIL).then_some(frame);
        std::iter::successors(next(self.oldest), move |frame| next(frames.newer(*frame)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_from_anywhere() {
        let frames = Frames::new(5);
        let mut list = List::EMPTY;
        let show = |list: List| list.iter(&frames).collect::<Vec<_>>();
        for frame in [2, 0, 4] {
            list.push_head(&frames, frame);
        }
        list.push_tail(&frames, 3);
        list.push_tail(&frames, 1);
        assert_eq!(show(list), [1, 3, 2, 0, 4]);
        for (frame, left) in
            [(2, &[1, 3, 0, 4][..]), (1, &[3, 0, 4]), (4, &[3, 0]), (0, &[3]), (3, &[])]
        {
            list.remove(&frames, frame);
            assert_eq!(show(list), left);
        }
        assert!(list.is_empty() && list.oldest().is_none());
    }
}
