//! The server's side of negotiation: from the greeting to a [`Session`].
//!
//! Feed it what the client sends; it appends what the server must send. Of the bytes that it has
//! consumed it remembers only what they negotiated. It looks at options of [`OPTION_LEN_MAX`] bytes
//! at most. Its replies come in portions: [`REPLIES_LEN_MAX`] bytes and the replies to the last
//! option, however many options came at once.

use crate::error::PeerError;
use crate::export::Export;
use crate::wire::{self, info, option, option_reply as rep};

/// Longest option data that is looked at: a list of several names of full length.
const OPTION_LEN_MAX: u32 = 64 << 10;
/// How much of a name that does not exist is told: anybody may send it.
const QUOTED_MAX: usize = 256;
/// Longest option data that is skipped, so that the connection can go on; longer data ends it.
const OPTION_SKIP_MAX: u32 = 16 << 20;
/// Most options of one connection: guessed, far beyond any client seen.
const OPTION_COUNT_MAX: u32 = 4096;
/// Bytes of replies to be sent before the next option is looked at. Guessed: a few network packets.
const REPLIES_LEN_MAX: usize = 64 << 10;
/// Bytes of an option header: magic, code, length.
const OPTION_HEADER_LEN: usize = 16;

/// The 18 bytes with which a server begins.
pub fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[..8].copy_from_slice(&wire::INIT_MAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
    bytes[16..].copy_from_slice(&SERVER_FLAGS.to_be_bytes());
    bytes
}

const SERVER_FLAGS: u16 = wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES;

/// What was negotiated: everything that the transmission phase depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The export chosen, as an index into the slice given to [`Handshake::advance`].
    pub export_index: usize,
    /// Whether reads are answered by structured replies.
    pub structured: bool,
    /// Whether `BLOCK_STATUS` may be asked, of `base:allocation`.
    pub base_allocation: bool,
}

/// How far [`Handshake::advance`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It consumed this many bytes, and needs more input than it was given.
    NeedMore(usize),
    /// It consumed this many bytes. Send what is due, then call again with the rest, or with more.
    Send(usize),
    /// It consumed this many bytes, and transmission begins after them.
    Begin(usize, Session),
    /// It consumed this many bytes. Send what is due, then let the client begin TLS; do not trust
    /// what it sent before it was told to. Then call again, with what comes through TLS.
    BeginTls(usize),
    /// It consumed this many bytes; the client has said good-bye. Send what is due, then close.
    Close(usize),
}

/// Whether a server speaks TLS with a client. Clients have no choice: anybody between could make it
/// for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// The server has no TLS.
    #[default]
    Off,
    /// Nothing is negotiated before TLS has begun (the spec's FORCEDTLS).
    Required,
    /// TLS has begun.
    Begun,
}

/// The state of one negotiation.
#[derive(Clone, Debug, Default)]
pub struct Handshake {
    client_flags: Option<u32>,
    structured: bool,
    /// The export name for which `base:allocation` was selected.
    base_allocation_for: Option<Vec<u8>>,
    option_count: u32,
    /// Bytes of an over-long option still to be skipped.
    skip: usize,
    tls: Tls,
}

enum Outcome {
    Continue,
    Begin(Session),
    BeginTls,
    Close,
}

impl Handshake {
    /// The negotiation of a server that has just sent its [`greeting`]. `tls` says whether it has
    /// TLS.
    pub fn new(tls: Tls) -> Self {
        Self { tls, ..Self::default() }
    }

    /// Goes as far as `input` allows and appends the replies to `output`.
    ///
    /// # Errors
    /// [`PeerError`] if the connection must be closed without another word.
    pub fn advance(
        &mut self,
        exports: &[Export],
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Progress, PeerError> {
        let mut consumed = 0;
        loop {
            if output.len() >= REPLIES_LEN_MAX {
                return Ok(Progress::Send(consumed));
            }
            let rest = &input[consumed..];
            let skipped = self.skip.min(rest.len());
            self.skip -= skipped;
            consumed += skipped;
            let rest = &input[consumed..];
            if self.client_flags.is_none() {
                let Some(flags) = be32(rest, 0) else { return Ok(Progress::NeedMore(consumed)) };
                self.accept_flags(flags)?;
                consumed += 4;
                continue;
            }
            let Some((code, length)) = option_header(rest)? else {
                return Ok(Progress::NeedMore(consumed));
            };
            let outcome = if length > length_max(code) {
                consumed += OPTION_HEADER_LEN;
                self.count_option()?;
                self.long_option(exports, code, length, output)?
            } else {
                let end = OPTION_HEADER_LEN + length as usize;
                let Some(data) = rest.get(OPTION_HEADER_LEN..end) else {
                    return Ok(Progress::NeedMore(consumed));
                };
                consumed += end;
                self.count_option()?;
                self.option(exports, code, data, output)?
            };
            match outcome {
                Outcome::Continue => {}
                Outcome::Begin(session) => return Ok(Progress::Begin(consumed, session)),
                Outcome::BeginTls => return Ok(Progress::BeginTls(consumed)),
                Outcome::Close => return Ok(Progress::Close(consumed)),
            }
        }
    }

    fn accept_flags(&mut self, flags: u32) -> Result<(), PeerError> {
        let unknown = flags & !u32::from(SERVER_FLAGS);
        if unknown != 0 {
            return Err(PeerError::ClientFlags { flags, unknown });
        }
        self.client_flags = Some(flags);
        Ok(())
    }

    fn count_option(&mut self) -> Result<(), PeerError> {
        self.option_count += 1;
        if self.option_count > OPTION_COUNT_MAX {
            return Err(PeerError::TooManyOptions { limit: OPTION_COUNT_MAX });
        }
        Ok(())
    }

    /// An option whose data is skipped.
    fn long_option(
        &mut self,
        exports: &[Export],
        code: u32,
        length: u32,
        output: &mut Vec<u8>,
    ) -> Result<Outcome, PeerError> {
        let is_name = code == option::EXPORT_NAME;
        if is_name || length > OPTION_SKIP_MAX {
            let limit = if is_name { length_max(code) } else { OPTION_SKIP_MAX };
            return Err(PeerError::OptionTooLong { option: code, length, limit });
        }
        self.skip = length as usize;
        let has_known_data = matches!(
            code,
            option::INFO | option::GO | option::LIST_META_CONTEXT | option::SET_META_CONTEXT
        );
        if !has_known_data || self.tls == Tls::Required {
            // Only whether there is data matters there.
            return self.option(exports, code, &[0], output);
        }
        if code == option::SET_META_CONTEXT {
            self.base_allocation_for = None; // a SET replaces what was set, even if it fails
        }
        error_reply(output, code, rep::ERR_TOO_BIG, "the option's data is too long");
        Ok(Outcome::Continue)
    }

    fn option(
        &mut self,
        exports: &[Export],
        code: u32,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Outcome, PeerError> {
        match code {
            option::STARTTLS => return Ok(self.start_tls(data, output)),
            option::EXPORT_NAME if self.tls == Tls::Required => {
                return Err(PeerError::TlsRequired);
            }
            _ if self.tls == Tls::Required && code != option::ABORT => {
                error_reply(output, code, rep::ERR_TLS_REQD, "this server requires TLS");
            }
            option::EXPORT_NAME => return self.export_name(exports, data, output),
            option::ABORT => {
                reply(output, code, rep::ACK, &[]);
                return Ok(Outcome::Close);
            }
            option::LIST if data.is_empty() => list(exports, output),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                reply(output, code, rep::ACK, &[]);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                error_reply(output, code, rep::ERR_INVALID, "this option has no data");
            }
            option::INFO | option::GO => return Ok(self.info_or_go(exports, code, data, output)),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(exports, code, data, output);
            }
            _ => error_reply(output, code, rep::ERR_UNSUP, "this option is not supported"),
        }
        Ok(Outcome::Continue)
    }

    /// Forgets what was negotiated before, except for the flags and the number of options, since
    /// somebody else may have sent it.
    fn start_tls(&mut self, data: &[u8], output: &mut Vec<u8>) -> Outcome {
        let code = option::STARTTLS;
        match self.tls {
            _ if !data.is_empty() => {
                error_reply(output, code, rep::ERR_INVALID, "this option has no data");
            }
            Tls::Off => error_reply(output, code, rep::ERR_UNSUP, "this server has no TLS"),
            Tls::Begun => error_reply(output, code, rep::ERR_INVALID, "TLS has begun before"),
            Tls::Required => {
                reply(output, code, rep::ACK, &[]);
                let Self { client_flags, option_count, .. } = *self;
                *self = Self { client_flags, option_count, tls: Tls::Begun, ..Self::default() };
                return Outcome::BeginTls;
            }
        }
        Outcome::Continue
    }

    fn session(&self, exports: &[Export], export_index: usize, asked: &[u8]) -> Session {
        // The context was selected for an export, under whichever name.
        let selected = self.base_allocation_for.as_deref();
        let base_allocation = self.structured
            && selected.is_some_and(|name| {
                name == asked || find(exports, name).is_some_and(|index| index == export_index)
            });
        Session { export_index, structured: self.structured, base_allocation }
    }

    fn export_name(
        &self,
        exports: &[Export],
        name: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Outcome, PeerError> {
        let Some(index) = find(exports, name) else {
            let name = String::from_utf8_lossy(&name[..name.len().min(QUOTED_MAX)]).into_owned();
            return Err(PeerError::UnknownExport { name });
        };
        let export = &exports[index];
        output.extend(export.size.to_be_bytes());
        output.extend(export.flags(self.structured).to_be_bytes());
        if self.client_flags.unwrap_or(0) & u32::from(wire::FLAG_NO_ZEROES) == 0 {
            output.extend([0; 124]);
        }
        Ok(Outcome::Begin(self.session(exports, index, name)))
    }

    fn info_or_go(
        &self,
        exports: &[Export],
        code: u32,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Outcome {
        let Some((name, wanted)) = info_request(data) else {
            error_reply(output, code, rep::ERR_INVALID, "the lengths inside do not add up");
            return Outcome::Continue;
        };
        let Some(index) = find(exports, name) else {
            let text = format!("there is no export {:?}", String::from_utf8_lossy(name));
            error_reply(output, code, rep::ERR_UNKNOWN, &text);
            return Outcome::Continue;
        };
        let export = &exports[index];
        let mut body = info::EXPORT.to_be_bytes().to_vec();
        body.extend(export.size.to_be_bytes());
        body.extend(export.flags(self.structured).to_be_bytes());
        reply(output, code, rep::INFO, &body);
        let sizes = export.block_sizes;
        let mut body = info::BLOCK_SIZE.to_be_bytes().to_vec();
        for size in [sizes.minimum, sizes.preferred, sizes.payload_max] {
            body.extend(size.to_be_bytes());
        }
        reply(output, code, rep::INFO, &body);
        for (kind, text) in [(info::NAME, &export.name), (info::DESCRIPTION, &export.description)] {
            if wanted.contains(&kind) && !text.is_empty() {
                reply(output, code, rep::INFO, &[&kind.to_be_bytes(), text.as_bytes()].concat());
            }
        }
        reply(output, code, rep::ACK, &[]);
        if code == option::GO {
            return Outcome::Begin(self.session(exports, index, name));
        }
        Outcome::Continue
    }

    fn meta_context(&mut self, exports: &[Export], code: u32, data: &[u8], output: &mut Vec<u8>) {
        let setting = code == option::SET_META_CONTEXT;
        if setting {
            self.base_allocation_for = None; // a SET replaces what was set, even if it fails
        }
        let Some((name, queries)) = meta_queries(data) else {
            error_reply(output, code, rep::ERR_INVALID, "the lengths inside do not add up");
            return;
        };
        if setting && !self.structured {
            let text = "negotiate structured replies first";
            error_reply(output, code, rep::ERR_INVALID, text);
            return;
        }
        if find(exports, name).is_none() {
            let text = format!("there is no export {:?}", String::from_utf8_lossy(name));
            error_reply(output, code, rep::ERR_UNKNOWN, &text);
            return;
        }
        // Listing without queries lists all; "base:" is a wildcard for listing only.
        let whole = wire::BASE_ALLOCATION.as_bytes();
        let matches = queries.iter().any(|q| *q == whole || (!setting && *q == b"base:"));
        if matches || (!setting && queries.is_empty()) {
            let id = if setting { wire::BASE_ALLOCATION_ID } else { 0 };
            let body = [&id.to_be_bytes()[..], whole].concat();
            reply(output, code, rep::META_CONTEXT, &body);
            if setting {
                self.base_allocation_for = Some(name.to_vec());
            }
        }
        reply(output, code, rep::ACK, &[]);
    }
}

/// The empty name means the first export, which is the spec's default export.
fn find(exports: &[Export], name: &[u8]) -> Option<usize> {
    let by_name = exports.iter().position(|export| export.name.as_bytes() == name);
    by_name.or((name.is_empty() && !exports.is_empty()).then_some(0))
}

fn list(exports: &[Export], output: &mut Vec<u8>) {
    for export in exports {
        let mut body = (export.name.len() as u32).to_be_bytes().to_vec();
        body.extend(export.name.as_bytes());
        body.extend(export.description.as_bytes());
        reply(output, option::LIST, rep::SERVER, &body);
    }
    reply(output, option::LIST, rep::ACK, &[]);
}

/// The most data of an option that is looked at. That of one is the name of an export.
fn length_max(code: u32) -> u32 {
    if code == option::EXPORT_NAME { wire::STRING_LEN_MAX as u32 } else { OPTION_LEN_MAX }
}

fn option_header(input: &[u8]) -> Result<Option<(u32, u32)>, PeerError> {
    let Some(magic) = input.first_chunk::<8>() else { return Ok(None) };
    let found = u64::from_be_bytes(*magic);
    if found != wire::OPTION_MAGIC {
        let expected = wire::OPTION_MAGIC;
        return Err(PeerError::Magic { what: "an option", found, expected });
    }
    Ok(be32(input, 8).zip(be32(input, 12)))
}

/// `name length, name, count, count x 16-bit types`, and nothing after.
fn info_request(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (name, rest) = string(data)?;
    let (count, types) = rest.split_first_chunk::<2>()?;
    let whole = types.len() == 2 * usize::from(u16::from_be_bytes(*count));
    let types = types.as_chunks::<2>().0.iter().map(|pair| u16::from_be_bytes(*pair));
    whole.then(|| (name, types.collect()))
}

/// `name length, name, count, count x (length, query)`, and nothing after.
fn meta_queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, rest) = string(data)?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let mut queries = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        let (query, after) = string(rest)?;
        queries.push(query);
        rest = after;
    }
    rest.is_empty().then_some((name, queries))
}

fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    (length <= wire::STRING_LEN_MAX).then_some(())?;
    rest.split_at_checked(length)
}

fn be32(input: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*input.get(at..)?.first_chunk::<4>()?))
}

fn reply(output: &mut Vec<u8>, code: u32, kind: u32, body: &[u8]) {
    output.extend(wire::OPTION_REPLY_MAGIC.to_be_bytes());
    output.extend(code.to_be_bytes());
    output.extend(kind.to_be_bytes());
    output.extend((body.len() as u32).to_be_bytes());
    output.extend(body);
}

fn error_reply(output: &mut Vec<u8>, code: u32, kind: u32, text: &str) {
    let mut cut = text.len().min(wire::STRING_LEN_MAX);
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    reply(output, code, kind, &text.as_bytes()[..cut]);
}

#[cfg(test)]
mod tests;
