//! A discrete-event driver: it simulates the workers and issuers of a machine that does not exist,
//! and `homing-sched` decides each step. Times are integer nanoseconds, events at one time run in
//! the order in which they were made, and random numbers come from a seed, so a scenario runs the
//! same way each time.
//!
//! Here a look at the queues takes no time, and no worker is ever in the middle of one. What can go
//! wrong between the steps of the wake protocol is checked by the runtime's models. Instead, any
//! look but the second one of the protocol may see the facts late.

pub(crate) mod board;
pub(crate) mod checks;
pub(crate) mod machines;
pub(crate) mod rng;
mod sim;
mod worker;

use homing_sched::{Affinity, Attributes, Features, Nice, PullCost};
use homing_topology::{CpuSet, Scope};

use rng::Rng;

pub(crate) use sim::run;

/// The time between two ticks.
pub(crate) const TICK_NS: u64 = 1_000_000;

/// What happens on a machine.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    /// One pool for each.
    pub(crate) pools: Vec<Attributes>,
    /// The masks of the pools; a pool beyond the end of this list has none.
    pub(crate) cpumasks: Vec<Option<CpuSet>>,
    pub(crate) features: Features,
    /// How many items there are in all.
    pub(crate) items: u32,
    /// The number of issuers: threads that are no workers, each issuing bursts from a CPU of its
    /// own choice.
    pub(crate) issuers: u32,
    pub(crate) burst_max: u32,
    /// Whether the items of a burst are put into their queue at once and one CPU is woken for them;
    /// otherwise they are put one after the other.
    pub(crate) at_once: bool,
    /// The longest pause between the bursts of an issuer.
    pub(crate) pause_ns: u64,
    /// How long items run: one of these times, plus up to a tenth.
    pub(crate) lengths_ns: Vec<u64>,
    /// How many of eight items issue others as they run.
    pub(crate) parents: u32,
    /// Whether issuers occupy their CPU.
    pub(crate) occupy: bool,
    /// How old facts may be.
    pub(crate) stale_ns: u64,
    /// The time from waking a CPU to its worker's first look.
    pub(crate) wake_ns: u64,
    /// Whether the decisions know this time.
    pub(crate) knows_delay: bool,
    /// Whether issuers use all of their time, as far as the decisions know.
    pub(crate) issuers_are_busy: bool,
    /// How long workers expect to be without work. Where that is short they search before they
    /// park.
    pub(crate) gap_ns: u64,
    /// Whether each item must be taken soon, not only one item of its queue.
    pub(crate) by_item: bool,
    /// The CPUs that have workers, with the time from which that holds. Before the first, all CPUs
    /// have.
    pub(crate) masks: Vec<(u64, CpuSet)>,
}

impl Scenario {
    /// Facts are fresh, all attributes are loose, no item is tiny, and every feature is on. So work
    /// may wait beside an idle CPU only until it is ripe.
    pub(crate) fn prompt(seed: u64) -> Self {
        let loose = |scope| Attributes::new(Affinity { scope, strict: false });
        Self {
            seed,
            pools: [Scope::Cache, Scope::Cpu, Scope::System].map(loose).to_vec(),
            cpumasks: Vec::new(),
            features: Features::ALL,
            items: 2_000,
            issuers: 3,
            burst_max: 8,
            at_once: seed.is_multiple_of(2),
            pause_ns: 40_000,
            lengths_ns: vec![2_000, 30_000, 300_000],
            parents: 2,
            occupy: false,
            stale_ns: 0,
            wake_ns: 5_000,
            knows_delay: false,
            issuers_are_busy: false,
            gap_ns: 1_000_000,
            by_item: true,
            masks: Vec::new(),
        }
    }

    /// The same with one pool, where all items are about as long and the decisions know how long
    /// waking a CPU takes. So some items are left to workers that are awake.
    pub(crate) fn patient(seed: u64) -> Self {
        let mut base = Self::prompt(seed);
        base.pools.truncate(1);
        Self {
            lengths_ns: vec![30_000],
            wake_ns: 20_000,
            knows_delay: true,
            pause_ns: 200_000,
            ..base
        }
    }

    /// Any scenario that is legal.
    pub(crate) fn random(seed: u64, items: u32, online: &CpuSet) -> Self {
        let mut rng = Rng::new(seed);
        let cpus = online.len() as u64;
        let mut pools = Vec::new();
        for _ in 0..=rng.below(6) {
            let attributes = Attributes {
                affinity: *rng.pick(&Affinity::ALL),
                localize: rng.below(4) == 0,
                nice: *rng.pick(&[Nice::NORMAL, Nice::NORMAL, Nice::HIGHPRI, Nice::MAX]),
                pull_cost: *rng.pick(&PullCost::ALL),
            };
            if !pools.contains(&attributes) {
                pools.push(attributes);
            }
        }
        let some = |rng: &mut Rng| online.iter().filter(|_| rng.below(3) > 0).collect::<CpuSet>();
        let with_masks = rng.below(3) == 0;
        let mut masks = Vec::new();
        if rng.below(3) == 0 {
            let some = some(&mut rng);
            let active = if some.is_empty() { *online } else { some };
            masks = vec![(300_000, active), (2_500_000, *online)];
        }
        let lengths: [&[u64]; 5] = [
            &[80],
            &[300, 700, 5_000],
            &[1_500, 20_000],
            &[100, 100, 100, 4_000_000],
            &[10_000, 100_000, 1_000_000],
        ];
        let mut mask = |_: &Attributes| Some(some(&mut rng)).filter(|mask| !mask.is_empty());
        let cpumasks = if with_masks { pools.iter().map(&mut mask).collect() } else { Vec::new() };
        Self {
            pools,
            cpumasks,
            features: if rng.below(3) == 0 {
                Features::from_bits(rng.below(16) as u8)
            } else {
                Features::ALL
            },
            items,
            issuers: 1 + rng.below(cpus.min(6)) as u32,
            burst_max: 1 + rng.below(40) as u32,
            at_once: rng.below(3) == 0,
            pause_ns: *rng.pick(&[500, 20_000, 200_000]),
            lengths_ns: rng.pick(&lengths).to_vec(),
            parents: rng.below(6) as u32,
            occupy: rng.below(2) == 0,
            stale_ns: *rng.pick(&[0, 0, 2_000, 50_000, 400_000]),
            wake_ns: *rng.pick(&[0, 3_000, 50_000]),
            knows_delay: rng.below(2) == 0,
            issuers_are_busy: rng.below(2) == 0,
            gap_ns: *rng.pick(&[1_000_000, 1_000_000, 2_000]),
            by_item: false,
            masks,
            seed,
        }
    }
}
