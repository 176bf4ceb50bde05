//! What is remembered of an evicted page (the kernel's shadow entry), in 32 bits.
//!
//! ```text
//!  31 .. 16  the lruvec that it belonged to
//!  15 .. 4   the oldest generation when it was evicted, modulo 4096
//!  3         its type
//!  2         whether it was part of the working set
//!  1 .. 0    how often it was referenced, less 1; 0 if never
//! ```
//!
//! A token that is more than 4000 generations old may look recent. The kernel's tokens wrap around,
//! too.

use super::Type;
use super::frames::Marks;

const SEQ_BITS: u32 = 12;
const SEQ_MASK: u32 = (1 << SEQ_BITS) - 1;
/// The largest distance between generations that tokens tell apart well.
pub(super) const SEQ_DISTANCE_MAX: u32 = 1 << (SEQ_BITS - 2);

/// What is remembered of an evicted page. Its owner keeps it with the page's name, for as long as
/// it likes, and presents it when the page comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(u32);

impl Token {
    pub(super) fn new(owner: u16, min_seq: u64, of: Type, marks: Marks) -> Self {
        let seq = min_seq as u32 & SEQ_MASK;
        let refs = u32::from(marks.refs().saturating_sub(1));
        let workingset = u32::from(marks.workingset());
        Self(u32::from(owner) << 16 | seq << 4 | (of as u32) << 3 | workingset << 2 | refs)
    }

    /// The lruvec to which the page belonged.
    pub const fn owner(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The type that it had.
    pub const fn of(self) -> Type {
        if self.0 & 8 == 0 { Type::Dirty } else { Type::Clean }
    }

    /// What accesses had left on it.
    pub(super) fn marks(self) -> Marks {
        Marks::restored(self.refs(), self.0 & 4 != 0)
    }

    const fn refs(self) -> u8 {
        (self.0 & 3) as u8 + 1
    }

    /// The tier in which it was evicted.
    pub const fn tier(self) -> usize {
        match (self.0 & 4 != 0, self.refs()) {
            (true, _) => 3,
            (false, 1) => 0,
            (false, 2) => 1,
            (false, _) => 2,
        }
    }

    /// How many generations away from this one it was evicted, in either direction.
    pub(super) const fn distance(self, max_seq: u64) -> u32 {
        let ahead = (max_seq as u32).wrapping_sub(self.0 >> 4) & SEQ_MASK;
        let behind = ahead.wrapping_neg() & SEQ_MASK;
        if ahead < behind { ahead } else { behind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_what_it_was_made_from() {
        for refs in 0..=4_u8 {
            let frames = super::super::Frames::new(1);
            for _ in 0..refs {
                frames.access(0);
            }
            let token = Token::new(65_533, 4097, Type::Clean, frames.marks(0));
            assert_eq!((token.owner(), token.of()), (65_533, Type::Clean));
            assert_eq!(token.tier(), frames.marks(0).tier());
        }
    }

    #[test]
    fn distances_wrap_around() {
        let token = Token::new(0, 4095, Type::Dirty, Marks::default());
        for (max_seq, distance) in [(4095, 0), (4098, 3), (4094, 1), (8191, 0), (8195, 4)] {
            assert_eq!(token.distance(max_seq), distance, "{max_seq}");
        }
    }
}
