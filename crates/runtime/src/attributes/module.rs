//! The attributes of the whole runtime: `module`, `pod`, `cpu`, `pool`, `thread`.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use homing_control::{Attribute, flat_keyed};
use homing_sched::{DecisionLog, Facts, Level, PoolId, QueueId};
use homing_topology::{CpuId, CpuSet, Scope};

use super::{Refused, scope};
use crate::measure::clock::{nanoseconds, process_cpu_ns};
use crate::shared::Shared;

/// The attributes of `module`, and whether they can be set.
const MODULE: [(&str, bool); 11] = [
    ("cpu_time_ns", false),
    ("cpu_intensive_thresh_us", true),
    ("cpumask", false),
    ("decisions", false),
    ("default_affinity_scope", true),
    ("features", true),
    ("pins_refused", false),
    ("record_decisions", true),
    ("stalls", false),
    ("threads_refused", false),
    ("watchdog_thresh", true),
];

/// So many decisions still fit into an answer on a machine with a thousand CPUs.
const RECORDED_MAX: usize = 10_000;

pub(super) fn list(shared: &Shared) -> Vec<Attribute> {
    let module = MODULE.iter().map(|(name, writable)| (format!("module/{name}"), *writable));
    let pods = Scope::ALL
        .into_iter()
        .flat_map(|scope| ["cpus", "node"].map(|of| (format!("pod/{scope}/{of}"), false)));
    let cpus = shared.cpu_counters();
    let cpus = cpus.map(|(cpu, _)| (format!("cpu/{cpu}"), false));
    let pools = shared.dispatch.pools.in_use().iter();
    let pools = pools.map(|pool| (format!("pool/{}", pool.0), false));
    let threads = shared.threads();
    let threads = threads.iter().map(|thread| (format!("thread/{}", thread.number), false));
    let all = module.chain(pods).chain(cpus).chain(pools).chain(threads);
    all.map(|(path, writable)| Attribute { path, writable }).collect()
}

pub(super) fn is_writable(name: &str) -> bool {
    MODULE.contains(&(name, true))
}

pub(super) fn get(shared: &Shared, words: &[&str]) -> Option<String> {
    match words {
        ["module", name] => module(shared, name),
        ["pod", scope, of] => pod(shared, scope.parse().ok()?, of),
        ["cpu", id] => cpu(shared, CpuId::new(id.parse().ok()?)?),
        ["pool", id] => {
            let id = id.parse().ok().map(PoolId);
            let id = id.filter(|id| shared.dispatch.pools.in_use().contains(*id))?;
            Some(pool(shared, id))
        }
        ["thread", id] => thread(shared, id.parse().ok()?),
        _ => None,
    }
}

fn module(shared: &Shared, name: &str) -> Option<String> {
    let settings = &shared.settings;
    let number = match name {
        "cpu_time_ns" => process_cpu_ns(),
        "cpu_intensive_thresh_us" => settings.cpu_intensive_ns.load(Ordering::Relaxed) / 1000,
        "watchdog_thresh" => return Some(seconds(settings.watchdog_ns.load(Ordering::Relaxed))),
        "pins_refused" => shared.pins_refused.load(Ordering::Relaxed),
        "stalls" => shared.stalls.load(Ordering::Relaxed),
        "threads_refused" => shared.crew.refused.load(Ordering::Relaxed),
        "cpumask" => return Some(shared.dispatch.active().to_string()),
        "default_affinity_scope" => return Some(shared.workqueues.default_scope().to_string()),
        "features" => return Some(shared.dispatch.features().to_string()),
        "record_decisions" => return Some(shared.dispatch.tape().limit().to_string()),
        "decisions" => return Some(decisions(shared)),
        _ => return None,
    };
    Some(number.to_string())
}

/// The decisions that were recorded since they were read last, for `homing lab replay`.
fn decisions(shared: &Shared) -> String {
    let records = shared.dispatch.tape().take();
    DecisionLog::new(shared.dispatch.layout(), records).to_string()
}

fn seconds(ns: u64) -> String {
    if ns.is_multiple_of(1_000_000_000) {
        return (ns / 1_000_000_000).to_string();
    }
    format!("{}", ns as f64 / 1e9)
}

pub(super) fn set(shared: &Shared, name: &str, value: &str) -> Result<(), Refused> {
    match name {
        "cpu_intensive_thresh_us" => {
            let us: Option<u64> = value.parse().ok();
            let ns = us.and_then(|us| us.checked_mul(1000));
            let ns = ns.ok_or(Refused::value("a number of microseconds, or 0 for none"))?;
            shared.settings.cpu_intensive_ns.store(ns, Ordering::Relaxed);
        }
        "watchdog_thresh" => {
            let seconds = value.parse().ok();
            let threshold = seconds.and_then(|it| Duration::try_from_secs_f64(it).ok());
            // Less than a nanosecond would switch it off, and more than fit would be cut.
            let is_told = |it: &Duration| {
                (!it.is_zero() || seconds == Some(0.0)) && u64::try_from(it.as_nanos()).is_ok()
            };
            let Some(threshold) = threshold.filter(is_told) else {
                let accepted = "a number of seconds, up to 18e9, or 0 for no watchdog";
                return Err(Refused::value(accepted));
            };
            shared.settings.watchdog_ns.store(nanoseconds(threshold), Ordering::Relaxed);
        }
        "default_affinity_scope" => {
            let set = shared.set_default_scope(scope(value, "")?);
            set.map_err(|error| Refused::Failed(error.to_string()))?;
        }
        "features" => {
            // An empty value is more likely an oversight than a wish to switch everything off.
            let features = Some(value).filter(|value| !value.trim().is_empty());
            let features = features.and_then(|value| value.parse().ok()).ok_or_else(|| {
                Refused::value("names out of SWQUEUE XSTEAL SIS_NODE SMT_AWARE, or NONE")
            })?;
            shared.dispatch.set_features(features);
        }
        "record_decisions" => {
            let limit = value.parse().ok().filter(|limit| *limit <= RECORDED_MAX);
            let limit = limit.ok_or_else(|| {
                Refused::value(format!("how many to keep, up to {RECORDED_MAX}; 0 for none"))
            })?;
            shared.dispatch.tape().set_limit(limit);
        }
        _ => {}
    }
    Ok(())
}

/// One line for each pod.
fn pod(shared: &Shared, scope: Scope, of: &str) -> Option<String> {
    let layout = shared.dispatch.layout();
    let nodes = layout.pods(Scope::Numa);
    let lines = layout.pods(scope).iter().map(|pod| match of {
        "cpus" => Some(pod.to_string()),
        "node" => {
            let node = pod.first().and_then(|cpu| nodes.pod_of(cpu));
            let within = node.filter(|node| pod.is_subset(nodes.cpus(*node)));
            let of_cpu = |cpu| layout.machine().cpus().iter().find(|known| Some(known.cpu) == cpu);
            let node = within.and_then(|_| of_cpu(pod.first())?.numa_nodes.first().copied());
            Some(node.map_or_else(|| "-1".to_owned(), |node| node.0.to_string()))
        }
        _ => None,
    });
    let lines: Option<Vec<String>> = lines.collect();
    Some(lines?.join("\n"))
}

fn cpu(shared: &Shared, id: CpuId) -> Option<String> {
    let (_, counters) = shared.cpu_counters().find(|(cpu, _)| *cpu == id)?;
    let [home, llc, node, remote] = counters.pulls;
    let age = |quantile| counters.queue_age.quantile_ns(quantile).unwrap_or(0);
    let all = [
        ("started", counters.started),
        ("items", counters.items),
        ("running", counters.running),
        ("pulls_home", home),
        ("pulls_llc", llc),
        ("pulls_node", node),
        ("pulls_remote", remote),
        ("repatriated", counters.repatriated),
        ("busy_ns", counters.busy_ns),
        ("cpu_time_ns", counters.cpu_time_ns),
        ("parked_ns", counters.parked_ns),
        ("parks", counters.parks),
        ("wakes", counters.wakes),
        ("searched_ns", counters.searched_ns),
        ("queue_age_p50_ns", age(0.5)),
        ("queue_age_p99_ns", age(0.99)),
    ];
    Some(flat_keyed(all))
}

fn pool(shared: &Shared, id: PoolId) -> String {
    let (dispatch, layout) = (&shared.dispatch, shared.dispatch.layout());
    let attributes = dispatch.attributes(id);
    let online = layout.machine().online();
    let users = shared.workqueues.all();
    let users = users.iter().filter(|state| state.mode().pool() == id).count();
    let mut text = format!(
        "affinity_scope {}\naffinity_strict {}\nlocalize {}\npull_cost {}\nnice {}\nblocking {}\ncpumask {}\nref {users}",
        attributes.affinity.scope,
        u8::from(attributes.affinity.strict),
        u8::from(attributes.localize),
        attributes.pull_cost.percent(),
        attributes.nice.get(),
        u8::from(dispatch.pools.is_blocking(id)),
        dispatch.cpumask(id).unwrap_or(online),
    );
    let level: Level = attributes.level();
    for leader in layout.leaders(level).iter() {
        let queue = QueueId { pool: id, leader };
        let shares = online.iter().filter(|cpu| layout.leader(level, *cpu) == leader);
        let shares: CpuSet = shares.collect();
        let waiting = dispatch.waiting(queue);
        // Writing to a string does not fail.
        let _ = write!(text, "\nqueue {leader} {shares} {waiting}");
    }
    text
}

fn thread(shared: &Shared, id: u32) -> Option<String> {
    let thread = shared.threads().into_iter().find(|thread| thread.number == id)?;
    let cpu = thread.cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string());
    let state = thread.word();
    let (workqueue, running_ns) = thread.runs.unwrap_or_default();
    let workqueue = workqueue.unwrap_or_else(|| "-".to_owned());
    Some(format!(
        "cpu {cpu}\nworkqueue {workqueue}\nrunning_ns {running_ns}\nstate {state}\ntid {}",
        thread.kernel_tid
    ))
}
