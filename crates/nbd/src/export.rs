//! What a client is told of an export.

use crate::wire::transmission_flag as flag;

/// Block sizes told to clients that ask, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Every offset and length must be a multiple of this, which is a power of two.
    pub minimum: u32,
    /// Requests that are multiples of this are served best. It is a power of two.
    pub preferred: u32,
    /// The longest payload of a read or write.
    pub payload_max: u32,
}

/// One export, as told to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The name clients ask for, at most [`crate::wire::STRING_LEN_MAX`] bytes.
    pub name: String,
    /// A text for people; empty for none.
    pub description: String,
    /// The size in bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Block sizes.
    pub block_sizes: BlockSizes,
}

impl Export {
    /// The transmission flags. `SEND_DF` comes only with structured replies.
    pub fn flags(&self, structured: bool) -> u16 {
        let common = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::CAN_MULTI_CONN
            | flag::SEND_CACHE
            | if structured { flag::SEND_DF } else { 0 };
        let writing = flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        common | if self.read_only { flag::READ_ONLY } else { writing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_told_what_it_may_do() {
        let block_sizes = BlockSizes { minimum: 1, preferred: 4096, payload_max: 1 << 20 };
        let (name, description) = (String::new(), String::new());
        let mut export = Export { name, description, size: 1, read_only: false, block_sizes };
        assert_eq!(export.flags(false), 0b1101_0110_1101);
        assert_eq!(export.flags(true), 0b1101_1110_1101);
        export.read_only = true;
        assert_eq!(export.flags(false), 0b0101_0000_1111);
        assert_eq!(export.flags(true), 0b0101_1000_1111);
    }
}
