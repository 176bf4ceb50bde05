//! Records decisions with the facts from which they were made, so that they can be made again
//! elsewhere.
//!
//! A [`Recording`] stands between a decision and its facts and writes down every answer. A
//! [`Replay`] gives the same answers again: then the same decision must come out, wherever it is
//! made. So a decision that a runtime made on one machine can be examined on another, and a change
//! of a rule shows which decisions it changes.

use std::cell::RefCell;
use std::fmt;

use homing_topology::{CpuId, CpuSet, Scope};
use serde::{Deserialize, Serialize};

use crate::attributes::Attributes;
use crate::auto::Auto;
use crate::facts::Facts;
use crate::features::Features;
use crate::hand_off::{HandOff, HandOffFacts, hand_off};
use crate::idle::Idle;
use crate::issuer_wait::issuer_waits;
use crate::layout::{Layout, PoolId, PoolSet, QueueId};
use crate::nice::Shares;
use crate::place::{start, submit};
use crate::pull::{Next, before_park};
use crate::pull_cost::PullCost;
use crate::tick::{Running, Verdict, overdue, tick};
use crate::window::Window;

/// A question and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    Now(u64),
    Features(Features),
    Active(#[serde(with = "cpu_list")] CpuSet),
    Idle(#[serde(with = "cpu_list")] CpuSet),
    Searching(#[serde(with = "cpu_list")] CpuSet),
    Occupied(u64, #[serde(with = "cpu_list")] CpuSet),
    BusySince(CpuId, u64),
    Wake(bool, u64),
    IssuersAreBusy(bool),
    Pools(PoolSet),
    Attributes(PoolId, Attributes),
    Cpumask(PoolId, #[serde(with = "cpu_list::option")] Option<CpuSet>),
    Waiting(QueueId, u32),
    HeadSince(QueueId, u64),
    Item(QueueId, u64),
    /// The search for a scope, before it took note of the window.
    Auto(Box<Auto>),
}

/// Sets of CPUs as the kernel's lists: of a thousand CPUs most sets are short.
mod cpu_list {
    use homing_topology::CpuSet;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(set: &CpuSet, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(set)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<CpuSet, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }

    pub(super) mod option {
        use super::{CpuSet, Deserialize, Deserializer, Error, Serializer};

        #[expect(clippy::ref_option, reason = "serde calls it so")]
        pub(crate) fn serialize<S: Serializer>(
            set: &Option<CpuSet>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            match set {
                Some(set) => to.collect_str(set),
                None => to.serialize_none(),
            }
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<CpuSet>, D::Error> {
            let list = Option::<String>::deserialize(from)?;
            list.map(|list| list.parse().map_err(D::Error::custom)).transpose()
        }
    }
}

/// The decision that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Asked {
    /// [`submit`]: which CPU to wake for an item for this CPU in this pool.
    Submit(CpuId, PoolId),
    /// [`start`]: which CPU to wake next, by this CPU from this queue.
    Start(QueueId, CpuId),
    /// [`before_park`]: what this CPU does.
    BeforePark(CpuId, Idle),
    /// [`overdue`]: which CPU a tick wakes.
    Overdue,
    /// [`issuer_waits`]: whether this CPU's worker is woken, because its issuer waits.
    IssuerWaits(CpuId),
    /// [`hand_off`]: whether an item is queued, from these facts.
    HandOff(HandOffFacts),
    /// [`tick`]: what the monitor finds of a worker that runs, from these facts.
    Tick(Running),
    /// [`Auto::note`]: which scope and pull cost are used next, after this window.
    Choose(Window),
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decided {
    /// The CPU to wake.
    Wake(Option<CpuId>),
    /// What the worker does next.
    Next(Next),
    /// Who runs the item.
    HandOff(HandOff),
    /// How the worker is judged.
    Verdict(Verdict),
    /// What the workqueue uses next.
    Chosen(Scope, PullCost),
}

impl Asked {
    /// The function that decides.
    ///
    /// ```
    /// assert_eq!(homing_sched::Asked::Overdue.name(), "overdue");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submit(..) => "submit",
            Self::Start(..) => "start",
            Self::BeforePark(..) => "before_park",
            Self::Overdue => "overdue",
            Self::IssuerWaits(_) => "issuer_waits",
            Self::HandOff(_) => "hand_off",
            Self::Tick(_) => "tick",
            Self::Choose(_) => "choose",
        }
    }
}

/// As in "submit for CPU 3, pool 0".
impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Self::Submit(cpu, pool) => write!(f, "{name} for CPU {cpu}, pool {}", pool.0),
            Self::Start(QueueId { pool, leader }, cpu) => {
                write!(f, "{name} by CPU {cpu}, pool {}, queue {leader}", pool.0)
            }
            Self::BeforePark(cpu, Idle::Any) => write!(f, "{name} of CPU {cpu}, for anything"),
            Self::BeforePark(cpu, Idle::Called(reach, ns)) => {
                write!(f, "{name} of CPU {cpu}, woken at {ns} ns ({reach:?})")
            }
            Self::BeforePark(cpu, Idle::Since(ns)) => {
                write!(f, "{name} of CPU {cpu}, idle since {ns} ns")
            }
            Self::BeforePark(cpu, Idle::Rested(ns)) => {
                write!(f, "{name} of CPU {cpu}, rested, idle since {ns} ns")
            }
            Self::Overdue => f.write_str(name),
            Self::IssuerWaits(cpu) => write!(f, "{name} on CPU {cpu}"),
            Self::HandOff(HandOffFacts { item_ns, spare_cpu_count, .. }) => {
                write!(f, "{name} of {item_ns} ns, {spare_cpu_count} CPUs to spare")
            }
            Self::Tick(Running { running_for_ns, used_ns, .. }) => {
                write!(f, "{name} of what runs since {running_for_ns} ns and used {used_ns}")
            }
            Self::Choose(window) => {
                let (items, elapsed_ns) = (window.items(), window.elapsed_ns);
                write!(f, "{name} after {items} items in {elapsed_ns} ns")
            }
        }
    }
}

/// As in "wake CPU 4".
impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wake(None) => f.write_str("wake nobody"),
            Self::Wake(Some(cpu)) => write!(f, "wake CPU {cpu}"),
            Self::Next(Next::Take { queue: QueueId { pool, leader }, reach }) => {
                write!(f, "take from pool {}, queue {leader} ({reach:?})", pool.0)
            }
            Self::Next(Next::Park { until_ns: None }) => f.write_str("park"),
            Self::Next(Next::Park { until_ns: Some(ns) }) => write!(f, "park until {ns} ns"),
            Self::HandOff(HandOff::Inline) => f.write_str("run it"),
            Self::HandOff(HandOff::Queue) => f.write_str("queue it"),
            Self::Verdict(Verdict::Fine) => f.write_str("fine"),
            Self::Verdict(Verdict::CpuIntensive) => f.write_str("CPU-intensive"),
            Self::Verdict(Verdict::Blocked) => f.write_str("blocked"),
            Self::Chosen(scope, pull_cost) => {
                write!(f, "scope {scope}, pull cost {} %", pull_cost.percent())
            }
        }
    }
}

/// A decision, with the answers from which it was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    asked: Asked,
    shares: Shares,
    answers: Vec<Answer>,
    decided: Decided,
}

/// Facts that write down their answers.
///
/// ```
/// use homing_sched::{
///     Affinity, Asked, Attributes, Decided, Layout, PoolId, Record, Recording, Shares, Snapshot,
/// };
/// use homing_topology::{CpuId, Machine, Scope};
///
/// let layout = Layout::new(&Machine::from_grid("2x2x1")?).ok_or("no CPU")?;
/// let attributes = Attributes::new(Affinity { scope: Scope::Cache, strict: false });
/// let mut facts = Snapshot::new(&layout, &[attributes]);
/// let asked = Asked::Submit(CpuId::new(3).ok_or("?")?, PoolId(0));
/// facts.idle = "0-2".parse()?;
/// facts.queue_items(&layout, PoolId(0), CpuId::new(3).ok_or("?")?, 1, facts.now_ns);
/// let (decided, record): (Decided, Record) =
///     Recording::new(&facts).decide(&layout, asked, &Shares::NONE);
/// assert_eq!(decided, Decided::Wake(CpuId::new(2)));
/// // Elsewhere, without these facts.
/// drop(facts);
/// assert_eq!((record.asked(), record.decided()), (asked, decided));
/// assert_eq!(record.replay(&layout)?, decided);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Recording<'a, F> {
    facts: &'a F,
    answers: RefCell<Vec<Answer>>,
}

impl<'a, F: Facts> Recording<'a, F> {
    /// Records the answers of these facts.
    pub fn new(facts: &'a F) -> Self {
        Self { facts, answers: RefCell::default() }
    }

    /// Makes the decision, and records the answers from which it was made.
    ///
    /// # Panics
    /// If it is [`Asked::Choose`], which [`Record::note`] records.
    pub fn decide(self, layout: &Layout, asked: Asked, shares: &Shares) -> (Decided, Record) {
        let decided = decide(layout, &self, asked, shares);
        let answers = self.answers.into_inner();
        (decided, Record { asked, shares: shares.clone(), answers, decided })
    }

    fn note(&self, answer: Answer) {
        self.answers.borrow_mut().push(answer);
    }
}

fn decide(layout: &Layout, facts: &impl Facts, asked: Asked, shares: &Shares) -> Decided {
    match asked {
        Asked::Submit(cpu, pool) => Decided::Wake(submit(layout, facts, cpu, pool).wake),
        Asked::Start(queue, cpu) => Decided::Wake(start(layout, facts, queue, cpu)),
        Asked::BeforePark(cpu, idle) => {
            Decided::Next(before_park(layout, facts, cpu, idle, shares))
        }
        Asked::Overdue => Decided::Wake(overdue(layout, facts)),
        Asked::IssuerWaits(cpu) => Decided::Wake(issuer_waits(layout, facts, cpu)),
        Asked::HandOff(facts) => Decided::HandOff(hand_off(&facts)),
        Asked::Tick(running) => Decided::Verdict(tick(&running)),
        Asked::Choose(_) => panic!("a scope is not chosen by these facts: see Record::note"),
    }
}

fn choose(auto: &mut Auto, window: &Window) -> Decided {
    auto.note(window);
    Decided::Chosen(auto.scope(), auto.pull_cost())
}

impl Record {
    /// A decision that was made from what was asked alone: [`hand_off`], [`tick`].
    ///
    /// ```
    /// use homing_sched::{Asked, Decided, HandOffFacts, Layout, Record, hand_off};
    /// use homing_topology::Machine;
    ///
    /// let facts = HandOffFacts {
    ///     item_ns: 100_000,
    ///     issuer_has_more: true,
    ///     spare_cpu_count: 1,
    ///     spare_of_late: 1,
    ///     idle_of_late: true,
    /// };
    /// let record = Record::new(Asked::HandOff(facts), Decided::HandOff(hand_off(&facts)));
    /// let layout = Layout::new(&Machine::from_grid("2x2x1")?).ok_or("no CPU")?;
    /// assert_eq!(record.replay(&layout)?, record.decided());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(asked: Asked, decided: Decided) -> Self {
        Self { asked, shares: Shares::NONE, answers: Vec::new(), decided }
    }

    /// [`Auto::note`], recorded.
    ///
    /// ```
    /// use homing_sched::{Auto, Decided, Layout, Record, Window};
    /// use homing_topology::{Machine, Scope};
    ///
    /// let layout = Layout::new(&Machine::from_grid("2x2x1")?).ok_or("no CPU")?;
    /// let mut auto = Auto::new(&layout, Scope::Numa);
    /// let record = Record::note(&mut auto, &Window::default());
    /// assert_eq!(record.decided(), Decided::Chosen(auto.scope(), auto.pull_cost()));
    /// assert_eq!(record.replay(&layout)?, record.decided());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn note(auto: &mut Auto, window: &Window) -> Self {
        let before = Answer::Auto(Box::new(auto.clone()));
        let decided = choose(auto, window);
        Self { answers: vec![before], ..Self::new(Asked::Choose(*window), decided) }
    }

    /// The decision that was asked for.
    pub fn asked(&self) -> Asked {
        self.asked
    }

    /// What was decided.
    pub fn decided(&self) -> Decided {
        self.decided
    }

    /// Makes the decision again from the same answers.
    ///
    /// # Errors
    /// If the decision asks for something other than it did when it was recorded, which means that
    /// a rule has changed. The error says what it asked for.
    pub fn replay(&self, layout: &Layout) -> Result<Decided, String> {
        if let Asked::Choose(window) = &self.asked {
            return match &self.answers[..] {
                [Answer::Auto(before)] => Ok(choose(&mut before.clone(), window)),
                answers => {
                    Err(format!("asked for the search for a scope where it was {answers:?}"))
                }
            };
        }
        let replay =
            Replay { answers: &self.answers, next: RefCell::new(0), odd: RefCell::default() };
        let decided = decide(layout, &replay, self.asked, &self.shares);
        match replay.odd.into_inner() {
            None => Ok(decided),
            Some(odd) => Err(odd),
        }
    }
}

/// Gives recorded answers again, in their order.
struct Replay<'a> {
    answers: &'a [Answer],
    next: RefCell<usize>,
    /// The first question that was not asked when this was recorded.
    odd: RefCell<Option<String>>,
}

impl<'a> Replay<'a> {
    /// The next answer, if it is one to this question.
    fn next<T>(
        &self,
        question: &str,
        fits: impl FnOnce(&'a Answer) -> Option<T>,
        otherwise: T,
    ) -> T {
        let mut next = self.next.borrow_mut();
        let found = self.answers.get(*next);
        *next += 1;
        found.and_then(fits).unwrap_or_else(|| {
            let mut odd = self.odd.borrow_mut();
            odd.get_or_insert_with(|| format!("asked for {question} where it was {found:?}"));
            otherwise
        })
    }
}

macro_rules! facts {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty = $answer:ident, $otherwise:expr;)*) => {
        impl<F: Facts> Facts for Recording<'_, F> {
            $(fn $name(&self $(, $arg: $kind)*) -> $result {
                let answer = self.facts.$name($($arg),*);
                self.note(Answer::$answer($($arg,)* answer));
                answer
            })*

            fn cpumask(&self, pool: PoolId) -> Option<&CpuSet> {
                let answer = self.facts.cpumask(pool);
                self.note(Answer::Cpumask(pool, answer.copied()));
                answer
            }
        }

        impl Facts for Replay<'_> {
            $(fn $name(&self $(, $arg: $kind)*) -> $result {
                $(let asked_of = $arg;)*
                self.next(stringify!($name), |answer| match answer {
                    facts!(@pattern $answer, answer, ($($arg),*), of)
                        if facts!(@same ($($arg),*), of, asked_of) => Some(*answer),
                    _ => None,
                }, $otherwise)
            })*

            fn cpumask(&self, pool: PoolId) -> Option<&CpuSet> {
                self.next("cpumask", |answer| match answer {
                    Answer::Cpumask(of, mask) if *of == pool => Some(mask.as_ref()),
                    _ => None,
                }, None)
            }
        }
    };
    (@pattern $answer:ident, $value:ident, (), $of:ident) => { Answer::$answer($value) };
    (@pattern $answer:ident, $value:ident, ($arg:ident), $of:ident) => { Answer::$answer($of, $value) };
    (@same (), $of:ident, $asked:ident) => { true };
    (@same ($arg:ident), $of:ident, $asked:ident) => { *$of == $asked };
}

facts! {
    now_ns() -> u64 = Now, 0;
    features() -> Features = Features, Features::NONE;
    active() -> CpuSet = Active, CpuSet::EMPTY;
    idle() -> CpuSet = Idle, CpuSet::EMPTY;
    searching() -> CpuSet = Searching, CpuSet::EMPTY;
    occupied(item_ns: u64) -> CpuSet = Occupied, CpuSet::EMPTY;
    busy_since_ns(cpu: CpuId) -> u64 = BusySince, u64::MAX;
    wake_ns(occupied: bool) -> u64 = Wake, 0;
    issuers_are_busy() -> bool = IssuersAreBusy, false;
    pools() -> PoolSet = Pools, PoolSet::default();
    attributes(pool: PoolId) -> Attributes = Attributes, Attributes::new(crate::Affinity::ALL[0]);
    waiting(queue: QueueId) -> u32 = Waiting, 0;
    head_since_ns(queue: QueueId) -> u64 = HeadSince, 0;
    item_ns(queue: QueueId) -> u64 = Item, 0;
}

#[cfg(test)]
mod tests {
    use homing_topology::Scope;

    use super::*;
    use crate::test_facts::{Given, cpu_id, cpus, layout, loose};

    #[test]
    fn the_same_answers_give_the_same_decision() {
        let layout = layout("2x2x2x2");
        let mut facts = Given::new(&layout, &[loose(Scope::Cache), loose(Scope::Cpu)]);
        facts.masks = vec![None, Some(cpus("0-5"))];
        facts.idle = cpus("3,9");
        let queue = facts.put(&layout, 0, 4, 3, 0);
        for asked in [
            Asked::Submit(cpu_id(4), PoolId(0)),
            Asked::Start(queue, cpu_id(5)),
            Asked::BeforePark(cpu_id(9), Idle::Since(facts.now_ns)),
            Asked::BeforePark(cpu_id(4), Idle::Any),
            Asked::Overdue,
            Asked::IssuerWaits(cpu_id(3)),
        ] {
            let (decided, record) = Recording::new(&facts).decide(&layout, asked, &Shares::NONE);
            assert_eq!(record.decided(), decided);
            assert_eq!(record.replay(&layout), Ok(decided), "{asked:?}");
        }
    }

    #[test]
    fn a_record_of_something_else_is_told() {
        let layout = layout("2x2x2x2");
        let facts = Given::new(&layout, &[loose(Scope::Cache)]);
        let asked = Asked::BeforePark(cpu_id(9), Idle::Any);
        let (_, mut record) = Recording::new(&facts).decide(&layout, asked, &Shares::NONE);
        record.answers.remove(0);
        let odd = record.replay(&layout).unwrap_err();
        assert!(odd.contains("asked for"), "{odd}");
    }
}
