//! A recording of decisions, for [`crate::Builder::record_decisions`] and the attribute of that
//! name.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use homing_sched::{Asked, Auto, Decided, Facts, Layout, Next, Record, Recording, Shares, Window};
use homing_topology::CpuId;

use crate::sync::{Mutex, lock};

/// The last so many decisions.
#[derive(Debug)]
pub(crate) struct Tape {
    records: Mutex<VecDeque<Record>>,
    /// Not part of any protocol: a thread that sees a change late records a decision more or less.
    limit: AtomicUsize,
}

impl Tape {
    pub(crate) fn off() -> Self {
        Self { records: Mutex::new(VecDeque::new()), limit: AtomicUsize::new(0) }
    }

    /// How many decisions are kept.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Keeps so many decisions from now on; 0 for none.
    pub(crate) fn set_limit(&self, limit: usize) {
        let mut records = lock(&self.records);
        self.limit.store(limit, Ordering::Relaxed);
        self.forget_oldest(&mut records);
        records.shrink_to_fit();
    }

    fn forget_oldest(&self, records: &mut VecDeque<Record>) {
        let over = records.len().saturating_sub(self.limit());
        records.drain(..over);
    }

    /// Itself, while it records.
    pub(crate) fn running(&self) -> Option<&Self> {
        (self.limit() > 0).then_some(self)
    }

    fn decide(
        &self,
        layout: &Layout,
        facts: &impl Facts,
        asked: Asked,
        shares: &Shares,
    ) -> Decided {
        let (decided, record) = Recording::new(facts).decide(layout, asked, shares);
        self.keep(record);
        decided
    }

    /// Keeps a decision that was made from what was asked alone.
    pub(crate) fn note(&self, asked: Asked, decided: Decided) {
        self.keep(Record::new(asked, decided));
    }

    /// Has the search for a scope take note of a window, and keeps what it decides.
    pub(crate) fn choose(&self, auto: &mut Auto, window: &Window) {
        self.keep(Record::note(auto, window));
    }

    fn keep(&self, record: Record) {
        let mut records = lock(&self.records);
        records.push_back(record);
        self.forget_oldest(&mut records);
    }

    /// Whom to wake.
    pub(crate) fn wake(&self, layout: &Layout, facts: &impl Facts, asked: Asked) -> Option<CpuId> {
        match self.decide(layout, facts, asked, &Shares::NONE) {
            Decided::Wake(cpu) => cpu,
            _ => None,
        }
    }

    /// What to do next.
    pub(crate) fn next(
        &self,
        layout: &Layout,
        facts: &impl Facts,
        asked: Asked,
        shares: &Shares,
    ) -> Next {
        match self.decide(layout, facts, asked, shares) {
            Decided::Next(next) => next,
            _ => Next::Park { until_ns: None },
        }
    }

    /// What was recorded so far.
    pub(crate) fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *lock(&self.records)).into()
    }
}
