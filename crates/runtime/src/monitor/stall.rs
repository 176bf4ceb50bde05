//! The watchdog: finds queues in which items wait and from which no worker has taken any for long.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use homing_sched::QueueId;

use crate::measure::clock::now_ns;
use crate::shared::Shared;
use crate::sync::thread;

/// The longest time between two looks at the queues, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;

/// A queue that stands still, and what all threads do meanwhile.
///
/// `Display` writes a report of several lines; the first line is the summary.
///
/// ```
/// # use std::{sync::mpsc::{TryRecvError::Empty, channel}, time::Duration};
/// # use homing_runtime::{Runtime, Stall};
/// let ((report, reports), (end, ended)) = (channel(), channel::<()>());
/// let on_stall = move |stall: &Stall| _ = report.send(stall.clone());
/// let runtime = Runtime::builder()
/// #   .on_machine(homing_topology::Machine::from_grid("1x1x1")?)
///     .watchdog_thresh(Duration::from_millis(1))
///     .on_stall(on_stall)
///     .build()?;
/// // On a machine of one CPU: it is busy, and something waits for it.
/// runtime.events().execute(move || while ended.try_recv() == Err(Empty) {});
/// runtime.events().execute(|| ());
/// let stall = reports.recv()?;
/// drop(end);
/// assert!(stall.to_string().starts_with("workqueue stall: ") && stall.cpus == "0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stall {
    /// The number of the queue's pool.
    pub pool: u8,
    /// The CPUs whose home queue it is, as a list.
    pub cpus: String,
    /// How many items wait.
    pub waiting: u32,
    /// For how long no worker has taken any of them.
    pub lasts: Duration,
    /// What each thread does, with one line for each.
    pub threads: Vec<String>,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "workqueue stall: {} items wait in pool {} at CPUs {}, none was begun for {:.1} s",
            self.waiting,
            self.pool,
            self.cpus,
            self.lasts.as_secs_f64()
        )?;
        self.threads.iter().try_for_each(|thread| write!(f, "\n  {thread}"))
    }
}

/// The function that is told of stalls.
pub(crate) type OnStall = Arc<dyn Fn(&Stall) + Send + Sync>;

/// What the watchdog has seen.
#[derive(Default)]
pub(crate) struct Stalls {
    looked_ns: u64,
    seen: HashMap<QueueId, Seen>,
    reports: Reports,
}

/// Tells of stalls on a thread that is made for it: the monitor must not wait for what the program
/// does then, nor for who reads its standard error.
#[derive(Default)]
struct Reports {
    is_told: Arc<AtomicBool>,
}

impl Reports {
    /// Tells, unless somebody is still being told of another stall. Without a thread, which may be
    /// why there is a stall, the monitor does tell.
    fn tell(&self, shared: &Shared, stall: Stall) {
        if self.is_told.swap(true, Ordering::AcqRel) {
            return;
        }
        let (is_told, on_stall) = (Arc::clone(&self.is_told), shared.settings.on_stall.clone());
        let tell = Arc::new(move || {
            // A panic in it must not take the monitor with it.
            crate::item::quietly(|| match &on_stall {
                Some(on_stall) => on_stall(&stall),
                None => eprintln!("homing: {stall}"),
            });
            is_told.store(false, Ordering::Release);
        });
        let named = thread::Builder::new().name(format!("{}/stall", shared.crew.name()));
        let body = {
            let tell = Arc::clone(&tell);
            move || tell()
        };
        // Nobody waits for its end: the function may end the runtime.
        if shared.hooks.create_thread(|| named.spawn(body)).is_err() {
            tell();
        }
    }
}

struct Seen {
    popped: u64,
    since_ns: u64,
    /// When the queue is reported next.
    report_ns: u64,
}

impl Stalls {
    /// Looks at the queues, if it is time to.
    pub(crate) fn look(&mut self, shared: &Shared, now_ns: u64) {
        let threshold_ns = shared.settings.watchdog_ns.load(Ordering::Relaxed);
        let pause_ns = (threshold_ns / 4).min(LOOK_NS);
        if threshold_ns == 0 || now_ns.saturating_sub(self.looked_ns) < pause_ns {
            return;
        }
        self.looked_ns = now_ns;
        let dispatch = &shared.dispatch;
        for id in dispatch.queue_ids() {
            let queue = dispatch.pools.queue(id);
            let waiting = queue.waiting();
            if waiting == 0 {
                self.seen.remove(&id);
                continue;
            }
            let popped = queue.popped();
            let fresh =
                Seen { popped, since_ns: now_ns, report_ns: now_ns.saturating_add(threshold_ns) };
            let seen = self.seen.entry(id).or_insert(fresh);
            if seen.popped != popped {
                *seen = Seen {
                    popped,
                    since_ns: now_ns,
                    report_ns: now_ns.saturating_add(threshold_ns),
                };
            }
            if now_ns >= seen.report_ns {
                seen.report_ns = now_ns.saturating_add(threshold_ns);
                let lasts = Duration::from_nanos(now_ns - seen.since_ns);
                let cpus = dispatch.home_cpus(id).to_string();
                let threads = shared.threads().iter().map(ToString::to_string).collect();
                let stall = Stall { pool: id.pool.0, cpus, waiting, lasts, threads };
                shared.stalls.fetch_add(1, Ordering::Relaxed);
                tracing_event!(%stall, "a queue stands still");
                self.reports.tell(shared, stall);
            }
        }
    }
}

/// What a thread does at this moment.
#[derive(Clone, Debug)]
pub(crate) struct ThreadState {
    pub(crate) number: u32,
    pub(crate) kernel_tid: u32,
    /// The CPU it works for.
    pub(crate) cpu: Option<usize>,
    /// If it is at work: the workqueue whose item it runs, if it runs one, and for how long it has
    /// been at work, in nanoseconds.
    pub(crate) runs: Option<(Option<String>, u64)>,
}

impl ThreadState {
    pub(crate) fn word(&self) -> &'static str {
        match (&self.runs, self.cpu) {
            (Some(_), Some(_)) => "running",
            (Some(_), None) => "blocked",
            (None, Some(_)) => "idle",
            (None, None) => "spare",
        }
    }

    /// Where the thread sleeps in the kernel, as far as it may be known.
    fn sleeps_in(&self) -> Option<String> {
        let wchan =
            fs::read_to_string(format!("/proc/self/task/{}/wchan", self.kernel_tid)).ok()?;
        (!wchan.is_empty() && wchan != "0").then_some(wchan)
    }
}

impl fmt::Display for ThreadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = format!("thread {} (tid {})", self.number, self.kernel_tid);
        if let Some(cpu) = self.cpu {
            write!(line, " on CPU {cpu}")?;
        }
        write!(line, ": {}", self.word())?;
        if let Some((workqueue, ns)) = &self.runs {
            line.push_str(", ");
            match workqueue {
                Some(workqueue) => write!(line, "an item of {workqueue}")?,
                // Or items of a workqueue that is gone.
                None => line.push_str("items, or what they woke"),
            }
            write!(line, " for {:.3} s", *ns as f64 / 1e9)?;
            if let Some(place) = self.sleeps_in() {
                write!(line, ", asleep in {place}")?;
            }
        }
        f.write_str(&line)
    }
}

impl Shared {
    /// What every thread does.
    pub(crate) fn threads(&self) -> Vec<ThreadState> {
        let now_ns = now_ns();
        let owners = || self.dispatch.slots().map(|(cpu, slot)| (slot.owner(), cpu));
        let members = self.crew.members();
        let state = members.iter().map(|member| {
            let owns = owners().find(|(owner, _)| *owner == Some(member.id));
            let since_ns = member.running_since_ns.load(Ordering::Relaxed);
            let runs = (since_ns != 0).then(|| {
                let number = member.workqueue.load(Ordering::Relaxed);
                let name = self.workqueues.find(number).map(|state| state.name.to_string());
                (name, now_ns.saturating_sub(since_ns))
            });
            ThreadState {
                number: member.id.0,
                kernel_tid: member.kernel_tid.load(Ordering::Relaxed),
                cpu: owns.map(|(_, cpu)| cpu.index()),
                runs,
            }
        });
        state.collect()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_says_what_it_does_and_for_how_long() {
        let with = |runs| ThreadState { number: 3, kernel_tid: 0, cpu: Some(1), runs };
        let text = |runs| with(runs).to_string();
        assert_eq!(text(None), "thread 3 (tid 0) on CPU 1: idle");
        let item = (Some("hog".to_owned()), 1_500_000_000);
        assert!(text(Some(item)).contains("running, an item of hog for 1.500 s"));
        assert!(text(Some((None, 2_000_000))).contains("what they woke for 0.002 s"));
    }
}
