//! A client as its connection's thread and the workers see it: which thread may write to the
//! socket, and how much of the client's requests the workers hold.
//!
//! Replies are whole (`SERVE-2`) because only the holder of the `sending` flag writes. A worker
//! never waits for a client: it leaves its reply to the holder if there is one, and writes what
//! fits if there is none. What does not fit goes to a thread made for it, which keeps the flag
//! until the client has taken everything, so a client that does not read holds up no other. The
//! connection's thread leaves its replies to that thread too and goes on reading, since the client
//! may have to send its requests before it reads. A reply counts as in flight until it is sent,
//! which bounds what such a client can pile up.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use homing_socket::RateLimit;

use crate::buffers::{AHEAD_MAX, AHEAD_WEIGHT, Inbox};
use crate::clients::Clients;
use crate::counters::{Answer, Asked, ExportCounters, Tally};
use crate::memory::{Account, Lease};
use crate::patience::Waiting;
use crate::pool::{BATCH_LEN, OWN_REPLIES_MAX, Payload};
use crate::stream::Stream;
use crate::sync::{lock, wait};

/// Requests, with their replies, that one connection may have with workers (`SERVE-3`), in bytes.
/// Derived: the longest request and as much again.
pub const IN_FLIGHT_BYTES_MAX: usize = 128 << 20;
/// Capacity kept for waiting replies once none waits.
const WAITING_KEPT: usize = 64;
/// What a reply weighs besides its bytes.
const REPLY_BASE: usize = 128;
/// How long to wait before trying again to take in more, if there was no memory for it.
const TRY_AGAIN: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) stream: Stream,
    pub(crate) clients: Arc<Clients>,
    /// Bytes leased on each [`Account`]: for its requests, and for what is taken in ahead of them.
    leased: [AtomicUsize; 2],
    /// Whether the server waits for the rest of a long request, and for the client to take replies.
    pub(crate) receives: Waiting,
    sends: Waiting,
    /// Nothing more is taken in from the client.
    leaves: AtomicBool,
    cut_off: AtomicBool,
    /// Sending has failed.
    unheard: AtomicBool,
    /// One of its requests waits for memory.
    asks: AtomicBool,
    /// Negotiation is over: its requests are carried out.
    transmits: AtomicBool,
    /// The export that it has negotiated; set before that.
    export: AtomicUsize,
    /// All that came from it has been read, and it has not said good-bye.
    lost: AtomicBool,
    /// When it connected, as the clients' clock counts.
    pub(crate) since_ms: u64,
    pub(crate) tally: Tally,
    outgoing: Mutex<Outgoing>,
    /// `sending` has become false, or `slow` true.
    idle: Condvar,
    in_flight: Mutex<InFlight>,
    landed: Condvar,
}

#[derive(Debug, Default)]
struct Outgoing {
    /// A thread writes to the stream, and will send what is in `waiting` before it stops.
    sending: bool,
    /// The thread that sends waits for the client, for an unknown time.
    slow: bool,
    /// The connection's thread waits for `sending` or `slow` to change.
    awaited: bool,
    waiting: VecDeque<Reply>,
}

#[derive(Debug, Default)]
struct InFlight {
    /// The weight of the requests and replies that workers have.
    bytes: usize,
    /// The part of `bytes` that counts towards [`OWN_REPLIES_MAX`].
    own: usize,
    /// The connection's thread waits until there are fewer.
    awaited: bool,
}

impl InFlight {
    /// The first request has room, whatever it weighs.
    fn has_no_room(&self, weight: usize) -> bool {
        self.bytes > 0 && self.bytes + weight > IN_FLIGHT_BYTES_MAX
    }
}

/// A reply, and what is released once it is sent.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) bytes: Payload,
    pub(crate) counted: Counted,
}

/// A request that counts as in flight, with its leased memory. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Counted {
    lease: Lease,
    weight: usize,
    /// The part of the weight that counts towards [`OWN_REPLIES_MAX`].
    own: usize,
}

impl Counted {
    pub(crate) fn peer(&self) -> &Arc<Peer> {
        self.lease.peer()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.peer().land(self.weight, self.own);
    }
}

impl Peer {
    pub(crate) fn new(stream: Stream, clients: &Arc<Clients>) -> Self {
        Self {
            stream,
            clients: Arc::clone(clients),
            leased: Default::default(),
            receives: Waiting::default(),
            sends: Waiting::default(),
            leaves: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            unheard: AtomicBool::new(false),
            asks: AtomicBool::new(false),
            transmits: AtomicBool::new(false),
            export: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
            since_ms: clients.now_ms(),
            tally: Tally::default(),
            outgoing: Mutex::default(),
            idle: Condvar::new(),
            in_flight: Mutex::default(),
            landed: Condvar::new(),
        }
    }

    /// Negotiation has ended with this export.
    pub(crate) fn begin(&self, export: usize) {
        self.export.store(export, Relaxed);
        self.transmits.store(true, Release);
    }

    pub(crate) fn export(&self) -> usize {
        self.export.load(Relaxed)
    }

    /// Of the export that it has negotiated.
    pub(crate) fn export_counters(&self) -> &ExportCounters {
        &self.clients.exports()[self.export()]
    }

    /// Whether negotiation is over.
    pub(crate) fn has_begun(&self) -> bool {
        self.transmits.load(Acquire)
    }

    /// As [`Peer::note_answers`], of one.
    pub(crate) fn note_answer(&self, asked: &Asked, is_done: bool) {
        self.note_answers(&[(*asked, is_done)]);
    }

    /// Their replies are ready to be sent.
    pub(crate) fn note_answers(&self, answers: &[Answer]) {
        self.export_counters().note(answers);
        self.tally.note_answers(answers);
    }

    /// Sends a worker's reply, now or as soon as the client takes it. Does not wait.
    pub(crate) fn send_later(reply: Reply) {
        let peer = Arc::clone(reply.counted.peer());
        let mut outgoing = lock(&peer.outgoing);
        outgoing.waiting.push_back(reply);
        if outgoing.sending {
            return;
        }
        outgoing.sending = true;
        drop(outgoing);
        while let Some(reply) = peer.next_waiting() {
            if let Some(rest) = peer.send_what_fits(&reply) {
                return peer.wait_elsewhere(reply, rest);
            }
        }
    }

    /// Sends `bytes` from the connection's own thread, and the replies that workers have left
    /// meanwhile. While the client does not take replies, its requests are taken in, up to
    /// [`AHEAD_MAX`]: a client that writes all its requests before it reads a reply would otherwise
    /// wait for us as we wait for it. `spare` is memory that the connection's thread has leased
    /// already.
    pub(crate) fn send_and_receive(
        self: &Arc<Self>,
        bytes: &[u8],
        inbox: &mut Inbox,
        spare: &mut Option<Lease>,
    ) -> io::Result<()> {
        let mut counted = None;
        let mut outgoing = lock(&self.outgoing);
        while outgoing.sending {
            if !outgoing.slow {
                outgoing.awaited = true;
                outgoing = wait(&self.idle, outgoing);
            } else if let Some(counted) = counted.take() {
                let bytes = Payload::copy_of(inbox.pool(), bytes)?;
                outgoing.waiting.push_back(Reply { bytes, counted });
                return Ok(());
            } else {
                // This may wait, so the slow thread must be able to go on meanwhile.
                drop(outgoing);
                counted = Some(self.count_replies(bytes.len(), spare));
                outgoing = lock(&self.outgoing);
            }
        }
        outgoing.sending = true;
        drop(outgoing);
        drop(counted);
        let mut result = self.exchange(bytes, inbox);
        loop {
            if result.is_err() {
                self.end_replies();
            }
            let Some(reply) = self.next_waiting() else { break };
            // Once sending has failed the client is gone, and its replies are dropped.
            if result.is_ok() {
                result = self.exchange(&reply.bytes, inbox);
            }
        }
        self.sends.end();
        result
    }

    /// Counts replies that another thread is to send.
    fn count_replies(self: &Arc<Self>, len: usize, spare: &mut Option<Lease>) -> Counted {
        let weight = Payload::weight(len) + REPLY_BASE;
        let lease = match spare {
            // A thread that has a lease does not wait for another.
            Some(spare) => spare.split(weight).unwrap_or_else(|| self.no_lease()),
            None => match self.try_lease(Account::Requests, weight) {
                Some(lease) => lease,
                // The replies that the client does not take may hold all the memory. To take them
                // the client may first have to send its requests, so this thread should not wait.
                None => match self.take_off_own(weight) {
                    Some(counted) => return counted,
                    None => self.lease(weight),
                },
            },
        };
        self.take_off(len + REPLY_BASE, lease)
    }

    fn exchange(self: &Arc<Self>, bytes: &[u8], inbox: &mut Inbox) -> io::Result<()> {
        let (mut rest, mut ended) = (bytes, false);
        self.sends.end();
        while !rest.is_empty() {
            match self.stream.try_write(rest) {
                Ok(count) => {
                    self.sends.moved(count, &self.clients);
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.sends.begin(&self.clients);
                    let wanted = !ended && inbox.len() < AHEAD_MAX;
                    let room = wanted
                        && (inbox.len() < BATCH_LEN
                            || inbox.may_grow(|| self.try_lease(Account::Ahead, AHEAD_WEIGHT)));
                    let again = (wanted && !room).then_some(TRY_AGAIN);
                    if again.is_some() {
                        self.clients.hang_up_on_stalled();
                    }
                    if self.stream.wait(room, again)? {
                        if self.is_leaving() {
                            // The client asks again for what is thrown away here: from now on
                            // nothing is taken in.
                            ended = self.throw_away()?;
                            continue;
                        }
                        // The next read, after the replies, finds the end of the stream again.
                        let wanted = (inbox.len() + BATCH_LEN).min(AHEAD_MAX);
                        match inbox.try_fill(&self.stream, wanted) {
                            Ok(0) => ended = true,
                            Ok(count) => self.came(count),
                            // There was nothing after all.
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                            Err(error) => return Err(error),
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes in what has come, for nobody. Returns whether the stream has ended.
    fn throw_away(&self) -> io::Result<bool> {
        let mut nowhere = [0; 4096];
        match self.stream.try_read(&mut nowhere) {
            Ok(0) => Ok(true),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(false),
        }
    }

    /// The client has sent this many bytes. A client that still sends may take no replies
    /// meanwhile, yet it makes progress.
    pub(crate) fn came(&self, bytes: usize) {
        self.receives.moved(bytes, &self.clients);
        self.sends.moved_otherwise(bytes, &self.clients);
    }

    /// The next reply for the holder of the flag. If there is none, the flag is given up.
    fn next_waiting(&self) -> Option<Reply> {
        let mut outgoing = lock(&self.outgoing);
        let next = outgoing.waiting.pop_front();
        if next.is_none() {
            outgoing.sending = false;
            outgoing.slow = false;
            outgoing.waiting.shrink_to(WAITING_KEPT);
            self.wake_connection(&mut outgoing);
        }
        next
    }

    /// Wakes the connection's thread only if it waits: waking is a system call, and this comes with
    /// each batch.
    fn wake_connection(&self, outgoing: &mut Outgoing) {
        if std::mem::take(&mut outgoing.awaited) {
            self.idle.notify_all();
        }
    }

    /// Writes without waiting; returns where it had to stop. A broken stream counts as taking
    /// everything.
    fn send_what_fits(&self, reply: &Reply) -> Option<usize> {
        let mut at = 0;
        while at < reply.bytes.len() {
            match self.stream.try_write(&reply.bytes[at..]) {
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(at),
                Err(_) => {
                    self.end_replies();
                    return None;
                }
            }
        }
        None
    }

    /// Sends all bytes, however long that takes.
    fn send_patiently(&self, bytes: &[u8]) -> io::Result<()> {
        self.sends.begin(&self.clients);
        let mut rest = bytes;
        let result = loop {
            if rest.is_empty() {
                break Ok(());
            }
            match self.stream.try_write(rest) {
                Ok(count) => {
                    self.sends.moved(count, &self.clients);
                    rest = &rest[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Err(error) = self.stream.wait(false, None) {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        if result.is_err() {
            self.end_replies();
        }
        self.sends.end();
        result
    }

    /// Whether the server waits for the client to take replies or to send the rest of a request.
    pub(crate) fn is_waited_for(&self) -> bool {
        [&self.receives, &self.sends].into_iter().any(Waiting::lasts)
    }

    /// Whether one of its requests waits for memory that others have.
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.asks.load(Relaxed)
    }

    /// Whether the client has leased memory and the server has waited for it longer than
    /// `patience`.
    pub(crate) fn is_stalled(&self, now_ms: u64, patience: Duration) -> bool {
        let is_late = |waiting: &Waiting| waiting.lasts_ms(now_ms) > patience.as_millis() as u64;
        let has_some = self.leased.iter().any(|leased| leased.load(Relaxed) > 0);
        has_some && (is_late(&self.receives) || is_late(&self.sends))
    }

    /// The server stops: takes in nothing more from the client than has come. If ending the reading
    /// would lose replies, the connection's thread is to be woken instead.
    pub(crate) fn drain(&self, may_be_woken: bool) {
        let forgets = self.stream.forgets();
        if forgets {
            self.let_leave();
        }
        if !(forgets && may_be_woken && self.has_begun()) {
            self.shutdown(Shutdown::Read);
        }
    }

    /// Takes in nothing more from the client; what it has asked for is answered. Ending the reading
    /// is not enough, since TCP still delivers what comes.
    pub(crate) fn let_leave(&self) {
        // The call that wakes the connection's thread, or the client's next byte, comes after this.
        self.leaves.store(true, Release);
    }

    /// Whether nobody will receive its replies.
    pub(crate) fn is_unheard(&self) -> bool {
        self.unheard.load(Relaxed) || self.is_given_up()
    }

    /// Whether even what it asked for to be changed may be left undone.
    pub(crate) fn is_given_up(&self) -> bool {
        self.cut_off.load(Relaxed) || (self.lost.load(Relaxed) && self.stream.is_gone())
    }

    /// Sending has failed. The stream may have ended within a reply: nothing must come after it.
    fn end_replies(&self) {
        self.unheard.store(true, Relaxed);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// It sends nothing more and has not said good-bye: whoever does may rely on it that what was
    /// asked for before is done.
    pub(crate) fn note_lost(&self) {
        self.lost.store(true, Relaxed);
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leaves.load(Acquire)
    }

    /// Cuts the client off and stops waiting for it.
    pub(crate) fn give_up(&self) {
        self.receives.end();
        self.sends.end();
        self.shutdown(Shutdown::Both);
    }

    /// Passes the `sending` flag on to a thread that may wait for the client.
    fn wait_elsewhere(self: &Arc<Self>, reply: Reply, at: usize) {
        {
            let mut outgoing = lock(&self.outgoing);
            outgoing.slow = true;
            self.wake_connection(&mut outgoing);
        }
        let peer = Arc::clone(self);
        let patient = move || {
            let mut result = peer.send_patiently(&reply.bytes[at..]);
            drop(reply);
            while let Some(reply) = peer.next_waiting() {
                if result.is_ok() {
                    result = peer.send_patiently(&reply.bytes);
                }
            }
        };
        if !self.clients.run_beside("nbd/slow", patient) {
            // Without a thread nothing can wait for the client: it is cut off, and its replies are
            // dropped.
            static FAILURES: RateLimit = RateLimit::new();
            let what = "no thread to wait for a slow client: it is cut off";
            FAILURES.log(|left_out| tracing::warn!(left_out, "{what}"));
            self.shutdown(Shutdown::Both);
            while let Some(reply) = self.next_waiting() {
                drop(reply);
            }
        }
    }

    /// Ends reading, or everything. A connection that is gone already is as good.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        if how == Shutdown::Both {
            self.cut_off.store(true, Relaxed);
        }
        let _ = self.stream.shutdown(how);
    }

    /// Whether a request of this weight would have to wait until others have landed.
    pub(crate) fn is_full(&self, weight: usize) -> bool {
        lock(&self.in_flight).has_no_room(weight)
    }

    /// Counts a request for a worker; waits while there are too many.
    pub(crate) fn take_off(self: &Arc<Self>, weight: usize, lease: Lease) -> Counted {
        let mut in_flight = lock(&self.in_flight);
        while in_flight.has_no_room(weight) {
            in_flight = self.wait_for_landing(in_flight);
        }
        in_flight.bytes += weight;
        drop(in_flight);
        Counted { lease, weight, own: 0 }
    }

    /// Counts replies for which no memory is leased, as long as there are few.
    fn take_off_own(self: &Arc<Self>, weight: usize) -> Option<Counted> {
        let mut in_flight = lock(&self.in_flight);
        if in_flight.has_no_room(weight) || in_flight.own + weight > OWN_REPLIES_MAX {
            return None;
        }
        in_flight.bytes += weight;
        in_flight.own += weight;
        drop(in_flight);
        Some(Counted { lease: self.no_lease(), weight, own: weight })
    }

    pub(crate) fn leased(&self, account: Account) -> &AtomicUsize {
        &self.leased[account as usize]
    }

    /// Leases memory for a request; waits while there is none left. The caller must hold no lease
    /// for another request.
    pub(crate) fn lease(self: &Arc<Self>, bytes: usize) -> Lease {
        self.lease_beside(bytes, || 0)
    }

    /// As [`Peer::lease`], but does not wait for the client's own leases: all the memory may be
    /// held by replies that the client takes only once it has sent the rest of its request.
    pub(crate) fn lease_for_rest(self: &Arc<Self>, bytes: usize) -> Lease {
        self.lease_beside(bytes, || self.leased(Account::Requests).load(Relaxed))
    }

    fn lease_beside(self: &Arc<Self>, bytes: usize, own: impl Fn() -> usize) -> Lease {
        let memory = self.clients.memory(Account::Requests);
        self.asks.store(true, Relaxed);
        let overdue = |waited| {
            self.clients.hang_up_on_stalled();
            self.clients.warn_of_waiting(self.export(), waited);
        };
        let bytes = memory.counted(bytes);
        memory.take(self.export(), bytes, own, overdue);
        self.asks.store(false, Relaxed);
        Lease::new(self, Account::Requests, bytes)
    }

    /// Leases memory, if there is some.
    pub(crate) fn try_lease(self: &Arc<Self>, account: Account, bytes: usize) -> Option<Lease> {
        let memory = self.clients.memory(account);
        let bytes = memory.counted(bytes);
        let taken = memory.try_take(self.export(), bytes);
        taken.then(|| Lease::new(self, account, bytes))
    }

    fn no_lease(self: &Arc<Self>) -> Lease {
        Lease::new(self, Account::Requests, 0)
    }

    fn land(&self, weight: usize, own: usize) {
        let mut in_flight = lock(&self.in_flight);
        in_flight.bytes -= weight;
        in_flight.own -= own;
        if std::mem::take(&mut in_flight.awaited) {
            self.landed.notify_all();
        }
    }

    /// Waits until workers have done everything and their replies are sent, or the client is gone.
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
        wait(&self.landed, in_flight)
    }
}
