//! The memory that the requests of all clients may take together.
//!
//! What a connection always has is small. What its requests take beyond that is leased here before
//! it is allocated: for queued requests with their replies, for requests that are longer than a
//! buffer, and for what is taken in from a client that does not take its replies. If none is left,
//! a request that fits in a buffer is done by the connection's own thread. One that needs more
//! waits, and meanwhile its thread cuts off clients that keep memory without going on
//! ([`Clients`]). Requests are served in the order in which they came, except that each counts as
//! having come later by the time that its bytes take at [`BYTES_A_US`]. So small ones do not wait
//! behind the long writes of many clients that do not go on, and no long one waits for ever.
//!
//! There are two accounts: one for requests, and one for what is taken in ahead of them
//! ([`Account`]). No thread that has a lease on the first waits for another one on it, and no
//! thread ever waits for the second, so our threads cannot wait for each other in a circle. A
//! circle of waiting that clients make ends with the patience for them.
//!
//! [`Clients`]: crate::clients::Clients

use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::peer::Peer;

/// How often a waiting thread looks for clients that do not go on.
const LOOK: Duration = Duration::from_millis(500);

/// Bytes of memory that put a request back by a microsecond among those that wait. Chosen: a request
/// of 32 MiB, which takes twice that, is put back by a minute, several times as long as a client may keep
/// memory without going on.
const BYTES_A_US: u64 = 1;

#[derive(Debug)]
pub(crate) struct Memory {
    total: usize,
    used: AtomicUsize,
    waiting: AtomicUsize,
    turns: Mutex<Turns>,
    freed: Condvar,
}

/// The requests that wait, the one to be served next first; those that are equal, in the order in
/// which they came.
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

    /// Takes `bytes` if they are free and nobody waits. If nobody has any memory, even more than
    /// the total counts as free.
    pub(crate) fn try_take(&self, bytes: usize) -> bool {
        self.waiting.load(Relaxed) == 0 && self.take_if_there(bytes, 0)
    }

    /// `own` is what the client that asks has of the memory.
    fn take_if_there(&self, bytes: usize, own: usize) -> bool {
        let fits = |used: usize| {
            let then = used + bytes;
            (used <= own || then <= self.total).then_some(then)
        };
        self.used.fetch_update(SeqCst, SeqCst, fits).is_ok()
    }

    /// Takes `bytes` as soon as they are free, or as soon as nobody has memory but the client that
    /// asks; `own` says how much that has. Meanwhile calls `overdue` now and then.
    pub(crate) fn take(&self, bytes: usize, own: impl Fn() -> usize, overdue: impl Fn()) {
        if self.try_take(bytes) {
            return;
        }
        // Before we look, so that a thread that gives memory back after that sees us.
        self.waiting.fetch_add(1, SeqCst);
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = turns.enter(bytes);
        let mut looked = Instant::now();
        while turns.waiting.first() != Some(&turn) || !self.take_if_there(bytes, own()) {
            let waited = self.freed.wait_timeout(turns, LOOK);
            turns = waited.unwrap_or_else(PoisonError::into_inner).0;
            // Look in time, however often others give some back meanwhile.
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
            // With the lock taken once, threads that have looked in vain are waiting by now.
            drop(self.turns.lock().unwrap_or_else(PoisonError::into_inner));
            self.freed.notify_all();
        }
    }
}

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Account {
    /// Requests that are carried out. A thread that needs memory for one may wait for it.
    Requests,
    /// What has been taken in from clients that do not take their replies. A thread may keep it
    /// while it waits on the other account, so no thread waits for this one.
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
    /// The caller has taken these bytes from the account.
    pub(crate) fn new(peer: &Arc<Peer>, account: Account, bytes: usize) -> Self {
        peer.leased(account).fetch_add(bytes, Relaxed);
        Self { peer: Arc::clone(peer), account, bytes }
    }

    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Splits `bytes` off, if it has as many.
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
