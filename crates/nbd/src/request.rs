//! Requests: the header's 28 bytes, and the one gate that every request passes.

use crate::error::PeerError;
use crate::export::Export;
use crate::handshake::Session;
use crate::wire::{self, Errno, command, command_flag as flag};

/// A request header as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Command flags.
    pub flags: u16,
    /// The command's number.
    pub command: u16,
    /// What the reply must carry, so that the client knows which request it answers.
    pub cookie: u64,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub length: u32,
}

impl RequestHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// [`PeerError::Magic`]: the client is out of step, and nothing after this can be understood.
    pub fn parse(bytes: &[u8; wire::REQUEST_LEN]) -> Result<Self, PeerError> {
        let mut at = 0;
        let mut take = |count: usize| {
            let value = bytes[at..at + count].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
            at += count;
            value
        };
        let found = take(4);
        let expected = u64::from(wire::REQUEST_MAGIC);
        if found != expected {
            return Err(PeerError::Magic { what: "a request", found, expected });
        }
        Ok(Self {
            flags: take(2) as u16,
            command: take(2) as u16,
            cookie: take(8),
            offset: take(8),
            length: take(4) as u32,
        })
    }

    /// The bytes of a header.
    pub fn encode(&self) -> [u8; wire::REQUEST_LEN] {
        let mut bytes = [0; wire::REQUEST_LEN];
        bytes[..4].copy_from_slice(&wire::REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// How many bytes of payload follow the header, whether or not the request is valid.
    pub fn payload_len(&self) -> u32 {
        if self.command == command::WRITE { self.length } else { 0 }
    }
}

/// A request that may be carried out: it is in range, permitted, and has only flags that it may
/// have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read `length` bytes. Replies here are never fragmented, so DF is always honoured.
    Read {
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
    },
    /// Write the payload; with `fua` it must be durable before the reply.
    Write {
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
        /// Forced unit access.
        fua: bool,
    },
    /// Write zeroes.
    WriteZeroes {
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
        /// Forced unit access.
        fua: bool,
        /// Fail at once if this is no faster than writing.
        fast: bool,
    },
    /// The client no longer needs the contents.
    Trim {
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
        /// Forced unit access.
        fua: bool,
    },
    /// The client will read this soon.
    Cache {
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
    },
    /// Which parts are allocated.
    BlockStatus {
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
        /// One extent only.
        one: bool,
    },
    /// Make everything durable that has been replied to.
    Flush,
    /// Finish what is in flight, send no reply, close.
    Disconnect,
}

/// Why a request is answered by an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error number for the client.
    pub errno: Errno,
    /// What was wrong, for people.
    pub message: String,
}

/// The gate: decides whether a request can be carried out at all.
///
/// # Errors
/// [`Refusal`]: answer with it and go on; the client is not out of step.
pub fn validate(
    request: &RequestHeader,
    export: &Export,
    session: &Session,
) -> Result<Command, Refusal> {
    let RequestHeader { offset, length, flags, .. } = *request;
    let refuse = |errno, message: String| Err(Refusal { errno, message });
    // FUA is accepted on every command, as the spec demands of a server that offers it.
    let known = flag::FUA
        | match request.command {
            command::READ if session.structured => flag::DF,
            command::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
            command::BLOCK_STATUS => flag::REQ_ONE,
            _ => 0,
        };
    if request.command == command::DISC {
        return Ok(Command::Disconnect);
    }
    if request.command > command::BLOCK_STATUS {
        return refuse(Errno::Invalid, format!("command {} is not known", request.command));
    }
    if flags & !known != 0 {
        let message = format!("flags {flags:#x} do not go with command {}", request.command);
        return refuse(Errno::Invalid, message);
    }
    if request.command == command::FLUSH {
        return Ok(Command::Flush);
    }

    let writes = matches!(request.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if writes && export.read_only {
        return refuse(Errno::Perm, format!("export {:?} is read-only", export.name));
    }
    if length == 0 {
        return refuse(Errno::Invalid, "the length is zero".to_owned());
    }
    let payload = matches!(request.command, command::READ | command::WRITE);
    if payload && length > PAYLOAD_ACCEPTED_MAX {
        let message = format!("{length} bytes are more than {PAYLOAD_ACCEPTED_MAX} in one request");
        return refuse(Errno::Invalid, message);
    }
    let end = offset.checked_add(u64::from(length));
    if end.is_none_or(|end| end > export.size) {
        let grows = matches!(request.command, command::WRITE | command::WRITE_ZEROES);
        let errno = if grows { Errno::NoSpace } else { Errno::Invalid };
        let message =
            format!("{length} bytes at {offset} end beyond the export's {} bytes", export.size);
        return refuse(errno, message);
    }
    let minimum = u64::from(export.block_sizes.minimum);
    if !offset.is_multiple_of(minimum) || !u64::from(length).is_multiple_of(minimum) {
        let message = format!("{length} bytes at {offset} are not whole blocks of {minimum}");
        return refuse(Errno::Invalid, message);
    }

    let fua = flags & flag::FUA != 0;
    Ok(match request.command {
        command::READ => Command::Read { offset, length },
        command::WRITE => Command::Write { offset, length, fua },
        command::WRITE_ZEROES => {
            Command::WriteZeroes { offset, length, fua, fast: flags & flag::FAST_ZERO != 0 }
        }
        command::TRIM => Command::Trim { offset, length, fua },
        command::CACHE => Command::Cache { offset, length },
        _ if session.base_allocation => {
            Command::BlockStatus { offset, length, one: flags & flag::REQ_ONE != 0 }
        }
        _ => {
            let message = "no metadata context was negotiated".to_owned();
            return refuse(Errno::Invalid, message);
        }
    })
}

/// The longest payload that is accepted, whatever clients were told. Clients that do not ask for
/// block sizes may send at least 32 MiB by the spec, and old ones send more. A structured reply to
/// a read has all its data in one chunk, so [`BlockSizes::payload_max`](crate::BlockSizes) should
/// be no less: by the spec no chunk may be longer than that.
pub const PAYLOAD_ACCEPTED_MAX: u32 = 64 << 20;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::export::BlockSizes;

    const SIZE: u64 = 1 << 20;

    fn export(read_only: bool) -> Export {
        Export {
            name: "disk".to_owned(),
            description: String::new(),
            size: SIZE,
            read_only,
            block_sizes: BlockSizes { minimum: 1, preferred: 4096, payload_max: 32 << 20 },
        }
    }

    const FULL: Session = Session { export_index: 0, structured: true, base_allocation: true };
    const PLAIN: Session = Session { export_index: 0, structured: false, base_allocation: false };

    fn header(command: u16, flags: u16, offset: u64, length: u32) -> RequestHeader {
        RequestHeader { flags, command, cookie: 7, offset, length }
    }

    fn errno(request: RequestHeader, read_only: bool, session: Session) -> Option<Errno> {
        validate(&request, &export(read_only), &session).err().map(|refusal| refusal.errno)
    }

    #[test]
    fn each_fault_has_its_error_number() {
        use command::*;
        let cases = [
            (header(READ, 0, SIZE - 1, 2), false, FULL, Some(Errno::Invalid)),
            (header(WRITE, 0, SIZE - 1, 2), false, FULL, Some(Errno::NoSpace)),
            (header(WRITE_ZEROES, 0, u64::MAX, 2), false, FULL, Some(Errno::NoSpace)),
            (header(TRIM, 0, SIZE, 1), false, FULL, Some(Errno::Invalid)),
            (header(WRITE, 0, 0, 1), true, FULL, Some(Errno::Perm)),
            (header(TRIM, 0, 0, 1), true, FULL, Some(Errno::Perm)),
            (header(READ, 0, 0, 1), true, FULL, None),
            (header(READ, 0, 0, 0), false, FULL, Some(Errno::Invalid)),
            (header(READ, flag::DF, 0, 1), false, FULL, None),
            (header(READ, flag::DF, 0, 1), false, PLAIN, Some(Errno::Invalid)),
            (header(WRITE, flag::FUA, 0, 1), false, PLAIN, None),
            (header(WRITE, flag::NO_HOLE, 0, 1), false, PLAIN, Some(Errno::Invalid)),
            (header(FLUSH, flag::FUA, 0, 0), false, PLAIN, None),
            (header(BLOCK_STATUS, 0, 0, 1), false, PLAIN, Some(Errno::Invalid)),
            (header(BLOCK_STATUS, flag::REQ_ONE, 0, 1), false, FULL, None),
            (header(8, 0, 0, 1), false, FULL, Some(Errno::Invalid)),
            (header(READ, 0x8000, 0, 1), false, FULL, Some(Errno::Invalid)),
            (header(DISC, 0x8000, 9, 9), false, PLAIN, None),
        ];
        for (request, read_only, session, expected) in cases {
            assert_eq!(errno(request, read_only, session), expected, "{request:?}");
        }
        let mut large = export(false);
        large.size = 1 << 40;
        let request = header(READ, 0, 0, PAYLOAD_ACCEPTED_MAX + 1);
        assert!(validate(&request, &large, &FULL).is_err());
    }

    proptest! {
        #[test]
        fn headers_round_trip(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) {
            let header = RequestHeader { flags, command, cookie, offset, length };
            prop_assert_eq!(RequestHeader::parse(&header.encode()), Ok(header));
        }

        /// Whatever 28 bytes come, either the client is out of step, or the gate decides, and the
        /// payload to be skipped is what the header says.
        #[test]
        fn any_header_is_judged(mut bytes: [u8; wire::REQUEST_LEN], keep_magic: bool) {
            if keep_magic {
                bytes[..4].copy_from_slice(&wire::REQUEST_MAGIC.to_be_bytes());
            }
            let Ok(request) = RequestHeader::parse(&bytes) else { return Ok(()) };
            prop_assert_eq!(request.encode(), bytes);
            for (read_only, session) in [(false, FULL), (true, PLAIN)] {
                if let Ok(Command::Write { length, .. } | Command::Read { length, .. }) =
                    validate(&request, &export(read_only), &session)
                {
                    prop_assert!(length <= PAYLOAD_ACCEPTED_MAX);
                }
            }
            prop_assert!(request.command == command::WRITE || request.payload_len() == 0);
        }

        /// What passes the gate is inside the export, whatever came.
        #[test]
        fn nothing_out_of_range_passes(command in 0_u16..9, flags: u16, offset: u64, length: u32) {
            for offset in [offset, offset % (SIZE + 2)] {
                let request = header(command, flags & 0x1f, offset, length % (2 << 20));
                let passed = validate(&request, &export(false), &FULL);
                if let Ok(Command::Read { offset, length } | Command::Write { offset, length, .. }
                    | Command::WriteZeroes { offset, length, .. } | Command::Trim { offset, length, .. }
                    | Command::Cache { offset, length } | Command::BlockStatus { offset, length, .. }) = passed
                {
                    prop_assert!(length > 0 && offset + u64::from(length) <= SIZE);
                }
            }
        }
    }

    #[test]
    fn flags_of_a_request_are_those_of_its_command() {
        use command::*;
        let passed = |command, flags, session| {
            validate(&header(command, flags, 4096, 512), &export(false), &session)
        };
        let (offset, length) = (4096, 512);
        for fua in [false, true] {
            let flags = if fua { flag::FUA } else { 0 };
            assert_eq!(passed(WRITE, flags, PLAIN), Ok(Command::Write { offset, length, fua }));
            assert_eq!(passed(TRIM, flags, PLAIN), Ok(Command::Trim { offset, length, fua }));
            for (more, fast) in [(0, false), (flag::NO_HOLE, false), (flag::FAST_ZERO, true)] {
                assert_eq!(
                    passed(WRITE_ZEROES, flags | more, PLAIN),
                    Ok(Command::WriteZeroes { offset, length, fua, fast })
                );
            }
            for (more, one) in [(0, false), (flag::REQ_ONE, true)] {
                let status = Command::BlockStatus { offset, length, one };
                assert_eq!(passed(BLOCK_STATUS, flags | more, FULL), Ok(status));
            }
            assert_eq!(passed(CACHE, flags, PLAIN), Ok(Command::Cache { offset, length }));
        }
        for command in [READ, WRITE, TRIM, CACHE] {
            assert!(passed(command, flag::FAST_ZERO, FULL).is_err(), "{command}");
        }
        for command in READ..=BLOCK_STATUS {
            let follow = if command == WRITE { length } else { 0 };
            assert_eq!(header(command, 0, offset, length).payload_len(), follow, "{command}");
        }
    }

    #[test]
    fn whole_blocks_and_the_whole_export_pass_and_what_has_data_may_be_so_long() {
        use command::*;
        let mut large = export(false);
        (large.size, large.block_sizes.minimum) = (1 << 32, 512);
        let errno = |command, offset, length, read_only| {
            let export = Export { read_only, ..large.clone() };
            let judged = validate(&header(command, 0, offset, length), &export, &FULL);
            judged.err().map(|refusal| refusal.errno)
        };
        for command in [READ, WRITE, TRIM, WRITE_ZEROES, CACHE, BLOCK_STATUS] {
            assert_eq!(errno(command, 512, 1024, false), None);
            assert_eq!(errno(command, 512, 1000, false), Some(Errno::Invalid));
            assert_eq!(errno(command, 100, 1024, false), Some(Errno::Invalid));
            assert_eq!(errno(command, (1 << 32) - 512, 512, false), None, "up to the end");
            let has_data = command == READ || command == WRITE;
            assert_eq!(errno(command, 0, PAYLOAD_ACCEPTED_MAX, false), None);
            let longer = errno(command, 0, PAYLOAD_ACCEPTED_MAX + 512, false);
            assert_eq!(longer, has_data.then_some(Errno::Invalid), "{command}");
        }
        assert_eq!(errno(WRITE_ZEROES, 0, 512, true), Some(Errno::Perm));
        assert_eq!(errno(CACHE, 0, 512, true), None);
    }
}
