//! A client's byte stream: a Unix socket or TCP, plain or with TLS.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, sockopt};
use rustls::ServerConfig;

use crate::tls::Session;

/// When to probe whether a silent TCP peer has vanished: after 60 s, then every 10 s, 6 times.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 6;

/// Bytes of replies that may be on their way before sending waits.
const SEND_BUFFER_LEN: usize = 1 << 20;

/// A client's connection: a socket, and TLS on it once that has begun. Reading and writing need
/// only a shared reference.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    tls: OnceLock<Session>,
}

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self { socket: Socket::Unix(stream), tls: OnceLock::new() }
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self { socket: Socket::Tcp(stream), tls: OnceLock::new() }
    }
}

impl Stream {
    pub(crate) fn connect_unix(path: &std::path::Path) -> io::Result<Self> {
        UnixStream::connect(path).map(Self::from)
    }

    pub(crate) fn connect_tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(stream.into())
    }

    /// Settings of an accepted connection. A socket that refuses one of them still works.
    pub(crate) fn tune(&self) {
        let fd = self.socket.as_fd();
        let force = sockopt::set_socket_send_buffer_size_force(fd, SEND_BUFFER_LEN);
        if force.is_err() {
            // Without privileges: as much as the system lets us have.
            let _ = sockopt::set_socket_send_buffer_size(fd, SEND_BUFFER_LEN);
        }
        if let Socket::Tcp(stream) = &self.socket {
            let _ = stream.set_nodelay(true);
            let _ = sockopt::set_socket_keepalive(stream, true);
            let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE);
            let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL);
            let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT);
        }
    }

    /// Who is at the other end: the address, or the process as the kernel knows it.
    pub(crate) fn peer(&self) -> String {
        let told = match &self.socket {
            Socket::Tcp(stream) => stream.peer_addr().map(|address| address.to_string()),
            Socket::Unix(stream) => getsockopt(stream, PeerCredentials)
                .map(|peer| format!("pid:{}", peer.pid()))
                .map_err(io::Error::from),
        };
        // It may be gone already, or in a container that we cannot see into.
        told.ok().filter(|told| told != "pid:0").unwrap_or_else(|| "-".to_owned())
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.tls.get().is_some()
    }

    /// Goes on with TLS, which the client begins. `limit` is called before each wait for the
    /// client.
    // Its stack is not for clients without TLS.
    #[inline(never)]
    pub(crate) fn accept_tls(
        &self,
        config: Arc<ServerConfig>,
        limit: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let session = Session::accept(config, &self.socket, limit)?;
        self.tls.set(session).map_err(|_| io::Error::other("TLS has begun before"))
    }

    /// Reads what there is, and waits for at least a byte; 0 at the end. Interruptions are retried.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => self.socket.read(buffer),
            Some(tls) => {
                tls.read(buffer, |buffer| self.socket.read(buffer), || self.socket.read_timeout())
            }
        }
    }

    /// As [`Stream::read`] without waiting: `WouldBlock` if nothing has come.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => self.socket.try_read(buffer),
            Some(tls) => tls.read(buffer, |buffer| self.socket.try_read(buffer), || Ok(None)),
        }
    }

    /// As [`Stream::try_read`], for a caller that asks again and again: with TLS, nothing is
    /// prepared if nothing has come.
    pub(crate) fn poll(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let is_plain = self.tls.get().is_none();
        if is_plain
            || self.has_more()
            || !self.socket.wait(PollFlags::IN, Some(Duration::ZERO))?.is_empty()
        {
            self.try_read(buffer)
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    /// Writes all bytes. No other thread may write meanwhile. Each wait lasts for as long as is
    /// [set](Self::set_timeouts).
    pub(crate) fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = self.tls.get() else { return self.socket.write_all(bytes) };
        while !bytes.is_empty() {
            match tls.try_write(&self.socket, bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let timeout = self.socket.write_timeout()?;
                    if !self.socket.wait(PollFlags::OUT, timeout)?.contains(PollFlags::OUT) {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes what fits without waiting; `WouldBlock` if nothing fits. Then the caller must write
    /// the same bytes next, since with TLS some of them may be on their way.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => self.socket.try_write(bytes),
            Some(tls) => tls.try_write(&self.socket, bytes),
        }
    }

    /// Sets how long reading waits if nothing comes, before it fails with `WouldBlock`. Writing
    /// waits without a limit.
    pub(crate) fn set_idle_after(&self, timeout: Duration) -> io::Result<()> {
        self.set_timeouts(None)?;
        match &self.socket {
            Socket::Unix(stream) => stream.set_read_timeout(Some(timeout)),
            Socket::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    /// Waits, without a buffer, until there is something to read (the end of the stream counts) or
    /// `or` can be read.
    pub(crate) fn wait_for_input(&self, or: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if self.has_more() {
            return Ok(());
        }
        let fd = self.socket.as_fd();
        let or = or.unwrap_or(fd);
        let mut fds = [PollFd::new(&fd, PollFlags::IN), PollFd::new(&or, PollFlags::IN)];
        loop {
            match rustix::event::poll(&mut fds, None) {
                Err(Errno::INTR) => {}
                other => return Ok(other.map(drop)?),
            }
        }
    }

    /// Whether closing it, or ending the reading, may lose what was sent: TCP answers what comes
    /// after that with a reset, and a peer that is reset discards what it has not read.
    pub(crate) fn forgets(&self) -> bool {
        matches!(self.socket, Socket::Tcp(_))
    }

    /// If it [forgets](Self::forgets): ends the writing, and takes in what still comes until the
    /// client has ended its own writing, for `at_most` this long.
    pub(crate) fn linger(&self, at_most: Duration) {
        let Socket::Tcp(stream) = &self.socket else { return };
        if let Some(tls) = self.tls.get() {
            tls.say_good_bye(&self.socket);
        }
        if stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let (deadline, mut rest) = (Instant::now() + at_most, [0; 4096]);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
                return;
            }
            if !self.socket.read(&mut rest).is_ok_and(|count| count > 0) {
                return;
            }
        }
    }

    /// Waits until the stream can be written, or read if `read` is set, but for `timeout` at most.
    /// Returns whether there may be something to read (the end of the stream counts).
    pub(crate) fn wait(&self, read: bool, timeout: Option<Duration>) -> io::Result<bool> {
        if read && self.has_more() {
            return Ok(true);
        }
        let wanted = if read { PollFlags::IN | PollFlags::OUT } else { PollFlags::OUT };
        let came = self.socket.wait(wanted, timeout)?;
        Ok(read && came.contains(PollFlags::IN))
    }

    /// Whether the client has closed its side altogether, if the system can tell: of a TCP
    /// connection it cannot, until something is sent.
    pub(crate) fn is_gone(&self) -> bool {
        let came = self.socket.wait(PollFlags::empty(), Some(Duration::ZERO));
        came.is_ok_and(|came| came.intersects(PollFlags::HUP | PollFlags::ERR))
    }

    /// How many bytes have come and were not read, as far as the system tells.
    pub(crate) fn pending(&self) -> usize {
        rustix::io::ioctl_fionread(self.socket.as_fd()).map_or(0, |count| count as usize)
    }

    fn has_more(&self) -> bool {
        self.tls.get().is_some_and(Session::has_more)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if let (Some(tls), Shutdown::Both) = (self.tls.get(), how) {
            tls.say_good_bye(&self.socket);
        }
        match &self.socket {
            Socket::Unix(stream) => stream.shutdown(how),
            Socket::Tcp(stream) => stream.shutdown(how),
        }
    }

    /// Sets how long a read, and a write, may wait.
    pub(crate) fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        match &self.socket {
            Socket::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Socket::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }
}

impl Socket {
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let result = match self {
                Self::Unix(stream) => (&mut &*stream).read(buffer),
                Self::Tcp(stream) => (&mut &*stream).read(buffer),
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::net::recv(self.as_fd(), &mut *buffer, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                other => return Ok(other?.0),
            }
        }
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => (&mut &*stream).write(bytes),
            Self::Tcp(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Unix(stream) => (&mut &*stream).write_all(bytes),
            Self::Tcp(stream) => (&mut &*stream).write_all(bytes),
        }
    }

    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::send(self.as_fd(), bytes, flags) {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// As [`Socket::try_write`], for several pieces as if they were one.
    pub(crate) fn try_write_pieces(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            let mut nothing = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(self.as_fd(), pieces, &mut nothing, flags) {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn read_timeout(&self) -> io::Result<Option<Duration>> {
        match self {
            Self::Unix(stream) => stream.read_timeout(),
            Self::Tcp(stream) => stream.read_timeout(),
        }
    }

    fn write_timeout(&self) -> io::Result<Option<Duration>> {
        match self {
            Self::Unix(stream) => stream.write_timeout(),
            Self::Tcp(stream) => stream.write_timeout(),
        }
    }

    /// Waits for one of `wanted`, for `timeout` at most; returns those that have come.
    fn wait(&self, wanted: PollFlags, timeout: Option<Duration>) -> io::Result<PollFlags> {
        let fd = self.as_fd();
        let mut fds = [PollFd::new(&fd, wanted)];
        // A timeout that is too long for the system counts as none.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        loop {
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Err(Errno::INTR) => {}
                other => {
                    other?;
                    return Ok(fds[0].revents());
                }
            }
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}
