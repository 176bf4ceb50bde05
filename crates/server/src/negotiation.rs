//! One client's negotiation: feeds `homing-nbd` what the client sends and sends what it answers, in
//! bounded time.

use std::io;
use std::io::ErrorKind::{TimedOut, WouldBlock};
use std::time::{Duration, Instant};

use homing_nbd::{Handshake, PeerError, Progress, Session, Tls, greeting};

use crate::buffers::Inbox;
use crate::certificates::Certificates;
use crate::peer::Peer;
use crate::server::Shared;

/// How long nothing comes on a connection before it gives up its memory. Guessed: longer than a
/// client at work takes to send its next request, so that such clients find their buffers as they
/// left them.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Why a connection ended before the client said good-bye.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error(transparent)]
    Peer(#[from] PeerError),
    #[error("the connection broke: {0}")]
    Stream(io::Error),
    #[error("the TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("{0} bytes came after TLS was asked for and before it began: they may be anybody's")]
    Injected(usize),
    #[error(transparent)]
    NoMemory(io::Error),
    #[error("the client has not negotiated within {0:?}")]
    TooSlow(Duration),
}

impl End {
    fn of_tls(error: io::Error) -> Self {
        match error.kind() {
            WouldBlock | TimedOut => Self::Stream(error),
            _ => Self::Tls(error),
        }
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        // Neither the client nor the stream is at fault.
        let is_memory = error.kind() == io::ErrorKind::OutOfMemory;
        if is_memory { Self::NoMemory(error) } else { Self::Stream(error) }
    }
}

/// Negotiates within the time that a client has for all of it, waits in both directions included.
/// `None` if the client left in good order.
pub(crate) fn negotiate(
    shared: &Shared,
    peer: &Peer,
    inbox: &mut Inbox,
) -> Result<Option<Session>, End> {
    let limit = shared.handshake_timeout;
    match try_to_negotiate(shared, peer, inbox, Instant::now() + limit) {
        Err(End::Stream(error)) if matches!(error.kind(), WouldBlock | TimedOut) => {
            Err(End::TooSlow(limit))
        }
        result => result,
    }
}

fn try_to_negotiate(
    shared: &Shared,
    peer: &Peer,
    inbox: &mut Inbox,
    deadline: Instant,
) -> Result<Option<Session>, End> {
    let limit = || {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            // A timeout of zero would mean none.
            return Err(TimedOut.into());
        }
        peer.stream.set_timeouts(Some(left))
    };
    let tls = if shared.tls.is_some() { Tls::Required } else { Tls::Off };
    let mut handshake = Handshake::new(tls);
    let mut output = greeting().to_vec();
    loop {
        let progress = handshake.advance(&shared.told, inbox.bytes(), &mut output);
        if !output.is_empty() {
            limit()?;
            let sent = peer.stream.write_all(&output);
            // A client that says good-bye may be gone before the answer, or has itself to blame.
            if !matches!(progress, Ok(Progress::Close(_)) | Err(_)) {
                sent?;
            }
            output.clear();
        }
        match progress? {
            Progress::Send(consumed) => {
                inbox.consume(consumed);
                continue;
            }
            Progress::NeedMore(consumed) => inbox.consume(consumed),
            Progress::BeginTls(consumed) => {
                inbox.consume(consumed);
                if inbox.len() > 0 {
                    return Err(End::Injected(inbox.len()));
                }
                let config = shared.tls.as_ref().map(Certificates::current);
                let config = config.expect("TLS begins where it is required");
                peer.stream.accept_tls(config, limit).map_err(End::of_tls)?;
                continue;
            }
            Progress::Close(_) => return Ok(None),
            Progress::Begin(consumed, session) => {
                inbox.consume(consumed);
                peer.stream.set_idle_after(IDLE_AFTER)?;
                return Ok(Some(session));
            }
        }
        limit()?;
        let wanted = inbox.len() + 1;
        if inbox.fill(&peer.stream, wanted)? == 0 {
            return Ok(None);
        }
    }
}
