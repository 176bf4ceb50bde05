//! All clients that are connected, and what they share.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use homing_socket::{RateLimit, check_room_for_thread};
use rustix::event::{EventfdFlags, eventfd};

use crate::counters::ExportCounters;
use crate::memory::{Account, Memory};
use crate::peer::Peer;
use crate::sync::{lock, wait_for};

/// How long clients that were hung up on may take to leave.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Milliseconds between two looks for clients that do not go on.
const LOOK_MS: u64 = 300;

/// At most so many have to leave at a time: each has its thread until it has left.
const LEAVING_MAX: usize = 64;

/// Stack of a thread that is no connection's own.
const STACK_BESIDE: usize = 64 << 10;

/// The part of the memory that is for what is taken in ahead of requests: one in this many.
const AHEAD: usize = 4;

/// Mappings that a client's thread takes, as measured (its stack, the one for signals, the guards
/// of both, and what is allocated within a request), and those for everything else. A thread that
/// begins when there are no more mappings ends the whole process.
const MAPPINGS_EACH: usize = 5;
const MAPPINGS_ELSE: usize = 8192;

#[derive(Debug)]
pub(crate) struct Clients {
    count_max: usize,
    /// Threads that there may be for clients, and those that there are besides the connections'
    /// own.
    threads_max: usize,
    threads_beside: AtomicUsize,
    /// How long a client may keep memory that others wait for without going on.
    patience: Duration,
    /// How long a draining server waits for clients before it hangs up.
    drain_timeout: Duration,
    for_requests: Memory,
    ahead: Memory,
    exports: Vec<ExportCounters>,
    began: Instant,
    /// When a thread last looked for clients that do not go on, in milliseconds.
    looked_ms: AtomicU64,
    /// Can be read once the server stops; `None` if the process was out of files when the server
    /// began.
    stops: Option<OwnedFd>,
    peers: Mutex<Peers>,
    peer_left: Condvar,
}

#[derive(Debug, Default)]
struct Peers {
    next_id: u64,
    connected: HashMap<u64, Arc<Peer>>,
    /// Those of them that had to make room for others.
    leaving: HashSet<u64>,
}

impl Peers {
    /// How many there are when those that have to leave have left.
    fn staying(&self) -> usize {
        self.connected.len() - self.leaving.len()
    }

    /// Hangs up on who has negotiated for the longest time: whoever can connect could otherwise
    /// keep everybody else out, without a certificate and without a word. False if there is nobody,
    /// or too many are leaving.
    fn make_room(&mut self) -> bool {
        if self.leaving.len() >= LEAVING_MAX {
            return false;
        }
        let negotiates =
            |(id, peer): &(&u64, &Arc<Peer>)| !peer.has_begun() && !self.leaving.contains(*id);
        let oldest = self.connected.iter().filter(negotiates).min_by_key(|(id, _)| **id);
        let Some((id, peer)) = oldest else { return false };
        peer.give_up();
        self.leaving.insert(*id);
        true
    }
}

impl Clients {
    pub(crate) fn new(
        count_max: usize,
        memory_max: usize,
        exports: Vec<String>,
        patience: Duration,
        drain_timeout: Duration,
    ) -> Self {
        let threads_max = threads_max();
        if threads_max < count_max {
            let what = "more clients than there can be threads: raise the sysctl vm.max_map_count";
            tracing::warn!(connections_max = count_max, threads_max, "{what}");
        }
        Self {
            count_max,
            threads_max,
            threads_beside: AtomicUsize::new(0),
            patience,
            drain_timeout,
            for_requests: Memory::new(memory_max - memory_max / AHEAD, exports.len()),
            ahead: Memory::new(memory_max / AHEAD, exports.len()),
            exports: exports.into_iter().map(ExportCounters::new).collect(),
            began: Instant::now(),
            looked_ms: AtomicU64::new(0),
            stops: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok(),
            peers: Mutex::default(),
            peer_left: Condvar::new(),
        }
    }

    /// In the order in which they are served.
    pub(crate) fn exports(&self) -> &[ExportCounters] {
        &self.exports
    }

    /// Those that are connected, in the order in which they came.
    pub(crate) fn connected(&self) -> Vec<(u64, Arc<Peer>)> {
        let peers = self.peers();
        let mut all: Vec<_> =
            peers.connected.iter().map(|(id, peer)| (*id, Arc::clone(peer))).collect();
        drop(peers);
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// Calls `look` with each that is connected. Nobody can come or go meanwhile.
    pub(crate) fn look_at(&self, look: impl FnMut(&Peer)) {
        self.peers().connected.values().map(Arc::as_ref).for_each(look);
    }

    pub(crate) fn memory(&self, account: Account) -> &Memory {
        match account {
            Account::Requests => &self.for_requests,
            Account::Ahead => &self.ahead,
        }
    }

    /// For threads that wait for clients: can be read once the server stops.
    pub(crate) fn stops(&self) -> Option<BorrowedFd<'_>> {
        self.stops.as_ref().map(AsFd::as_fd)
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        lock(&self.peers)
    }

    /// Milliseconds since the server began; never 0.
    pub(crate) fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64 + 1
    }

    /// Registers a client; `None` if there are too many. One that still negotiates makes room for
    /// it, if there is one.
    pub(crate) fn register(&self, peer: &Arc<Peer>) -> Option<u64> {
        static REFUSALS: RateLimit = RateLimit::new();
        let mut peers = self.peers();
        let for_threads = self.threads_max.saturating_sub(self.threads_beside.load(Relaxed));
        let limit = self.count_max.min(for_threads);
        if peers.staying() >= limit {
            let has_room = limit > 0 && peers.make_room();
            let what = if has_room {
                "too many connections: the one that has negotiated for the longest time is ended"
            } else {
                "too many connections"
            };
            REFUSALS.log(|left_out| tracing::warn!(limit, left_out, "{what}"));
            if !has_room {
                return None;
            }
        }
        peers.next_id += 1;
        let id = peers.next_id;
        peers.connected.insert(id, Arc::clone(peer));
        Some(id)
    }

    /// Runs `work`, which needs little stack, on a thread besides the connections' own. False if
    /// there can be no such thread.
    pub(crate) fn run_beside(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> bool {
        let Some(counted) = self.count_thread() else { return false };
        let builder = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BESIDE);
        let body = move || {
            work();
            drop(counted);
        };
        check_room_for_thread().and_then(|()| builder.spawn(body)).is_ok()
    }

    /// Counts such a thread; `None` if there are too many.
    fn count_thread(self: &Arc<Self>) -> Option<ThreadBeside> {
        let connected = self.peers().connected.len();
        let one_more =
            |beside: usize| (connected + beside < self.threads_max).then_some(beside + 1);
        self.threads_beside.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(ThreadBeside(Arc::clone(self)))
    }

    pub(crate) fn unregister(&self, id: u64) {
        let mut peers = self.peers();
        let gone = peers.connected.remove(&id);
        peers.leaving.remove(&id);
        drop(peers);
        self.peer_left.notify_all();
        drop(gone);
    }

    /// A thread waits for memory: cuts off the clients that keep some and do not go on.
    pub(crate) fn hang_up_on_stalled(&self) {
        let now_ms = self.now_ms();
        if !self.is_time_to_look(now_ms) {
            return;
        }
        for (id, peer) in &self.peers().connected {
            if peer.is_stalled(now_ms, self.patience) {
                static STALLED: RateLimit = RateLimit::new();
                let what = "a client keeps memory that others wait for: it is cut off";
                let from = peer.stream.peer();
                STALLED.log(|left_out| tracing::warn!(id, from, left_out, "{what}"));
                peer.give_up();
            }
        }
    }

    pub(crate) fn patience_ms(&self) -> u64 {
        self.patience.as_millis() as u64
    }

    /// A request to an export has waited for memory so long: if that is longer than clients may
    /// keep it, it is the disks that keep it.
    pub(crate) fn warn_of_waiting(&self, export: usize, waited: Duration) {
        if waited > 2 * self.patience {
            static WAITING: RateLimit = RateLimit::new();
            let what = "a request waits for memory that others have: more are served with a larger \
                --request-memory, and none while a disk does not answer";
            let export = self.exports.get(export).map(|export| &*export.name);
            WAITING.log(|left_out| tracing::warn!(export, ?waited, left_out, "{what}"));
        }
    }

    /// Many threads may wait, and ask; one of them looks, now and then.
    fn is_time_to_look(&self, now_ms: u64) -> bool {
        let looked_ms = self.looked_ms.load(Relaxed);
        now_ms.saturating_sub(looked_ms) >= LOOK_MS
            && self.looked_ms.compare_exchange(looked_ms, now_ms, Relaxed, Relaxed).is_ok()
    }

    /// Lets every connection finish what it has received, for a while; then hangs up on clients
    /// that are waited for. Returns whether all have left; those that have not wait for a disk.
    pub(crate) fn drain(&self) -> bool {
        let peers = self.peers();
        peers.connected.values().for_each(|peer| peer.drain(self.stops.is_some()));
        drop(peers);
        // Only now, so that a thread that is woken sees that it is to leave.
        if let Some(stops) = &self.stops {
            // Its counter cannot be full.
            let _ = rustix::io::write(stops, &1_u64.to_ne_bytes());
        }
        let deadline = Instant::now() + self.drain_timeout;
        if self.wait_until_gone(deadline) {
            return true;
        }
        self.hang_up();
        self.wait_until_gone(Instant::now() + LEAVE_TIMEOUT)
    }

    /// Waits for the connections that wait for a disk.
    pub(crate) fn wait_for_the_rest(&self) {
        while !self.wait_until_gone(Instant::now() + LEAVE_TIMEOUT) {
            self.hang_up();
        }
    }

    fn wait_until_gone(&self, deadline: Instant) -> bool {
        let mut peers = self.peers();
        while !peers.connected.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            peers = wait_for(&self.peer_left, peers, left);
        }
        true
    }

    /// Hangs up on the clients that do not take their replies or do not send the rest of a request,
    /// and on those whose requests have not begun because they wait for memory: one after the other
    /// would keep it from the next. What is being done for the others is answered, but what they go
    /// on to send is not.
    fn hang_up(&self) {
        for (id, peer) in &self.peers().connected {
            if peer.is_waited_for() || peer.waits_for_memory() {
                static HUNG_UP: RateLimit = RateLimit::new();
                let what = "a client does not go on, or waits for memory: hanging up";
                let from = peer.stream.peer();
                HUNG_UP.log(|left_out| tracing::warn!(id, from, left_out, "{what}"));
                peer.give_up();
            } else {
                peer.let_leave();
            }
        }
    }
}

/// Counts a thread besides the connections' own, for as long as it lives.
#[derive(Debug)]
struct ThreadBeside(Arc<Clients>);

impl Drop for ThreadBeside {
    fn drop(&mut self) {
        self.0.threads_beside.fetch_sub(1, Relaxed);
    }
}

/// How many threads there may be for clients.
fn threads_max() -> usize {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    let mappings = text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(usize::MAX);
    mappings.saturating_sub(MAPPINGS_ELSE) / MAPPINGS_EACH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_beside_those_of_connections_are_counted() {
        let mut clients = Clients::new(1, 1, Vec::new(), Duration::ZERO, Duration::ZERO);
        clients.threads_max = 2;
        let clients = Arc::new(clients);
        let both = (clients.count_thread(), clients.count_thread());
        assert!(both.0.is_some() && both.1.is_some() && clients.count_thread().is_none());
        drop(both);
        assert!(clients.count_thread().is_some());
        assert!(threads_max() > 1000, "{}", threads_max());
    }

    #[test]
    fn however_often_somebody_asks_it_is_looked_now_and_then() {
        let clients = Clients::new(1, 1, Vec::new(), Duration::ZERO, Duration::ZERO);
        let looks =
            (1..=30).filter(|tenths| clients.is_time_to_look(tenths * LOOK_MS / 10)).count();
        assert_eq!(looks, 3);
    }
}
