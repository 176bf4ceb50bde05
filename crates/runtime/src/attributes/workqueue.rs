//! The attributes of a workqueue.

use std::sync::Arc;
use std::time::Duration;

use homing_control::{Attribute, Switch, flat_keyed};
use homing_sched::{MAX_ACTIVE_MAX, Nice, PullCost};
use homing_topology::CpuSet;

use super::{Refused, flag, scope};
use crate::measure::books::Counters;
use crate::shared::Shared;
use crate::workqueues::builder::WorkqueueError;
use crate::workqueues::gate::Kind;
use crate::workqueues::state::WorkqueueState;
use crate::workqueues::workqueue::Workqueue;

/// How long `frozen` waits for items that run.
const FREEZE: Duration = Duration::from_secs(5);

const ALL: [&str; 16] = [
    "active",
    "affinity_scope",
    "affinity_strict",
    "counters",
    "cpumask",
    "flags",
    "frozen",
    "localize",
    "max_active",
    "min_active",
    "nice",
    "per_cpu",
    "pool",
    "pull_cost",
    "rescuer",
    "type",
];

pub(super) fn list(shared: &Shared) -> Vec<Attribute> {
    let states = shared.workqueues.all();
    let of_each = states.iter().flat_map(|state| {
        let there = |name: &&str| *name != "frozen" || state.kinds.freezable;
        ALL.into_iter().filter(there).map(|name| Attribute {
            path: format!("workqueue/{}/{name}", state.name),
            writable: takes(state, name),
        })
    });
    of_each.collect()
}

pub(super) fn is_writable(shared: &Shared, name: &str, attribute: &str) -> bool {
    shared.workqueues.named(name).is_some_and(|state| takes(&state, attribute))
}

/// Whether the attribute is there and can be set.
fn takes(state: &WorkqueueState, name: &str) -> bool {
    let (per_cpu, ordered) = (state.kinds.per_cpu, state.kinds.ordered);
    match name {
        "affinity_scope" | "affinity_strict" | "cpumask" | "localize" | "pull_cost" => !per_cpu,
        "max_active" => !ordered,
        "min_active" => !ordered && !per_cpu,
        "frozen" => state.kinds.freezable,
        "nice" => true,
        _ => false,
    }
}

pub(super) fn get(shared: &Arc<Shared>, name: &str, attribute: &str) -> Option<String> {
    let state = shared.workqueues.named(name)?;
    let chosen = state.chosen();
    let attributes = chosen.attributes;
    let bit = |set: bool| Switch(set).to_string();
    Some(match attribute {
        "type" => kind(&state),
        "flags" => flags(&state),
        "per_cpu" => bit(state.kinds.per_cpu),
        "affinity_scope" if chosen.scope_is_default => {
            format!("default ({})", attributes.affinity.scope)
        }
        "affinity_scope" if state.is_auto() => format!("auto ({})", attributes.affinity.scope),
        "affinity_scope" => attributes.affinity.scope.to_string(),
        "affinity_strict" => bit(attributes.affinity.strict),
        "cpumask" => {
            let online = shared.dispatch.layout().machine().online();
            chosen.cpumask.as_ref().unwrap_or(online).to_string()
        }
        "nice" => attributes.nice.get().to_string(),
        "localize" => bit(attributes.localize),
        "pull_cost" => attributes.pull_cost.percent().to_string(),
        "max_active" => chosen.max_active.map_or("max".to_owned(), |max| max.to_string()),
        "min_active" => state.min_active().to_string(),
        "frozen" if state.kinds.freezable => {
            bit(state.gate().is_some_and(crate::workqueues::gate::Gate::is_frozen))
        }
        "pool" => state.mode().pool().0.to_string(),
        "active" => active(&state),
        "rescuer" => state.rescuer.get().map_or("none".to_owned(), |rescuer| {
            format!("{} {}", rescuer.kernel_tid(), homing_sched::Facts::active(&shared.dispatch))
        }),
        "counters" => counters(&state, &state.counters()),
        _ => return None,
    })
}

fn kind(state: &WorkqueueState) -> String {
    let kinds = state.kinds;
    let strict = state.attributes().affinity.strict;
    let kind = match (kinds.ordered, kinds.per_cpu, strict) {
        (true, _, _) => "ordered",
        (_, true, _) => "per_cpu",
        (_, _, true) => "unbound,S",
        _ => "unbound",
    };
    kind.to_owned()
}

fn flags(state: &WorkqueueState) -> String {
    let kinds = state.kinds;
    let flags = [
        ("mem_reclaim", kinds.mem_reclaim),
        ("freezable", kinds.freezable),
        ("cpu_intensive", kinds.cpu_intensive),
        ("blocking", kinds.blocking),
        ("highpri", state.attributes().nice == Nice::HIGHPRI),
    ];
    let set: Vec<_> = flags.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
    set.join(" ")
}

/// One line for each slot of the gate that has ever been of use.
fn active(state: &WorkqueueState) -> String {
    let Some(gate) = state.gate() else { return String::new() };
    let (kind, slots) = (gate.kind(), gate.states());
    let last = slots.len() - 1;
    let lines = slots.iter().enumerate().filter_map(|(number, slot)| {
        let name = match kind {
            Kind::Ordered => "dfl".to_owned(),
            Kind::Nodes if number == last => "dfl".to_owned(),
            Kind::Nodes => format!("N{number}"),
            Kind::PerCpu if slot.active == 0 && slot.inactive == 0 => return None,
            Kind::PerCpu => format!("cpu{number}"),
        };
        let limit = if slot.limit == u32::MAX { "max".to_owned() } else { slot.limit.to_string() };
        Some(format!("{name} {}/{limit} {}", slot.active, slot.inactive))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn counters(state: &WorkqueueState, counters: &Counters) -> String {
    let reclaim = |count: u64| state.kinds.mem_reclaim.then_some(count);
    let age = |quantile| counters.queue_age.quantile_ns(quantile);
    let [home, llc, node, remote] = counters.taken;
    let inactive = state.gate().map_or(0, crate::workqueues::gate::Gate::inactive);
    let per_cpu = state.kinds.per_cpu;
    let all = [
        ("queued", Some(counters.queued)),
        ("started", Some(counters.started)),
        ("completed", Some(counters.completed)),
        ("cancelled", Some(counters.cancelled)),
        ("panicked", Some(counters.panicked)),
        // Items being run, as in the kernel's monitor, not those that wait.
        ("infl", Some(counters.running())),
        ("inactive", Some(inactive)),
        ("cpu_time_ns", Some(counters.cpu_time_ns)),
        ("cpu_intensive", Some(counters.cpu_intensive)),
        ("blocked", Some(counters.blocked)),
        ("cm_wakeup", per_cpu.then_some(counters.blocked + counters.cpu_intensive)),
        ("repatriated", (!per_cpu).then_some(counters.repatriated)),
        ("mayday", reclaim(counters.mayday)),
        ("rescued", reclaim(counters.rescued)),
        ("woken", Some(counters.woken)),
        ("pulled_home", Some(home)),
        ("pulled_llc", Some(llc)),
        ("pulled_node", Some(node)),
        ("pulled_remote", Some(remote)),
        ("queue_age_p50_ns", age(0.5)),
        ("queue_age_p99_ns", age(0.99)),
    ];
    flat_keyed(all)
}

pub(super) fn set(
    shared: &Arc<Shared>,
    name: &str,
    attribute: &str,
    value: &str,
) -> Result<(), Refused> {
    let state = shared.workqueues.named(name).ok_or(Refused::Gone)?;
    let workqueue = Workqueue::looked_at(Arc::clone(shared), state);
    let set = match attribute {
        // A value that was read may be written back: "default (cache)".
        "affinity_scope" => match written_back(value) {
            "default" => workqueue.set_affinity_default(),
            "auto" => workqueue.set_affinity_auto(true),
            value => workqueue.set_affinity_scope(scope(value, ", default, auto")?),
        },
        "affinity_strict" => workqueue.set_affinity_strict(flag(value)?),
        "localize" => workqueue.set_localize(flag(value)?),
        "pull_cost" => {
            let cost = value.parse().ok().and_then(PullCost::from_percent);
            workqueue.set_pull_cost(cost.ok_or_else(|| Refused::value(PULL_COST))?)
        }
        "nice" => {
            let nice = value.parse().ok().and_then(Nice::new);
            workqueue.set_nice(nice.ok_or_else(|| Refused::value(nices()))?)
        }
        "cpumask" => workqueue.set_cpumask(cpumask(shared, value)?),
        "max_active" => workqueue.set_max_active(match value {
            "max" => None,
            number => Some(number.parse().map_err(|_| Refused::value(max_actives()))?),
        }),
        "min_active" => {
            let most = workqueue.max_active().unwrap_or(MAX_ACTIVE_MAX);
            let accepted = || Refused::value(format!("0 to {most}, its max_active"));
            let min = value.parse().map_err(|_| accepted())?;
            workqueue.set_min_active(min)
        }
        "frozen" => {
            if flag(value)? {
                workqueue.freeze(FREEZE)
            } else {
                workqueue.thaw();
                Ok(())
            }
        }
        _ => Ok(()),
    };
    set.map_err(|error| match error {
        WorkqueueError::Limit { attribute: "max_active", .. } => Refused::value(max_actives()),
        WorkqueueError::Limit { accepted, .. } => Refused::Value(accepted),
        WorkqueueError::Cpumask { online, .. } => Refused::value(format!("CPUs out of {online}")),
        other => Refused::Failed(other.to_string()),
    })
}

const PULL_COST: &str = "25, 50, 100, 200 or 400, in per cent of what is usual";

fn max_actives() -> String {
    format!("a number from 1 to {MAX_ACTIVE_MAX}, or max")
}

fn nices() -> String {
    format!("a number from {} to {}", Nice::HIGHPRI.get(), Nice::MAX.get())
}

/// `default` out of `default (cache)`, and likewise for `auto`.
fn written_back(value: &str) -> &str {
    let mut words = value.split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some(word @ ("default" | "auto")), Some(scope), None)
            if scope.starts_with('(') && scope.ends_with(')') =>
        {
            word
        }
        _ => value,
    }
}

/// A list of CPUs, or `all`; `None` is all.
fn cpumask(shared: &Shared, value: &str) -> Result<Option<CpuSet>, Refused> {
    let online = shared.dispatch.layout().machine().online();
    if value == "all" {
        return Ok(None);
    }
    let mask: Result<CpuSet, _> = value.parse();
    let mask = mask.ok().filter(|mask| !mask.is_empty() && mask.is_subset(online));
    let mask = mask.ok_or_else(|| {
        Refused::value(format!("CPUs out of {online}, as a list like 0-3,8, or all"))
    })?;
    Ok(Some(mask).filter(|mask| !online.is_subset(mask)))
}
