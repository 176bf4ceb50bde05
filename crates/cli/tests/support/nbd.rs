//! The client's side of NBD, written for the tests and independent of the server's code: messages
//! to send, whole or broken, and a client that speaks GO and simple replies.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::DEADLINE;

pub(crate) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;

pub(crate) const EXPORT_NAME: u32 = 1;
pub(crate) const ABORT: u32 = 2;
pub(crate) const LIST: u32 = 3;
pub(crate) const GO: u32 = 7;
pub(crate) const STRUCTURED_REPLY: u32 = 8;

pub(crate) const ACK: u32 = 1;
pub(crate) const SERVER: u32 = 2;
pub(crate) const INFO: u32 = 3;
pub(crate) const ERR_UNSUP: u32 = (1 << 31) + 1;
pub(crate) const ERR_INVALID: u32 = (1 << 31) + 3;
pub(crate) const ERR_UNKNOWN: u32 = (1 << 31) + 6;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISC: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;

pub(crate) const FUA: u16 = 1 << 0;

pub(crate) const OK: u32 = 0;
pub(crate) const EPERM: u32 = 1;
pub(crate) const ENOMEM: u32 = 12;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;

/// Opens a connection on which nothing waits longer than the deadline.
pub(crate) fn dial(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Opens a connection up to the options: the greeting is read, and the client flags are sent.
pub(crate) fn hello(socket: &Path) -> UnixStream {
    let mut stream = dial(socket);
    let greeting: [u8; 18] = take(&mut stream).unwrap();
    assert_eq!(greeting[..16], *b"NBDMAGICIHAVEOPT");
    assert_eq!(greeting[16..], [0, 3], "fixed newstyle, no zeroes");
    stream.write_all(&3_u32.to_be_bytes()).unwrap();
    stream
}

pub(crate) fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let magic = IHAVEOPT.to_be_bytes();
    [&magic, &code.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// The data of `GO` and `INFO` that asks for no further information.
pub(crate) fn go_data(export: &str) -> Vec<u8> {
    [&(export.len() as u32).to_be_bytes(), export.as_bytes(), &[0, 0]].concat()
}

/// Reads an option's reply: its kind and data.
pub(crate) fn option_reply(from: &mut impl Read, code: u32) -> (u32, Vec<u8>) {
    assert_eq!(u64::from_be_bytes(take(from).unwrap()), OPTION_REPLY_MAGIC);
    assert_eq!(u32::from_be_bytes(take(from).unwrap()), code, "a reply to another option");
    let kind = u32::from_be_bytes(take(from).unwrap());
    let mut data = vec![0; u32::from_be_bytes(take(from).unwrap()) as usize];
    from.read_exact(&mut data).unwrap();
    (kind, data)
}

/// Reads the replies to `GO`: the export's size and flags, or the kind of the error.
pub(crate) fn go_replies(from: &mut impl Read) -> Result<(u64, u16), u32> {
    let mut export = None;
    loop {
        let (kind, data) = option_reply(from, GO);
        match kind {
            INFO if data[..2] == [0, 0] => {
                let size = u64::from_be_bytes(data[2..10].try_into().unwrap());
                export = Some((size, u16::from_be_bytes(data[10..12].try_into().unwrap())));
            }
            INFO => {}
            ACK => return Ok(export.expect("an INFO reply before ACK")),
            error => return Err(error),
        }
    }
}

pub(crate) fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// Reads a simple reply's error and cookie; the data of a read follows.
pub(crate) fn reply(from: &mut impl Read) -> io::Result<(u32, u64)> {
    assert_eq!(u32::from_be_bytes(take(from)?), SIMPLE_REPLY_MAGIC);
    Ok((u32::from_be_bytes(take(from)?), u64::from_be_bytes(take(from)?)))
}

/// Whether the other side closes without another byte.
pub(crate) fn hangs_up(stream: &mut UnixStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
    }
}

fn take<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A client in the transmission phase. One request at a time by `read` and the like; `send` and
/// [`reply`] for more.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    pub(crate) size: u64,
    pub(crate) flags: u16,
    cookie: u64,
}

impl Client {
    /// Connects to the first export.
    pub(crate) fn new(socket: &Path) -> Self {
        Self::to_export(socket, "")
    }

    pub(crate) fn to_export(socket: &Path, export: &str) -> Self {
        let mut stream = hello(socket);
        stream.write_all(&option(GO, &go_data(export))).unwrap();
        let (size, flags) = go_replies(&mut stream).unwrap();
        Self { stream, size, flags, cookie: 0 }
    }

    pub(crate) fn send(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u64 {
        self.cookie += 1;
        let bytes = request(command, flags, self.cookie, offset, length);
        self.stream.write_all(&bytes).unwrap();
        self.cookie
    }

    /// Sends a request without a payload and returns the reply's error.
    pub(crate) fn ask(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u32 {
        let cookie = self.send(command, flags, offset, length);
        let (error, answered) = reply(&mut self.stream).unwrap();
        assert_eq!(answered, cookie);
        error
    }

    pub(crate) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let cookie = self.send(WRITE, flags, offset, data.len() as u32);
        self.stream.write_all(data).unwrap();
        let (error, answered) = reply(&mut self.stream).unwrap();
        assert_eq!(answered, cookie);
        error
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Result<Vec<u8>, u32> {
        match self.ask(READ, 0, offset, length) {
            OK => {
                let mut data = vec![0; length as usize];
                self.stream.read_exact(&mut data).unwrap();
                Ok(data)
            }
            error => Err(error),
        }
    }

    pub(crate) fn flush(&mut self) -> u32 {
        self.ask(FLUSH, 0, 0, 0)
    }
}
