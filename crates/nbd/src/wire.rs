//! Every number of the protocol, by the spec's names.

/// `NBDMAGIC`, the first 8 bytes a server sends.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, the next 8, and the beginning of every option request.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The beginning of every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The beginning of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The beginning of every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The beginning of every structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag, both directions: fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag, both directions: no 124 zero bytes after `EXPORT_NAME`.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// An option as a client sends it.
pub fn option_request(code: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(code.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Option codes.
pub mod option {
    #![allow(missing_docs)] // the names are the spec's
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Option reply codes.
pub mod option_reply {
    #![allow(missing_docs)] // the names are the spec's
    const ERROR: u32 = 1 << 31;
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = ERROR + 1;
    pub const ERR_POLICY: u32 = ERROR + 2;
    pub const ERR_INVALID: u32 = ERROR + 3;
    pub const ERR_PLATFORM: u32 = ERROR + 4;
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    pub const ERR_SHUTDOWN: u32 = ERROR + 7;
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR + 8;
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
}

/// Information types of `INFO` and `GO`.
pub mod info {
    #![allow(missing_docs)] // the names are the spec's
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export.
pub mod transmission_flag {
    #![allow(missing_docs)] // the names are the spec's
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands.
pub mod command {
    #![allow(missing_docs)] // the names are the spec's
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
pub mod command_flag {
    #![allow(missing_docs)] // the names are the spec's
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Structured reply chunks.
pub mod chunk {
    #![allow(missing_docs)] // the names are the spec's
    pub const FLAG_DONE: u16 = 1 << 0;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// The name of the only metadata context.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Its id on the wire. Any number would do, since an export has only one context.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// `base:allocation` state bit: no space is allocated.
pub const STATE_HOLE: u32 = 1 << 0;
/// `base:allocation` state bit: reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;

/// Longest string (export name, context name, description), in bytes.
pub const STRING_LEN_MAX: usize = 4096;
/// Bytes of a request header.
pub const REQUEST_LEN: usize = 28;

/// Error numbers on the wire: Linux's values on every system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not allowed: a write to a read-only export.
    Perm = 1,
    /// Input or output failed.
    Io = 5,
    /// Out of memory.
    NoMem = 12,
    /// A request that makes no sense.
    Invalid = 22,
    /// No space left, or a write past the end.
    NoSpace = 28,
    /// Not supported, or not faster.
    NotSupported = 95,
    /// The server is going down.
    Shutdown = 108,
}
