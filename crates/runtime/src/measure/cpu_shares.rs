//! How much of a CPU each pool has had, kept at the CPU: the threads that work for it change, above
//! all if items block, and each goes on from where the last one was.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use homing_sched::{Nice, PoolId, Shares};

/// Written by the thread that works for the CPU. A thread that has just lost it may write a last
/// time: an estimate then is a little older.
#[derive(Debug)]
pub(crate) struct CpuShares {
    /// By pool: those that have had anything are among the first so many.
    had_ns: Box<[AtomicU64]>,
    used: AtomicUsize,
    floor_ns: AtomicU64,
    /// How many threads have come to work for the CPU.
    comers: AtomicU32,
    /// The pool of the batch under way, from 1, and when it began.
    pool: AtomicU32,
    began_ns: AtomicU64,
    /// When a batch last lost the CPU. Nobody may come for long after that.
    lost_ns: AtomicU64,
    /// By pool, written by any thread: the CPU time of batches that ended after they had lost the
    /// CPU, until it is counted. And whether there is any.
    elsewhere_ns: Box<[AtomicU64]>,
    any_elsewhere: AtomicBool,
}

/// The batch under way, as it was when its thread lent the CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnderWay {
    pool: u32,
    comer: u32,
    /// How long it has had the CPU, which counts when somebody comes.
    pub(crate) had_ns: u64,
}

impl CpuShares {
    pub(crate) fn new() -> Self {
        Self {
            had_ns: (0..=u8::MAX).map(|_| AtomicU64::new(0)).collect(),
            used: AtomicUsize::new(0),
            floor_ns: AtomicU64::new(0),
            comers: AtomicU32::new(0),
            pool: AtomicU32::new(0),
            began_ns: AtomicU64::new(0),
            lost_ns: AtomicU64::new(0),
            elsewhere_ns: (0..=u8::MAX).map(|_| AtomicU64::new(0)).collect(),
            any_elsewhere: AtomicBool::new(false),
        }
    }

    /// The number of the thread that came last.
    pub(crate) fn last_comer(&self) -> u32 {
        self.comers.load(Ordering::Relaxed)
    }

    /// What the pools have had.
    pub(crate) fn read(&self) -> Shares {
        let used = &self.had_ns[..self.used.load(Ordering::Relaxed)];
        let had_ns = used.iter().map(|had_ns| had_ns.load(Ordering::Relaxed));
        Shares::new(had_ns, self.floor_ns.load(Ordering::Relaxed))
    }

    /// A thread comes to work for the CPU. If a batch has lost it, its pool has had the CPU until
    /// then: otherwise a pool whose items block would seem to have had nothing, each time.
    pub(crate) fn come(&self, nice: impl FnOnce(PoolId) -> Nice) -> (Shares, u32) {
        let comer = self.comers.fetch_add(1, Ordering::Relaxed) + 1;
        let mut shares = self.read();
        if let Some(pool) = self.under_way() {
            let [lost_ns, began_ns] =
                [&self.lost_ns, &self.began_ns].map(|ns| ns.load(Ordering::Relaxed));
            shares.ran(pool, nice(pool), lost_ns.saturating_sub(began_ns));
            self.note(&shares, pool);
        }
        (shares, comer)
    }

    /// The batch under way is about to lose the CPU.
    pub(crate) fn loses(&self, now_ns: u64) -> UnderWay {
        self.lost_ns.store(now_ns, Ordering::Relaxed);
        let had_ns = now_ns.saturating_sub(self.began_ns.load(Ordering::Relaxed));
        UnderWay { pool: self.pool.load(Ordering::Relaxed), comer: self.last_comer(), had_ns }
    }

    /// The batch has the CPU again. If others came meanwhile, the time that it had before counts
    /// twice: it was counted when they came, and is part of the batch's whole time at its end.
    pub(crate) fn comes_back(
        &self,
        under_way: UnderWay,
        now_ns: u64,
        nice: impl FnOnce(PoolId) -> Nice,
    ) {
        if self.last_comer() != under_way.comer {
            let _ = self.come(nice);
            self.began_ns.store(now_ns, Ordering::Relaxed);
            self.pool.store(under_way.pool, Ordering::Relaxed);
        }
    }

    /// A batch of the pool has ended after it had lost the CPU, and took so much CPU time since.
    pub(crate) fn ran_elsewhere(&self, pool: PoolId, cpu_ns: u64) {
        self.elsewhere_ns[usize::from(pool.0)].fetch_add(cpu_ns, Ordering::Relaxed);
        self.any_elsewhere.store(true, Ordering::Release);
    }

    /// Counts such time among what the pools have had. For the thread that works for the CPU, while
    /// no batch is under way.
    pub(crate) fn count_elsewhere(
        &self,
        shares: &mut Shares,
        pools: impl Iterator<Item = PoolId>,
        nice: impl Fn(PoolId) -> Nice,
    ) {
        if !self.any_elsewhere.load(Ordering::Relaxed)
            || !self.any_elsewhere.swap(false, Ordering::Acquire)
        {
            return;
        }
        for pool in pools {
            let ns = &self.elsewhere_ns[usize::from(pool.0)];
            if ns.load(Ordering::Relaxed) > 0 {
                shares.ran_before(pool, nice(pool), ns.swap(0, Ordering::Relaxed));
                self.note(shares, pool);
            }
        }
    }

    /// What the pools have had, that time included, for a thread that does not work for the CPU.
    pub(crate) fn with_elsewhere(
        &self,
        pools: impl Iterator<Item = PoolId>,
        nice: impl Fn(PoolId) -> Nice,
    ) -> Shares {
        let mut shares = self.read();
        for pool in pools {
            let ns = self.elsewhere_ns[usize::from(pool.0)].load(Ordering::Relaxed);
            if ns > 0 {
                shares.ran_before(pool, nice(pool), ns);
            }
        }
        shares
    }

    /// The pool of the batch under way, if there is one.
    pub(crate) fn under_way(&self) -> Option<PoolId> {
        self.pool.load(Ordering::Relaxed).checked_sub(1).map(|pool| PoolId(pool as u8))
    }

    /// A batch begins.
    pub(crate) fn begins(&self, pool: PoolId, now_ns: u64) {
        self.began_ns.store(now_ns, Ordering::Relaxed);
        self.pool.store(u32::from(pool.0) + 1, Ordering::Relaxed);
    }

    /// A batch of the pool is over, and counted in `shares`.
    pub(crate) fn note(&self, shares: &Shares, pool: PoolId) {
        let index = usize::from(pool.0);
        self.had_ns[index].store(shares.had_ns(pool), Ordering::Relaxed);
        if index >= self.used.load(Ordering::Relaxed) {
            self.used.store(index + 1, Ordering::Relaxed);
        }
        self.floor_ns.store(shares.floor_ns(), Ordering::Relaxed);
        self.pool.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn who_comes_goes_on_and_counts_what_lost_the_cpu() {
        let (plain, other) = (PoolId(0), PoolId(9));
        let of_cpu = CpuShares::new();
        let normal = |_| Nice::NORMAL;
        let (mut shares, first) = of_cpu.come(normal);
        of_cpu.begins(plain, 1_000);
        shares.ran(plain, Nice::NORMAL, 500);
        of_cpu.note(&shares, plain);
        of_cpu.begins(other, 2_000);
        // It blocks. However long nobody comes, it has had no more.
        let lent = of_cpu.loses(9_000);
        let (shares, second) = of_cpu.come(normal);
        assert_eq!((second, of_cpu.last_comer()), (first + 1, second));
        assert_eq!((shares.had_ns(plain), shares.had_ns(other)), (500, 7_000));
        of_cpu.begins(plain, 20_000);
        of_cpu.loses(21_000);
        // It is back before that one, and blocks once more.
        of_cpu.comes_back(lent, 30_000, normal);
        assert_eq!(of_cpu.read().had_ns(plain), 1_500);
        of_cpu.loses(34_000);
        let (shares, _) = of_cpu.come(normal);
        assert_eq!(shares.had_ns(other), 11_000);
        let (again, _) = of_cpu.come(normal);
        assert_eq!(again.had_ns(other), 11_000, "it counts once");
    }

    #[test]
    fn what_ran_after_it_had_lost_the_cpu_counts_once_for_its_pool() {
        let (one, other, normal) = (PoolId(3), PoolId(200), |_| Nice::NORMAL);
        let pools = || (0..=u8::MAX).map(PoolId);
        let of_cpu = CpuShares::new();
        let (mut shares, _) = of_cpu.come(normal);
        for (ran_ns, had_ns) in [(300, 300), (400, 700), (0, 700)] {
            if ran_ns > 0 {
                of_cpu.ran_elsewhere(other, ran_ns);
            }
            of_cpu.count_elsewhere(&mut shares, pools(), normal);
            assert_eq!((shares.had_ns(one), shares.had_ns(other)), (0, had_ns));
        }
        of_cpu.ran_elsewhere(one, 900);
        of_cpu.count_elsewhere(&mut shares, pools(), normal);
        let (shares, _) = of_cpu.come(normal);
        let had = [one, other].map(|pool| shares.had_ns(pool));
        assert!(had[0] >= 900 && had[1] == 700, "others know it, too: {had:?}");
    }

    #[test]
    fn who_lends_the_cpu_to_nobody_goes_on_as_if_it_had_kept_it() {
        let (plain, normal) = (PoolId(0), |_| Nice::NORMAL);
        let of_cpu = CpuShares::new();
        let (_, comer) = of_cpu.come(normal);
        of_cpu.begins(plain, 1_000);
        let lent = of_cpu.loses(2_000);
        of_cpu.comes_back(lent, 5_000, normal);
        assert_eq!((of_cpu.last_comer(), of_cpu.read().had_ns(plain)), (comer, 0));
        of_cpu.loses(6_000);
        assert_eq!(of_cpu.come(normal).0.had_ns(plain), 5_000);
    }

    #[test]
    fn who_comes_knows_from_where_on_pools_begin_that_had_nothing() {
        let (plain, normal) = (PoolId(0), |_| Nice::NORMAL);
        let of_cpu = CpuShares::new();
        let (mut shares, _) = of_cpu.come(normal);
        for _ in 0..2 {
            shares.ran(plain, Nice::NORMAL, 500);
            of_cpu.note(&shares, plain);
        }
        assert_eq!(of_cpu.come(normal).0.had_ns(PoolId(9)), 500);
    }
}
