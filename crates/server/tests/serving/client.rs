//! Clients that do what they should not.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use homing_nbd::wire::{self, command};
use homing_nbd::{ClientHandshake, ClientStep, RequestHeader};
use homing_server::Endpoint;

/// The command, the offset, the length, and the data of a write.
pub(crate) type Request = (u16, u64, u32, Vec<u8>);

/// A client that sends requests without waiting for replies, and sorts the replies out afterwards.
pub(crate) struct Pipelined<S = UnixStream>(pub(crate) S);

/// Negotiates, and returns the stream on which requests may follow.
pub(crate) fn shake_hands<S: Read + Write>(mut stream: S) -> S {
    let (mut handshake, mut input) = (ClientHandshake::new("disk"), Vec::new());
    loop {
        match handshake.step(&input).unwrap() {
            ClientStep::Read(count) => {
                input.resize(count, 0);
                stream.read_exact(&mut input).unwrap();
            }
            ClientStep::Send(bytes) => {
                stream.write_all(&bytes).unwrap();
                input.clear();
            }
            ClientStep::Begin(_) => return stream,
        }
    }
}

impl Pipelined {
    pub(crate) fn connect(endpoint: &Endpoint) -> Self {
        let Endpoint::Unix(path) = endpoint else { unreachable!() };
        Self(shake_hands(UnixStream::connect(path).unwrap()))
    }

    /// Sends all requests at once, and returns the error number and the data of each reply, in the
    /// order of the requests.
    pub(crate) fn exchange(&mut self, requests: &[Request]) -> Vec<(u32, Vec<u8>)> {
        let mut sender = self.0.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || sender.write_all(&encode(requests)).unwrap());
            self.replies(requests)
        })
    }
}

impl<S: Read + Write> Pipelined<S> {
    /// As [`Pipelined::exchange`], but reads no reply before it has sent all requests.
    pub(crate) fn send_all_first(&mut self, requests: &[Request]) -> Vec<(u32, Vec<u8>)> {
        self.0.write_all(&encode(requests)).unwrap();
        self.replies(requests)
    }

    pub(crate) fn replies(&mut self, requests: &[Request]) -> Vec<(u32, Vec<u8>)> {
        let mut replies = vec![None; requests.len()];
        for _ in requests {
            let mut header = [0; 16];
            self.0.read_exact(&mut header).unwrap();
            assert_eq!(header[..4], wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
            let errno = u32::from_be_bytes(header[4..8].try_into().unwrap());
            let cookie = u64::from_be_bytes(header[8..].try_into().unwrap()) as usize;
            let is_data = requests[cookie].0 == command::READ && errno == 0;
            let mut data = vec![0; if is_data { requests[cookie].2 as usize } else { 0 }];
            self.0.read_exact(&mut data).unwrap();
            assert!(replies[cookie].replace((errno, data)).is_none(), "answered twice");
        }
        replies.into_iter().map(Option::unwrap).collect()
    }
}

pub(crate) fn encode(requests: &[Request]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (cookie, (command, offset, length, data)) in requests.iter().enumerate() {
        let (command, offset, length) = (*command, *offset, *length);
        let header = RequestHeader { flags: 0, command, cookie: cookie as u64, offset, length };
        bytes.extend(header.encode());
        bytes.extend(data);
    }
    bytes
}
