//! A recording of decisions, for [`crate::Builder::record_decisions`].

use std::collections::VecDeque;

use homing_sched::{Asked, Decided, Facts, Layout, Next, Record, Recording, Shares};
use homing_topology::CpuId;

use crate::sync::{Mutex, lock};

/// The last so many decisions.
#[derive(Debug)]
pub(crate) struct Tape {
    records: Mutex<VecDeque<Record>>,
    limit: usize,
}

impl Tape {
    pub(crate) fn new(limit: usize) -> Self {
        Self { records: Mutex::new(VecDeque::new()), limit }
    }

    fn decide(
        &self,
        layout: &Layout,
        facts: &impl Facts,
        asked: Asked,
        shares: &Shares,
    ) -> Decided {
        let (decided, record) = Recording::new(facts).decide(layout, asked, shares);
        let mut records = lock(&self.records);
        if records.len() == self.limit {
            records.pop_front();
        }
        records.push_back(record);
        decided
    }

    /// Whom to wake.
    pub(crate) fn wake(&self, layout: &Layout, facts: &impl Facts, asked: Asked) -> Option<CpuId> {
        match self.decide(layout, facts, asked, &Shares::NONE) {
            Decided::Wake(cpu) => cpu,
            Decided::Next(_) => None,
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
            Decided::Wake(_) => Next::Park { until_ns: None },
        }
    }

    /// What was recorded so far.
    pub(crate) fn take(&self) -> Vec<Record> {
        std::mem::take(&mut *lock(&self.records)).into()
    }
}
