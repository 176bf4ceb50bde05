//! Makes decisions that a runtime recorded again, and tells whether they come out the same.

use homing::recorded::{Decided, DecisionLog};

/// The result of a replay.
///
/// ```
/// use homing::Runtime;
/// use homing::recorded::DecisionLog;
/// use homing_lab::Replayed;
///
/// let runtime = Runtime::builder().record_decisions(1_000).build()?;
/// runtime.queue(|| 1 + 1).join()?;
/// let text = DecisionLog::new(runtime.layout(), runtime.take_decisions()).to_string();
/// // Elsewhere:
/// let replayed = Replayed::of(&text.parse()?);
/// assert!(replayed.decisions() > 0 && replayed.differences.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// How many decisions of each kind there are.
    pub kinds: Vec<Kind>,
    /// The decisions that come out differently, in their order.
    pub differences: Vec<Difference>,
}

/// The decisions of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The function of `homing-sched` that decides.
    pub name: &'static str,
    /// How many.
    pub decisions: u64,
    /// How many of them come out in another way.
    pub different: u64,
}

/// A decision that comes out in another way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of the decision in the log, from 1.
    pub number: u64,
    /// What was to be decided.
    pub asked: String,
    /// What was decided.
    pub then: String,
    /// What is decided now, or what is asked for now that was not asked for then.
    pub now: String,
}

impl Replayed {
    /// Makes all of these decisions again.
    pub fn of(log: &DecisionLog) -> Self {
        let mut all = Self::default();
        for (number, (record, now)) in (1..).zip(log.replay()) {
            let differs = now != Ok(record.decided());
            all.count(record.asked().name(), differs);
            if differs {
                all.differences.push(Difference {
                    number,
                    asked: record.asked().to_string(),
                    then: record.decided().to_string(),
                    now: now.as_ref().map_or_else(Clone::clone, Decided::to_string),
                });
            }
        }
        all
    }

    /// How many there are.
    pub fn decisions(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.decisions).sum()
    }

    fn count(&mut self, name: &'static str, differs: bool) {
        let known = self.kinds.iter().position(|kind| kind.name == name);
        let index = known.unwrap_or_else(|| {
            self.kinds.push(Kind { name, decisions: 0, different: 0 });
            self.kinds.len() - 1
        });
        let kind = &mut self.kinds[index];
        kind.decisions += 1;
        kind.different += u64::from(differs);
    }
}
