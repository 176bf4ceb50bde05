//! What becomes of a request: its reply, from the thread of its connection or from a worker, and
//! what the log says if it failed.

use std::io;
use std::io::ErrorKind::OutOfMemory;

use homing_nbd::wire::Errno;
use homing_nbd::{Session, reply};
use homing_socket::RateLimit;
use homing_volume::BlockError;

use crate::buffers::Outbox;
use crate::counters::{Asked, ExportCounters};
use crate::peer::{Counted, Peer, Reply};
use crate::pool::Payload;

/// A request that a worker has. Dropping it unanswered tells the client of an error, so that
/// whatever happens to the worker's closure, no client waits for ever.
pub(crate) struct Job {
    session: Session,
    asked: Asked,
    /// `None` once it is answered.
    counted: Option<Counted>,
}

impl Job {
    pub(crate) fn new(session: Session, asked: Asked, counted: Counted) -> Self {
        Self { session, asked, counted: Some(counted) }
    }

    /// Whether nobody will receive its reply.
    pub(crate) fn is_unheard(&self) -> bool {
        self.counted.as_ref().is_none_or(|counted| counted.peer().is_unheard())
    }

    /// Whether it may be left undone, though it changes something.
    pub(crate) fn is_given_up(&self) -> bool {
        self.counted.as_ref().is_none_or(|counted| counted.peer().is_given_up())
    }

    pub(crate) fn answer(mut self, result: Result<(), BlockError>) {
        let Some(counted) = self.counted.take() else { return };
        let mut bytes = Vec::new();
        counted.peer().note_answer(&self.asked, result.is_ok());
        encode(&mut bytes, (&self.session, counted.peer()), &self.asked, result);
        Peer::send_later(Reply { bytes: Payload::Short(bytes), counted });
    }

    /// The request is done; `bytes` is the whole reply.
    pub(crate) fn send(mut self, bytes: Payload) {
        let Some(counted) = self.counted.take() else { return };
        counted.peer().note_answer(&self.asked, true);
        Peer::send_later(Reply { bytes, counted });
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(counted) = self.counted.take() {
            let mut bytes = Vec::new();
            let text = "the request was dropped: the server is going down or has a bug";
            reply::error(&mut bytes, &self.session, self.asked.cookie, Errno::Io, text);
            if counted.peer().is_unheard() {
                counted.peer().tally.note_given_up();
            } else {
                static DROPPED: RateLimit = RateLimit::new();
                let export = &counted.peer().export_counters().name;
                DROPPED.log(|left_out| tracing::error!(export, left_out, "a request was dropped"));
                counted.peer().note_answer(&self.asked, false);
            }
            Peer::send_later(Reply { bytes: Payload::Short(bytes), counted });
        }
    }
}

/// Leaves the reply to a command without data in `outbox`. The caller counts it.
pub(crate) fn answer(
    outbox: &mut Outbox,
    told: (&Session, &Peer),
    asked: &Asked,
    result: Result<(), BlockError>,
) -> io::Result<()> {
    outbox.push(|bytes| encode(bytes, told, asked, result))
}

/// Appends the reply to a command without data.
fn encode(
    bytes: &mut Vec<u8>,
    (session, peer): (&Session, &Peer),
    asked: &Asked,
    result: Result<(), BlockError>,
) {
    match result {
        Ok(()) => reply::done(bytes, asked.cookie),
        Err(error) => {
            let errno = report(&error, peer.export_counters());
            reply::error(bytes, session, asked.cookie, errno, &error.to_string());
        }
    }
}

/// The error of a read for whose data there is no memory.
pub(crate) fn no_memory(offset: u64, length: u32, source: io::Error) -> BlockError {
    BlockError::Io { action: "read", offset, length: length.into(), source }
}

/// Logs why a request failed, and returns what the client is told.
fn report(error: &BlockError, of: &ExportCounters) -> Errno {
    let (limit, export) = (if error.is_full() { &of.fulls } else { &of.failures }, &of.name);
    limit.log(|left_out| tracing::error!(export, %error, left_out, "request failed"));
    match error {
        BlockError::Io { source, .. } if source.kind() == OutOfMemory => Errno::NoMem,
        _ if error.is_full() => Errno::NoSpace,
        _ => Errno::Io,
    }
}
