//! All clients that are connected, and what they have together.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use homing_socket::RateLimit;
use rustix::event::{EventfdFlags, eventfd};

use crate::memory::{Account, Memory};
use crate::peer::Peer;

/// How long clients that were hung up on may take to leave.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two looks for clients that do not go on.
const LOOK_MS: u64 = 300;

/// Stack of a thread beside those of the connections.
const STACK_BESIDE: usize = 64 << 10;

/// The part of memory for what is taken in ahead of requests: one in so many.
const AHEAD: usize = 4;

/// Mappings that a client's thread takes, as measured (its stack, the one for signals, the guards of both, and
/// what is allocated within a request), and those for all else: a thread that begins where there are no more
/// ends the whole process.
const MAPPINGS_EACH: usize = 5;
const MAPPINGS_ELSE: usize = 8192;

#[derive(Debug)]
pub(crate) struct Clients {
    count_max: usize,
    /// Threads that there may be for clients, and those beside that of each connection.
    threads_max: usize,
    threads_beside: AtomicUsize,
    /// How long one may keep memory that others wait for without going on.
    patience: Duration,
    /// How long a draining server waits for them before it hangs up.
    drain_timeout: Duration,
    for_requests: Memory,
    ahead: Memory,
    began: Instant,
    /// When it was last looked for some that do not go on, in milliseconds.
    looked_ms: AtomicU64,
    /// Can be read once the server stops; `None` where the process was out of files when it began.
    stops: Option<OwnedFd>,
    peers: Mutex<Peers>,
    peer_left: Condvar,
}

#[derive(Debug, Default)]
struct Peers {
    next_id: u64,
    connected: HashMap<u64, Arc<Peer>>,
}

impl Clients {
    pub(crate) fn new(
        count_max: usize,
        memory_max: usize,
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
            for_requests: Memory::new(memory_max - memory_max / AHEAD),
            ahead: Memory::new(memory_max / AHEAD),
            began: Instant::now(),
            looked_ms: AtomicU64::new(0),
            stops: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok(),
            peers: Mutex::default(),
            peer_left: Condvar::new(),
        }
    }

    pub(crate) fn memory(&self, account: Account) -> &Memory {
        match account {
            Account::Requests => &self.for_requests,
            Account::Ahead => &self.ahead,
        }
    }

    /// For those who wait for clients to be woken when the server stops.
    pub(crate) fn stops(&self) -> Option<BorrowedFd<'_>> {
        self.stops.as_ref().map(AsFd::as_fd)
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the server began; never 0.
    pub(crate) fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64 + 1
    }

    /// Enters a client; `None` where there are too many.
    pub(crate) fn register(&self, peer: &Arc<Peer>) -> Option<u64> {
        let mut peers = self.peers();
        let for_threads = self.threads_max.saturating_sub(self.threads_beside.load(Relaxed));
        let limit = self.count_max.min(for_threads);
        if peers.connected.len() >= limit {
            static REFUSALS: RateLimit = RateLimit::new();
            REFUSALS.log(|left_out| tracing::warn!(limit, left_out, "too many connections"));
            return None;
        }
        peers.next_id += 1;
        let id = peers.next_id;
        peers.connected.insert(id, Arc::clone(peer));
        Some(id)
    }

    /// Runs this, which needs little of a stack, on a thread beside those of the connections, if there can
    /// be one. Whether there is.
    pub(crate) fn run_beside(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> bool {
        let Some(counted) = self.count_thread() else { return false };
        let builder = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BESIDE);
        let begun = builder.spawn(move || {
            work();
            drop(counted);
        });
        begun.is_ok()
    }

    /// Counts such a thread; `None` where there are too many.
    fn count_thread(self: &Arc<Self>) -> Option<ThreadBeside> {
        let connected = self.peers().connected.len();
        let one_more =
            |beside: usize| (connected + beside < self.threads_max).then_some(beside + 1);
        self.threads_beside.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(ThreadBeside(Arc::clone(self)))
    }

    pub(crate) fn unregister(&self, id: u64) {
        let gone = self.peers().connected.remove(&id);
        self.peer_left.notify_all();
        drop(gone);
    }

    /// Somebody waits for memory: cuts those off that keep some and do not go on.
    pub(crate) fn hang_up_on_stalled(&self) {
        let now_ms = self.now_ms();
        if !self.is_time_to_look(now_ms) {
            return;
        }
        for (id, peer) in &self.peers().connected {
            if peer.is_stalled(now_ms, self.patience) {
                static STALLED: RateLimit = RateLimit::new();
                let what = "a client keeps memory that others wait for: it is cut off";
                STALLED.log(|left_out| tracing::warn!(id, left_out, "{what}"));
                peer.give_up();
            }
        }
    }

    /// Many may wait, and ask: one of them looks, now and then.
    fn is_time_to_look(&self, now_ms: u64) -> bool {
        let looked_ms = self.looked_ms.load(Relaxed);
        now_ms.saturating_sub(looked_ms) >= LOOK_MS
            && self.looked_ms.compare_exchange(looked_ms, now_ms, Relaxed, Relaxed).is_ok()
    }

    /// Lets every connection finish what it has received, for a while; then hangs up on those that are
    /// waited for. Whether all have left: those that have not wait for a disk.
    pub(crate) fn drain(&self) -> bool {
        let peers = self.peers();
        peers.connected.values().for_each(|peer| peer.drain(self.stops.is_some()));
        drop(peers);
        // Afterwards: who is woken sees that it is to leave.
        if let Some(stops) = &self.stops {
            // It cannot be full.
            let _ = rustix::io::write(stops, &1_u64.to_ne_bytes());
        }
        let deadline = Instant::now() + self.drain_timeout;
        if self.wait_until_gone(deadline) {
            return true;
        }
        self.hang_up();
        self.wait_until_gone(Instant::now() + LEAVE_TIMEOUT)
    }

    /// Waits for those that wait for a disk.
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
            let waited = self.peer_left.wait_timeout(peers, left);
            peers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// On those who do not take their replies, and those whose requests have not begun, as they wait for memory: one
    /// after the other would keep it from the next. What is being done for the others is answered, but what
    /// they go on to send is not.
    fn hang_up(&self) {
        for (id, peer) in &self.peers().connected {
            if peer.is_waited_for() || peer.waits_for_memory() {
                static HUNG_UP: RateLimit = RateLimit::new();
                let what = "a client does not read, or waits for memory: hanging up";
                HUNG_UP.log(|left_out| tracing::warn!(id, left_out, "{what}"));
                peer.give_up();
            } else {
                peer.let_leave();
            }
        }
    }
}

/// A thread beside those of the connections, as long as this lives.
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
        let mut clients = Clients::new(1, 1, Duration::ZERO, Duration::ZERO);
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
        let clients = Clients::new(1, 1, Duration::ZERO, Duration::ZERO);
        let looks =
            (1..=30).filter(|tenths| clients.is_time_to_look(tenths * LOOK_MS / 10)).count();
        assert_eq!(looks, 3);
    }
}
