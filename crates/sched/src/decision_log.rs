//! Recorded decisions as text: to be kept, or sent elsewhere to be made again.

use std::fmt;
use std::str::FromStr;

use homing_topology::Machine;
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::record::{Decided, Record};

/// The version of the text. Any other is refused.
const VERSION: u32 = 5;

/// Decisions, with the machine for which they were made.
///
/// As text, it is lines of JSON: the version, the machine and the number of decisions, then one
/// line for each decision. The text need not come from a trusted source: whatever it is, it is
/// either refused or replayed.
///
/// ```
/// use homing_sched::{Affinity, Asked, Attributes, DecisionLog, Layout, PoolId, Recording, Shares, Snapshot};
/// use homing_topology::{CpuId, Machine};
///
/// let layout = Layout::new(&Machine::from_grid("2x2x1")?).ok_or("no CPU")?;
/// let mut facts = Snapshot::new(&layout, &[Attributes::new(Affinity::ALL[0])]);
/// let cpu = CpuId::new(3).ok_or("?")?;
/// facts.queue_items(&layout, PoolId(0), cpu, 1, facts.now_ns);
/// let asked = Asked::Submit(cpu, PoolId(0));
/// let (_, record) = Recording::new(&facts).decide(&layout, asked, &Shares::NONE);
/// let text = DecisionLog::new(&layout, vec![record]).to_string();
///
/// // On another machine, or with another version of the rules:
/// let log: DecisionLog = text.parse()?;
/// assert_eq!((log.records().len(), log.machine().cpus().len()), (1, 4));
/// for (record, again) in log.replay() {
///     assert_eq!(again, Ok(record.decided()));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DecisionLog {
    layout: Layout,
    records: Vec<Record>,
}

/// The first line of the text.
#[derive(Serialize, Deserialize)]
struct Head {
    decisions_version: u32,
    /// How many lines follow, so that a log that was cut off is noticed.
    #[serde(default)]
    decisions: usize,
    machine: Machine,
}

/// Why text is not a log of decisions.
///
/// ```
/// use homing_sched::DecisionLog;
///
/// let error = "{}".parse::<DecisionLog>().unwrap_err();
/// assert_eq!(error.line, 1);
/// assert!(error.to_string().starts_with("line 1 is not what a log of decisions begins with: "));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} {problem}")]
pub struct DecisionLogError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
}

impl DecisionLog {
    /// A log of decisions made with this layout.
    pub fn new(layout: &Layout, records: Vec<Record>) -> Self {
        Self { layout: layout.clone(), records }
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        self.layout.machine()
    }

    /// The decisions, the oldest first.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Makes each decision again. Gives the result, or where it first differs from the record
    /// ([`Record::replay`]).
    pub fn replay(&self) -> impl Iterator<Item = (&Record, Result<Decided, String>)> {
        self.records.iter().map(|record| (record, record.replay(&self.layout)))
    }
}

impl fmt::Display for DecisionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = Head {
            decisions_version: VERSION,
            decisions: self.records.len(),
            machine: self.machine().clone(),
        };
        writeln!(f, "{}", serde_json::to_string(&head).map_err(|_| fmt::Error)?)?;
        self.records.iter().try_for_each(|record| {
            writeln!(f, "{}", serde_json::to_string(record).map_err(|_| fmt::Error)?)
        })
    }
}

impl FromStr for DecisionLog {
    type Err = DecisionLogError;

    fn from_str(text: &str) -> Result<Self, DecisionLogError> {
        let error = |line, problem: String| DecisionLogError { line, problem };
        let (head, rest) = text.split_once('\n').unwrap_or((text, ""));
        let head: Head = serde_json::from_str(head).map_err(|problem| {
            error(1, format!("is not what a log of decisions begins with: {problem}"))
        })?;
        if head.decisions_version != VERSION {
            let problem =
                format!("is of version {}, and this reads {VERSION}", head.decisions_version);
            return Err(error(1, problem));
        }
        let layout = Layout::new(&head.machine);
        let layout = layout.ok_or_else(|| error(1, "tells of no CPU".to_owned()))?;
        let records = rest.lines().enumerate().map(|(index, line)| {
            let record = serde_json::from_str(line);
            record.map_err(|problem| error(index + 2, format!("is not a decision: {problem}")))
        });
        let records: Vec<_> = records.collect::<Result<_, _>>()?;
        if records.len() != head.decisions {
            let problem = format!(
                "tells of {} decisions, and {} follow: lines are missing, or there are too many",
                head.decisions,
                records.len()
            );
            return Err(error(1, problem));
        }
        Ok(Self { layout, records })
    }
}

#[cfg(test)]
mod tests {
    use homing_topology::{CpuId, Scope};
    use proptest::prelude::*;

    use super::*;
    use crate::test_facts::{Given, cpu_id, cpus, layout, loose};
    use crate::{
        Asked, Auto, Features, HandOffFacts, Idle, Nice, PoolId, PullCost, Recording, Running,
        Shares, WINDOW_NS, Window, hand_off, tick,
    };

    /// A log of every kind of decision, with facts of every kind.
    fn log(grid: &str) -> DecisionLog {
        let layout = layout(grid);
        let mut dear = loose(Scope::Cpu);
        (dear.nice, dear.pull_cost) = (Nice::HIGHPRI, PullCost::ALL[4]);
        let mut facts = Given::new(&layout, &[loose(Scope::Cache), dear]);
        facts.masks = vec![None, Some(cpus("0-5"))];
        facts.idle = cpus("3,9");
        facts.features = Features::ALL.without(Features::SMT_AWARE);
        let queue = facts.put(&layout, 0, 4, 3, 0);
        facts.put(&layout, 1, 2, 1, 10);
        let mut shares = Shares::default();
        shares.ran(PoolId(1), Nice::HIGHPRI, 5_000);
        let asked = [
            Asked::Submit(cpu_id(4), PoolId(0)),
            Asked::Start(queue, cpu_id(5)),
            Asked::BeforePark(cpu_id(9), Idle::Since(facts.now_ns)),
            Asked::BeforePark(cpu_id(2), Idle::Any),
            Asked::Overdue,
            Asked::IssuerWaits(cpu_id(3)),
        ];
        let decide = |asked| Recording::new(&facts).decide(&layout, asked, &shares).1;
        let mut records: Vec<_> = asked.map(decide).into();
        let alone = HandOffFacts {
            item_ns: 50_000,
            issuer_has_more: true,
            spare_cpu_count: 2,
            spare_of_late: 1,
            idle_of_late: false,
        };
        records.push(Record::new(Asked::HandOff(alone), Decided::HandOff(hand_off(&alone))));
        let running = Running {
            running_for_ns: 3_000_000,
            used_ns: 1_000_000,
            elapsed_ns: 1_000_000,
            on_cpu_ns: 0,
            ready_ns: 10_000,
            asleep_now: true,
            cpu_intensive_ns: 10_000_000,
        };
        records.push(Record::new(Asked::Tick(running), Decided::Verdict(tick(&running))));
        let mut auto = Auto::new(&layout, Scope::Numa);
        let window = Window { elapsed_ns: WINDOW_NS, waited_ns: 1_000, ..Window::default() };
        // The last one is in a trial.
        records.extend((0..6).map(|_| Record::note(&mut auto, &window)));
        DecisionLog::new(&layout, records)
    }

    #[test]
    fn decisions_are_read_as_they_were_written_and_made_again() {
        let log = log("2x2x2x2");
        let text = log.to_string();
        let read: DecisionLog = text.parse().unwrap();
        assert_eq!(read.to_string(), text);
        assert_eq!((read.machine(), read.records().len()), (log.machine(), 14));
        for (record, again) in read.replay() {
            assert_eq!(again, Ok(record.decided()), "{:?}", record.asked());
        }
    }

    #[test]
    fn what_is_no_log_is_refused_by_its_line() {
        let text = log("2x2x2x2").to_string();
        let refused = |text: &str| text.parse::<DecisionLog>().unwrap_err().to_string();
        assert!(refused("").starts_with("line 1 is not what"), "{}", refused(""));
        let older = text.replacen("\"decisions_version\":5", "\"decisions_version\":4", 1);
        assert_eq!(refused(&older), "line 1 is of version 4, and this reads 5");
        let lines: Vec<_> = text.lines().collect();
        for some in [&lines[..1], &lines[..9], &[&lines[..4], &lines[5..]].concat()] {
            let refused = refused(&(some.join("\n") + "\n"));
            assert!(refused.starts_with("line 1 tells of 14 decisions, and "), "{refused}");
        }
        let cut = &text[..text.len() - 10];
        assert!(refused(cut).starts_with("line 15 is not a decision: EOF"), "{}", refused(cut));
        let wild = text.replacen("\"pull_cost\":400", "\"pull_cost\":90", 1);
        assert!(refused(&wild).contains("90 is not a pull cost: 25, 50"), "{}", refused(&wild));
        let wild = text.replacen("\"nice\":-20", "\"nice\":-21", 1);
        assert!(refused(&wild).contains("-21 is not a nice level"), "{}", refused(&wild));
        let wild = text.replacen("\"settled\":3", "\"settled\":9", 1);
        assert!(refused(&wild).contains("no search for a scope is ever"), "{}", refused(&wild));
    }

    proptest! {
        /// Numbers of any size in any place: refused, or replayed in some way.
        #[test]
        fn nothing_that_is_read_harms(changes in prop::collection::vec(
            (any::<prop::sample::Index>(), prop_oneof![0..30_u64, any::<u64>(), u64::MAX - 30..=u64::MAX]), 1..20,
        )) {
            let text = log("2x2x2x2").to_string();
            let (head, rest) = text.split_once('\n').unwrap();
            let head = head.replacen("\"decisions\":14", "\"decisions\":1", 1);
            prop_assert!(head.len() == text.find('\n').unwrap() - 1);
            let mut numbers: Vec<(usize, usize)> = Vec::new();
            let mut begin = None;
            for (at, byte) in rest.bytes().enumerate() {
                match (byte.is_ascii_digit(), begin) {
                    (true, None) => begin = Some(at),
                    (false, Some(from)) => {
                        numbers.push((from, at));
                        begin = None;
                    }
                    _ => {}
                }
            }
            let mut with: Vec<_> =
                changes.iter().map(|(index, number)| (numbers[index.index(numbers.len())], number)).collect();
            with.sort_unstable();
            with.dedup_by_key(|(place, _)| *place);
            let mut rest = rest.to_owned();
            for ((from, to), number) in with.into_iter().rev() {
                rest.replace_range(from..to, &number.to_string());
            }
            for line in rest.lines() {
                if let Ok(log) = format!("{head}\n{line}").parse::<DecisionLog>() {
                    prop_assert_eq!(log.replay().count(), 1);
                }
            }
        }
    }

    #[test]
    fn a_large_machine_fits() {
        let log = log("2x2x4x16x2");
        assert!(log.to_string().parse::<DecisionLog>().is_ok());
        assert!(log.machine().cpu(CpuId::new(255).unwrap()).is_some());
    }
}
