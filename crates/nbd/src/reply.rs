//! Replies, appended to a buffer. After [`crate::wire::option::STRUCTURED_REPLY`] every read is
//! answered by chunks, and so are its errors.

use crate::handshake::Session;
use crate::wire::{self, Errno, chunk};

/// Bytes before the data of a read reply, at most.
pub const READ_HEADER_LEN_MAX: usize = CHUNK_HEADER_LEN + 8;
const CHUNK_HEADER_LEN: usize = 20;
const SIMPLE_LEN: usize = 16;

/// One extent of a block status reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes.
    pub length: u32,
    /// [`wire::STATE_HOLE`] and [`wire::STATE_ZERO`].
    pub state: u32,
}

/// The header of a successful read reply; `length` bytes of data must follow.
///
/// The bytes are at the end of the array; the second value is where they begin.
pub fn read_header(
    session: &Session,
    cookie: u64,
    offset: u64,
    length: u32,
) -> ([u8; READ_HEADER_LEN_MAX], usize) {
    let mut bytes = [0; READ_HEADER_LEN_MAX];
    if session.structured {
        let header = chunk_header(chunk::FLAG_DONE, chunk::OFFSET_DATA, cookie, length + 8);
        bytes[..CHUNK_HEADER_LEN].copy_from_slice(&header);
        bytes[CHUNK_HEADER_LEN..].copy_from_slice(&offset.to_be_bytes());
        (bytes, 0)
    } else {
        let start = READ_HEADER_LEN_MAX - SIMPLE_LEN;
        bytes[start..].copy_from_slice(&simple(cookie, 0));
        (bytes, start)
    }
}

/// The reply to a request that went well, other than a read or a block status.
pub fn done(output: &mut Vec<u8>, cookie: u64) {
    output.extend(simple(cookie, 0));
}

/// An error reply, with a message where the protocol has room for one.
pub fn error(output: &mut Vec<u8>, session: &Session, cookie: u64, errno: Errno, message: &str) {
    if !session.structured {
        output.extend(simple(cookie, errno as u32));
        return;
    }
    let mut cut = message.len().min(wire::STRING_LEN_MAX);
    while !message.is_char_boundary(cut) {
        cut -= 1;
    }
    let length = 4 + 2 + cut as u32;
    output.extend(chunk_header(chunk::FLAG_DONE, chunk::ERROR, cookie, length));
    output.extend((errno as u32).to_be_bytes());
    output.extend((cut as u16).to_be_bytes());
    output.extend(&message.as_bytes()[..cut]);
}

/// A block status reply. `extents` is not empty and covers at most what was asked for.
pub fn block_status(output: &mut Vec<u8>, cookie: u64, extents: &[Extent]) {
    let length = 4 + 8 * extents.len() as u32;
    output.extend(chunk_header(chunk::FLAG_DONE, chunk::BLOCK_STATUS, cookie, length));
    output.extend(wire::BASE_ALLOCATION_ID.to_be_bytes());
    for extent in extents {
        output.extend(extent.length.to_be_bytes());
        output.extend(extent.state.to_be_bytes());
    }
}

fn simple(cookie: u64, errno: u32) -> [u8; SIMPLE_LEN] {
    let mut bytes = [0; SIMPLE_LEN];
    bytes[..4].copy_from_slice(&wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&errno.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

fn chunk_header(flags: u16, kind: u16, cookie: u64, length: u32) -> [u8; CHUNK_HEADER_LEN] {
    let mut bytes = [0; CHUNK_HEADER_LEN];
    bytes[..4].copy_from_slice(&wire::STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..].copy_from_slice(&length.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRUCTURED: Session =
        Session { export_index: 0, structured: true, base_allocation: false };
    const PLAIN: Session = Session { structured: false, ..STRUCTURED };

    #[test]
    fn the_bytes_are_the_specs() {
        let (bytes, start) = read_header(&PLAIN, 0x0102, 5, 512);
        assert_eq!(bytes[start..], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        let (bytes, start) = read_header(&STRUCTURED, 3, 5, 512);
        let expected = [
            0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 2, 8, //
            0, 0, 0, 0, 0, 0, 0, 5,
        ];
        assert_eq!(bytes[start..], expected);

        let mut output = Vec::new();
        error(&mut output, &STRUCTURED, 3, Errno::Invalid, "no");
        assert_eq!(output[4..8], [0, 1, 0x80, 1]);
        assert_eq!(output[16..], [0, 0, 0, 8, 0, 0, 0, 22, 0, 2, b'n', b'o']);
        output.clear();
        error(&mut output, &PLAIN, 3, Errno::Io, "not sent");
        assert_eq!(output[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 5]);
        output.clear();
        block_status(&mut output, 3, &[Extent { length: 4096, state: wire::STATE_HOLE }]);
        assert_eq!(output[16..], [0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 16, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        for shift in 0..3 {
            let message = ["x".repeat(shift), "\u{20ac}".repeat(2000)].concat();
            let mut output = Vec::new();
            error(&mut output, &STRUCTURED, 3, Errno::Io, &message);
            let text = &output[CHUNK_HEADER_LEN + 6..];
            assert!(text.len() <= wire::STRING_LEN_MAX && text.len() > wire::STRING_LEN_MAX - 3);
            assert!(message.starts_with(std::str::from_utf8(text).unwrap()));
            assert_eq!(output[16..20], (text.len() as u32 + 6).to_be_bytes());
            assert_eq!(output[24..26], (text.len() as u16).to_be_bytes());
        }
    }
}
