//! One client: after negotiation, carries out requests until the client leaves or the server ends.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use homing::{HandOff, blocking};
use homing_nbd::wire::{self, Errno};
use homing_nbd::{Command, Export, RequestHeader, Session, reply, validate};
use homing_volume::{Block, BlockError, Done, Durability};

use crate::batch::Batch;
use crate::buffers::{Inbox, Outbox};
use crate::busy_poll::BusyPoll;
use crate::counters::Asked;
use crate::job::{Job, answer, no_memory};
use crate::memory::{Account, Lease};
use crate::negotiation::{End, negotiate};
use crate::peer::Peer;
use crate::pool::{BATCH_LEN, Payload, SHORT_LEN, SHORT_MAX};
use crate::punching::{self, Punch, Punching};
use crate::server::{CryptOn, Shared};

/// How long a client that has been answered may take to end its side. Guessed: several trips around
/// the world.
const LINGER: Duration = Duration::from_secs(2);

/// What a queued request weighs besides its payload.
const IN_FLIGHT_BASE: usize = 4096;
/// Extents in one block status reply; the spec allows 2^20.
const EXTENT_COUNT_MAX: usize = 4096;

/// So many requests of a client that is gone are kept until it turns out whether it has said
/// good-bye. Guessed: more than a client has under way.
const DEFERRED_MAX: usize = 10_000;
/// Batches of replies after which a connection lets other threads go first: the scheduler's time
/// slices are longer than clients like to wait. Measured with 24 clients on 2 CPUs: p99 falls by a
/// fifth, at no cost; with 3 in place of 8 it falls by 40 %, for 5 % more CPU time.
const SENDS_IN_A_ROW: u32 = 8;

/// A client that goes on has sent this many bytes of a long request while that waited for memory,
/// if it waited for this long: the system keeps more for us.
const CAME_MEANWHILE: usize = 32 << 10;
const WAITED: Duration = Duration::from_secs(1);

/// Serves one client from its first byte to its last.
pub(crate) fn serve(shared: &Arc<Shared>, peer: &Arc<Peer>) -> Result<(), End> {
    let mut inbox = Inbox::new(&shared.pool);
    let Some(session) = negotiate(shared, peer, &mut inbox)? else { return Ok(()) };
    let export = &shared.told[session.export_index];
    let device = Arc::clone(&shared.devices[session.export_index]);
    peer.begin(session.export_index);
    tracing::debug!(export = export.name, ?session, "transmission begins");
    let mut connection = Connection {
        shared: Arc::clone(shared),
        peer: Arc::clone(peer),
        export: export.clone(),
        session,
        device,
        inbox,
        outbox: Outbox::new(&shared.pool),
        batch: Batch::default(),
        spare: None,
        sends: 0,
        said_good_bye: false,
        unheard: None,
        deferred: Vec::new(),
        came: Instant::now(),
        polls: BusyPoll::new(&shared.pollers),
    };
    let ended = connection.transmit();
    let ended =
        ended.and(connection.unheard.take().map_or(Ok(()), |error| Err(End::Stream(error))));
    if !connection.said_good_bye {
        peer.note_lost();
    }
    connection.deferred.drain(..).for_each(|_| peer.tally.note_given_up());
    // If rubbish followed instead of a request, the requests before it are done all the same.
    let result = ended.and(connection.run_batch());
    if let Err(End::NoMemory(_)) = result {
        // The client may be waiting for us as we would wait for it.
        peer.shutdown(Shutdown::Both);
    }
    // Whatever ended the connection, requests that workers have are finished, and answered if
    // possible.
    peer.wait_until_landed();
    peer.stream.linger(LINGER);
    result
}

struct Connection {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    export: Export,
    session: Session,
    device: Arc<dyn Block>,
    inbox: Inbox,
    outbox: Outbox,
    batch: Batch,
    /// Memory for the long request that is being carried out.
    spare: Option<Lease>,
    /// Batches sent since other threads were last let go first.
    sends: u32,
    said_good_bye: bool,
    /// Why nobody receives replies any more. What the client had asked for before is done all the
    /// same: it may have said good-bye behind that.
    unheard: Option<io::Error>,
    /// What may be any amount, and came after nobody received replies any more: done only if the
    /// client says good-bye behind it. Requests under way may be done in any order.
    deferred: Vec<(Asked, Punch, u64, u32, bool)>,
    /// When the last bytes came.
    came: Instant,
    polls: BusyPoll,
}

impl Connection {
    fn transmit(&mut self) -> Result<(), End> {
        loop {
            if !self.wait_for(wire::REQUEST_LEN)? {
                return Ok(());
            }
            let header = self.inbox.take(wire::REQUEST_LEN);
            let header: &[u8; wire::REQUEST_LEN] =
                (&*header).try_into().expect("take gives as many bytes as asked for");
            let request = RequestHeader::parse(header)?;
            let checked = validate(&request, &self.export, &self.session);
            match checked {
                Ok(Command::Disconnect) => {
                    self.said_good_bye = true;
                    for (asked, what, offset, length, fua) in std::mem::take(&mut self.deferred) {
                        self.punch(asked, what, offset, length, fua)?;
                    }
                    self.send()?;
                    return Ok(());
                }
                Ok(command) => {
                    if !matches!(command, Command::Write { .. }) {
                        self.peer.tally.note_request();
                    }
                    let is_long = self.lease_for(&command)?;
                    let asked = Asked::new(request.cookie, &command, self.came);
                    if !self.execute(asked, command)? {
                        return Ok(());
                    }
                    if is_long {
                        self.send()?;
                        self.inbox.end_long()?;
                        self.spare = None;
                    }
                }
                Err(refusal) => {
                    tracing::debug!(?request, refusal.message, "refused");
                    if !self.skip(request.payload_len())? {
                        return Ok(());
                    }
                    self.refuse(request.cookie, refusal.errno, &refusal.message)?;
                }
            }
            if self.deferred.len() > DEFERRED_MAX {
                return Ok(());
            }
            if self.outbox.len() + self.batch.read_len() >= BATCH_LEN {
                self.send()?;
            } else if self.batch.is_full() {
                self.run_batch()?;
            }
        }
    }

    /// Waits until `count` bytes have come. False if the stream ended before that, or is to end.
    /// Replies are sent before waiting, since the client may be waiting for them.
    fn wait_for(&mut self, count: usize) -> Result<bool, End> {
        let mut idle_within = None;
        while self.inbox.len() < count {
            self.send()?;
            // Sending may have taken in what we wait for.
            if self.inbox.len() >= count {
                break;
            }
            if self.peer.is_leaving() {
                return Ok(false);
            }
            // While we wait, others can use the outbox's memory.
            self.outbox.release();
            if count <= BATCH_LEN {
                // The requests that were taken in ahead are done by now.
                self.inbox.shrink()?;
            }
            let has_lease = self.spare.is_some() || self.inbox.has_lease() || idle_within.is_some();
            if has_lease {
                self.peer.receives.begin(&self.peer.clients);
            }
            let (stream, polls) = (&self.peer.stream, &mut self.polls);
            let filled = self.inbox.fill_by(count, |buffer| {
                polls.read(buffer, |buffer| stream.poll(buffer), |buffer| stream.read(buffer))
            });
            match filled {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    self.peer.came(count);
                    self.came = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // The client is idle: the connection can wait without a buffer.
                    self.inbox.release();
                    self.batch.release();
                    self.shared.pool.rest();
                    if self.inbox.len() == 0 || has_lease {
                        self.peer.stream.wait_for_input(self.peer.clients.stops())?;
                        continue;
                    }
                    // The client paused within a request, so the buffer stays. From now on it
                    // counts as memory that others may need.
                    idle_within = self.peer.try_lease(Account::Requests, SHORT_LEN);
                    if idle_within.is_none() {
                        self.peer.clients.hang_up_on_stalled();
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.peer.receives.end();
        Ok(true)
    }

    /// Leases memory for a long request before it begins: for the data that comes or goes, and for
    /// a copy of it. Returns whether the request is long. Replies that are ready are sent first, so
    /// that no client waits for them meanwhile.
    fn lease_for(&mut self, command: &Command) -> Result<bool, End> {
        let (Command::Read { length, .. } | Command::Write { length, .. }) = *command else {
            return Ok(false);
        };
        let is_read = matches!(command, Command::Read { .. });
        if length as usize <= SHORT_MAX || is_read && self.peer.is_unheard() {
            return Ok(false);
        }
        self.send()?;
        let each = IN_FLIGHT_BASE + Payload::weight(length as usize);
        let began = Instant::now();
        self.spare = Some(self.peer.lease_for_rest(2 * each));
        let waited = began.elapsed();
        if waited > WAITED && matches!(command, Command::Write { .. }) {
            // More could have come meanwhile. So a client that has waited for long is given little
            // time from now on: many that do not go on would otherwise keep the memory for all that
            // time one after the other.
            if self.inbox.len() + self.peer.stream.pending() < CAME_MEANWHILE {
                self.peer.receives.begin_late(&self.peer.clients, waited);
            }
        }
        Ok(true)
    }

    /// Carries out the batch and sends all replies. The inbox may hold more afterwards.
    fn send(&mut self) -> Result<(), End> {
        self.run_batch()?;
        if self.outbox.len() > 0 {
            let (bytes, spare, began) = (self.outbox.bytes(), &mut self.spare, Instant::now());
            let requests_wait = self.inbox.len() >= wire::REQUEST_LEN;
            if let Err(error) = self.peer.send_and_receive(bytes, &mut self.inbox, spare) {
                if error.kind() == io::ErrorKind::OutOfMemory {
                    return Err(error.into());
                }
                self.unheard.get_or_insert(error);
            }
            // What waits in the inbox has waited for its own client, or has come only now.
            let now = Instant::now();
            self.came = if requests_wait { self.came + (now - began) } else { now };
            self.outbox.clear();
            self.sends += 1;
            if self.sends == SENDS_IN_A_ROW {
                self.sends = 0;
                thread::yield_now();
            }
        }
        Ok(())
    }

    /// Skips a payload that is not wanted, so that the next request is found. The payload is never
    /// held as a whole.
    fn skip(&mut self, length: u32) -> Result<bool, End> {
        let mut rest = length as usize;
        while rest > 0 {
            if !self.wait_for(1)? {
                return Ok(false);
            }
            let count = rest.min(self.inbox.len());
            self.inbox.consume(count);
            rest -= count;
        }
        Ok(true)
    }

    fn refuse(&mut self, cookie: u64, errno: Errno, message: &str) -> Result<(), End> {
        let session = self.session;
        Ok(self.outbox.push(|bytes| reply::error(bytes, &session, cookie, errno, message))?)
    }

    /// Carries out a command, here or on a worker. False if the stream ended within it.
    fn execute(&mut self, mut asked: Asked, command: Command) -> Result<bool, End> {
        let may_wait = match command {
            Command::Read { offset, length } => !self.batch.bars_read(offset, length),
            Command::Write { offset, length, fua } => {
                !fua && !self.batch.bars_write(offset, length)
            }
            _ => false,
        };
        if !may_wait {
            self.run_batch()?;
        }
        match command {
            Command::Read { offset, length } => self.read(asked, offset, length)?,
            Command::Write { offset, length, fua } => {
                if self.inbox.len() < length as usize {
                    if !self.wait_for(length as usize)? {
                        return Ok(false);
                    }
                    asked.came_later(self.came);
                }
                self.peer.tally.note_request();
                self.write(asked, offset, length, fua)?;
            }
            Command::WriteZeroes { fast: true, .. } => {
                let message = "zeroes are written, which is not fast";
                self.peer.note_answer(&asked, true);
                self.refuse(asked.cookie, Errno::NotSupported, message)?;
            }
            Command::WriteZeroes { offset, length, fua, .. } => {
                self.punch(asked, Punch::Zeroes, offset, length, fua)?;
            }
            Command::Trim { offset, length, fua } => {
                self.punch(asked, Punch::Discard, offset, length, fua)?;
            }
            Command::Cache { offset, length } => {
                self.device.prefetch(offset, length.into());
                self.answer(&asked, Ok(()))?;
            }
            Command::BlockStatus { offset, length, one } => {
                self.block_status(&asked, offset, length, one)?;
            }
            Command::Flush => self.flush(asked)?,
            Command::Disconnect => unreachable!("transmit ends on it"),
        }
        Ok(true)
    }

    /// Decides whether a request of `length` bytes goes to the workqueue. If so, leases memory for
    /// the `held` bytes of it that wait there. The first `unread` bytes of the inbox belong to the
    /// request; if a whole request follows them, this thread has something else to do.
    fn hand_off(&mut self, length: u32, held: u32, unread: usize) -> Result<Option<Lease>, End> {
        let hand_off = match self.shared.crypt_on {
            CryptOn::Connection => HandOff::Inline,
            CryptOn::Workqueue => HandOff::Queue,
            CryptOn::Auto => {
                let more = self.inbox.len() >= unread + wire::REQUEST_LEN;
                self.shared.crypt.hand_off(self.device.cost_ns(length.into()), more)
            }
        };
        if hand_off == HandOff::Queue { self.lease_held(held) } else { Ok(None) }
    }

    /// Leases memory for what another thread is to hold: from the request's own lease, or from what
    /// is left.
    fn lease_held(&mut self, held: u32) -> Result<Option<Lease>, End> {
        let bytes = IN_FLIGHT_BASE + Payload::weight(held as usize);
        // Send now, while the request holds nothing but the lease that it had before.
        self.send_if_full(held)?;
        let spared = self.spare.as_mut().and_then(|spare| spare.split(bytes));
        Ok(spared.or_else(|| self.peer.try_lease(Account::Requests, bytes)))
    }

    fn read(&mut self, asked: Asked, offset: u64, length: u32) -> Result<(), End> {
        if self.peer.is_unheard() {
            // A client may have asked for any amount before it went. Its writes are done.
            self.peer.tally.note_given_up();
            return Ok(());
        }
        if let Some(lease) = self.hand_off(length, length, 0)? {
            let (bytes, start) = reply::read_header(&self.session, asked.cookie, offset, length);
            let header = &bytes[start..];
            let job = self.job(asked, length, lease);
            let device = Arc::clone(&self.device);
            let (header, pool) = (header.to_vec(), Arc::clone(&self.shared.pool));
            let work = move || {
                if job.is_unheard() {
                    return;
                }
                let room = Payload::new(&pool, header.len() + length as usize);
                let room = room.map_err(|error| no_memory(offset, length, error));
                let read = room.and_then(|mut bytes| {
                    bytes[..header.len()].copy_from_slice(&header);
                    device.read(offset, &mut bytes[header.len()..])?;
                    Ok(bytes)
                });
                match read {
                    Ok(bytes) => job.send(bytes),
                    Err(error) => job.answer(Err(error)),
                }
            };
            self.shared.crypt.execute(work);
            return Ok(());
        }
        let replies = self.outbox.len() + self.batch.read_len();
        if replies > 0 && replies + length as usize > 2 * BATCH_LEN {
            self.send()?;
        }
        self.batch.read(asked, offset, length);
        Ok(())
    }

    fn write(&mut self, asked: Asked, offset: u64, length: u32, fua: bool) -> Result<(), End> {
        if fua {
            return self.write_durably(asked, offset, length);
        }
        let lease = self.hand_off(length, length, length as usize)?;
        let Some((lease, mut data)) = self.copy_unread(length, lease) else {
            let data = self.inbox.take_range(length as usize);
            self.batch.write(asked, offset, data);
            return Ok(());
        };
        // Workers keep no order, but this write need not overtake what came before it.
        self.run_batch()?;
        self.inbox.take(length as usize);
        let work = move |device: &dyn Block| device.write(offset, &mut data, Durability::Written);
        self.queue(asked, length, lease, work);
        Ok(())
    }

    /// Copies the next `length` bytes of the inbox for another thread. `None` if there is no lease
    /// or no memory for them: then this thread carries the request out.
    fn copy_unread(&self, length: u32, lease: Option<Lease>) -> Option<(Lease, Payload)> {
        let (lease, data) = (lease?, &self.inbox.bytes()[..length as usize]);
        Some((lease, Payload::copy_of(&self.shared.pool, data).ok()?))
    }

    fn run_batch(&mut self) -> Result<(), End> {
        if !self.batch.is_empty() {
            let told = (&self.session, &*self.peer);
            self.batch.run(&*self.device, told, &mut self.inbox, &mut self.outbox)?;
        }
        Ok(())
    }

    /// Makes everything durable. This waits for the disk and needs no CPU, so another thread gets
    /// it at once. If syncs are shared and one is under way, the request waits for the next one
    /// without a thread.
    fn flush(&mut self, asked: Asked) -> Result<(), End> {
        // Each flush is small, but there may be many.
        let Some(lease) = self.lease_held(0)? else {
            let result = self.device.flush();
            return self.answer(&asked, result);
        };
        let job = self.job(asked, 0, lease);
        let (device, shared) = (Arc::clone(&self.device), Arc::clone(&self.shared));
        let done: Done = Box::new(move |result| job.answer(result));
        let flush = move || {
            blocking(|| device.flush_through(&shared.durable, done));
        };
        self.shared.flushes[self.session.export_index].execute(flush);
        Ok(())
    }

    /// Writes on another thread, since this waits for the disk as a flush does, and may share a
    /// sync with others as a flush may: the requests behind it on this connection have to come in
    /// meanwhile.
    fn write_durably(&mut self, asked: Asked, offset: u64, length: u32) -> Result<(), End> {
        let lease = self.lease_held(length)?;
        let Some((lease, mut data)) = self.copy_unread(length, lease) else {
            let data = self.inbox.take(length as usize);
            let result = self.device.write(offset, data, Durability::Flushed);
            return self.answer(&asked, result);
        };
        self.inbox.take(length as usize);
        let job = self.job(asked, length, lease);
        let (device, shared) = (Arc::clone(&self.device), Arc::clone(&self.shared));
        let done = Box::new(move |result| job.answer(result));
        let work = move || {
            blocking(|| device.write_through(&shared.durable, offset, &mut data, done));
        };
        self.shared.flushes[self.session.export_index].execute(work);
        Ok(())
    }

    /// Writes zeroes, or discards, on this thread or on workers, and answers.
    fn punch(
        &mut self,
        asked: Asked,
        what: Punch,
        offset: u64,
        length: u32,
        fua: bool,
    ) -> Result<(), End> {
        if !self.said_good_bye && self.peer.is_unheard() {
            self.deferred.push((asked, what, offset, length, fua));
            return Ok(());
        }
        let weight = length.min(punching::WEIGHT_MAX);
        self.send_if_full(weight)?;
        // Long ones are nothing for this thread: other requests of its client would wait for it.
        let queued = fua || u64::from(length) > what.piece();
        let lease = match what {
            _ if queued => self.lease_held(0)?,
            Punch::Zeroes => self.hand_off(length, 0, 0)?,
            Punch::Discard => None, // it takes no time worth a worker
        };
        let Some(lease) = lease else {
            let written = what.run(&*self.device, offset, length.into());
            let result = written.and_then(|()| if fua { self.device.flush() } else { Ok(()) });
            return self.answer(&asked, result);
        };
        let job = self.job(asked, weight, lease);
        let (device, shared) = (Arc::clone(&self.device), Arc::clone(&self.shared));
        let export = self.session.export_index;
        let (next, end) = (offset, offset + u64::from(length));
        Punching { what, job, device, shared, export, next, end, fua }.queue();
        Ok(())
    }

    /// If a request of this weight has to wait for others, sends the replies that are ready, so
    /// that they do not wait with it.
    fn send_if_full(&mut self, weight: u32) -> Result<(), End> {
        if self.peer.is_full(IN_FLIGHT_BASE + weight as usize) {
            self.send()?;
        }
        Ok(())
    }

    fn queue<F>(&mut self, asked: Asked, length: u32, lease: Lease, work: F)
    where
        F: FnOnce(&dyn Block) -> Result<(), BlockError> + Send + 'static,
    {
        let job = self.job(asked, length, lease);
        let device = Arc::clone(&self.device);
        self.shared.crypt.execute(move || job.answer(work(&*device)));
    }

    /// A request of this length for a worker, with the memory leased for it.
    fn job(&self, asked: Asked, length: u32, lease: Lease) -> Job {
        let counted = self.peer.take_off(IN_FLIGHT_BASE + length as usize, lease);
        Job::new(self.session, asked, counted)
    }

    fn answer(&mut self, asked: &Asked, result: Result<(), BlockError>) -> Result<(), End> {
        self.peer.note_answer(asked, result.is_ok());
        Ok(answer(&mut self.outbox, (&self.session, &self.peer), asked, result)?)
    }

    fn block_status(
        &mut self,
        asked: &Asked,
        offset: u64,
        length: u32,
        one: bool,
    ) -> Result<(), End> {
        let count_max = if one { 1 } else { EXTENT_COUNT_MAX };
        match self.device.extents(offset, length.into(), count_max) {
            Ok(extents) => {
                let extents: Vec<_> = extents
                    .iter()
                    .map(|extent| reply::Extent {
                        // No extent is longer than the range asked for, whose length has 32 bits.
                        length: extent.length as u32,
                        // A hole of an encrypted volume reads as noise: never "zero".
                        state: if extent.allocated { 0 } else { wire::STATE_HOLE },
                    })
                    .collect();
                self.peer.note_answer(asked, true);
                let cookie = asked.cookie;
                Ok(self.outbox.push(|bytes| reply::block_status(bytes, cookie, &extents))?)
            }
            Err(error) => self.answer(asked, Err(error)),
        }
    }
}
