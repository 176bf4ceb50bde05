//! A thread that works for a CPU. It takes batches of items, runs them, and parks when there are
//! none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use homing_sched::{Idle, QueueId, Reach, Search, Shares};
use homing_topology::CpuId;

use crate::dispatch::{Announced, Taken};
use crate::item::{Books, Item, Ran};
use crate::measure::books_cache::BooksCache;
use crate::measure::clock::now_ns;
use crate::measure::laps::{CpuTime, Laps, OnCpu};
use crate::shared::Shared;
use crate::threads::affinity::{MOVED, STRAY};
use crate::threads::crew::{Member, Orders};
use crate::threads::lend::blocking;
use crate::threads::local::{self, Nested};
use crate::threads::slot::Slot;

/// What a thread that helps out runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serves {
    Anything,
    /// What somebody waits for.
    Wanted,
}

/// A thread that helps out and has found nothing that somebody waits for looks again after
/// `WANTED_EVERY` batches, or after one batch for each `WANTED_LOOKS` items that it looked at if
/// that is later.
const WANTED_EVERY: u64 = 16;
const WANTED_LOOKS: u64 = 8;

/// How much more of a CPU than others items that block may have had when a thread without a CPU
/// begins the next of them. Chosen: some such items, or two of the longest batches of short ones.
/// Without it, the one that was begun last would be reason enough to wait, each time.
const LEAD_NS: u64 = 100_000;

/// The life of a thread of the runtime.
pub(crate) fn main(shared: &Arc<Shared>, member: &Arc<Member>, assigned: Option<CpuId>) {
    local::enter(shared, member);
    member.note_kernel_tid();
    let mut assigned = assigned;
    loop {
        let orders = match assigned.take() {
            Some(cpu) => Orders::Serve(cpu),
            None => shared.crew.wait_as_spare(shared, member),
        };
        match orders {
            Orders::Serve(cpu) => Worker::new(shared, member, cpu).serve(),
            Orders::Leave => break,
        }
    }
    local::leave();
    shared.workqueues.close_books_of(&member.writer);
    shared.crew.leave(shared, member);
}

struct Worker<'a> {
    shared: &'a Arc<Shared>,
    me: &'a Arc<Member>,
    cpu: CpuId,
    /// Counts batches.
    turn: u64,
    shares: Shares,
    /// Its number among those that came to work for the CPU.
    comer: u32,
    idle: Idle,
    /// When its last sleep ended.
    slept_ns: u64,
    /// The end of the last batch or sleep: the beginning of the next batch.
    now_ns: u64,
    search: Search,
    books: BooksCache,
    on_cpu: OnCpu,
    /// The CPU time of this thread by the end of the last batch, if it is known.
    cpu_time: Option<CpuTime>,
}

/// What is known of the batch that a worker runs.
struct Turn {
    queue: QueueId,
    reach: Reach,
    began_ns: u64,
    laps: Laps,
    /// Whether a CPU was woken for what is left in the queue, until the first item counts it.
    woken: bool,
    items: u32,
    /// How many items have run since the last lap.
    of_lap: u32,
    cpu_ns: u64,
    /// The workqueue of the last item, and the colours of its items that have ended.
    workqueue: u32,
    ended: u32,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Arc<Shared>, me: &'a Arc<Member>, cpu: CpuId) -> Self {
        let now_ns = now_ns();
        let books = BooksCache::default();
        let slot = shared.dispatch.slot(cpu);
        let (shares, comer) = slot.shares.come(|pool| shared.dispatch.pools.nice(pool));
        let (idle, search) = (slot.called(now_ns), Search::UNKNOWN);
        // Those who come one after the other for a batch each measure one batch in so many, too.
        let (turn, slept_ns) = (comer.into(), now_ns);
        let (on_cpu, cpu_time) = (OnCpu::default(), None);
        Self {
            shared,
            me,
            cpu,
            turn,
            shares,
            comer,
            idle,
            slept_ns,
            now_ns,
            search,
            books,
            on_cpu,
            cpu_time,
        }
    }

    /// The slot is this thread's now.
    fn arrive(&self) -> &'a Slot {
        let shared = self.shared;
        shared.place(self.me, self.cpu);
        local::move_to(shared, self.cpu);
        shared.somebody_works();
        let slot = shared.dispatch.slot(self.cpu);
        slot.books.changes_hands();
        // The slot may have been offered after it was claimed for this thread, or for the owner
        // before.
        shared.dispatch.take_idle_bit(&**shared, self.cpu);
        slot
    }

    /// Works until the slot is lost or given up.
    fn serve(mut self) {
        let shared = self.shared;
        let slot = self.arrive();
        let mut blocks = false;
        while slot.is_owned_by(self.me.id) {
            if shared.is_stopping_now() || !shared.dispatch.is_active(self.cpu) {
                self.give_up();
                break;
            }
            if [MOVED, STRAY].contains(&self.me.pinned_to.load(Ordering::Relaxed)) {
                shared.place(self.me, self.cpu);
            }
            self.turn = self.turn.wrapping_add(1);
            if shared.is_stopping() {
                // Nobody else will come for fresh items: take them, too.
                self.idle = Idle::Any;
            }
            self.count_elsewhere();
            match shared.dispatch.take(&**shared, self.cpu, self.idle, &self.shares) {
                Ok(taken) => {
                    if self.search.takes() {
                        shared.dispatch.hand_on(&**shared, self.cpu);
                    }
                    blocks = shared.dispatch.pools.is_blocking(taken.queue.pool);
                    self.run(taken);
                }
                Err(_) if shared.is_stopping() => {
                    self.give_up();
                    break;
                }
                Err(_) => self.park(),
            }
        }
        if blocks {
            self.block_on();
        }
        self.me.running_since_ns.store(0, Ordering::Relaxed);
    }

    /// Begins more items that block, while another thread works for the CPU. Otherwise this thread
    /// would go to sleep as a spare, and the next of these items would wake one. Each pool has its
    /// share as if the other thread took them ([`LEAD_NS`]), and if no spare is left for that
    /// thread, this one becomes one. Nobody relies on it.
    fn block_on(&mut self) {
        let (shared, me, cpu) = (self.shared, self.me, self.cpu);
        let dispatch = &shared.dispatch;
        let slot = dispatch.slot(cpu);
        let is_here = || ![MOVED, STRAY].contains(&me.pinned_to.load(Ordering::Relaxed));
        while !shared.is_stopping_now()
            && is_here()
            && dispatch.is_active(cpu)
            && !dispatch.is_any_idle()
            && !slot.is_vacant()
            && shared.crew.has_spare()
        {
            let (pools, nice) = (dispatch.pools.ids(), |pool| dispatch.pools.nice(pool));
            let mut shares = slot.shares.with_elsewhere(pools.clone(), nice);
            for other in pools.filter(|pool| !dispatch.pools.is_blocking(*pool)) {
                shares.ran_before(other, nice(other), LEAD_NS);
            }
            let Some(taken) = dispatch.take_blocking(cpu, &shares) else { break };
            self.turn = self.turn.wrapping_add(1);
            self.run(taken);
        }
    }

    /// Pools have had what their batches ran after they had lost the CPU: otherwise one whose items
    /// block would go before all others, whatever it computes.
    fn count_elsewhere(&mut self) {
        let (dispatch, shares) = (&self.shared.dispatch, &mut self.shares);
        let pools = dispatch.pools.ids();
        let nice = |pool| dispatch.pools.nice(pool);
        dispatch.slot(self.cpu).shares.count_elsewhere(shares, pools, nice);
    }

    /// Works until the slot is lost, nothing is left to do, or `goes_on` returns `false`; then the
    /// slot is free again. Items that somebody waits for come first, so that items that wait in
    /// their turn do not use up this stack.
    fn serve_while(mut self, what: Serves, goes_on: impl Fn() -> bool) {
        let shared = self.shared;
        let slot = self.arrive();
        let mut looks_at = self.turn;
        while goes_on() && slot.is_owned_by(self.me.id) && !shared.is_stopping_now() {
            let mut taken = None;
            if self.turn >= looks_at {
                match shared.dispatch.take_wanted(self.cpu) {
                    Ok(wanted) => taken = Some(wanted),
                    // This goes through all items that wait, so not each time in vain.
                    Err(waiting) => looks_at = self.turn + WANTED_EVERY.max(waiting / WANTED_LOOKS),
                }
            }
            self.turn += 1;
            self.count_elsewhere();
            let taken = taken.or_else(|| match what {
                Serves::Anything => {
                    shared.dispatch.take(&**shared, self.cpu, Idle::Any, &self.shares).ok()
                }
                Serves::Wanted => None,
            });
            let Some(taken) = taken else { break };
            self.run(taken);
        }
        self.me.running_since_ns.store(0, Ordering::Relaxed);
        self.give_up();
    }

    /// Runs a batch: the first item at once, the others through the hand, where the monitor finds
    /// them if an item takes long.
    fn run(&mut self, taken: Taken) {
        let Taken { batch, age, queue, reach, woken } = taken;
        let slot = self.shared.dispatch.slot(self.cpu);
        if let Some(age) = age {
            self.books.of(self.shared, self.me, age.workqueue).books.waited(age.ns);
            // If two threads do so at once, one of these samples is lost.
            slot.books.waited(age.ns);
        }
        let (first, rest) = batch.split_first();
        if let Some(rest) = rest {
            self.me.hand.put(rest);
            // The monitor may have given the CPU to another thread just before: it will not look
            // here.
            if !slot.is_owned_by(self.me.id) {
                self.shared.rescue(self.me, Some(self.cpu));
            }
        }
        let mut turn = self.begin(queue, reach, woken);
        let mut next = Some(first);
        while let Some(item) = next {
            next = self.run_item(item, &mut turn);
        }
        self.end(turn);
    }

    /// A batch begins.
    fn begin(&mut self, queue: QueueId, reach: Reach, woken: bool) -> Turn {
        let dispatch = &self.shared.dispatch;
        let began_ns = self.now_ns;
        let usual_ns = dispatch.pools.queue(queue).length().mean_ns();
        let slot = dispatch.slot(self.cpu);
        let is_ours = slot.is_owned_by(self.me.id);
        // Without the CPU, how long it takes says nothing of how long it ran.
        let clock_ns = if is_ours { usual_ns } else { u64::MAX };
        let laps = Laps::begin(clock_ns, self.turn, began_ns, self.cpu_time.take());
        if is_ours {
            slot.begin(began_ns);
            slot.books.begins();
            slot.shares.begins(queue.pool, began_ns);
        } else {
            slot.books.begins_elsewhere();
        }
        // With equal weights, a pool that is charged for what others had waits for no longer than
        // that.
        if dispatch.pools.weights_differ() {
            self.on_cpu.begin_batch(queue.pool, began_ns);
        }
        self.me.running_since_ns.store(began_ns, Ordering::Relaxed);
        let (items, of_lap, cpu_ns, workqueue, ended) = (0, 0, 0, 0, 0);
        Turn { queue, reach, began_ns, laps, woken, items, of_lap, cpu_ns, workqueue, ended }
    }

    /// Runs an item, and returns the next one.
    #[inline]
    fn run_item(&mut self, item: Item, turn: &mut Turn) -> Option<Item> {
        let (tag, slot) = (item.tag(), item.slot());
        if tag.workqueue() != turn.workqueue {
            self.has_in_hand(&item);
            self.settle(turn);
            if turn.of_lap > 0 {
                self.lap(turn, false);
            }
            turn.workqueue = tag.workqueue();
            turn.laps.turns_to(turn.workqueue);
        }
        let number = turn.workqueue;
        let known = self.books.of(self.shared, self.me, number);
        known.books.taken(turn.reach, std::mem::take(&mut turn.woken));
        #[cfg(feature = "tracing")]
        let _span =
            tracing::trace_span!("item", workqueue = known.books.name(), reach = ?turn.reach)
                .entered();
        self.me.item.store(item.place(), Ordering::Relaxed);
        let ran = if known.lends() {
            let books = Arc::clone(&known.books);
            blocking(|| run_on_a_line(item, &*books))
        } else {
            run_on_a_line(item, &*known.books)
        };
        // The next item may have the same place.
        self.me.item.store(0, Ordering::Relaxed);
        turn.items += 1;
        turn.of_lap += 1;
        let mut next = match ran {
            Ran::Over => None,
            Ran::Then(item) => Some(item),
            Ran::Kept(item) => return item.or_else(|| self.next_in_hand()),
        };
        turn.ended |= 1 << tag.colour();
        self.books.of(self.shared, self.me, number).books.ended(tag);
        if let Some(slot) = slot {
            self.release(number, slot);
        }
        if let Some(item) = next.take_if(|_| self.shared.is_stopping_now()) {
            self.shared.cancel(item);
        }
        let next = next.or_else(|| self.next_in_hand())?;
        // A thread that waits for this item must not wait longer because the next one blocks.
        if self.shared.dispatch.slot(self.cpu).is_owned_by(self.me.id) {
            self.me.unsettled.store(number, Ordering::Relaxed);
        } else {
            // The monitor no longer looks at this thread.
            self.has_in_hand(&next);
            self.settle(turn);
        }
        Some(next)
    }

    /// A batch has ended.
    fn end(&mut self, mut turn: Turn) {
        // What a waker runs is no part of the item, and may wait for others of its workqueue.
        self.me.workqueue.store(0, Ordering::Relaxed);
        self.settle(&mut turn);
        if self.shared.is_stopping_now() {
            // The rest of the batch goes back to where it is cancelled.
            self.shared.rescue(self.me, Some(self.cpu));
        }
        let slot = self.shared.dispatch.slot(self.cpu);
        let is_ours = slot.is_owned_by(self.me.id);
        self.lap(&mut turn, !is_ours);
        let Turn { queue, reach, began_ns, laps, items, cpu_ns, .. } = turn;
        (self.now_ns, self.cpu_time) = (laps.ns, laps.cpu());
        let elapsed_ns = self.now_ns.saturating_sub(began_ns);
        self.shared.dispatch.pools.queue(queue).complete(elapsed_ns, items);
        if is_ours {
            let busy_ns = elapsed_ns.saturating_sub(laps.away_ns);
            if slot.shares.last_comer() != self.comer {
                // Others have worked for the CPU while an item had lent it.
                (self.shares, self.comer) = (slot.shares.read(), slot.shares.last_comer());
            }
            let on_cpu_ns = self.on_cpu.of_batch(&laps, busy_ns);
            self.shares.ran(queue.pool, self.shared.dispatch.pools.nice(queue.pool), on_cpu_ns);
            slot.shares.note(&self.shares, queue.pool);
            slot.books.ran(reach, items, busy_ns, cpu_ns);
        } else {
            let had_ns = self.me.had_ns.swap(0, Ordering::Relaxed);
            slot.shares.ran_elsewhere(queue.pool, cpu_ns.saturating_sub(had_ns));
            slot.books.ran_elsewhere(reach, items, cpu_ns);
        }
        self.idle = Idle::out_of_work(self.now_ns, self.slept_ns);
    }

    /// Charges the batch's last workqueue for what has run since the last lap.
    fn lap(&mut self, turn: &mut Turn, lost: bool) {
        let items = std::mem::take(&mut turn.of_lap);
        let lap_ns = turn.laps.lap(turn.workqueue, &self.me.away, items, lost);
        let known = self.books.of(self.shared, self.me, turn.workqueue);
        known.books.ran(turn.reach, lap_ns);
        turn.cpu_ns += lap_ns;
    }

    /// The next item of the batch, unless it is not to run any more.
    fn next_in_hand(&self) -> Option<Item> {
        if self.shared.is_stopping_now() { None } else { self.me.hand.pop() }
    }

    /// Notes that this item is run next: what a waker runs must not wait for it.
    fn has_in_hand(&self, item: &Item) {
        self.me.workqueue.store(item.tag().workqueue(), Ordering::Relaxed);
        self.me.item.store(item.place(), Ordering::Relaxed);
    }

    /// Items of the batch's last workqueue have ended: threads that wait for them may go on.
    fn settle(&mut self, turn: &mut Turn) {
        let colours = std::mem::take(&mut turn.ended);
        if colours != 0
            && let Some(state) = &self.books.of(self.shared, self.me, turn.workqueue).state
        {
            state.settle(colours);
            self.me.unsettled.store(0, Ordering::Relaxed);
        }
    }

    /// An item that had a slot of its workqueue's gate has ended.
    fn release(&mut self, number: u32, slot: u16) {
        if let Some(state) = &self.books.of(self.shared, self.me, number).state {
            self.shared.release(state, slot);
        }
    }

    /// Stays awake for a while if work has been coming soon. Returns whether some came.
    fn searches(&mut self) -> bool {
        let dispatch = &self.shared.dispatch;
        let search_ns = self.search.search_ns(dispatch.is_occupied(self.cpu));
        if search_ns == 0 || !dispatch.begin_search(self.cpu) {
            return false;
        }
        let began_ns = now_ns();
        let found = loop {
            if dispatch.is_ripe(self.cpu, self.idle) {
                break true;
            }
            if now_ns().saturating_sub(began_ns) >= search_ns {
                break false;
            }
            std::hint::spin_loop();
        };
        dispatch.end_search(self.cpu);
        let found_after_ns = found.then(|| {
            let before_ns = std::mem::replace(&mut self.now_ns, now_ns());
            self.now_ns.saturating_sub(before_ns)
        });
        self.search.ended(found_after_ns);
        if let Some(gap_ns) = found_after_ns {
            dispatch.slot(self.cpu).books.searched(gap_ns);
        }
        found
    }

    fn park(&mut self) {
        let (shared, slot) = (self.shared, self.shared.dispatch.slot(self.cpu));
        self.me.running_since_ns.store(0, Ordering::Relaxed);
        self.cpu_time = None;
        if self.searches() {
            return;
        }
        if shared.crew.needs_thread(&shared.dispatch) {
            // As a spare, this thread gets that CPU, unless another one is faster.
            return self.give_up();
        }
        let stopping = || shared.is_stopping();
        let announced = shared.dispatch.announce(self.cpu, self.me.id, self.idle, stopping);
        let Announced::Sleep { until_ns } = announced else {
            // For a moment this thread looked parked, and the monitor may have gone to rest.
            shared.somebody_works();
            return;
        };
        let fell_asleep_ns = now_ns();
        let at_most = until_ns.map(|until| until.saturating_sub(fell_asleep_ns));
        if at_most.is_none() {
            shared.somebody_sleeps(fell_asleep_ns);
        }
        // I4: sleep until there is a token.
        let at_most = at_most.map(Duration::from_nanos);
        #[cfg(feature = "async-io")]
        let woken = if shared.settings.drives_io {
            slot.sleep_driving_io(at_most)
        } else {
            slot.sleep(at_most)
        };
        #[cfg(not(feature = "async-io"))]
        let woken = slot.sleep(at_most);
        // Also after a token: it may be an old one, which did not answer this announcement.
        let unanswered = shared.dispatch.unannounce(self.cpu);
        slot.rise(self.me.id);
        self.on_cpu = OnCpu::default();
        let before_ns = std::mem::replace(&mut self.now_ns, now_ns());
        self.slept_ns = self.now_ns;
        slot.books.parked(self.now_ns.saturating_sub(fell_asleep_ns), woken);
        slot.books.searched(fell_asleep_ns.saturating_sub(before_ns));
        self.idle = if woken {
            self.search.woken(self.now_ns.saturating_sub(before_ns));
            if !unanswered {
                shared.dispatch.note_wake_delay(self.cpu, self.now_ns);
            }
            slot.called(self.now_ns)
        } else {
            self.search.slept();
            self.idle.slept(&shared.dispatch)
        };
        shared.somebody_works();
    }

    /// Leaves the CPU to another thread, for when there is something to do on it.
    fn give_up(&mut self) {
        let (shared, dispatch) = (self.shared, &self.shared.dispatch);
        if dispatch.slot(self.cpu).vacate(self.me.id) && !shared.is_stopping_now() {
            dispatch.offer(&**shared, self.cpu);
        }
    }
}

/// Serves `cpu`, which has no other thread, on top of the item that this thread runs, until there
/// is nothing to do there or `is_over` returns `true`.
pub(crate) fn help(
    shared: &Arc<Shared>,
    me: &Arc<Member>,
    cpu: CpuId,
    what: Serves,
    is_over: impl Fn() -> bool,
) {
    if !shared.crew.serve(shared, me, cpu) {
        return;
    }
    let (item_of, item) = (me.workqueue.load(Ordering::Relaxed), me.item.load(Ordering::Relaxed));
    let served = local::current_cpu();
    let help = || Worker::new(shared, me, cpu).serve_while(what, || !is_over());
    local::nest(Nested::Beneath(item_of, item), || me.away.beneath(help));
    me.workqueue.store(item_of, Ordering::Relaxed);
    me.item.store(item, Ordering::Relaxed);
    local::move_to(shared, served);
    shared.place(me, served);
}

/// Bytes that begin where a cache line does.
#[repr(align(64))]
struct Line([u8; 64]);

/// Runs an item on a stack that begins where a cache line does. Otherwise the compiler's layout of
/// the worker's frame decides whether vectors that items have on the stack straddle two lines.
/// Measured with 32 KiB of AES-XTS and SHA-512 in vectors of 64 bytes, that made 7 % of CPU time
/// between one build and the next.
#[inline(never)]
fn run_on_a_line(item: Item, books: &dyn Books) -> Ran {
    let line = Line([0; 64]);
    std::hint::black_box(&line.0);
    item.run(books)
}
