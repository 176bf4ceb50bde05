//! `homing topo`: the machine as a tree, its pods, and how far its cores are from each other.

use std::fmt::Write as _;
use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use homing::{Allowed, Cpu, CpuId, CpuSet, LatencyMatrix, Machine, Scope};
use serde_json::{Map, Value, json};

use crate::{output, progress};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopoArgs {
    /// The folder that stands for /: a capture of another machine's /sys and /proc
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,

    /// Show the machine of an hwloc XML export instead (lstopo machine.xml)
    #[arg(long, value_name = "FILE", conflicts_with = "root")]
    xml: Option<PathBuf>,

    /// Show a regular machine instead, as LLCs x cores x threads, with nodes and packages before
    #[arg(long, value_name = "GRID", conflicts_with_all = ["root", "xml"])]
    grid: Option<String>,

    /// Measure core-to-core latencies of this machine and draw them as a heat map
    #[arg(long, conflicts_with_all = ["root", "xml", "grid"])]
    measure: bool,

    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  homing topo                    this machine
  homing topo --measure          with a heat map of core-to-core latencies
  homing topo --grid 4x3x2       4 caches of 3 cores of 2 threads
  homing topo --root capture/    another machine: a copy of its /sys and /proc

With --json an object is printed: cpus, an array of objects (cpu, core, llc, numa_nodes, package; \
cores and caches are named by their first CPU); pods, an object with an array of pods for each \
scope, which are arrays of CPUs. For this machine also allowed, an array of CPUs, and cpu_quota, \
null or an object (quota_us, period_us). With --measure also one_way_ns, an object: matrix, and \
cpus, in the order of its rows and columns.";

pub(crate) fn run(args: &TopoArgs) -> anyhow::Result<()> {
    let (machine, allowed) = machine(args)?;
    let latency = args.measure.then(|| measure(&allowed.map_or(*machine.online(), |a| a.cpus)));
    if args.json {
        return output::print_json(&as_json(&machine, allowed.as_ref(), latency.as_ref()));
    }
    let mut text = tree(&machine);
    text.push_str(&pods(&machine));
    if let Some(allowed) = allowed {
        text.push_str(&limits(&machine, &allowed));
    }
    if let Some(latency) = latency {
        text.push_str(&heat_map(&latency, std::io::stdout().is_terminal() && output::has_colors()));
    }
    output::print(text.as_bytes())
}

fn machine(args: &TopoArgs) -> anyhow::Result<(Machine, Option<Allowed>)> {
    if let Some(grid) = &args.grid {
        return Ok((Machine::from_grid(grid)?, None));
    }
    if let Some(path) = &args.xml {
        let xml =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let machine = Machine::from_hwloc_xml(&xml)
            .with_context(|| format!("cannot use {}", path.display()))?;
        return Ok((machine, None));
    }
    if !args.root.is_dir() {
        bail!("{} is not a folder that could stand for /", args.root.display());
    }
    let machine = Machine::read(&args.root)?;
    let allowed = Allowed::read(&args.root, &machine)?;
    Ok((machine, Some(allowed)))
}

fn as_json(machine: &Machine, allowed: Option<&Allowed>, latency: Option<&LatencyMatrix>) -> Value {
    let groups = |scope: Scope| {
        let groups: Vec<Value> = machine.pods(scope).iter().map(|pod| json!(pod)).collect();
        (scope.name().to_owned(), Value::Array(groups))
    };
    let pods: Map<String, Value> = Scope::ALL.into_iter().map(groups).collect();
    let mut value = json!({ "cpus": machine.cpus(), "pods": pods });
    if let Some(allowed) = allowed {
        value["allowed"] = json!(allowed.cpus);
        value["cpu_quota"] =
            json!(allowed.quota.map(|quota| {
                json!({ "quota_us": quota.quota_us, "period_us": quota.period_us })
            }));
    }
    if let Some(latency) = latency {
        value["one_way_ns"] = json!({ "cpus": latency.cpus, "matrix": latency.one_way_ns });
    }
    value
}

/// One level of the tree: what its groups are called, and what tells them apart.
type Level = (&'static str, fn(&Cpu) -> String);

const LEVELS: [Level; 4] = [
    ("package", |cpu| cpu.package.to_string()),
    ("NUMA node", |cpu| {
        let nodes: Vec<_> = cpu.numa_nodes.iter().map(|node| node.0.to_string()).collect();
        if nodes.is_empty() { "none".to_owned() } else { nodes.join("+") }
    }),
    ("LLC", |cpu| cpu.llc.map_or_else(|| "not reported".to_owned(), |llc| llc.to_string())),
    ("core", |cpu| cpu.core.to_string()),
];

fn tree(machine: &Machine) -> String {
    let count = |name: &str, scope| plural(machine.pods(scope).len(), name);
    let mut text = format!(
        "machine: {}, {}, {}\n",
        plural(machine.cpus().len(), "CPU"),
        count("core", Scope::Smt),
        count("cache domain", Scope::Cache),
    );
    let cpus: Vec<&Cpu> = machine.cpus().iter().collect();
    branch(&mut text, "", &cpus, &LEVELS);
    text
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

fn branch(text: &mut String, indent: &str, cpus: &[&Cpu], levels: &[Level]) {
    let Some(((title, key), deeper)) = levels.split_first() else { return };
    let mut groups: Vec<(String, Vec<&Cpu>)> = Vec::new();
    for cpu in cpus {
        let name = key(cpu);
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, members)) => members.push(cpu),
            None => groups.push((name, vec![cpu])),
        }
    }
    // For cores without siblings, a tree says no more than a list.
    if deeper.is_empty() && groups.iter().all(|(_, members)| members.len() == 1) {
        let set: CpuSet = cpus.iter().map(|cpu| cpu.cpu).collect();
        let _ = writeln!(text, "{indent}└─ {} of one CPU: {set}", plural(groups.len(), title));
        return;
    }
    let last = groups.len() - 1;
    for (index, (name, members)) in groups.iter().enumerate() {
        let set: CpuSet = members.iter().map(|cpu| cpu.cpu).collect();
        let (corner, below) = if index == last { ("└─", "   ") } else { ("├─", "│  ") };
        let _ = writeln!(text, "{indent}{corner} {title} {name}  [CPU {set}]");
        branch(text, &format!("{indent}{below}"), members, deeper);
    }
}

fn pods(machine: &Machine) -> String {
    let mut text = String::from("\npods (groups of CPUs, for each affinity scope)\n");
    for scope in Scope::ALL {
        let pods = machine.pods(scope);
        let mut groups: Vec<String> = pods.iter().map(|pod| format!("{{{pod}}}")).collect();
        let total = groups.len();
        if total > 8 {
            groups.splice(6..total - 1, ["...".to_owned()]);
        }
        let _ = writeln!(text, "  {scope:<12}{total:>4}  {}", groups.join(" "));
    }
    text
}

fn limits(machine: &Machine, allowed: &Allowed) -> String {
    let mut text = format!("\nthis process may use CPU {}", allowed.cpus);
    if let Some(quota) = allowed.quota {
        let share = quota.quota_us as f64 / quota.period_us as f64;
        let _ = write!(text, ", for {share:.1} CPUs' worth of time");
    }
    let _ = writeln!(text, "; workers go on CPU {}", allowed.worker_cpus(machine));
    text
}

fn measure(cpus: &CpuSet) -> LatencyMatrix {
    let bar = progress::bar("measuring {bar:24} {pos}/{len} pairs", 0);
    let matrix = homing::core_to_core(cpus, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    matrix
}

/// A table of nanoseconds; on a terminal with colours from green (near) to red (far).
fn heat_map(latency: &LatencyMatrix, colour: bool) -> String {
    let values = || latency.one_way_ns.iter().flatten().filter(|ns| **ns > 0.0);
    let lowest = values().copied().fold(f64::INFINITY, f64::min);
    let highest = values().copied().fold(0.0, f64::max);
    let mut text = String::from("\ncore-to-core latency, one way, ns\n      ");
    let label = |cpu: &CpuId| format!("{cpu:>5}");
    text.extend(latency.cpus.iter().map(label));
    text.push('\n');
    for (cpu, row) in latency.cpus.iter().zip(&latency.one_way_ns) {
        let _ = write!(text, "{cpu:>5} ");
        for ns in row {
            let cell = if *ns == 0.0 { "    -".to_owned() } else { format!("{ns:>5.0}") };
            if colour && *ns > 0.0 {
                // The xterm palette's cube from green (46) over yellow (226) to red (196).
                let share = (ns - lowest) / (highest - lowest).max(1.0);
                let steps = [46, 82, 118, 154, 190, 226, 220, 214, 208, 202, 196];
                let limits = (1..steps.len()).map(|step| step as f64 / steps.len() as f64);
                let index = limits.take_while(|limit| share >= *limit).count();
                let _ = write!(text, "\x1b[48;5;{};30m{cell}\x1b[0m", steps[index]);
            } else {
                text.push_str(&cell);
            }
        }
        text.push('\n');
    }
    if values().next().is_none() {
        text.push_str("(only one CPU may be used: there is no pair to measure)\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_drawn_as_a_tree() {
        let machine = Machine::from_grid("2x2x2").unwrap();
        let text = tree(&machine);
        let expected = "\
machine: 8 CPUs, 4 cores, 2 cache domains
└─ package 0  [CPU 0-7]
   └─ NUMA node 0  [CPU 0-7]
      ├─ LLC 0  [CPU 0-3]
      │  ├─ core 0  [CPU 0,1]
      │  └─ core 2  [CPU 2,3]
      └─ LLC 4  [CPU 4-7]
         ├─ core 4  [CPU 4,5]
         └─ core 6  [CPU 6,7]
";
        assert_eq!(text, expected);
        assert!(pods(&machine).contains("cache          2  {0-3} {4-7}"));
    }

    #[test]
    fn json_has_the_promised_shape() {
        let machine = Machine::from_grid("2x1x1").unwrap();
        let value = as_json(&machine, None, None);
        assert_eq!(
            value["cpus"][1],
            json!({"cpu":1,"core":1,"llc":1,"numa_nodes":[0],"package":0})
        );
        assert_eq!(value["pods"]["cpu"], json!([[0], [1]]));
        assert_eq!(value["pods"]["system"], json!([[0, 1]]));
    }

    #[test]
    fn the_heat_map_is_plain_without_a_terminal() {
        let cpus = [0, 1].into_iter().filter_map(CpuId::new).collect();
        let latency = LatencyMatrix { cpus, one_way_ns: vec![vec![0.0, 51.2], vec![51.2, 0.0]] };
        assert!(heat_map(&latency, false).contains("    0     -   51\n"));
        assert!(heat_map(&latency, true).contains("\x1b[48;5;46"));
    }
}
