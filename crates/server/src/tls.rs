//! TLS on a client's socket.
//!
//! Input is read without the lock and deciphered under it; output is enciphered under it and sent
//! as far as the socket takes it. So no thread waits for a client with the lock held, and a worker
//! can answer while the connection's thread waits for more.

use std::io::{self, IoSlice, Read, Write};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection};

use crate::stream::Socket;
use crate::sync::lock;

/// Bytes that are enciphered at a time: some records, for one system call.
const PIECE: usize = 64 << 10;
/// Bytes that are read from the socket at a time.
const INCOMING_LEN: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Session {
    state: Mutex<State>,
    /// Locked by the thread that reads, and by no other.
    incoming: Mutex<Incoming>,
    /// There may be something to read that is not in the socket any more.
    has_more: AtomicBool,
}

#[derive(Debug)]
struct State {
    connection: ServerConnection,
    /// Bytes of the caller that are enciphered, but not wholly on the socket yet.
    begun: usize,
}

/// Input that is not deciphered yet.
#[derive(Debug, Default)]
struct Incoming {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Session {
    /// Lets a client begin that has been told to. `limit` is called before each wait for it.
    pub(crate) fn accept(
        config: Arc<ServerConfig>,
        socket: &Socket,
        mut limit: impl FnMut() -> io::Result<()>,
    ) -> io::Result<Self> {
        let mut connection = ServerConnection::new(config).map_err(io::Error::other)?;
        connection.set_buffer_limit(None);
        while connection.is_handshaking() {
            limit()?;
            if connection.wants_write() {
                connection.write_tls(&mut Patient(socket))?;
                continue;
            }
            if connection.read_tls(&mut Patient(socket))? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Err(error) = connection.process_new_packets() {
                // Tells the client why, if it listens.
                let _ = connection.write_tls(&mut AsFits(socket));
                return Err(told(error));
            }
        }
        while connection.wants_write() {
            limit()?;
            connection.write_tls(&mut Patient(socket))?;
        }
        Ok(Self {
            state: Mutex::new(State { connection, begun: 0 }),
            incoming: Mutex::default(),
            // More may have come with the end of the handshake.
            has_more: AtomicBool::new(true),
        })
    }

    /// Reads what there is; 0 at the end. `receive` reads from the socket, and either waits or says
    /// that it would. `patience` is how long that may wait: a client that sends less than a record
    /// in that time has sent nothing.
    pub(crate) fn read(
        &self,
        buffer: &mut [u8],
        receive: impl Fn(&mut [u8]) -> io::Result<usize>,
        patience: impl Fn() -> io::Result<Option<Duration>>,
    ) -> io::Result<usize> {
        let mut began: Option<Instant> = None;
        let mut incoming = lock(&self.incoming);
        self.has_more.store(false, Relaxed);
        loop {
            let (count, ended) = self.state().decipher(&mut incoming, buffer)?;
            if count > 0 || ended || buffer.is_empty() {
                self.has_more.store(count == buffer.len(), Relaxed);
                return Ok(count);
            }
            let received = match began {
                Some(began) if patience()?.is_some_and(|most| began.elapsed() >= most) => {
                    Err(io::ErrorKind::WouldBlock.into())
                }
                _ => incoming.receive(&receive),
            };
            match received {
                // Anybody on the way may have ended the stream without TLS's good-bye; NBD has its
                // own.
                Ok(0) => return Ok(0),
                Ok(_) => began = began.or_else(|| Some(Instant::now())),
                Err(error) => {
                    // An idle connection has no buffer.
                    *incoming = Incoming::default();
                    return Err(error);
                }
            }
        }
    }

    /// Whether there may be something to read that is not in the socket any more. If there is not,
    /// the next read finds that out.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more.load(Relaxed)
    }

    /// Sends as much as the socket takes. If that is not all, it says that it would wait: then the
    /// caller must pass the same bytes again, since some are enciphered already.
    pub(crate) fn try_write(&self, socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        if state.begun == 0 {
            let piece = &bytes[..bytes.len().min(PIECE)];
            state.begun = state.connection.writer().write(piece)?;
            if !state.connection.wants_write() && !bytes.is_empty() {
                // The writer takes bytes, too, that the session will not encipher any more.
                state.begun = 0;
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        if state.begun > bytes.len() {
            // What was begun is of another reply, which failed: nothing may follow what was sent of
            // that.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        while state.connection.wants_write() {
            state.connection.write_tls(&mut AsFits(socket))?;
        }
        Ok(std::mem::take(&mut state.begun))
    }

    /// Tells the client that nothing more comes, if that can be done at once.
    pub(crate) fn say_good_bye(&self, socket: &Socket) {
        if let Ok(mut state) = self.state.try_lock() {
            state.connection.send_close_notify();
            let _ = state.connection.write_tls(&mut AsFits(socket));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Deciphers until the buffer is full or nothing is left. Returns the number of bytes, and
    /// whether the client has said that these are all.
    fn decipher(
        &mut self,
        incoming: &mut Incoming,
        buffer: &mut [u8],
    ) -> io::Result<(usize, bool)> {
        let mut count = 0;
        while count < buffer.len() {
            match self.connection.reader().read(&mut buffer[count..]) {
                Ok(0) => return Ok((count, true)),
                Ok(more) => count += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut rest = &incoming.buffer[incoming.start..incoming.end];
                    if rest.is_empty() {
                        break;
                    }
                    incoming.start += self.connection.read_tls(&mut rest)?;
                    let processed = self.connection.process_new_packets();
                    processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok((count, false))
    }
}

impl Incoming {
    /// Receives the next input. Everything before must be deciphered.
    fn receive(&mut self, receive: impl Fn(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        self.buffer.resize(INCOMING_LEN, 0);
        self.start = 0;
        self.end = 0;
        self.end = receive(&mut self.buffer)?;
        Ok(self.end)
    }
}

/// A socket on which reading and writing wait.
struct Patient<'a>(&'a Socket);

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket that takes what fits, without waiting.
struct AsFits<'a>(&'a Socket);

impl Write for AsFits<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_pieces(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The error of a handshake.
fn told(error: rustls::Error) -> io::Error {
    use rustls::{Error, PeerIncompatible};
    let too_old = matches!(
        error,
        Error::PeerIncompatible(PeerIncompatible::SupportedVersionsExtensionRequired)
    );
    if too_old {
        return io::Error::new(io::ErrorKind::InvalidData, "the client speaks no TLS 1.3");
    }
    io::Error::new(io::ErrorKind::InvalidData, error)
}
