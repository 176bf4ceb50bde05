//! The model's work items, and what may be waited for.

use std::collections::BTreeSet;

use crate::model::{Instance, ItemId, Model, Who, Work};

/// What somebody waits for.
#[derive(Clone, Debug)]
pub(crate) enum Wait {
    Nothing,
    Items(BTreeSet<ItemId>),
    /// A work item's present run and its pending instance.
    Work(usize, Option<ItemId>, Option<u32>),
    /// No run of the work item, which is then enabled again or not.
    NoRun(usize, bool),
    Drained(usize),
    Frozen(usize),
}

impl Model {
    /// Makes an instance, in place of the pending one, if there is one.
    fn instance(&mut self, work: usize, on_timer: bool) -> u32 {
        let work = &mut self.works[work];
        work.generation += 1;
        work.pending = Some(Instance { generation: work.generation, on_timer });
        work.generation
    }

    fn push_instance(&mut self, work: usize, cpu: usize, from: Option<usize>) -> bool {
        let generation = self.instance(work, false);
        self.last_id += 1;
        let queue = self.works[work].queue;
        let pushed = self.push(self.last_id, queue, Who::Work(work), generation, cpu, from);
        if !pushed {
            self.works[work].pending = None;
        }
        pushed
    }

    pub(crate) fn queue_work(&mut self, work: usize, cpu: usize, from: Option<usize>) -> bool {
        let Work { pending, disabled, .. } = &self.works[work];
        pending.is_none() && *disabled == 0 && self.push_instance(work, cpu, from)
    }

    /// With a delay that never ends.
    pub(crate) fn queue_delayed(&mut self, work: usize) -> bool {
        let Work { pending, disabled, queue, .. } = &self.works[work];
        let accepts = pending.is_none() && *disabled == 0 && self.queues[*queue].drains == 0;
        if accepts {
            self.instance(work, true);
        }
        accepts
    }

    /// With a delay of nothing, or one that never ends.
    pub(crate) fn mod_delayed(&mut self, work: usize, at_once: bool) -> bool {
        if self.works[work].disabled > 0 {
            return false;
        }
        let (was_pending, queue) = (self.works[work].is_pending(), self.works[work].queue);
        if at_once {
            // A pending instance had been accepted.
            self.push_instance(work, 0, was_pending.then_some(queue));
        } else if was_pending || self.queues[queue].drains == 0 {
            self.instance(work, true);
        }
        was_pending
    }

    pub(crate) fn cancel(&mut self, work: usize) -> bool {
        self.works[work].pending.take().is_some()
    }

    pub(crate) fn disable(&mut self, work: usize) -> bool {
        self.works[work].disabled += 1;
        self.cancel(work)
    }

    pub(crate) fn enable(&mut self, work: usize) -> bool {
        self.works[work].disabled -= 1;
        self.works[work].disabled == 0
    }

    pub(crate) fn flush_work(&self, work: usize) -> Wait {
        let Work { pending, running, .. } = &self.works[work];
        if pending.is_none() && running.is_none() {
            return Wait::Nothing;
        }
        Wait::Work(work, *running, pending.map(|pending| pending.generation))
    }

    pub(crate) fn flush(&mut self, queue: usize) -> Wait {
        let items = self.in_flight(queue);
        self.queues[queue].flushes += u32::from(!items.is_empty());
        Wait::Items(items)
    }

    pub(crate) fn is_over(&self, wait: &Wait) -> bool {
        match wait {
            Wait::Nothing => true,
            Wait::Items(items) => !items.iter().any(|item| self.items.contains_key(item)),
            Wait::Work(work, run, instance) => {
                let Work { pending, running, .. } = &self.works[*work];
                let is_awaited = |of: u32| *instance == Some(of);
                let pending = pending.is_some_and(|pending| is_awaited(pending.generation));
                let runs =
                    |item: &ItemId| *run == Some(*item) || is_awaited(self.items[item].generation);
                !pending && !running.as_ref().is_some_and(runs)
            }
            Wait::NoRun(work, _) => self.works[*work].running.is_none(),
            Wait::Drained(queue) => self.in_flight(*queue).is_empty(),
            Wait::Frozen(queue) => self.queues[*queue].gate.as_ref().unwrap().active == 0,
        }
    }

    /// Does what a wait leaves to do when it is over.
    pub(crate) fn end_wait(&mut self, wait: &Wait) {
        match wait {
            Wait::NoRun(work, enables) => {
                self.works[*work].disabled -= u32::from(*enables);
                self.works[*work].waited_for -= 1;
            }
            Wait::Drained(queue) => self.queues[*queue].drains -= 1,
            _ => {}
        }
    }
}
