//! Time passes: segments, switches, ticks.

use std::sync::atomic::{AtomicBool, Ordering};

use super::load::{FULL, Input};
use super::{Event, Host, Model, State, Step, ThreadId};
use crate::agenda::Ns;
use crate::geometry::CpuIndex;

/// The number of events between two looks at `stop`: some milliseconds, at most.
const STOP_EVENTS: u64 = 1 << 12;

/// If a thread is asked more often than this at one instant, its model is taken to be wrong.
const STEPS_MAX: u32 = 10_000;

impl Host {
    /// Runs until `until_ns`; `None` where `stop` was set before.
    pub fn run(&mut self, model: &mut impl Model, until_ns: Ns, stop: &AtomicBool) -> Option<()> {
        self.settle();
        while let Some(event) = self.agenda.next(until_ns) {
            if self.agenda.passed().is_multiple_of(STOP_EVENTS) && stop.load(Ordering::Relaxed) {
                return None;
            }
            match event {
                Event::Over(cpu, stamp) => {
                    let cpu = usize::from(cpu);
                    if self.cpus[cpu].stamp == stamp {
                        self.segment_over(model, cpu);
                    }
                }
                Event::Tick(cpu) => self.tick(usize::from(cpu)),
                Event::Token(token) => model.event(self, token),
            }
            self.settle();
        }
        Some(())
    }

    /// CPUs that are to pick a thread anew do so.
    fn settle(&mut self) {
        while let Some(cpu) = self.to_schedule.pop() {
            self.cpus[cpu].wants_schedule = false;
            self.schedule(cpu);
        }
    }

    pub(super) fn want_schedule(&mut self, cpu: CpuIndex) {
        if !self.cpus[cpu].wants_schedule {
            self.cpus[cpu].wants_schedule = true;
            self.to_schedule.push(cpu);
        }
    }

    /// Brings the accounts of a CPU up to date.
    pub(super) fn account(&mut self, cpu: CpuIndex) {
        let now_ns = self.agenda.now_ns();
        let core = &mut self.cpus[cpu];
        let elapsed_ns = now_ns - core.since_ns;
        if elapsed_ns == 0 {
            return;
        }
        core.since_ns = now_ns;
        let runnable = self.tallies.runnable(cpu) as u64;
        let util = if core.current.is_some() { self.rules.full_util } else { 0 };
        let input = Input { load: core.weight, runnable: runnable * FULL, util };
        core.average.advance(now_ns, input);
        let Some(thread) = core.current else { return };
        core.busy_ns += elapsed_ns;
        let done_ns = elapsed_ns * core.speed / 1000;
        let floor = core.queue.iter().map(|id| self.threads[id.0 as usize].vruntime).min();
        let thread = &mut self.threads[thread.0 as usize];
        let input = Input { load: thread.weight, runnable: FULL, util };
        thread.average.advance(now_ns, input);
        thread.warm_since_ns = Some(now_ns);
        thread.ran_ns += elapsed_ns;
        let vruntime_ns =
            if thread.weight == 1024 { elapsed_ns } else { elapsed_ns * 1024 / thread.weight };
        thread.vruntime += vruntime_ns.cast_signed();
        let paid_ns = done_ns.min(thread.debt_ns);
        thread.debt_ns -= paid_ns;
        if let Some(left_ns) = &mut thread.left_ns {
            *left_ns = left_ns.saturating_sub(done_ns - paid_ns);
        }
        let least = floor.map_or(thread.vruntime, |floor| floor.min(thread.vruntime));
        core.min_vruntime = core.min_vruntime.max(least);
    }

    /// Brings the averages of a thread that does not run up to date.
    pub(super) fn account_waiting(&mut self, thread: ThreadId) {
        let now_ns = self.now_ns();
        let thread = &mut self.threads[thread.0 as usize];
        let input = match thread.state {
            State::Asleep => Input::default(),
            State::Queued => Input { load: thread.weight, runnable: FULL, util: 0 },
            State::Running => return,
        };
        thread.average.advance(now_ns, input);
    }

    /// Enters the event that ends the current segment.
    pub(super) fn time_segment(&mut self, cpu: CpuIndex) {
        let core = &mut self.cpus[cpu];
        core.stamp = core.stamp.wrapping_add(1);
        let Some(thread) = core.current else { return };
        let thread = &self.threads[thread.0 as usize];
        let work_ns = thread.debt_ns + thread.left_ns.unwrap_or(0);
        // Most threads run at full speed, and a division is expensive.
        let takes_ns =
            if core.speed == 1000 { work_ns } else { (work_ns * 1000).div_ceil(core.speed) };
        let event = Event::Over(cpu as u16, core.stamp);
        let at_ns = self.agenda.now_ns() + takes_ns;
        self.agenda.at(at_ns, event);
    }

    fn segment_over(&mut self, model: &mut impl Model, cpu: CpuIndex) {
        self.account(cpu);
        let Some(thread) = self.cpus[cpu].current else { return };
        let own = &mut self.threads[thread.0 as usize];
        if own.debt_ns > 0 || own.left_ns.is_some_and(|left_ns| left_ns > 0) {
            // It was charged for more work meanwhile.
            self.time_segment(cpu);
            return;
        }
        own.left_ns = None;
        if std::mem::take(&mut own.retires) && !std::mem::take(&mut own.wake_pending) {
            self.fall_asleep(cpu, thread);
            return;
        }
        self.ask(model, cpu, thread);
    }

    /// Asks the model what the thread on `cpu` does next, until the thread runs or sleeps.
    fn ask(&mut self, model: &mut impl Model, cpu: CpuIndex, thread: ThreadId) {
        let index = thread.0 as usize;
        for _ in 0..STEPS_MAX {
            match model.step(self, thread) {
                Step::Run(ns) => {
                    let own = &mut self.threads[index];
                    own.left_ns = Some(ns);
                    if ns + own.debt_ns > 0 {
                        self.time_segment(cpu);
                        return;
                    }
                }
                Step::Sleep => {
                    let own = &mut self.threads[index];
                    if !std::mem::take(&mut own.wake_pending) {
                        if own.debt_ns == 0 {
                            self.fall_asleep(cpu, thread);
                        } else {
                            // A wake-up meanwhile keeps it awake.
                            own.retires = true;
                            own.left_ns = Some(0);
                            self.time_segment(cpu);
                        }
                        return;
                    }
                }
            }
        }
        panic!("{thread:?} was asked {STEPS_MAX} times at one instant");
    }

    fn fall_asleep(&mut self, cpu: CpuIndex, thread: ThreadId) {
        let index = thread.0 as usize;
        self.threads[index].state = State::Asleep;
        self.threads[index].left_ns = None;
        self.cpus[cpu].estimate -= self.threads[index].estimate;
        if self.rules.util_est {
            // A lower value counts for a quarter (`util_est`, ewma).
            let own = &mut self.threads[index];
            let util = own.average.util();
            own.estimate = if util > own.estimate { util } else { (own.estimate * 3 + util) / 4 };
        }
        let core = &mut self.cpus[cpu];
        core.weight -= self.threads[index].weight;
        core.current = None;
        core.stamp = core.stamp.wrapping_add(1);
        self.tallies.remove(cpu);
        self.want_schedule(cpu);
    }

    /// Picks the thread that runs on `cpu`.
    fn schedule(&mut self, cpu: CpuIndex) {
        self.account(cpu);
        if let Some(thread) = self.cpus[cpu].current.take() {
            let index = thread.0 as usize;
            self.threads[index].state = State::Queued;
            self.threads[index].queued_ns = self.agenda.now_ns();
            self.cpus[cpu].queue.push(thread);
            self.cpus[cpu].current = None;
            // A thread that has run is the youngest of its queue: it is moved last.
            self.threads[index].order = self.next_order();
            let next = self.leftmost(cpu);
            if next == Some(thread) {
                self.resume(cpu, thread);
                self.time_segment(cpu);
                return;
            }
        }
        let mut next = self.leftmost(cpu);
        if next.is_none() {
            self.set_speeds(cpu);
            self.become_idle(cpu);
            next = self.leftmost(cpu);
        }
        let Some(thread) = next else { return };
        let now_ns = self.now_ns();
        if let Some(since_ns) = self.cpus[cpu].idle_since_ns.take() {
            // Moves by an eighth of the difference (`update_avg`), to at most two migration costs.
            let core = &mut self.cpus[cpu];
            let was = core.average_idle_ns.cast_signed();
            let sample = (now_ns - since_ns).cast_signed();
            let most = 2 * self.rules.migration_cost_ns;
            core.average_idle_ns = (was + (sample - was) / 8).max(0).cast_unsigned().min(most);
        }
        let core = &mut self.cpus[cpu];
        let stolen_ns = std::mem::take(&mut core.stolen_until_ns).saturating_sub(now_ns);
        // Stolen time counts as busy when it passes.
        core.busy_ns -= stolen_ns;
        self.threads[thread.0 as usize].debt_ns += self.costs.switch_ns.value + stolen_ns;
        self.resume(cpu, thread);
        self.cpus[cpu].picked_ns = now_ns;
        self.set_speeds(cpu);
        self.start_ticking(cpu);
        // The model is asked once the thread runs: after the switch and any wake-up cost.
        self.threads[thread.0 as usize].left_ns.get_or_insert(0);
        self.time_segment(cpu);
    }

    fn resume(&mut self, cpu: CpuIndex, thread: ThreadId) {
        self.account_waiting(thread);
        self.unlist(thread);
        let order = self.next_order();
        let own = &mut self.threads[thread.0 as usize];
        own.state = State::Running;
        own.order = order;
        let core = &mut self.cpus[cpu];
        let place = core.queue.iter().position(|id| *id == thread).expect("it was queued");
        core.queue.swap_remove(place);
        core.current = Some(thread);
    }

    fn next_order(&mut self) -> u64 {
        self.orders += 1;
        self.orders
    }

    fn leftmost(&self, cpu: CpuIndex) -> Option<ThreadId> {
        let key = |id: &ThreadId| (self.threads[id.0 as usize].vruntime, *id);
        self.cpus[cpu].queue.iter().copied().min_by_key(|id| key(id))
    }

    /// Sets the speeds of the siblings of a CPU whose state has changed.
    pub(super) fn set_speeds(&mut self, cpu: CpuIndex) {
        if !self.has_siblings {
            return;
        }
        let siblings = self.geometry.siblings(cpu).to_vec();
        let busy = siblings.iter().filter(|at| self.cpus[**at].current.is_some()).count() as u64;
        // Two siblings run at `smt` each; more share the same throughput.
        let speed = if busy <= 1 { 1000 } else { 2 * self.costs.smt_per_mille.value / busy };
        for at in siblings {
            if self.cpus[at].speed != speed {
                self.account(at);
                self.cpus[at].speed = speed.max(1);
                if at != cpu && self.cpus[at].current.is_some() {
                    self.time_segment(at);
                }
            }
        }
    }

    fn become_idle(&mut self, cpu: CpuIndex) {
        let now_ns = self.now_ns();
        if self.cpus[cpu].idle_since_ns.is_none() {
            self.cpus[cpu].idle_since_ns = Some(now_ns);
        }
        if self.rules.swqueue.is_none() || !self.pull_from_wake_list(cpu) {
            self.newidle_balance(cpu);
        }
        if !self.cpus[cpu].queue.is_empty() {
            // The CPU was never idle, so this is not a sample of idle time, and nothing has to wake
            // up.
            self.cpus[cpu].idle_since_ns = None;
        }
        if self.cpus[cpu].queue.is_empty() && self.has_siblings {
            let siblings = self.geometry.siblings(cpu);
            if siblings.iter().all(|at| self.is_idle(*at)) {
                self.idle_cores[self.geometry.llc_of(cpu)] = true;
            }
        }
    }

    /// Puts a thread that is awake into the queue of `cpu`.
    pub(super) fn enqueue(&mut self, thread: ThreadId, cpu: CpuIndex) {
        self.account(cpu);
        self.migrate(thread, cpu);
        self.account_waiting(thread);
        if self.is_idle(cpu) {
            self.threads[thread.0 as usize].debt_ns += self.costs.idle_exit_ns.value;
        }
        let order = self.next_order();
        let now_ns = self.now_ns();
        let own = &mut self.threads[thread.0 as usize];
        own.state = State::Queued;
        own.order = order;
        own.queued_ns = now_ns;
        self.cpus[cpu].weight += own.weight;
        self.cpus[cpu].estimate += own.estimate;
        self.cpus[cpu].queue.push(thread);
        self.tallies.add(cpu);
        if self.runnable(cpu) > 1 {
            self.overloaded = true;
        }
    }

    /// Moves a thread that does not run to another CPU.
    pub(super) fn migrate(&mut self, thread: ThreadId, cpu: CpuIndex) {
        let was = self.cpu_of(thread);
        if was == cpu {
            return;
        }
        let far = self.geometry.far(was, cpu);
        let own = &mut self.threads[thread.0 as usize];
        own.debt_ns += self.costs.moving(far);
        self.rehome(thread, cpu);
    }

    /// Moves the accounts of a thread that does not run to another CPU.
    pub(super) fn rehome(&mut self, thread: ThreadId, cpu: CpuIndex) {
        self.account_waiting(thread);
        let was = self.cpu_of(thread);
        if was == cpu {
            return;
        }
        self.account(was);
        self.account(cpu);
        let (from, to) = (self.cpus[was].min_vruntime, self.cpus[cpu].min_vruntime);
        let own = &mut self.threads[thread.0 as usize];
        own.vruntime += to - from;
        own.cpu = cpu;
        own.wake_cpu = cpu;
        own.warm_since_ns = None; // its data stays behind in the old caches
        let average = own.average;
        self.cpus[was].average.detach(&average);
        self.cpus[cpu].average.attach(&average);
    }

    /// Takes a waiting thread out of its queue.
    pub(super) fn dequeue(&mut self, thread: ThreadId) {
        let cpu = self.cpu_of(thread);
        self.account(cpu);
        self.account_waiting(thread);
        self.unlist(thread);
        let own = &self.threads[thread.0 as usize];
        let (weight, estimate) = (own.weight, own.estimate);
        let core = &mut self.cpus[cpu];
        let place = core.queue.iter().position(|id| *id == thread).expect("it was queued");
        core.queue.swap_remove(place);
        core.weight -= weight;
        core.estimate -= estimate;
        self.tallies.remove(cpu);
    }

    fn start_ticking(&mut self, cpu: CpuIndex) {
        if !self.cpus[cpu].ticking {
            self.cpus[cpu].ticking = true;
            self.enter_tick(cpu);
        }
    }

    fn enter_tick(&mut self, cpu: CpuIndex) {
        // The ticks of different CPUs come at different moments.
        let tick_ns = self.rules.tick_ns;
        let own_ns = tick_ns / self.cpus.len() as Ns * cpu as Ns;
        let at_ns = (self.now_ns().saturating_sub(own_ns) / tick_ns + 1) * tick_ns + own_ns;
        self.agenda.at(at_ns, Event::Tick(cpu as u16));
    }

    fn tick(&mut self, cpu: CpuIndex) {
        self.account(cpu);
        let Some(thread) = self.cpus[cpu].current else {
            self.cpus[cpu].ticking = false;
            return;
        };
        self.enter_tick(cpu);
        let now_ns = self.now_ns();
        if !self.cpus[cpu].queue.is_empty() {
            let own = &self.threads[thread.0 as usize];
            let ran_ns = now_ns - self.cpus[cpu].picked_ns;
            let ideal_ns = self.slice(cpu, own.weight);
            let behind = self.leftmost(cpu).map(|id| self.threads[id.0 as usize].vruntime);
            let behind_ns = behind.map_or(0, |vruntime| own.vruntime - vruntime);
            let late = ran_ns >= self.rules.granularity_ns && behind_ns > ideal_ns.cast_signed();
            if ran_ns > ideal_ns || late {
                self.want_schedule(cpu);
            }
        }
        if self.rules.periodic {
            self.balance_at_tick(cpu);
        }
    }

    /// How long a thread may run before the others have their turn.
    fn slice(&self, cpu: CpuIndex, weight: u64) -> Ns {
        let runnable = self.runnable(cpu) as u64;
        let period_ns = self.rules.latency_ns.max(runnable * self.rules.granularity_ns);
        let share_ns = period_ns * weight / self.cpus[cpu].weight.max(1);
        share_ns.min(self.rules.latency_ns)
    }
}
