//! All clients that are connected, and what they have together.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use homing_socket::RateLimit;
use rustix::event::{EventfdFlags, eventfd};

use crate::memory::{Account, Memory};
use crate::peer::Peer;

/// How long clients that were hung up on may take to leave.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two looks for clients that do not go on.
const LOOK_MS: u64 = 300;

/// The part of memory for what is taken in ahead of requests: one in so many.
const AHEAD: usize = 4;

#[derive(Debug)]
pub(crate) struct Clients {
    count_max: usize,
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
        Self {
            count_max,
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
        if peers.connected.len() >= self.count_max {
            static REFUSALS: RateLimit = RateLimit::new();
            let limit = self.count_max;
            REFUSALS.log(|left_out| tracing::warn!(limit, left_out, "too many connections"));
            return None;
        }
        peers.next_id += 1;
        let id = peers.next_id;
        peers.connected.insert(id, Arc::clone(peer));
        Some(id)
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
                tracing::warn!(id, "a client keeps memory that others wait for: it is cut off");
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

    /// On those who do not take their replies: what is being done for the others is answered, but what
    /// they go on to send is not.
    fn hang_up(&self) {
        for (id, peer) in &self.peers().connected {
            if peer.is_waited_for() {
                tracing::warn!(id, "a client does not read: hanging up");
                peer.give_up();
            } else {
                peer.let_leave();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_often_somebody_asks_it_is_looked_now_and_then() {
        let clients = Clients::new(1, 1, Duration::ZERO, Duration::ZERO);
        let looks =
            (1..=30).filter(|tenths| clients.is_time_to_look(tenths * LOOK_MS / 10)).count();
        assert_eq!(looks, 3);
    }
}
