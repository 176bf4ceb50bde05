//! Enough of the client's side to put load on a server: GO, then simple replies.

use crate::error::PeerError;
use crate::wire::{self, info, option, option_reply as rep};

/// What a client learns before transmission begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// The export's size in bytes.
    pub size: u64,
    /// Its transmission flags.
    pub flags: u16,
}

/// What the client must do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientStep {
    /// Read exactly this many bytes and pass them on.
    Read(usize),
    /// Send these bytes, then call again with nothing.
    Send(Vec<u8>),
    /// Begin to send requests. Replies are simple: 16 bytes, and the data of a read.
    Begin(Connected),
}

#[derive(Debug)]
enum State {
    Start,
    Greeting,
    ReplyHeader,
    ReplyBody { kind: u32 },
}

/// The client's side of negotiation.
#[derive(Debug)]
pub struct ClientHandshake {
    export: String,
    state: State,
    connected: Option<Connected>,
}

const WHAT: &str = "GO";

impl ClientHandshake {
    /// A negotiation that will ask for `export`.
    pub fn new(export: &str) -> Self {
        Self { export: export.to_owned(), state: State::Start, connected: None }
    }

    /// Takes what the last [`ClientStep::Read`] asked for (nothing at first, and after a
    /// [`ClientStep::Send`]) and says what is next.
    ///
    /// # Errors
    /// [`PeerError`] if the server refuses, or is no NBD server.
    pub fn step(&mut self, input: &[u8]) -> Result<ClientStep, PeerError> {
        let be = |range: std::ops::Range<usize>| {
            input[range].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
        };
        match self.state {
            State::Start => {
                self.state = State::Greeting;
                Ok(ClientStep::Read(18))
            }
            State::Greeting if input.is_empty() => {
                self.state = State::ReplyHeader;
                Ok(ClientStep::Read(20))
            }
            State::Greeting => {
                let expected = wire::INIT_MAGIC;
                if be(0..8) != expected {
                    return Err(PeerError::Magic { what: "a server", found: be(0..8), expected });
                }
                Ok(ClientStep::Send(self.hello()))
            }
            State::ReplyHeader => {
                let (kind, length) = (be(12..16) as u32, be(16..20) as usize);
                self.state = State::ReplyBody { kind };
                if be(0..8) != wire::OPTION_REPLY_MAGIC || length > wire::STRING_LEN_MAX + 8 {
                    return Err(PeerError::BadReply { what: WHAT });
                }
                if length == 0 { self.step(&[]) } else { Ok(ClientStep::Read(length)) }
            }
            State::ReplyBody { kind } => {
                self.state = State::ReplyHeader;
                match kind {
                    rep::INFO if input.len() >= 12 && be(0..2) == u64::from(info::EXPORT) => {
                        let (size, flags) = (be(2..10), be(10..12) as u16);
                        self.connected = Some(Connected { size, flags });
                        Ok(ClientStep::Read(20))
                    }
                    rep::INFO => Ok(ClientStep::Read(20)),
                    rep::ACK => {
                        let missing = PeerError::BadReply { what: WHAT };
                        self.connected.map(ClientStep::Begin).ok_or(missing)
                    }
                    code => {
                        let message = String::from_utf8_lossy(input).into_owned();
                        Err(PeerError::Refused { what: WHAT, code, message })
                    }
                }
            }
        }
    }

    fn hello(&self) -> Vec<u8> {
        let flags = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        let mut data = (self.export.len() as u32).to_be_bytes().to_vec();
        data.extend(self.export.as_bytes());
        data.extend(0_u16.to_be_bytes());
        [&flags.to_be_bytes()[..], &wire::option_request(option::GO, &data)].concat()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::export::{BlockSizes, Export};
    use crate::handshake::{Handshake, Progress, Tls, greeting};

    fn connect(to: &str) -> Result<Connected, PeerError> {
        let exports = [Export {
            name: "disk".to_owned(),
            description: String::new(),
            size: 12345,
            read_only: false,
            block_sizes: BlockSizes { minimum: 1, preferred: 4096, payload_max: 1 << 20 },
        }];
        let mut server = Handshake::new(Tls::Off);
        let mut from_server = greeting().to_vec();
        let mut client = ClientHandshake::new(to);
        let mut input = Vec::new();
        loop {
            match client.step(&input)? {
                ClientStep::Read(count) => input = from_server.drain(..count).collect(),
                ClientStep::Send(bytes) => {
                    let progress = server.advance(&exports, &bytes, &mut from_server).unwrap();
                    assert!(!matches!(progress, Progress::Close(_)));
                    input.clear();
                }
                ClientStep::Begin(connected) => return Ok(connected),
            }
        }
    }

    proptest! {
        /// Whatever a server sends, the client asks for no more than an option reply may have.
        #[test]
        fn any_server_is_survived(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            replies in prop::collection::vec((0_u32..6, 0_u32..5000, any::<bool>()), 0..6),
        ) {
            let mut server = wire::INIT_MAGIC.to_be_bytes().to_vec();
            server.extend([0; 10]);
            for (kind, length, lies) in replies {
                server.extend(wire::OPTION_REPLY_MAGIC.to_be_bytes());
                server.extend([0; 4]);
                server.extend(kind.to_be_bytes());
                server.extend(length.to_be_bytes());
                server.extend(vec![0; if lies { 3 } else { length as usize }]);
            }
            server.extend(&bytes);
            for mut server in [&server[..], &bytes[..]] {
                let (mut client, mut input) = (ClientHandshake::new("disk"), Vec::new());
                while let Ok(step) = client.step(&input) {
                    input.clear();
                    let count = match step {
                        ClientStep::Read(count) => count,
                        ClientStep::Send(_) => continue,
                        ClientStep::Begin(_) => break,
                    };
                    prop_assert!(count > 0 && count <= wire::STRING_LEN_MAX + 20);
                    let Some((taken, rest)) = server.split_at_checked(count) else { break };
                    input.extend(taken);
                    server = rest;
                }
            }
        }
    }

    #[test]
    fn client_and_server_understand_each_other() {
        assert_eq!(connect("disk").unwrap().size, 12345);
        let error = connect("nonesuch").unwrap_err().to_string();
        assert!(error.contains("nonesuch"), "{error}");
    }

    /// What a client makes of replies to its GO: their kinds and bodies.
    fn answered(replies: &[(u32, Vec<u8>)]) -> Result<Connected, PeerError> {
        let mut server = greeting().to_vec();
        for (kind, body) in replies {
            server.extend(wire::OPTION_REPLY_MAGIC.to_be_bytes());
            server.extend(option::GO.to_be_bytes());
            server.extend(kind.to_be_bytes());
            server.extend((body.len() as u32).to_be_bytes());
            server.extend(body);
        }
        let (mut client, mut input) = (ClientHandshake::new("disk"), Vec::new());
        loop {
            match client.step(&input)? {
                ClientStep::Read(count) => input = server.drain(..count).collect(),
                ClientStep::Send(_) => input.clear(),
                ClientStep::Begin(connected) => return Ok(connected),
            }
        }
    }

    #[test]
    fn a_server_that_does_not_tell_the_size_is_not_served_from() {
        let told = [&info::EXPORT.to_be_bytes()[..], &7_u64.to_be_bytes(), &[1, 2]].concat();
        let other = info::BLOCK_SIZE.to_be_bytes().to_vec();
        let (ack, info) = ((rep::ACK, Vec::new()), |body| (rep::INFO, body));
        let connected = answered(&[info(other.clone()), info(told), ack.clone()]).unwrap();
        assert_eq!(connected, Connected { size: 7, flags: 0x102 });
        for replies in [vec![ack.clone()], vec![info(other), ack]] {
            assert_eq!(answered(&replies), Err(PeerError::BadReply { what: WHAT }));
        }
    }
}
