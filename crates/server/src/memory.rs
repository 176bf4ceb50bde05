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
//! Of several exports each gets no more than it leaves free: half of the memory if it is the only
//! one with requests, a third if two have all they may, or a fourth if the other one had its half
//! before. So disks that hang do not keep the memory from the others' clients, whose requests do
//! not wait behind those of an export that has its part. (Packet switches share their buffers in
//! this way: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
//! switches", 1998.) The first request of an export may have more than that, and so may a client
//! that alone has memory of its export: with the longest requests, a few exports that hang may have
//! all. A first request for which there is not enough lets others go before it half of the time:
//! what it waits for may never come.
//!
//! There are two accounts: one for requests, and one for what is taken in ahead of them
//! ([`Account`]). No thread that has a lease on the first waits for another one on it, and no
//! thread ever waits for the second, so our threads cannot wait for each other in a circle. A
//! circle of waiting that clients make ends with the patience for them.
//!
//! [`Clients`]: crate::clients::Clients

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::peer::Peer;
use crate::sync::{lock, wait_for};

/// How often a waiting thread looks for clients that do not go on.
const LOOK: Duration = Duration::from_millis(500);

/// Bytes of memory that put a request back by a microsecond among those that wait. Chosen: a
/// request of 32 MiB, which takes twice that, is put back by a minute, several times as long as a
/// client may keep memory without going on.
const BYTES_A_US: u64 = 1;

/// For so long at a time, a request for which not enough is left keeps others from taking what is
/// given back; for as long after that it does not, if there are several exports. Chosen: a disk
/// gives back what the longest request needs in the meantime.
const BARS: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub(crate) struct Memory {
    made: Instant,
    total: usize,
    used: AtomicUsize,
    /// What each export has of it.
    by_export: Box<[AtomicUsize]>,
    waiting: AtomicUsize,
    turns: Mutex<Turns>,
    freed: Condvar,
}

/// The requests that wait, by export, with their bytes: the one to be served next first; those that
/// are equal, in the order in which they came.
#[derive(Debug)]
struct Turns {
    by_export: Box<[BTreeMap<Turn, usize>]>,
    came: u64,
}

type Turn = (Instant, u64);

impl Turns {
    fn enter(&mut self, export: usize, bytes: usize) -> Turn {
        self.came += 1;
        let turn = (Instant::now() + Duration::from_micros(bytes as u64 / BYTES_A_US), self.came);
        self.by_export[export].insert(turn, bytes);
        turn
    }

    /// The next one, of the exports that `may_have` as much as their first one asks for.
    fn next(&self, may_have: impl Fn(usize, usize) -> bool) -> Option<Turn> {
        let firsts = self.by_export.iter().enumerate();
        let firsts = firsts.filter_map(|(export, turns)| Some((export, turns.first_key_value()?)));
        firsts
            .filter(|(export, (_, bytes))| may_have(*export, **bytes))
            .map(|(_, (turn, _))| *turn)
            .min()
    }
}

impl Memory {
    /// For requests to so many exports.
    pub(crate) fn new(total: usize, exports: usize) -> Self {
        let exports = exports.max(1);
        let turns = Turns { by_export: (0..exports).map(|_| BTreeMap::new()).collect(), came: 0 };
        Self {
            made: Instant::now(),
            total,
            used: AtomicUsize::new(0),
            by_export: (0..exports).map(|_| AtomicUsize::new(0)).collect(),
            waiting: AtomicUsize::new(0),
            turns: Mutex::new(turns),
            freed: Condvar::new(),
        }
    }

    /// What a request counts for: no more than its export may have beside another one, or it would
    /// wait for what others have, perhaps for a disk that hangs.
    pub(crate) fn counted(&self, bytes: usize) -> usize {
        if self.by_export.len() > 1 { bytes.min(self.total / 2) } else { bytes }
    }

    /// Takes `bytes` for requests to an export if they are free and nobody waits. If nobody has any
    /// memory, even more than the total counts as free; so does the part of an export that has
    /// none.
    pub(crate) fn try_take(&self, export: usize, bytes: usize) -> bool {
        // If this is late, a request goes before one that has just begun to wait.
        if self.waiting.load(Relaxed) > 0 {
            let turns = lock(&self.turns);
            // A request that waits because its export has used up its part must not make this one
            // wait: its disk may hang.
            if !turns.by_export[export].is_empty() || self.next(&turns, |_| 0).is_some() {
                return false;
            }
        }
        let taken = self.take_if_there(export, bytes, 0);
        if !taken {
            self.tell_who_waits();
        }
        taken
    }

    /// Whose turn it is; `own` says what the client that asks has, of the export that it asks for.
    fn next(&self, turns: &Turns, own: impl Fn(usize) -> usize) -> Option<Turn> {
        let (used, bars) = (self.used.load(SeqCst), self.bars());
        turns.next(|export, bytes| {
            let (own, of_export) = (own(export), self.by_export[export].load(SeqCst));
            fits(of_export, bytes, own, self.share(bytes))
                && (bars || fits(used, bytes, own, self.total))
        })
    }

    fn bars(&self) -> bool {
        let periods = self.made.elapsed().as_millis() / BARS.as_millis();
        self.by_export.len() == 1 || periods.is_multiple_of(2)
    }

    /// How much an export may have with `bytes` more: as much as would still be free.
    fn share(&self, bytes: usize) -> usize {
        if self.by_export.len() == 1 {
            return usize::MAX;
        }
        self.total.saturating_sub(self.used.load(SeqCst)).saturating_sub(bytes)
    }

    /// `own` is what the client that asks has of the memory.
    fn take_if_there(&self, export: usize, bytes: usize, own: usize) -> bool {
        let add = |to: &AtomicUsize, most: usize| {
            let fits = |used: usize| fits(used, bytes, own, most).then_some(used + bytes);
            to.fetch_update(SeqCst, SeqCst, fits).is_ok()
        };
        // Looked at first, so that mostly nothing is added in vain: somebody may look meanwhile.
        let is_there = fits(self.used.load(SeqCst), bytes, own, self.total);
        if !is_there || !add(&self.by_export[export], self.share(bytes)) {
            return false;
        }
        let taken = add(&self.used, self.total);
        if !taken {
            self.by_export[export].fetch_sub(bytes, SeqCst);
            // Somebody may have looked meanwhile.
            self.freed.notify_all();
        }
        taken
    }

    /// Takes `bytes` as soon as they are free, or as soon as nobody has memory but the client that
    /// asks; `own` says how much that has. Meanwhile calls `overdue` now and then, with the time
    /// that it has waited.
    pub(crate) fn take(
        &self,
        export: usize,
        bytes: usize,
        own: impl Fn() -> usize,
        overdue: impl Fn(Duration),
    ) {
        if self.try_take(export, bytes) {
            return;
        }
        // Before we look, so that a thread that gives memory back after that sees us.
        self.waiting.fetch_add(1, SeqCst);
        let mut turns = lock(&self.turns);
        let turn = turns.enter(export, bytes);
        let began = Instant::now();
        let mut looked = began;
        let of_client = |of| if of == export { own() } else { 0 };
        while self.next(&turns, of_client) != Some(turn)
            || !self.take_if_there(export, bytes, own())
        {
            turns = wait_for(&self.freed, turns, LOOK);
            // Look in time, however often others give some back meanwhile.
            if looked.elapsed() >= LOOK {
                drop(turns);
                overdue(began.elapsed());
                looked = Instant::now();
                turns = lock(&self.turns);
            }
        }
        turns.by_export[export].remove(&turn);
        self.waiting.fetch_sub(1, SeqCst);
        drop(turns);
        // There may be enough for the next one, too.
        self.freed.notify_all();
    }

    pub(crate) fn give_back(&self, export: usize, bytes: usize) {
        self.by_export[export].fetch_sub(bytes, SeqCst);
        self.used.fetch_sub(bytes, SeqCst);
        self.tell_who_waits();
    }

    fn tell_who_waits(&self) {
        if self.waiting.load(SeqCst) > 0 {
            // With the lock taken once, threads that have looked in vain are waiting by now.
            drop(lock(&self.turns));
            self.freed.notify_all();
        }
    }
}

/// Whether so many more bytes are free of `most`, of which `own` are those of the client that asks.
fn fits(used: usize, bytes: usize, own: usize, most: usize) -> bool {
    used <= own || used + bytes <= most
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
            self.peer.clients.memory(self.account).give_back(self.peer.export(), self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn more_is_had_when_others_have_given_theirs_back() {
        let memory = Memory::new(100, 1);
        assert!(memory.try_take(0, 200), "nobody has any");
        assert!(!memory.try_take(0, 1));
        memory.give_back(0, 200);
        assert!(memory.try_take(0, 60) && memory.try_take(0, 40) && !memory.try_take(0, 1));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| memory.take(0, 50, || 0, |_| ()));
            while memory.turns.lock().unwrap().by_export[0].is_empty() {
                thread::yield_now();
            }
            memory.give_back(0, 40);
            assert!(!memory.try_take(0, 1), "first come, first served");
            memory.give_back(0, 10);
            waiting.join().unwrap();
        });
        assert!(memory.try_take(0, 0) && !memory.try_take(0, 1));
        memory.take(0, 200, || 100, |_| ());
        assert_eq!(memory.used.load(SeqCst), 300, "nobody else has any");
    }

    #[test]
    fn who_waits_looks_now_and_then_however_often_some_is_given_back() {
        let (memory, looks) = (Memory::new(100, 1), AtomicUsize::new(0));
        assert!(memory.try_take(0, 100));
        let look = |_| {
            looks.fetch_add(1, SeqCst);
        };
        thread::scope(|scope| {
            scope.spawn(|| memory.take(0, 100, || 0, look));
            let often = (0..1000).take_while(|_| {
                memory.give_back(0, 0);
                thread::sleep(LOOK / 100);
                looks.load(SeqCst) < 2
            });
            let count = often.count();
            memory.give_back(0, 100);
            assert!(count < 1000, "it has not looked");
        });
    }

    #[test]
    fn small_ones_are_not_behind_long_ones_for_which_there_is_none() {
        let memory = Memory::new(100, 1);
        assert!(memory.try_take(0, 90));
        let waits = |count| {
            while memory.turns.lock().unwrap().by_export[0].len() < count {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            // As long as a request can be.
            let long = scope.spawn(|| memory.take(0, 32 << 20, || 0, |_| ()));
            waits(1);
            memory.take(0, 10, || 0, |_| ());
            assert!(!long.is_finished());
            memory.give_back(0, 100);
            long.join().unwrap();
        });
        let mut turns = memory.turns.into_inner().unwrap();
        let long = turns.enter(0, 20_000);
        thread::sleep(Duration::from_millis(20));
        assert!(turns.enter(0, 1) > long, "it has waited for its length");
        assert_eq!(turns.next(|_, _| true), Some(long));
    }

    #[test]
    fn an_export_has_what_it_leaves_free_and_its_requests_wait_by_themselves() {
        let memory = Memory::new(100, 2);
        assert!(memory.try_take(0, 30) && memory.try_take(0, 20) && !memory.try_take(0, 1));
        thread::scope(|scope| {
            let waits = scope.spawn(|| memory.take(0, 10, || 0, |_| ()));
            while memory.turns.lock().unwrap().by_export[0].is_empty() {
                thread::yield_now();
            }
            // As if the disk of the first export hung.
            memory.take(1, 20, || 0, |_| ());
            assert!(memory.try_take(1, 5) && !memory.try_take(1, 1) && !memory.try_take(0, 1));
            assert!(!waits.is_finished());
            memory.give_back(0, 30);
            waits.join().unwrap();
        });
        memory.give_back(0, 30);
        memory.give_back(1, 25);
        assert!(memory.try_take(1, 100), "an export that has none may have more than its part");
        assert_eq!((memory.counted(100), Memory::new(100, 1).counted(200)), (50, 200));
    }

    #[test]
    fn who_waits_for_the_rest_of_an_exports_part_is_not_passed_by_others_of_it() {
        let memory = Memory::new(1000, 2);
        assert!((0..5).all(|_| memory.try_take(0, 100)));
        thread::scope(|scope| {
            let waits = scope.spawn(|| memory.take(0, 200, || 0, |_| ()));
            while memory.turns.lock().unwrap().by_export[0].is_empty() {
                thread::yield_now();
            }
            memory.give_back(0, 100);
            assert!(!memory.try_take(0, 100) && memory.try_take(1, 100));
            memory.give_back(0, 200);
            waits.join().unwrap();
        });
    }

    /// The disk of five volumes hangs, and has as many requests as are let in.
    #[test]
    fn many_exports_that_hang_leave_some_for_the_others() {
        let memory = Memory::new(1200, 7);
        while (0..5).filter(|export| memory.try_take(*export, 10)).count() > 0 {}
        assert_eq!(memory.used.load(SeqCst), 1000);
        let works = thread::scope(|scope| {
            scope.spawn(|| memory.take(0, 10, || 0, |_| ()));
            until_waiting(&memory, 0, 1);
            let works = (0..100).all(|_| {
                let had = [(5, 50), (6, 50), (5, 25)].map(|(of, bytes)| memory.try_take(of, bytes));
                memory.give_back(5, 75);
                memory.give_back(6, 50);
                had == [true; 3]
            });
            memory.give_back(0, 200);
            works
        });
        assert!(works);
    }

    /// As if the disks of two exports hung: the third waits for ever for what it needs.
    #[test]
    fn who_waits_in_vain_lets_others_go_first_now_and_then() {
        let mut memory = Memory::new(1200, 5);
        assert!(memory.try_take(0, 400) && memory.try_take(1, 400));
        memory.made -= BARS;
        thread::scope(|scope| {
            let waits = scope.spawn(|| memory.take(2, 600, || 0, |_| ()));
            until_waiting(&memory, 2, 1);
            memory.take(3, 10, || 0, |_| ());
            memory.take(4, 10, || 0, |_| ());
            memory.give_back(0, 400);
            waits.join().unwrap();
        });
    }

    fn until_waiting(memory: &Memory, export: usize, count: usize) {
        while memory.turns.lock().unwrap().by_export[export].len() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn one_byte_of_others_is_enough_to_have_no_more_than_the_total() {
        let memory = Memory::new(100, 1);
        assert!(memory.try_take(0, 1) && !memory.try_take(0, 100));
    }

    #[test]
    fn requests_that_come_at_the_same_moment_have_turns_of_their_own() {
        let mut turns = Memory::new(100, 1).turns.into_inner().unwrap();
        let (first, second) = (turns.enter(0, 0), turns.enter(0, 0));
        assert!(first.1 < second.1);
    }

    #[test]
    fn who_waits_is_not_passed_by_who_came_later_and_needs_less() {
        let memory = Memory::new(100, 1);
        assert!(memory.try_take(0, 100));
        thread::scope(|scope| {
            let first = scope.spawn(|| memory.take(0, 50, || 0, |_| ()));
            until_waiting(&memory, 0, 1);
            // Longer than what the first one is put back by its length.
            thread::sleep(Duration::from_millis(1));
            let second = scope.spawn(|| memory.take(0, 60, || 0, |_| ()));
            until_waiting(&memory, 0, 2);
            let third = scope.spawn(|| memory.take(0, 10, || 0, |_| ()));
            until_waiting(&memory, 0, 3);
            memory.give_back(0, 20);
            thread::sleep(Duration::from_millis(20));
            let passed = second.is_finished() || third.is_finished();
            memory.give_back(0, 80);
            first.join().unwrap();
            memory.give_back(0, 50);
            assert!(!passed);
        });
    }

    /// The other export has its part, but not all of it: the request for which it waits is long.
    #[test]
    fn what_a_client_has_is_no_part_of_another_export() {
        let memory = Memory::new(100, 2);
        assert!(memory.try_take(1, 25) && memory.try_take(0, 30));
        thread::scope(|scope| {
            scope.spawn(|| memory.take(1, 40, || 0, |_| ()));
            until_waiting(&memory, 1, 1);
            let own = scope.spawn(|| memory.take(0, 40, || 30, |_| ()));
            let began = Instant::now();
            while !own.is_finished() && began.elapsed() < 20 * LOOK {
                thread::sleep(Duration::from_millis(1));
            }
            let had = own.is_finished();
            memory.give_back(1, 25);
            memory.give_back(0, 30);
            assert!(had, "it waits for a request that cannot be served");
        });
    }

    #[test]
    fn who_waits_for_what_all_have_is_not_passed_by_requests_to_other_exports() {
        let memory = Memory::new(100, 3);
        assert!(memory.try_take(0, 50) && memory.try_take(1, 35));
        thread::scope(|scope| {
            let waits = scope.spawn(|| memory.take(2, 20, || 0, |_| ()));
            until_waiting(&memory, 2, 1);
            let passed = memory.try_take(1, 10);
            memory.give_back(0, 50);
            waits.join().unwrap();
            assert!(!passed);
        });
    }

    #[test]
    fn who_waits_is_told_how_long_it_has_waited_altogether() {
        let (memory, told) = (Memory::new(100, 1), Mutex::new(Vec::new()));
        assert!(memory.try_take(0, 100));
        thread::scope(|scope| {
            scope.spawn(|| memory.take(0, 100, || 0, |waited| told.lock().unwrap().push(waited)));
            while told.lock().unwrap().len() < 2 {
                thread::sleep(Duration::from_millis(1));
            }
            memory.give_back(0, 100);
        });
        let told = told.into_inner().unwrap();
        assert!(told[0] >= LOOK && told[1] >= told[0] + LOOK, "{told:?}");
    }

    #[test]
    fn everybody_gets_some_in_the_end() {
        let memory = Memory::new(1000, 1);
        let most = AtomicUsize::new(0);
        thread::scope(|scope| {
            for thread in 1..=8 {
                let (memory, most) = (&memory, &most);
                scope.spawn(move || {
                    for round in 0..2000 {
                        let bytes = thread * 100 + round % 100;
                        memory.take(0, bytes, || 0, |_| ());
                        most.fetch_max(memory.used.load(SeqCst), SeqCst);
                        memory.give_back(0, bytes);
                    }
                });
            }
        });
        assert_eq!(memory.used.load(SeqCst), 0);
        assert!(most.load(SeqCst) <= 1000);
    }
}
