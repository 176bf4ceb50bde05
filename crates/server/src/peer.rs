//! A client as its connection's thread and the workers see it: who may write to the socket when,
//! and how much of its requests the workers hold.
//!
//! Replies are whole (`SERVE-2`) because only the holder of the `sending` flag writes. A worker
//! never waits for a client: it leaves its reply to the holder if there is one, and writes what
//! fits if there is none. What does not fit goes to a thread made for it, which keeps the flag
//! until the client has taken everything; so a client that does not read holds up nobody else. The
//! connection's thread leaves its replies to that thread too and goes on reading: the client may
//! have to be rid of its requests before it reads. A reply counts as in flight until it is sent,
//! which bounds what such a client can pile up.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::buffers::{BATCH_LEN, Inbox};
use crate::stream::Stream;

/// Requests, with their replies, that one connection may have with workers (`SERVE-3`), in bytes.
/// Derived: the longest request and as much again.
pub const IN_FLIGHT_BYTES_MAX: usize = 128 << 20;
/// Requests taken in while a client does not take its replies. Guessed: twice what a client with 64
/// requests of 32 KiB in flight has sent.
const READ_AHEAD_MAX: usize = 4 << 20;
/// Stack of a thread that waits for a slow client.
const STACK_LEN: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) stream: Stream,
    outgoing: Mutex<Outgoing>,
    /// `sending` has become false, or `slow` true.
    idle: Condvar,
    in_flight: Mutex<InFlight>,
    landed: Condvar,
}

#[derive(Debug, Default)]
struct Outgoing {
    /// Somebody writes to the stream, and will see to `waiting` before it stops.
    sending: bool,
    /// Whoever sends waits for the client, for who knows how long.
    slow: bool,
    /// The connection's thread waits for one of the two to change.
    awaited: bool,
    waiting: VecDeque<Reply>,
}

#[derive(Debug, Default)]
struct InFlight {
    /// Of requests and replies that workers have.
    bytes: usize,
    /// The connection's thread waits until there are fewer.
    awaited: bool,
}

/// A reply, and what it lets go of when it is sent.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    pub(crate) weight: usize,
}

impl Peer {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream,
            outgoing: Mutex::default(),
            idle: Condvar::new(),
            in_flight: Mutex::default(),
            landed: Condvar::new(),
        }
    }

    /// Sends a worker's reply, now or as soon as the client takes it. Does not wait.
    pub(crate) fn send_later(self: &Arc<Self>, reply: Reply) {
        let mut outgoing = lock(&self.outgoing);
        outgoing.waiting.push_back(reply);
        if outgoing.sending {
            return;
        }
        outgoing.sending = true;
        drop(outgoing);
        while let Some(reply) = self.next_waiting() {
            if let Some(rest) = self.send_what_fits(&reply) {
                return self.wait_elsewhere(reply, rest);
            }
            self.land(reply.weight);
        }
    }

    /// Sends from the connection's own thread, and whatever workers have left meanwhile. While the
    /// client does not take replies its requests are taken in, up to [`READ_AHEAD_MAX`]: a client
    /// that writes all its requests before it reads a reply would otherwise wait for us as we
    /// wait for it.
    pub(crate) fn send_and_receive(&self, bytes: &[u8], inbox: &mut Inbox) -> io::Result<()> {
        let mut counted = 0;
        let mut outgoing = lock(&self.outgoing);
        while outgoing.sending {
            if !outgoing.slow {
                outgoing.awaited = true;
                outgoing = self.idle.wait(outgoing).unwrap_or_else(PoisonError::into_inner);
            } else if counted == 0 {
                // May wait, so the slow thread must be able to go on meanwhile.
                drop(outgoing);
                counted = bytes.len();
                self.take_off(counted);
                outgoing = lock(&self.outgoing);
            } else {
                outgoing.waiting.push_back(Reply { bytes: bytes.to_vec(), weight: counted });
                return Ok(());
            }
        }
        outgoing.sending = true;
        drop(outgoing);
        if counted > 0 {
            self.land(counted);
        }
        let mut result = self.exchange(bytes, inbox);
        while let Some(reply) = self.next_waiting() {
            // Once it has failed the client is gone; its replies go too.
            if result.is_ok() {
                result = self.exchange(&reply.bytes, inbox);
            }
            self.land(reply.weight);
        }
        result
    }

    fn exchange(&self, bytes: &[u8], inbox: &mut Inbox) -> io::Result<()> {
        let (mut rest, mut ended) = (bytes, false);
        while !rest.is_empty() {
            match self.stream.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let room = !ended && inbox.len() < READ_AHEAD_MAX;
                    if self.stream.wait(room)? {
                        // The end is found again by the next read, after the replies.
                        let wanted = inbox.len() + BATCH_LEN;
                        ended = inbox.fill(&self.stream, wanted)? == 0;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next reply for the holder of the flag; where there is none the flag is given up.
    fn next_waiting(&self) -> Option<Reply> {
        let mut outgoing = lock(&self.outgoing);
        let next = outgoing.waiting.pop_front();
        if next.is_none() {
            outgoing.sending = false;
            outgoing.slow = false;
            self.wake_connection(&mut outgoing);
        }
        next
    }

    /// Nobody is woken who does not wait: waking is a system call, and this comes with each batch.
    fn wake_connection(&self, outgoing: &mut Outgoing) {
        if std::mem::take(&mut outgoing.awaited) {
            self.idle.notify_all();
        }
    }

    /// Writes without waiting; says where it had to stop. A broken stream takes everything.
    fn send_what_fits(&self, reply: &Reply) -> Option<usize> {
        let mut at = 0;
        while at < reply.bytes.len() {
            match self.stream.try_write(&reply.bytes[at..]) {
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(at),
                Err(_) => return None,
            }
        }
        None
    }

    /// Passes the flag on to a thread that may wait for the client.
    fn wait_elsewhere(self: &Arc<Self>, reply: Reply, at: usize) {
        {
            let mut outgoing = lock(&self.outgoing);
            outgoing.slow = true;
            self.wake_connection(&mut outgoing);
        }
        let peer = Arc::clone(self);
        let weight = reply.weight;
        let patient = move || {
            let mut result = peer.stream.write_all(&reply.bytes[at..]);
            peer.land(weight);
            while let Some(reply) = peer.next_waiting() {
                if result.is_ok() {
                    result = peer.stream.write_all(&reply.bytes);
                }
                peer.land(reply.weight);
            }
        };
        let builder = thread::Builder::new().name("nbd/slow".to_owned()).stack_size(STACK_LEN);
        if builder.spawn(patient).is_err() {
            // Without a thread the client cannot be waited for: it is cut off, and what it was
            // owed is let go.
            tracing::warn!("no thread to wait for a slow client: it is cut off");
            self.shutdown(Shutdown::Both);
            self.land(weight);
            while let Some(reply) = self.next_waiting() {
                self.land(reply.weight);
            }
        }
    }

    /// Ends reading, or everything; a connection that is gone is as good.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        let _ = self.stream.shutdown(how);
    }

    /// Counts a request for a worker; waits while there are too many.
    pub(crate) fn take_off(&self, weight: usize) {
        let mut in_flight = lock(&self.in_flight);
        while in_flight.bytes > 0 && in_flight.bytes + weight > IN_FLIGHT_BYTES_MAX {
            in_flight = self.wait_for_landing(in_flight);
        }
        in_flight.bytes += weight;
    }

    fn land(&self, weight: usize) {
        let mut in_flight = lock(&self.in_flight);
        in_flight.bytes -= weight;
        if std::mem::take(&mut in_flight.awaited) {
            self.landed.notify_all();
        }
    }

    /// Waits until workers have done everything and it is sent, or the client is gone.
    pub(crate) fn wait_until_landed(&self) {
        let mut in_flight = lock(&self.in_flight);
        while in_flight.bytes > 0 {
            in_flight = self.wait_for_landing(in_flight);
        }
    }

    fn wait_for_landing<'a>(
        &'a self,
        mut in_flight: MutexGuard<'a, InFlight>,
    ) -> MutexGuard<'a, InFlight> {
        in_flight.awaited = true;
        self.landed.wait(in_flight).unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
