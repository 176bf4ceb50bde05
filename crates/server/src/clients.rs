//! All clients that are connected, and what they have together.

use std::collections::HashMap;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::memory::Memory;
use crate::peer::Peer;

/// How long a draining server waits for its clients before it hangs up.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Clients {
    count_max: usize,
    /// How long one may keep memory that others wait for without going on.
    patience: Duration,
    pub(crate) memory: Memory,
    began: Instant,
    peers: Mutex<Peers>,
    peer_left: Condvar,
}

#[derive(Debug, Default)]
struct Peers {
    next_id: u64,
    connected: HashMap<u64, Arc<Peer>>,
}

impl Clients {
    pub(crate) fn new(count_max: usize, memory_max: usize, patience: Duration) -> Self {
        Self {
            count_max,
            patience,
            memory: Memory::new(memory_max),
            began: Instant::now(),
            peers: Mutex::default(),
            peer_left: Condvar::new(),
        }
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
            tracing::warn!(limit = self.count_max, "too many connections");
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
        for (id, peer) in &self.peers().connected {
            if peer.is_stalled(now_ms, self.patience) {
                tracing::warn!(id, "a client keeps memory that others wait for: it is cut off");
                peer.give_up();
            }
        }
    }

    /// Lets every connection finish what it has received, for a while; then hangs up.
    pub(crate) fn drain(&self) {
        let mut peers = self.peers();
        peers.connected.values().for_each(|peer| peer.shutdown(Shutdown::Read));
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        while !peers.connected.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(count = peers.connected.len(), "clients do not read: hanging up");
                peers.connected.values().for_each(|peer| peer.shutdown(Shutdown::Both));
            }
            let left = left.max(Duration::from_secs(1));
            let (guard, _) =
                self.peer_left.wait_timeout(peers, left).unwrap_or_else(PoisonError::into_inner);
            peers = guard;
        }
    }
}
