//! The wake protocol: put an item in and wake somebody; announce idle, look again, sleep. The
//! steps are numbered as in `README.md`.

pub(crate) mod cpu_bits;
mod facts;
pub(crate) mod issuers;
pub(crate) mod occupied;
pub(crate) mod tape;

use homing_sched::{
    Asked, Attributes, Features, Idle, IssuerTime, Layout, Next, PoolId, QueueId, Reach, Shares,
    before_park, home_cpus, issuer_waits, may_serve, overdue, reach, start, submit,
};
use homing_topology::{CPU_COUNT_MAX, CpuId, CpuSet};

use crate::dispatch::cpu_bits::CpuBits;
use crate::dispatch::occupied::Occupied;
use crate::dispatch::tape::Tape;
use crate::item::{Item, Sealed};
use crate::queues::home_queue::QueueAge;
use crate::queues::pools::Pools;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::threads::slot::{Slot, ThreadId};

/// Everything that issuers and workers of one runtime share.
///
/// Field legend: `I` immutable after build, `A` atomic, `L` has a lock of its own.
#[derive(Debug)]
pub(crate) struct Dispatch {
    /// I
    layout: Layout,
    /// A
    pub(crate) pools: Pools,
    /// A: CPUs that nobody has woken yet and whose worker is asleep or about to sleep, or whose
    /// slot is vacant.
    idle: CpuBits,
    /// A: CPUs whose worker looks for work without having announced that it is idle.
    searching: CpuBits,
    /// A: CPUs on which a thread that is not a worker has queued something lately.
    occupied: Occupied,
    /// A: a [`homing_sched::IssuerWait`]; like the delays below, an estimate.
    issuer_wait_ns: AtomicU64,
    /// A: [`IssuerTime`].
    issuer_time: AtomicU32,
    /// A: how often the monitor has looked.
    looks: AtomicU32,
    /// A: CPUs that are to have a worker.
    active: CpuBits,
    /// A
    features: AtomicU32,
    /// A: [`homing_sched::WakeDelays`], estimates: if two threads note one at once, one is lost.
    delay_occupied_ns: AtomicU64,
    delay_free_ns: AtomicU64,
    /// L: where decisions are recorded, if they are.
    tape: Tape,
    /// I: one for each CPU that is online.
    slots: Box<[Option<Box<Slot>>]>,
}

/// Wakes a CPU whose slot is vacant: gives the slot to a thread.
pub(crate) trait Fill {
    /// To be called by the thread that has removed the CPU's idle bit. Returns whether there is a
    /// thread for the CPU; if there is none, one is created if possible.
    fn fill(&self, cpu: CpuId) -> bool;
}

/// What a worker took.
pub(crate) struct Taken {
    pub(crate) batch: Sealed,
    pub(crate) age: Option<QueueAge>,
    pub(crate) queue: QueueId,
    pub(crate) reach: Reach,
    /// Whether a CPU was woken for the items that are left.
    pub(crate) woken: bool,
}

/// Whether a worker that found no work may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    /// The worker has announced that it is idle, and there was still nothing to do. It is to look
    /// again at `until_ns` at the latest.
    Sleep { until_ns: Option<u64> },
    /// There is something to do after all.
    LookAgain,
    /// The slot is no longer the worker's.
    SlotLost,
}

impl Dispatch {
    pub(crate) fn new(layout: Layout, active: &CpuSet) -> Self {
        let online = *layout.machine().online();
        let slot = |cpu| online.contains(cpu).then(|| Box::new(Slot::new()));
        let dispatch = Self {
            pools: Pools::new(&layout),
            idle: CpuBits::for_range_of(&online),
            searching: CpuBits::for_range_of(&online),
            occupied: Occupied::new(&online),
            issuer_wait_ns: AtomicU64::new(0),
            issuer_time: AtomicU32::new(0),
            looks: AtomicU32::new(0),
            active: CpuBits::for_range_of(&online),
            features: AtomicU32::new(Features::ALL.bits().into()),
            delay_occupied_ns: AtomicU64::new(0),
            delay_free_ns: AtomicU64::new(0),
            slots: (0..CPU_COUNT_MAX).filter_map(CpuId::new).map(slot).collect(),
            tape: Tape::off(),
            layout,
        };
        active.and(&online).iter().for_each(|cpu| dispatch.active.insert(cpu));
        dispatch
    }

    pub(crate) fn tape(&self) -> &Tape {
        &self.tape
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn slot(&self, cpu: CpuId) -> &Slot {
        self.slots[cpu.index()].as_ref().expect("only CPUs that are online have workers")
    }

    /// The slots of all CPUs that are online.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (CpuId, &Slot)> {
        self.layout.machine().online().iter().map(|cpu| (cpu, self.slot(cpu)))
    }

    /// The pool with these attributes; `None` if there are too many pools.
    pub(crate) fn pool_with(
        &self,
        attributes: Attributes,
        cpumask: Option<CpuSet>,
        blocking: bool,
    ) -> Option<PoolId> {
        self.pools.with(&self.layout, attributes, cpumask, blocking)
    }

    /// Every queue there is.
    pub(crate) fn queue_ids(&self) -> impl Iterator<Item = QueueId> {
        self.pools.ids().flat_map(|pool| {
            let level = self.pools.attributes(pool).level();
            self.layout.leaders(level).iter().map(move |leader| QueueId { pool, leader })
        })
    }

    /// The CPUs at which a queue is at home.
    pub(crate) fn home_cpus(&self, queue: QueueId) -> CpuSet {
        home_cpus(&self.layout, self, queue)
    }

    pub(crate) fn set_features(&self, features: Features) {
        self.features.store(features.bits().into(), Ordering::Relaxed);
    }

    /// Puts an item for `cpu` into its home queue and wakes an idle CPU for it, if there is one.
    /// Returns whether it woke one, or gives the item back if the queues are closed.
    pub(crate) fn put(
        &self,
        fill: &impl Fill,
        cpu: CpuId,
        pool: PoolId,
        mut item: Item,
    ) -> Result<bool, Item> {
        let (queue, rank) = self.place(cpu, pool);
        item.set_queue(queue);
        // P1: insert, and say so, under the lock of the queue.
        let decide = self.pools.queue(queue).push(rank, item)?;
        let woke_up = self.pools.use_again(pool);
        Ok((decide || woke_up) && self.wake_for_new(fill, queue, cpu))
    }

    /// [`Dispatch::put`] for many items.
    pub(crate) fn put_all(
        &self,
        fill: &impl Fill,
        cpu: CpuId,
        pool: PoolId,
        mut items: Sealed,
    ) -> Result<bool, Sealed> {
        let (queue, rank) = self.place(cpu, pool);
        items.set_queue(queue);
        self.pools.queue(queue).push_all(rank, items)?;
        self.pools.use_again(pool);
        Ok(self.wake_for_new(fill, queue, cpu))
    }

    /// The queue in which an item for `cpu` waits.
    pub(crate) fn home(&self, cpu: CpuId, pool: PoolId) -> QueueId {
        self.place(cpu, pool).0
    }

    /// That queue, and the rank there of the CPU whose lane the item goes to: `None` if `cpu` has
    /// no worker for it.
    fn place(&self, cpu: CpuId, pool: PoolId) -> (QueueId, Option<usize>) {
        let mask = self.pools.cpumask(pool);
        let active = self.active.contains(cpu);
        let queue = if active && mask.is_none() {
            self.layout.queue(pool, self.pools.attributes(pool), cpu)
        } else {
            homing_sched::home(&self.layout, self, cpu, pool)
        };
        let serves = active && mask.is_none_or(|mask| mask.contains(cpu));
        (queue, serves.then(|| self.pools.rank(pool, cpu)))
    }

    fn wake_for_new(&self, fill: &impl Fill, queue: QueueId, cpu: CpuId) -> bool {
        // P2: pairs with the fence of I2.
        fence(Ordering::SeqCst);
        // P3: which CPUs are idle? Mostly none, and then nothing else need be looked at.
        if self.idle.is_empty() {
            return false;
        }
        self.wake_one(fill, Some(queue), || match self.tape.running() {
            None => submit(&self.layout, self, cpu, queue.pool).wake,
            Some(tape) => tape.wake(&self.layout, self, Asked::Submit(cpu, queue.pool)),
        })
    }

    /// Puts back items that a worker had taken and cannot run, and wakes a CPU for them. Gives them
    /// back if the queues are closed.
    pub(crate) fn put_back(&self, fill: &impl Fill, batch: Sealed) -> Result<(), Sealed> {
        let queue = batch.queue();
        self.pools.queue(queue).put_back(batch)?;
        self.pools.use_again(queue.pool);
        fence(Ordering::SeqCst);
        self.wake_one(fill, Some(queue), || self.next_to_wake(queue, queue.leader));
        Ok(())
    }

    /// Moves items out of queues none of whose CPUs has a worker any more, to where they would be
    /// queued now. Workers that stay busy would never come by for them.
    pub(crate) fn rehome(&self, fill: &impl Fill, refused: impl Fn(Item)) {
        let (online, active) = (*self.layout.machine().online(), self.active.snapshot());
        if online.is_subset(&active) {
            return;
        }
        for queue in self.queue_ids() {
            let QueueId { pool, leader } = queue;
            let level = self.pools.attributes(pool).level();
            let mask = self.pools.cpumask(pool).filter(|mask| mask.intersects(&active));
            let serving = mask.map_or(active, |mask| mask.and(&active));
            let serves = |cpu: CpuId| self.layout.leader(level, cpu) == leader;
            if self.pools.queue(queue).waiting() == 0 || serving.iter().any(serves) {
                continue;
            }
            while let Some((batch, _)) = self.pools.queue(queue).take(Some(0)) {
                if let Err(closed) = self.put_all(fill, leader, pool, batch) {
                    closed.into_iter().for_each(&refused);
                }
            }
        }
    }

    fn next_to_wake(&self, queue: QueueId, by: CpuId) -> Option<CpuId> {
        match self.tape.running() {
            None => start(&self.layout, self, queue, by),
            Some(tape) => tape.wake(&self.layout, self, Asked::Start(queue, by)),
        }
    }

    fn next_of(&self, cpu: CpuId, idle: Idle, shares: &Shares) -> Next {
        match self.tape.running() {
            None => before_park(&self.layout, self, cpu, idle, shares),
            Some(tape) => tape.next(&self.layout, self, Asked::BeforePark(cpu, idle), shares),
        }
    }

    /// Takes the next items for the worker of `cpu`, and wakes the next CPU if more wait. If there
    /// are none, returns when to look again at the latest.
    pub(crate) fn take(
        &self,
        fill: &impl Fill,
        cpu: CpuId,
        idle: Idle,
        shares: &Shares,
    ) -> Result<Taken, Option<u64>> {
        // Another worker may empty the queue between the look and the lock; then look again. This
        // ends, because each round some other worker has taken something.
        loop {
            match self.next_of(cpu, idle, shares) {
                Next::Take { queue, reach } => {
                    // Another shard of its pod may be as near, but holds no lane of this CPU.
                    let own = || Some(self.place(cpu, queue.pool)).filter(|own| own.0 == queue);
                    let rank = (reach == Reach::Home).then(own).flatten().and_then(|own| own.1);
                    if let Some((batch, age)) = self.pools.queue(queue).take(rank) {
                        let woken = !self.idle.is_empty()
                            && self.wake_one(fill, Some(queue), || self.next_to_wake(queue, cpu));
                        return Ok(Taken { batch, age, queue, reach, woken });
                    }
                }
                Next::Park { until_ns } => return Err(until_ns),
            }
        }
    }

    /// Takes the item that the worker of `cpu` would take next where pools have had these shares,
    /// if that is one that blocks, for a thread that works for no CPU. Nobody is woken: no CPU is
    /// to be idle.
    pub(crate) fn take_blocking(&self, cpu: CpuId, shares: &Shares) -> Option<Taken> {
        let next = before_park(&self.layout, self, cpu, Idle::Any, shares);
        let Next::Take { queue, reach: Reach::Home } = next else { return None };
        // The queue of the item that the worker runs now may be empty, and its pool's turn all the
        // same.
        let runs = self.slot(cpu).shares.under_way();
        let is_its_turn = runs.is_none_or(|runs| shares.had_ns(queue.pool) <= shares.had_ns(runs));
        if !is_its_turn || !self.pools.is_blocking(queue.pool) {
            return None;
        }
        let (own, rank) = self.place(cpu, queue.pool);
        let rank = rank.filter(|_| own == queue);
        let (batch, age) = self.pools.queue(queue).take_in_passing(rank)?;
        Some(Taken { batch, age, queue, reach: Reach::Home, woken: false })
    }

    /// Takes an item that somebody may wait for and that the worker of `cpu` may run. If there is
    /// none, returns how many items it has looked at.
    pub(crate) fn take_wanted(&self, cpu: CpuId) -> Result<Taken, u64> {
        let mut looked = 0;
        for queue in self.queue_ids() {
            let home = self.pools.queue(queue);
            let waiting = home.waiting();
            if waiting == 0 || !may_serve(&self.layout, self, queue, cpu) {
                continue;
            }
            looked += u64::from(waiting);
            if let Some(item) = home.extract(Item::is_wanted) {
                let reach = reach(&self.layout, self, queue, cpu);
                return Ok(Taken { batch: item.into(), age: None, queue, reach, woken: false });
            }
        }
        Err(looked)
    }

    /// Announces that the worker of `cpu` is idle, and looks once more.
    pub(crate) fn announce(
        &self,
        cpu: CpuId,
        thread: ThreadId,
        idle: Idle,
        stopping: impl Fn() -> bool,
    ) -> Announced {
        // I0: from here on nobody takes the slot away.
        if !self.slot(cpu).lie_down(thread) {
            return Announced::SlotLost;
        }
        // I1: announce.
        self.idle.insert(cpu);
        // I2: pairs with the fence of P2 (and of `wake_all`).
        fence(Ordering::SeqCst);
        // I3: look again.
        match self.next_of(cpu, idle, &Shares::NONE) {
            Next::Park { until_ns } if !stopping() && self.is_active(cpu) => {
                Announced::Sleep { until_ns }
            }
            _ => {
                // If a waker has removed the bit first, it leaves a token: one later sleep ends at
                // once, which is harmless.
                self.idle.remove(cpu);
                self.slot(cpu).rise(thread);
                Announced::LookAgain
            }
        }
    }

    /// Takes the announcement back after a sleep. Returns whether it still stood, that is, whether
    /// no waker had answered it.
    pub(crate) fn unannounce(&self, cpu: CpuId) -> bool {
        self.idle.contains(cpu) && self.idle.remove(cpu)
    }

    /// Offers a vacant slot: what [`Dispatch::announce`] does, for a CPU without a thread.
    pub(crate) fn offer(&self, fill: &impl Fill, cpu: CpuId) {
        loop {
            self.idle.insert(cpu);
            fence(Ordering::SeqCst);
            if self.is_active(cpu) {
                break;
            }
            // The CPU was retired: no thread is to be sent there any more.
            self.idle.remove(cpu);
            fence(Ordering::SeqCst);
            if !self.is_active(cpu) || !self.slot(cpu).is_vacant() {
                return self.hand_on(fill, cpu);
            }
            // A thread that has activated the CPU again may have offered it just before the bit was
            // removed: offer it again.
        }
        let next = self.next_of(cpu, Idle::Any, &Shares::NONE);
        if matches!(next, Next::Take { .. }) {
            self.claim(fill, cpu, Reach::Remote);
        }
    }

    /// To be called when the worker of `cpu` does not do what others have relied on it for: it
    /// leaves, or its search has found something else. If more waits, wakes an idle CPU for it.
    pub(crate) fn hand_on(&self, fill: &impl Fill, cpu: CpuId) {
        // Pairs with the fence of P2: either this thread sees the inserted item, or the thread that
        // inserts it has seen that it cannot rely on this worker.
        fence(Ordering::SeqCst);
        if self.idle.is_empty() {
            return;
        }
        if let Next::Take { queue, .. } = self.next_of(cpu, Idle::Any, &Shares::NONE) {
            self.wake_one(fill, Some(queue), || self.next_to_wake(queue, cpu));
        }
    }

    /// Takes an offered slot back, unless another thread has got it. Returns whether it did.
    pub(crate) fn take_offer_back(&self, fill: &impl Fill, cpu: CpuId, thread: ThreadId) -> bool {
        // The slot first: the idle bit of a slot with an owner is that owner's. A waker that claims
        // the bit in between finds an owner and leaves a token, which is harmless.
        let taken = self.slot(cpu).assign(thread);
        if taken {
            self.take_idle_bit(fill, cpu);
        }
        taken
    }

    /// Removes the idle bit of `cpu`, because the thread that has got the slot is not idle. If the
    /// monitor has taken the slot from it since, this was the bit of the next offer, which is then
    /// made again.
    pub(crate) fn take_idle_bit(&self, fill: &impl Fill, cpu: CpuId) {
        // This change of the bit pairs with that of `offer`, which comes after the slot was
        // vacated.
        if self.unannounce(cpu) && self.slot(cpu).is_vacant() {
            self.offer(fill, cpu);
        }
    }

    /// Whether there is something that the worker of `cpu` may take now.
    pub(crate) fn is_ripe(&self, cpu: CpuId, idle: Idle) -> bool {
        let next = before_park(&self.layout, self, cpu, idle, &Shares::NONE);
        matches!(next, Next::Take { .. })
    }

    /// Says that the worker of `cpu` looks for work, so issuers need not wake anybody. Returns
    /// `false`, and says nothing, if another worker of its cache looks already.
    pub(crate) fn begin_search(&self, cpu: CpuId) -> bool {
        if self.searching.snapshot().intersects(&self.layout.rings(cpu)[0]) {
            return false;
        }
        self.searching.insert(cpu);
        true
    }

    /// Ends the search. A worker that goes to sleep then announces itself and looks again first.
    pub(crate) fn end_search(&self, cpu: CpuId) {
        self.searching.remove(cpu);
    }

    /// Notes that a thread that is not a worker runs on `cpu` and issues work.
    pub(crate) fn occupy(&self, cpu: CpuId) {
        if self.active.contains(cpu) {
            self.occupied.insert(cpu);
        }
    }

    /// A number that changes with each look of the monitor.
    pub(crate) fn looks(&self) -> u32 {
        self.looks.load(Ordering::Relaxed)
    }

    /// To be called when an issuer on `cpu` that is not a worker is about to wait: the worker of
    /// that CPU may be woken.
    pub(crate) fn issuer_waits(&self, fill: &impl Fill, cpu: CpuId) {
        if !self.occupied.begin_wait(cpu) || !self.idle.contains(cpu) {
            return;
        }
        self.wake_one(fill, None, || match self.tape.running() {
            None => issuer_waits(&self.layout, self, cpu),
            Some(tape) => tape.wake(&self.layout, self, Asked::IssuerWaits(cpu)),
        });
    }

    pub(crate) fn is_occupied(&self, cpu: CpuId) -> bool {
        self.occupied.contains(cpu)
    }

    /// The monitor looks, so an interval has passed: CPUs on which nobody issues any more become
    /// free.
    pub(crate) fn forget_occupied(&self) {
        self.occupied.pass();
        self.looks.fetch_add(1, Ordering::Relaxed);
        let pass = |bits| Some(IssuerTime::from_bits(bits).pass().bits());
        let _ = self.issuer_time.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pass);
    }

    pub(crate) fn is_active(&self, cpu: CpuId) -> bool {
        self.active.contains(cpu)
    }

    /// Allows a worker for this CPU from now on.
    pub(crate) fn activate(&self, fill: &impl Fill, cpu: CpuId) {
        self.active.insert(cpu);
        // Pairs with I2 of a thread that offers the slot: either that thread sees this change, or
        // this one sees that the slot is vacant.
        fence(Ordering::SeqCst);
        if self.slot(cpu).is_vacant() {
            self.offer(fill, cpu);
        }
    }

    /// Stops the use of the CPU. Other workers pull what waits there.
    pub(crate) fn retire(&self, fill: &impl Fill, cpu: CpuId) {
        self.active.remove(cpu);
        // Pairs with I2: either its worker, or a thread that offers its slot, sees this change, or
        // its idle bit is seen here.
        fence(Ordering::SeqCst);
        if self.idle.remove(cpu) {
            if self.slot(cpu).is_vacant() {
                // Others may have relied on this CPU.
                self.hand_on(fill, cpu);
            } else {
                self.slot(cpu).call(self.occupied.contains(cpu), Reach::Home);
                self.slot(cpu).wake();
            }
        }
    }

    /// Wakes an idle CPU for items that have waited for too long. Returns whether it woke one.
    pub(crate) fn wake_for_overdue(&self, fill: &impl Fill) -> bool {
        self.wake_one(fill, None, || match self.tape.running() {
            None => overdue(&self.layout, self),
            Some(tape) => tape.wake(&self.layout, self, Asked::Overdue),
        })
    }

    /// Wakes any parked worker. Returns whether there was one.
    pub(crate) fn wake_any(&self, fill: &impl Fill) -> bool {
        let idle = self.idle.snapshot();
        let mut parked = idle.iter().filter(|cpu| !self.slot(*cpu).is_vacant());
        parked.any(|cpu| self.claim(fill, cpu, Reach::Remote))
    }

    /// Wakes every idle worker: at shutdown, after the flag that they look at is set.
    pub(crate) fn wake_all(&self, fill: &impl Fill) {
        fence(Ordering::SeqCst);
        for cpu in self.idle.snapshot().iter() {
            self.claim(fill, cpu, Reach::Home);
        }
    }

    /// P4: wakes the CPU that `choose` names, for items of `queue`, or for any items if that is
    /// `None`. If another waker was faster, or there is no thread for the CPU yet, chooses again.
    /// After each failure one CPU less is idle, so this ends.
    fn wake_one(
        &self,
        fill: &impl Fill,
        queue: Option<QueueId>,
        choose: impl Fn() -> Option<CpuId>,
    ) -> bool {
        let far = |cpu| queue.map_or(Reach::Remote, |queue| reach(&self.layout, self, queue, cpu));
        while let Some(cpu) = choose() {
            if self.claim(fill, cpu, far(cpu)) {
                return true;
            }
        }
        false
    }

    /// Wakes `cpu` if it is idle, for items that are `reach` away. Returns whether this call did
    /// it.
    pub(crate) fn claim(&self, fill: &impl Fill, cpu: CpuId, reach: Reach) -> bool {
        if !self.idle.remove(cpu) {
            return false;
        }
        let slot = self.slot(cpu);
        slot.call(self.occupied.contains(cpu), reach);
        if slot.is_vacant() {
            return fill.fill(cpu);
        }
        slot.wake();
        true
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
