//! The client's side, which servers need too, to see whether one listens there already.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

/// Connects within `time`. A server that is stopped lets nobody in once its backlog is full, which
/// is [`io::ErrorKind::WouldBlock`].
pub fn dial(path: &Path, time: Duration) -> io::Result<UnixStream> {
    let address = address(path).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "too long for a Unix socket: 107 bytes at most")
    })?;
    let stream = UnixStream::from(new_socket()?);
    stream.set_write_timeout(Some(time))?; // bounds connecting too
    rustix::net::connect(&stream, &address)?;
    Ok(stream)
}

/// A socket that is closed in programs started by this one.
pub(crate) fn new_socket() -> rustix::io::Result<OwnedFd> {
    #[cfg(not(target_vendor = "apple"))]
    {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
    }
    // In two steps: there is no call that does both.
    #[cfg(target_vendor = "apple")]
    {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        Ok(socket)
    }
}

/// `None` if the path is too long.
pub(crate) fn address(path: &Path) -> Option<SocketAddrUnix> {
    SocketAddrUnix::new(path).ok()
}
