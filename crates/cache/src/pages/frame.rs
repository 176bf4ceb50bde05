//! What a frame holds, in seven bytes: the file, the page, and the page's state.

/// Bits of a page's number: 256 TiB of pages of 4 KiB.
const PAGE_BITS: u32 = 36;
/// Bits of the number of an open file.
const FILE_BITS: u32 = 16;
const KEY_BITS: u32 = FILE_BITS + PAGE_BITS;

/// How many pages a file has at most.
pub(super) const PAGES_MAX: u64 = 1 << PAGE_BITS;
/// How many files may be open at a time. One number stands for no file. In models there are few
/// numbers, so that they are soon used again.
pub(super) const FILES_MAX: usize = if cfg!(shuttle) { 3 } else { (1 << FILE_BITS) - 1 };

/// The file and the number of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u64);

impl Key {
    pub(super) fn new(file: u16, page: u64) -> Self {
        debug_assert!(page < PAGES_MAX);
        Self((file as u64) << PAGE_BITS | page)
    }

    pub(super) fn file(self) -> u16 {
        (self.0 >> PAGE_BITS) as u16
    }

    pub(super) fn page(self) -> u64 {
        self.0 & (PAGES_MAX - 1)
    }

    /// All bits are well mixed, and no two keys have the same hash.
    pub(super) fn hash(self, seed: u64) -> u64 {
        // The finalizer of SplitMix64.
        let mut hash = (self.0 ^ seed).wrapping_add(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ hash >> 31
    }
}

/// A set of states that a page is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags(u8);

impl Flags {
    pub(super) const NONE: Self = Self(0);
    /// Its contents are being read: a thread that wants them waits.
    pub(super) const LOADING: Self = Self(1);
    /// It holds data that the backing does not have.
    pub(super) const DIRTY: Self = Self(2);
    /// It is being written: it stays, but may be read and written to.
    pub(super) const WRITING: Self = Self(4);
    /// The policy does not have it, so it cannot be a victim.
    pub(super) const OUT: Self = Self(8);
    /// The states that keep a page in memory.
    pub(super) const UNWRITTEN: Self = Self(2 | 4);

    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether any of these is set.
    pub(super) const fn has(self, any: Self) -> bool {
        self.0 & any.0 != 0
    }
}

/// A frame: a page with its flags, or a link in the list of free frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame([u8; 7]);

impl Frame {
    const FREE: u16 = u16::MAX;

    pub(super) fn new(key: Key, flags: Flags) -> Self {
        let [bytes @ .., _] = (key.0 | (flags.0 as u64) << KEY_BITS).to_le_bytes();
        Self(bytes)
    }

    /// A free frame, with a link to the next one.
    pub(super) fn free(next: u32) -> Self {
        Self::new(Key::new(Self::FREE, next as u64), Flags::NONE)
    }

    fn bits(self) -> u64 {
        let mut bytes = [0; 8];
        bytes[..7].copy_from_slice(&self.0);
        u64::from_le_bytes(bytes)
    }

    pub(super) fn key(self) -> Key {
        Key(self.bits() & ((1 << KEY_BITS) - 1))
    }

    pub(super) fn flags(self) -> Flags {
        Flags((self.bits() >> KEY_BITS) as u8)
    }

    pub(super) fn is_free(self) -> bool {
        self.key().file() == Self::FREE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_everything_fits() {
        let key = Key::new(FILES_MAX as u16 - 1, PAGES_MAX - 1);
        let frame = Frame::new(key, Flags::UNWRITTEN.or(Flags::OUT));
        assert_eq!((frame.key(), frame.is_free()), (key, false));
        assert_eq!((key.file(), key.page()), (FILES_MAX as u16 - 1, PAGES_MAX - 1));
        assert!(frame.flags().has(Flags::OUT) && !frame.flags().has(Flags::LOADING));
        assert!(Frame::free(u32::MAX).is_free());
        assert_eq!(Frame::free(u32::MAX).key().page(), u32::MAX as u64);
        assert_eq!(size_of::<Frame>(), 7);
    }
}
