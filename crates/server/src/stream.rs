//! A client's byte stream: a Unix socket or TCP.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};

/// When to find out that a silent TCP peer has vanished: after 60 s, every 10 s, 6 times.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 6;

/// Replies that may be on their way before sending waits.
const SEND_BUFFER_LEN: usize = 1 << 20;

/// A connected socket. Reading and writing need only a shared reference.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    pub(crate) fn connect_unix(path: &std::path::Path) -> io::Result<Self> {
        UnixStream::connect(path).map(Self::Unix)
    }

    pub(crate) fn connect_tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Settings of an accepted connection. A socket that refuses one of them still works.
    pub(crate) fn tune(&self) {
        let force = sockopt::set_socket_send_buffer_size_force(self.as_fd(), SEND_BUFFER_LEN);
        if force.is_err() {
            // Without privileges: as much as the system lets us have.
            let _ = sockopt::set_socket_send_buffer_size(self.as_fd(), SEND_BUFFER_LEN);
        }
        if let Self::Tcp(stream) = self {
            let _ = stream.set_nodelay(true);
            let _ = sockopt::set_socket_keepalive(stream, true);
            let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE);
            let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL);
            let _ = sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT);
        }
    }

    /// Reads what there is, waiting for at least a byte; 0 at the end. Interruptions are retried.
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

    pub(crate) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Unix(stream) => (&mut &*stream).write_all(bytes),
            Self::Tcp(stream) => (&mut &*stream).write_all(bytes),
        }
    }

    /// Writes what fits without waiting; `WouldBlock` where nothing does.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::send(self.as_fd(), bytes, flags) {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// How long reading waits where nothing comes: then it fails with `WouldBlock`. Writing takes its time.
    pub(crate) fn set_idle_after(&self, timeout: Duration) -> io::Result<()> {
        self.set_timeouts(None)?;
        match self {
            Self::Unix(stream) => stream.set_read_timeout(Some(timeout)),
            Self::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    /// Waits until there is something to read (the end of the stream is), without a buffer for it.
    pub(crate) fn wait_for_input(&self) -> io::Result<()> {
        let fd = self.as_fd();
        loop {
            match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], None) {
                Err(Errno::INTR) => {}
                other => return Ok(other.map(drop)?),
            }
        }
    }

    /// Waits until something can be read or written, or for so long; `read`: whether reading counts.
    /// Whether there is something to read (the end of the stream is).
    pub(crate) fn wait(&self, read: bool, timeout: Option<Duration>) -> io::Result<bool> {
        let wanted = if read { PollFlags::IN | PollFlags::OUT } else { PollFlags::OUT };
        let fd = self.as_fd();
        let mut fds = [PollFd::new(&fd, wanted)];
        // One that is too long for the system is none.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        loop {
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Err(Errno::INTR) => {}
                other => {
                    other?;
                    return Ok(read && fds[0].revents().contains(PollFlags::IN));
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

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.shutdown(how),
            Self::Tcp(stream) => stream.shutdown(how),
        }
    }

    /// How long a read, and a write, may wait.
    pub(crate) fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }
}
