//! `homing wq dump`: how everything is set up, in the five sections of the kernel's `wq_dump.py`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Args;
use homing::{CpuSet, Scope};
use homing_control::{ClientError, printable_name};
use serde::Serialize;

use crate::attributes::ControlArgs;
use crate::source::{Source, UNKNOWN, keyed};
use crate::{output, table};

#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    control: ControlArgs,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  homing wq dump --socket disk.control
  homing wq dump --json                  with HOMING_SOCKET set

The sections:
  Affinity Scopes         how each scope cuts the CPUs into pods
  Worker Pools            attributes that workqueues share, and their home
                          queues: the first CPU as the name, the CPUs that
                          it is home to, and the items that wait in it
  Workqueue CPU -> pool   the pool of each workqueue, and the home queue of
                          each CPU in it
  Workqueue -> rescuer    the thread that runs items when no worker can be
                          created, and the CPUs where it may run
  Unbound workqueue -> node_nr/max_active
                          running items and the limit, for each node; +N are
                          items held back; dfl is the machine as a whole
A - means that it is unknown or absent.

With --json one object is printed, with null for such values: cpumask, default_affinity_scope, \
affinity_scopes (name, pods, each with cpus and node), pools (id, attributes, queues, each with \
leader, cpus and waiting), and workqueues (name, type, flags, affinity_scope, pool, rescuer, \
min_active, max_active, and active, for each node: slot, active as in 3/8, inactive). Sets of CPUs \
are text, as in 0-3,8.";

pub(crate) fn run(args: &DumpArgs) -> anyhow::Result<()> {
    let dump = Dump::read(&mut Source::connect(&args.control, "")?)?;
    if args.json {
        return output::print_json(&dump);
    }
    output::print_text(&dump.text())
}

#[derive(Serialize)]
struct Dump {
    cpumask: Option<String>,
    default_affinity_scope: Option<String>,
    affinity_scopes: Vec<ScopePods>,
    pools: Vec<Pool>,
    workqueues: Vec<Workqueue>,
}

#[derive(Serialize)]
struct ScopePods {
    name: String,
    pods: Vec<Pod>,
}

#[derive(Serialize)]
struct Pod {
    cpus: String,
    node: Option<i64>,
}

#[derive(Serialize)]
struct Pool {
    id: String,
    /// Affinity and the like, as the program words it.
    attributes: BTreeMap<String, String>,
    queues: Vec<Queue>,
}

#[derive(Serialize)]
struct Queue {
    leader: String,
    cpus: String,
    waiting: Option<u64>,
}

#[derive(Serialize)]
struct Workqueue {
    name: String,
    #[serde(rename = "type")]
    kind: Option<String>,
    flags: Option<String>,
    affinity_scope: Option<String>,
    pool: Option<String>,
    rescuer: Option<String>,
    min_active: Option<String>,
    max_active: Option<String>,
    active: Vec<Active>,
}

#[derive(Serialize)]
struct Active {
    slot: String,
    /// As in `3/8`.
    active: String,
    inactive: Option<u64>,
}

impl Dump {
    fn read(source: &mut Source) -> Result<Self, ClientError> {
        let names = source.names("pod");
        let known = |name: &String| Scope::ALL.iter().position(|scope| scope.name() == name);
        let mut scopes = names.iter().map(|name| (known(name), name)).collect::<Vec<_>>();
        // From the narrowest to the widest, then those that this program does not know.
        scopes.sort_by_key(|(known, _)| known.unwrap_or(usize::MAX));
        let affinity_scopes = scopes.iter().map(|(_, name)| ScopePods::read(source, name));
        let affinity_scopes = affinity_scopes.collect::<Result<_, _>>()?;
        let pools = source.leaves("pool");
        let pools = pools.iter().map(|id| Pool::read(source, id)).collect::<Result<_, _>>()?;
        let names = source.names("workqueue");
        let read = names.into_iter().map(|name| Workqueue::read(source, name));
        let workqueues = read.collect::<Result<_, _>>()?;
        Ok(Self {
            cpumask: source.get("module/cpumask")?,
            default_affinity_scope: source.get("module/default_affinity_scope")?,
            affinity_scopes,
            pools,
            workqueues,
        })
    }

    fn text(&self) -> String {
        let sections = [
            ("Affinity Scopes", self.scopes()),
            ("Worker Pools", self.pools()),
            ("Workqueue CPU -> pool", self.cpu_to_pool()),
            ("Workqueue -> rescuer", self.rescuers()),
            ("Unbound workqueue -> node_nr/max_active", self.active()),
        ];
        let sections = sections.map(|(title, body)| {
            let line = "=".repeat(title.len());
            format!("{title}\n{line}\n{body}")
        });
        sections.join("\n")
    }

    fn scopes(&self) -> String {
        let mut text = format!("CPUs that have workers: {}\n", or_unknown(self.cpumask.as_deref()));
        for scope in &self.affinity_scopes {
            let default = self.default_affinity_scope.as_ref() == Some(&scope.name);
            let _ = writeln!(
                text,
                "\n{}{}",
                printable_name(&scope.name),
                if default { " (default)" } else { "" }
            );
            let _ = writeln!(text, "  nr_pods   {}", scope.pods.len());
            let mut numbered = |title: &str, values: Vec<String>| {
                let cells = values.iter().enumerate().map(|(at, value)| format!(" [{at}]={value}"));
                let _ = writeln!(text, "  {title:9}{}", cells.collect::<String>());
            };
            numbered("pod_cpus", scope.pods.iter().map(|pod| pod.cpus.clone()).collect());
            let node = |pod: &Pod| pod.node.map_or(UNKNOWN.to_owned(), |node| node.to_string());
            numbered("pod_node", scope.pods.iter().map(node).collect());
        }
        text
    }

    fn pools(&self) -> String {
        let mut text = String::new();
        let keys = [
            "ref",
            "nice",
            "affinity_scope",
            "affinity_strict",
            "localize",
            "pull_cost",
            "blocking",
            "cpumask",
        ];
        let header =
            ["pool", "ref", "nice", "scope", "strict", "localize", "pull", "blocking", "cpus"];
        let rows = self.pools.iter().map(|pool| {
            let value = |key| or_unknown(pool.attributes.get(key).map(String::as_str));
            [pool.id.clone()].into_iter().chain(keys.map(value)).collect()
        });
        text.push_str(&table::plain(&header, rows, usize::MAX, &[]));
        let queue = |pool: &Pool, queue: &Queue| {
            let waiting = queue.waiting.map_or(UNKNOWN.to_owned(), |count| count.to_string());
            vec![pool.id.clone(), queue.leader.clone(), queue.cpus.clone(), waiting]
        };
        let rows =
            self.pools.iter().flat_map(|pool| pool.queues.iter().map(move |q| queue(pool, q)));
        text.push('\n');
        text.push_str(&table::plain(
            &["pool", "home queue", "cpus", "waiting"],
            rows,
            usize::MAX,
            &[],
        ));
        text
    }

    fn cpu_to_pool(&self) -> String {
        let queues = self.pools.iter().flat_map(|pool| &pool.queues);
        let cpus = match &self.cpumask {
            Some(mask) => cpus(mask),
            None => queues.fold(CpuSet::EMPTY, |all, queue| all.or(&cpus(&queue.cpus))),
        };
        let numbers: Vec<String> = cpus.iter().map(|cpu| cpu.to_string()).collect();
        let mut header = vec!["workqueue", "type", "pool", "CPU"];
        header.extend(numbers.iter().map(String::as_str));
        let rows = self.workqueues.iter().map(|workqueue| {
            let pool = self.pools.iter().find(|pool| workqueue.pool.as_ref() == Some(&pool.id));
            let queues = pool.map_or(&[][..], |pool| &pool.queues);
            let of_cpu = |cpu| {
                let queue = queues.iter().find(|queue| self::cpus(&queue.cpus).contains(cpu));
                or_unknown(queue.map(|queue| queue.leader.as_str()))
            };
            let (kind, pool) = (workqueue.kind.as_deref(), workqueue.pool.as_deref());
            let mut row = vec![workqueue.name.clone(), or_unknown(kind), or_unknown(pool)];
            row.push(String::new());
            row.extend(cpus.iter().map(of_cpu));
            row
        });
        table::plain(&header, rows, 4, &[])
    }

    fn rescuers(&self) -> String {
        let rows = self.workqueues.iter().map(|workqueue| {
            let known = workqueue.rescuer.as_deref().filter(|text| *text != "none");
            let (thread, cpus) = known
                .map_or((UNKNOWN, UNKNOWN), |text| text.split_once(' ').unwrap_or((text, UNKNOWN)));
            vec![workqueue.name.clone(), thread.to_owned(), cpus.to_owned()]
        });
        table::plain(&["workqueue", "rescuer", "cpus"], rows, usize::MAX, &[])
    }

    fn active(&self) -> String {
        let unbound = || self.workqueues.iter().filter(|workqueue| workqueue.is_unbound());
        let mut slots: Vec<&str> = Vec::new();
        for active in unbound().flat_map(|workqueue| &workqueue.active) {
            if !slots.contains(&active.slot.as_str()) {
                slots.push(&active.slot);
            }
        }
        let mut header = vec!["workqueue", "min_active", "max_active"];
        header.extend(&slots);
        let rows = unbound().map(|workqueue| {
            let limits = [workqueue.min_active.as_deref(), workqueue.max_active.as_deref()];
            let cell = |slot: &&str| {
                let active = workqueue.active.iter().find(|active| active.slot == *slot);
                active.map_or(UNKNOWN.to_owned(), |active| match active.inactive {
                    None | Some(0) => active.active.clone(),
                    Some(inactive) => format!("{} +{inactive}", active.active),
                })
            };
            let name = [workqueue.name.clone()].into_iter();
            name.chain(limits.map(or_unknown)).chain(slots.iter().map(cell)).collect()
        });
        table::plain(&header, rows, 1, &[])
    }
}

impl ScopePods {
    fn read(source: &mut Source, name: &str) -> Result<Self, ClientError> {
        let cpus = source.get(&format!("pod/{name}/cpus"))?.unwrap_or_default();
        let nodes = source.get(&format!("pod/{name}/node"))?.unwrap_or_default();
        // -1 is for pods on more than one node, or on a machine that has none.
        let mut nodes =
            nodes.lines().map(|line| line.trim().parse().ok().filter(|node| *node >= 0));
        let pod = |cpus: &str| Pod { cpus: cpus.to_owned(), node: nodes.next().flatten() };
        Ok(Self { name: name.to_owned(), pods: cpus.lines().map(pod).collect() })
    }
}

impl Pool {
    fn read(source: &mut Source, id: &str) -> Result<Self, ClientError> {
        let text = source.get(&format!("pool/{id}"))?.unwrap_or_default();
        let queue = |line: &str| {
            let mut words = line.strip_prefix("queue ")?.split_whitespace();
            let mut word = || or_unknown(words.next());
            Some(Queue { leader: word(), cpus: word(), waiting: word().parse().ok() })
        };
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let attributes = keyed(&text).into_iter().filter(|(key, _)| *key != "queue").map(owned);
        Ok(Self {
            id: id.to_owned(),
            attributes: attributes.collect(),
            queues: text.lines().filter_map(queue).collect(),
        })
    }
}

impl Workqueue {
    fn read(source: &mut Source, name: String) -> Result<Self, ClientError> {
        let mut get = |attribute: &str| source.get(&format!("workqueue/{name}/{attribute}"));
        let active = get("active")?.unwrap_or_default();
        let active = active.lines().map(|line| {
            let mut words = line.split_whitespace();
            let mut word = || or_unknown(words.next());
            Active { slot: word(), active: word(), inactive: word().parse().ok() }
        });
        Ok(Self {
            kind: get("type")?,
            flags: get("flags")?,
            affinity_scope: get("affinity_scope")?,
            pool: get("pool")?,
            rescuer: get("rescuer")?,
            min_active: get("min_active")?,
            max_active: get("max_active")?,
            active: active.collect(),
            name,
        })
    }

    fn is_unbound(&self) -> bool {
        self.kind.as_deref() != Some("per_cpu")
    }
}

fn or_unknown(text: Option<&str>) -> String {
    // An empty cell would make the others seem shifted.
    text.filter(|text| !text.is_empty()).unwrap_or(UNKNOWN).to_owned()
}

/// The CPUs of a list; none if it is no list.
fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap_or(CpuSet::EMPTY)
}
