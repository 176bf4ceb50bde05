//! What a service of type notify tells systemd.

use std::io;

use sd_notify::NotifyState;

/// Tells systemd the state, if this is a service of type notify.
pub(crate) fn tell_systemd(state: &NotifyState<'_>) {
    let socket = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
    // The library takes such a name for a path.
    let told = match socket.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => tell_abstract(name, &format!("{state}\n")),
        None => sd_notify::notify(std::slice::from_ref(state)),
    };
    if let Err(error) = told {
        tracing::warn!(%error, ?state, "systemd could not be told");
    }
}

/// Sends `state` to a socket in Linux's abstract namespace.
#[cfg(target_os = "linux")]
fn tell_abstract(name: &[u8], state: &str) -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let address = SocketAddr::from_abstract_name(name)?;
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(not(target_os = "linux"))]
fn tell_abstract(_: &[u8], _: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
