//! The memory that the requests of all clients may take together.
//!
//! What a connection has anyway is small. What its requests take beyond that is leased here before it
//! is there: queued requests with their replies, requests that are longer than a buffer, and what is
//! taken in from a client that does not take its replies. Where none is left, what fits in a buffer is
//! done by the connection's own thread; who needs more waits, and meanwhile sees to it that nobody keeps it
//! who does not go on ([`Clients`]). Served is who came first, where each is as if he had come later by the time that
//! his bytes take at [`BYTES_A_US`]: small ones are not behind the long writes of many who do not go on, and no
//! long one waits for ever.
//!
//! There are two accounts: one for requests, and one for what is taken in ahead of them ([`Account`]). No
//! lease on the first is waited for by a thread that has another one on it, and nobody ever waits for the
//! second, so there is no circle of waiting among ourselves; for those that clients make, there is the
//! end of patience.
//!
//! [`Clients`]: crate::clients::Clients

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::peer::Peer;

/// How often one who waits looks for clients that do not go on.
const LOOK: Duration = Duration::from_millis(500);

/// Bytes in a microsecond, for which one who waits is behind others. Chosen: the longest of requests by half a
/// minute, so a few times as long as a client may keep memory without going on.
const BYTES_A_US: u64 = 1;

#[derive(Debug)]
pub(crate) struct Memory {
    total: usize,
    used: AtomicUsize,
    waiting: AtomicUsize,
    turns: Mutex<Turns>,
    freed: Condvar,
}

/// Those who wait, first who is served first; in the order of their coming where that is the same.
#[derive(Debug, Default)]
struct Turns {
    waiting: BTreeSet<(Instant, u64)>,
    came: u64,
}

impl Turns {
    fn enter(&mut self, bytes: usize) -> (Instant, u64) {
        self.came += 1;
        let turn = (Instant::now() + Duration::from_micros(bytes as u64 / BYTES_A_US), self.came);
        self.waiting.insert(turn);
        turn
    }
}

impl Memory {
    pub(crate) fn new(total: usize) -> Self {
        Self {
            total,
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            turns: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    /// Takes so much, if it is there and nobody waits. More than all is there where nobody has any.
    pub(crate) fn try_take(&self, bytes: usize) -> bool {
        self.waiting.load(Relaxed) == 0 && self.take_if_there(bytes, 0)
    }

    /// `own`: what the one who asks has of it.
    fn take_if_there(&self, bytes: usize, own: usize) -> bool {
        let fits = |used: usize| {
            let then = used + bytes;
            (used <= own || then <= self.total).then_some(then)
        };
        self.used.fetch_update(SeqCst, SeqCst, fits).is_ok()
    }

    /// Takes so much as soon as it is there, or nobody has any but who asks: what that is says `own`.
    /// Meanwhile it calls `overdue` now and then.
    pub(crate) fn take(&self, bytes: usize, own: impl Fn() -> usize, overdue: impl Fn()) {
        if self.try_take(bytes) {
            return;
        }
        // Before we look: who gives something back after that sees us.
        self.waiting.fetch_add(1, SeqCst);
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = turns.enter(bytes);
        let mut looked = Instant::now();
        while turns.waiting.first() != Some(&turn) || !self.take_if_there(bytes, own()) {
            let waited = self.freed.wait_timeout(turns, LOOK);
            turns = waited.unwrap_or_else(PoisonError::into_inner).0;
            // However often others give some back meanwhile.
            if looked.elapsed() >= LOOK {
                drop(turns);
                overdue();
                looked = Instant::now();
                turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            }
        }
        turns.waiting.remove(&turn);
        self.waiting.fetch_sub(1, SeqCst);
        drop(turns);
        // There may be enough for the next one, too.
        self.freed.notify_all();
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            // Those who have looked wait by now.
            drop(self.turns.lock().unwrap_or_else(PoisonError::into_inner));
            self.freed.notify_all();
        }
    }
}

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Account {
    /// Requests that are carried out: whoever needs some may wait for it.
    Requests,
    /// What has been taken in from clients that do not take their replies. It may be kept while its
    /// owner waits for the other kind, so nobody waits for it.
    Ahead,
}

/// Memory that a client's requests take. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Lease {
    peer: Arc<Peer>,
    account: Account,
    bytes: usize,
}

impl Lease {
    /// The caller has taken as much.
    pub(crate) fn new(peer: &Arc<Peer>, account: Account, bytes: usize) -> Self {
        peer.leased(account).fetch_add(bytes, Relaxed);
        Self { peer: Arc::clone(peer), account, bytes }
    }

    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// A part of it, if it has as much.
    pub(crate) fn split(&mut self, bytes: usize) -> Option<Self> {
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(Self { peer: Arc::clone(&self.peer), account: self.account, bytes })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.peer.leased(self.account).fetch_sub(self.bytes, Relaxed);
            self.peer.clients.memory(self.account).give_back(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn more_is_had_when_others_have_given_theirs_back() {
        let memory = Memory::new(100);
        assert!(memory.try_take(200), "nobody has any");
        assert!(!memory.try_take(1));
        memory.give_back(200);
        assert!(memory.try_take(60) && memory.try_take(40) && !memory.try_take(1));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| memory.take(50, || 0, || ()));
            while memory.waiting.load(SeqCst) == 0 {
                thread::yield_now();
            }
            memory.give_back(40);
            assert!(!memory.try_take(1), "first come, first served");
            memory.give_back(10);
            waiting.join().unwrap();
        });
        assert!(memory.try_take(0) && !memory.try_take(1));
        memory.take(200, || 100, || ());
        assert_eq!(memory.used.load(SeqCst), 300, "nobody else has any");
    }

    #[test]
    fn who_waits_looks_now_and_then_however_often_some_is_given_back() {
        let (memory, looks) = (Memory::new(100), AtomicUsize::new(0));
        assert!(memory.try_take(100));
        let look = || {
            looks.fetch_add(1, SeqCst);
        };
        thread::scope(|scope| {
            scope.spawn(|| memory.take(100, || 0, look));
            let often = (0..1000).take_while(|_| {
                memory.give_back(0);
                thread::sleep(LOOK / 100);
                looks.load(SeqCst) < 2
            });
            let count = often.count();
            memory.give_back(100);
            assert!(count < 1000, "it has not looked");
        });
    }

    #[test]
    fn small_ones_are_not_behind_long_ones_for_which_there_is_none() {
        let memory = Memory::new(100);
        assert!(memory.try_take(90));
        let waits = |count| {
            while memory.turns.lock().unwrap().waiting.len() < count {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            // As long as a request can be.
            let long = scope.spawn(|| memory.take(32 << 20, || 0, || ()));
            waits(1);
            memory.take(10, || 0, || ());
            assert!(!long.is_finished());
            memory.give_back(100);
            long.join().unwrap();
        });
        let mut turns = Turns::default();
        let long = turns.enter(20_000);
        thread::sleep(Duration::from_millis(20));
        assert!(turns.enter(1) > long, "it has waited for its length");
        assert_eq!(turns.waiting.first(), Some(&long));
    }

    #[test]
    fn everybody_gets_some_in_the_end() {
        let memory = Memory::new(1000);
        let most = AtomicUsize::new(0);
        thread::scope(|scope| {
            for thread in 1..=8 {
                let (memory, most) = (&memory, &most);
                scope.spawn(move || {
                    for round in 0..2000 {
                        let bytes = thread * 100 + round % 100;
                        memory.take(bytes, || 0, || ());
                        most.fetch_max(memory.used.load(SeqCst), SeqCst);
                        memory.give_back(bytes);
                    }
                });
            }
        });
        assert_eq!(memory.used.load(SeqCst), 0);
        assert!(most.load(SeqCst) <= 1000);
    }
}
