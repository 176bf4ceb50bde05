//! A client load against a server, which `homing serve --try` shows. The connections and the
//! protocol are real, and every byte read back is checked.
//!
//! Each client has a slice of the export to itself and keeps a fixed number of requests in flight.
//! Since a client writes and reads by turns, these are no more than the server takes in before it
//! insists that its replies are read. Every 4 KiB block has a generation, which its writer
//! increments and from which the block's pattern is made, so a block that is stale, torn or
//! misplaced is found.

mod pattern;

use std::io;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use homing_nbd::wire::{self, command};
use homing_nbd::{ClientHandshake, ClientStep, PeerError, RequestHeader};
use rustix::time::{ClockId, clock_gettime};

use self::pattern::{fill, holds};
use crate::listener::Endpoint;
use crate::stream::Stream;

/// Each block of this length has a generation.
const BLOCK_LEN: usize = 4096;
const SIMPLE_REPLY_LEN: usize = 16;

/// Why a load could not be run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The connection broke.
    #[error("the connection to the server broke: {0}")]
    Io(#[from] io::Error),
    /// The server does not speak as it should.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The server answered with an error.
    #[error("the server answered a request at {offset} with error {errno}")]
    Refused {
        /// Where.
        offset: u64,
        /// NBD's error number.
        errno: u32,
    },
    /// What was read is not what was written.
    #[error("the block at {offset} does not hold what was written to it")]
    Corrupt {
        /// Where.
        offset: u64,
    },
    /// The export is too small to share.
    #[error("an export of {size} bytes is too small for {clients} clients: {needed} at least")]
    TooSmall {
        /// The export's size.
        size: u64,
        /// How many clients there are to be.
        clients: usize,
        /// What it must have for them.
        needed: u64,
    },
}

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Write every byte once, in order.
    Fill,
    /// Random places, reads and writes by turns.
    ReadWrite,
    /// Random places.
    Read,
    /// Random places, each write followed by a flush, before the next.
    WriteAndFlush,
}

/// One part of a load.
#[derive(Clone, Debug)]
pub struct Phase {
    /// What it is called.
    pub name: &'static str,
    /// What the clients do.
    pub pattern: Pattern,
    /// Bytes of each request: a multiple of 4096.
    pub request_len: usize,
    /// Clients at once, each with a connection and a slice of the export.
    pub clients: usize,
    /// Requests in flight for each.
    pub depth: usize,
}

impl Phase {
    /// The smallest export that is enough: each client has more places than requests in flight.
    pub fn size_min(&self) -> u64 {
        (self.clients * self.request_len * (self.depth + 1)) as u64
    }
}

/// The result of a phase.
#[derive(Clone, Debug)]
pub struct PhaseResult {
    /// Requests answered.
    pub requests: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Elapsed time.
    pub elapsed: Duration,
    /// Time from sending a request to having its reply, in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// CPU time of the process without the clients' threads: the server's, if both are in one
    /// process.
    pub server_cpu: Duration,
}

/// The generations that the load has written, so that a later phase can check them.
#[derive(Clone, Debug, Default)]
pub struct Written {
    generations: Vec<u32>,
}

/// Runs `phase` against `export` of the server at `endpoint`, for about `duration`
/// ([`Pattern::Fill`] ends when all is written).
///
/// # Errors
/// [`LoadError`], at the first client that meets one.
///
/// # Panics
/// If the phase has no clients, or requests of no bytes.
pub fn run(
    endpoint: &Endpoint,
    export: &str,
    phase: &Phase,
    duration: Duration,
    written: &mut Written,
) -> Result<PhaseResult, LoadError> {
    let mut clients = Vec::new();
    for _ in 0..phase.clients {
        clients.push(Client::connect(endpoint, export)?);
    }
    let size = clients.first().map_or(0, |client| client.size);
    let slice = size as usize / phase.clients / phase.request_len * phase.request_len;
    if size < phase.size_min() {
        return Err(LoadError::TooSmall { size, clients: phase.clients, needed: phase.size_min() });
    }
    written.generations.resize(size as usize / BLOCK_LEN, 0);
    if phase.pattern == Pattern::WriteAndFlush {
        // The flush that earlier loads have left must not count in this phase.
        clients.first().map_or(Ok(()), Client::flush)?;
    }
    let began = Instant::now();
    let cpu_before = clock(ClockId::ProcessCPUTime);
    let slices = written.generations.chunks_mut(slice / BLOCK_LEN);
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .zip(slices)
            .enumerate()
            .map(|(index, (client, generations))| {
                let start = (index * slice) as u64;
                scope.spawn(move || Load::new(client, phase, start, generations).run(duration))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a load does not panic")).collect()
    });
    let results: Vec<Result<Part, LoadError>> = results;
    let elapsed = began.elapsed();
    let cpu = clock(ClockId::ProcessCPUTime).saturating_sub(cpu_before);
    let mut total =
        PhaseResult { requests: 0, bytes: 0, elapsed, latency_ns: histogram(), server_cpu: cpu };
    for part in results {
        let part = part?;
        total.requests += part.latency_ns.len();
        total.bytes += part.bytes;
        total.latency_ns.add(&part.latency_ns).expect("the histograms have the same range");
        total.server_cpu = total.server_cpu.saturating_sub(part.cpu);
    }
    Ok(total)
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// 100 ns to 100 s, to three digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 100_000_000_000, 3).expect("the bounds are fine")
}

struct Client {
    stream: Stream,
    size: u64,
}

impl Client {
    fn connect(endpoint: &Endpoint, export: &str) -> Result<Self, LoadError> {
        let stream = match endpoint {
            Endpoint::Unix(path) => Stream::connect_unix(path)?,
            Endpoint::Tcp(address) => Stream::connect_tcp(*address)?,
        };
        let mut handshake = ClientHandshake::new(export);
        let mut input = Vec::new();
        loop {
            match handshake.step(&input)? {
                ClientStep::Read(count) => {
                    input.resize(count, 0);
                    read_exact(&stream, &mut input)?;
                }
                ClientStep::Send(bytes) => {
                    stream.write_all(&bytes)?;
                    input.clear();
                }
                ClientStep::Begin(connected) => return Ok(Self { stream, size: connected.size }),
            }
        }
    }

    /// Flushes. No request may be in flight.
    fn flush(&self) -> Result<(), LoadError> {
        let header =
            RequestHeader { flags: 0, command: command::FLUSH, cookie: 0, offset: 0, length: 0 };
        self.stream.write_all(&header.encode())?;
        let mut reply = [0; SIMPLE_REPLY_LEN];
        read_exact(&self.stream, &mut reply)?;
        match outcome(&reply) {
            Some((0, 0)) => Ok(()),
            Some((errno, 0)) => Err(LoadError::Refused { offset: 0, errno }),
            _ => Err(PeerError::BadReply { what: "a request" }.into()),
        }
    }
}

/// The error and the slot of a reply, if it is one.
fn outcome(reply: &[u8; SIMPLE_REPLY_LEN]) -> Option<(u32, usize)> {
    let word =
        |at: usize| u32::from_be_bytes([reply[at], reply[at + 1], reply[at + 2], reply[at + 3]]);
    (word(0) == wire::SIMPLE_REPLY_MAGIC).then(|| (word(4), word(12) as usize))
}

fn read_exact(stream: &Stream, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        let count = stream.read(buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer = &mut buffer[count..];
    }
    Ok(())
}

/// One client's share of a phase.
struct Part {
    bytes: u64,
    latency_ns: Histogram<u64>,
    cpu: Duration,
}

#[derive(Clone, Copy)]
struct InFlight {
    command: u16,
    request_index: usize,
    began: Instant,
}

struct Load<'a> {
    client: Client,
    phase: &'a Phase,
    start: u64,
    generations: &'a mut [u32],
    in_flight: Vec<Option<InFlight>>,
    /// Requests to send in one go.
    sending: Vec<u8>,
    data: Vec<u8>,
    random: u64,
    next_fill: usize,
    reads: bool,
    latency_ns: Histogram<u64>,
    bytes: u64,
}

impl<'a> Load<'a> {
    fn new(client: Client, phase: &'a Phase, start: u64, generations: &'a mut [u32]) -> Self {
        Self {
            client,
            phase,
            start,
            generations,
            in_flight: vec![None; phase.depth],
            sending: Vec::new(),
            data: vec![0; phase.request_len],
            random: start ^ 0x9e37_79b9_7f4a_7c15,
            next_fill: 0,
            reads: false,
            latency_ns: histogram(),
            bytes: 0,
        }
    }

    fn run(mut self, duration: Duration) -> Result<Part, LoadError> {
        let cpu_before = clock(ClockId::ThreadCPUTime);
        let end = Instant::now() + duration;
        for slot in 0..self.phase.depth {
            self.issue(slot);
        }
        self.client.stream.write_all(&std::mem::take(&mut self.sending))?;
        while self.in_flight.iter().any(Option::is_some) {
            let slot = self.receive()?;
            let over = self.phase.pattern != Pattern::Fill && Instant::now() >= end;
            if !over {
                self.issue(slot);
            }
            if !self.sending.is_empty() {
                self.client.stream.write_all(&self.sending)?;
                self.sending.clear();
            }
        }
        let bye =
            RequestHeader { flags: 0, command: command::DISC, cookie: 0, offset: 0, length: 0 };
        self.client.stream.write_all(&bye.encode())?;
        let cpu = clock(ClockId::ThreadCPUTime).saturating_sub(cpu_before);
        Ok(Part { bytes: self.bytes, latency_ns: self.latency_ns, cpu })
    }

    /// Puts the next request for `slot` among those to be sent.
    fn issue(&mut self, slot: usize) {
        let count = self.generations.len() * BLOCK_LEN / self.phase.request_len;
        let flush_due = self.phase.pattern == Pattern::WriteAndFlush && self.reads;
        let command = match self.phase.pattern {
            Pattern::Read => command::READ,
            Pattern::ReadWrite if self.reads => command::READ,
            Pattern::WriteAndFlush if flush_due => command::FLUSH,
            Pattern::Fill | Pattern::ReadWrite | Pattern::WriteAndFlush => command::WRITE,
        };
        self.reads = !self.reads;
        let index = if self.phase.pattern == Pattern::Fill {
            if self.next_fill == count {
                return;
            }
            self.next_fill += 1;
            self.next_fill - 1
        } else {
            self.random_index(count)
        };
        let flush = command == command::FLUSH;
        let header = RequestHeader {
            flags: 0,
            command,
            cookie: slot as u64,
            offset: if flush { 0 } else { self.offset(index) },
            length: if flush { 0 } else { self.phase.request_len as u32 },
        };
        self.sending.extend(header.encode());
        if command == command::WRITE {
            let at = self.sending.len();
            self.sending.resize(at + self.phase.request_len, 0);
            let first = index * self.phase.request_len / BLOCK_LEN;
            for (step, block) in self.sending[at..].chunks_exact_mut(BLOCK_LEN).enumerate() {
                let generation = &mut self.generations[first + step];
                *generation += 1;
                fill(block, self.start + ((first + step) * BLOCK_LEN) as u64, *generation);
            }
        }
        let began = Instant::now();
        self.in_flight[slot] = Some(InFlight { command, request_index: index, began });
    }

    /// A place that no request in flight touches.
    fn random_index(&mut self, count: usize) -> usize {
        loop {
            // xorshift64*: good enough to scatter requests, and the same on every run.
            self.random ^= self.random >> 12;
            self.random ^= self.random << 25;
            self.random ^= self.random >> 27;
            let drawn = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
            let index = drawn as usize % count;
            let taken = self.in_flight.iter().flatten().any(|other| other.request_index == index);
            if !taken {
                return index;
            }
        }
    }

    fn offset(&self, index: usize) -> u64 {
        self.start + (index * self.phase.request_len) as u64
    }

    /// Takes one reply; returns its slot, which is free again.
    fn receive(&mut self) -> Result<usize, LoadError> {
        let mut reply = [0; SIMPLE_REPLY_LEN];
        read_exact(&self.client.stream, &mut reply)?;
        let bad = PeerError::BadReply { what: "a request" };
        let Some((errno, slot)) = outcome(&reply) else { return Err(bad.into()) };
        let request = self.in_flight.get_mut(slot).and_then(Option::take).ok_or(bad)?;
        if errno != 0 {
            let offset = self.offset(request.request_index);
            return Err(LoadError::Refused { offset, errno });
        }
        if request.command == command::READ {
            read_exact(&self.client.stream, &mut self.data)?;
        }
        let latency = request.began.elapsed().as_nanos() as u64;
        self.latency_ns.saturating_record(latency);
        if request.command == command::READ {
            self.check(request.request_index)?;
        }
        if request.command != command::FLUSH {
            self.bytes += self.phase.request_len as u64;
        }
        Ok(slot)
    }

    fn check(&self, index: usize) -> Result<(), LoadError> {
        let first = index * self.phase.request_len / BLOCK_LEN;
        for (step, block) in self.data.chunks_exact(BLOCK_LEN).enumerate() {
            let generation = self.generations[first + step];
            let offset = self.start + ((first + step) * BLOCK_LEN) as u64;
            // Generation 0 was never written: it may hold anything.
            if generation > 0 && !holds(block, offset, generation) {
                return Err(LoadError::Corrupt { offset });
            }
        }
        Ok(())
    }
}
