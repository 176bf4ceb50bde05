//! Reads a machine from `/sys`, below any folder that stands for `/`.
//!
//! Follows what real machines hold rather than what the documentation promises: CPUs that are
//! offline or have no topology folder, sparse numbers, masks that name offline CPUs, caches whose
//! mask is empty, nodes without CPUs. hwloc's Linux reader showed which of these exist.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::io::Errno;

use crate::allowed::affinity;
use crate::cpu_set::{CpuId, CpuSet};
use crate::error::TopologyError;
use crate::machine::{Cpu, Machine, NodeId};

impl Machine {
    /// Reads the machine below `root`: `/` for this one, or a folder with a capture of another
    /// machine's `/sys` and `/proc`. The result holds every online CPU, whether or not this process
    /// may use it ([`crate::Allowed`] says that).
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use homing_topology::{Machine, Scope};
    ///
    /// let machine = Machine::read(Path::new("/"))?;
    /// println!("{} CPUs, {} caches", machine.cpus().len(), machine.pods(Scope::Cache).len());
    /// let error = Machine::read(Path::new("/nowhere")).unwrap_err();
    /// assert!(error.to_string().contains("/nowhere/sys/devices/system/cpu"));
    /// # Ok::<(), homing_topology::TopologyError>(())
    /// ```
    pub fn read(root: &Path) -> Result<Self, TopologyError> {
        Reader { root }.machine()
    }

    /// Reads this machine. Where there is no `/sys`, as in some sandboxes and on systems other than
    /// Linux, it has the CPUs of the calling thread's affinity mask, or as many as the system says
    /// can be used; each is a core, and all are in one cache.
    ///
    /// ```
    /// use homing_topology::Machine;
    ///
    /// assert!(!Machine::here()?.online().is_empty());
    /// # Ok::<(), homing_topology::TopologyError>(())
    /// ```
    pub fn here() -> Result<Self, TopologyError> {
        let root = Path::new("/");
        match Self::read(root) {
            Err(TopologyError::NoCpu { .. }) => {}
            Err(TopologyError::Unreadable { source, .. })
                if source.kind() == io::ErrorKind::NotFound => {}
            read => return read,
        }
        let cpus = affinity(root)?.unwrap_or_else(|| {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            (0..count).filter_map(CpuId::new).collect()
        });
        Ok(Self::of_one_cache(&cpus))
    }

    fn of_one_cache(cpus: &CpuSet) -> Self {
        let first = cpus.first();
        let place = |cpu| Cpu {
            cpu,
            core: cpu,
            llc: first,
            numa_nodes: vec![NodeId(0)],
            package: first.unwrap_or(cpu),
        };
        Self::new(cpus.iter().map(place).collect(), BTreeMap::new())
    }
}

type Nodes = BTreeMap<NodeId, CpuSet>;
type NodeDistances = BTreeMap<(NodeId, NodeId), u32>;

struct Reader<'a> {
    root: &'a Path,
}

impl Reader<'_> {
    fn machine(&self) -> Result<Machine, TopologyError> {
        let folder = self.root.join("sys/devices/system/cpu");
        let listed = numbered_entries(&folder, "cpu")?;
        let mut present = CpuSet::EMPTY;
        for number in &listed {
            let cpu = CpuId::new(*number).ok_or(TopologyError::CpuNumber { number: *number })?;
            if text(&folder.join(format!("cpu{cpu}/online")))?.as_deref() != Some("0") {
                present.insert(cpu);
            }
        }
        if let Some(list) = cpu_list(&folder.join("online"))? {
            present = present.and(&list);
        }
        // A CPU without a topology folder is being added or removed. But if no CPU has one, the
        // kernel is too old to tell, and every CPU is a core of its own.
        let has_topology = |cpu: &CpuId| folder.join(format!("cpu{cpu}/topology")).is_dir();
        let described: CpuSet = present.iter().filter(has_topology).collect();
        let online = if described.is_empty() { present } else { described };
        if online.is_empty() {
            return Err(TopologyError::NoCpu { root: self.root.to_owned() });
        }

        let (nodes, distances) = self.nodes(&online)?;
        let modules = self.has_compute_units();
        let cpus = online.iter().map(|cpu| describe(&folder, cpu, &online, &nodes, modules));
        let cpus = cpus.collect::<Result<_, _>>()?;
        Ok(Machine::named_anew(cpus, distances))
    }

    /// Whether this machine is of AMD's families 15h or 16h, which list the two cores of a compute
    /// unit as thread siblings.
    fn has_compute_units(&self) -> bool {
        let Ok(info) = fs::read_to_string(self.root.join("proc/cpuinfo")) else {
            return false;
        };
        let field = |name: &str| {
            let line = info.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim())
        };
        field("vendor_id") == Some("AuthenticAMD")
            && matches!(field("cpu family"), Some("21" | "22"))
    }

    fn node_folder(&self) -> PathBuf {
        self.root.join("sys/devices/system/node")
    }

    /// Every NUMA node with its CPUs. A node whose list overlaps that of an earlier one is a
    /// firmware error and left out. A memory-only node gets the CPUs it is local to: those of its
    /// initiators, else those of the nodes nearest to it, if some are nearer than others.
    fn nodes(&self, online: &CpuSet) -> Result<(Nodes, NodeDistances), TopologyError> {
        let folder = self.node_folder();
        let numbers: Vec<u32> =
            if folder.is_dir() { numbered_entries(&folder, "node")? } else { Vec::new() };
        if numbers.is_empty() {
            // A kernel built without NUMA: all memory is one node.
            return Ok((Nodes::from([(NodeId(0), *online)]), NodeDistances::new()));
        }
        let distances = self.node_distances(&numbers)?;
        let mut nodes = Nodes::new();
        let mut taken = CpuSet::EMPTY;
        for number in &numbers {
            let home = folder.join(format!("node{number}"));
            let cpus = match mask(&home.join("cpumap"))? {
                Some(cpus) => Some(cpus),
                None => cpu_list(&home.join("cpulist"))?,
            };
            let cpus = cpus.unwrap_or(CpuSet::EMPTY);
            if !cpus.intersects(&taken) {
                taken = taken.or(&cpus);
                nodes.insert(NodeId(*number), cpus);
            }
        }
        let listed = nodes.clone();
        for (node, cpus) in nodes.iter_mut().filter(|(_, cpus)| cpus.is_empty()) {
            *cpus = self.initiators(*node, &listed)?;
            if cpus.is_empty() {
                *cpus = nearest_cpus(*node, &listed, &distances, numbers.len());
            }
        }
        Ok((nodes, distances))
    }

    /// The CPUs of the nodes that firmware names as closest to a memory-only node.
    fn initiators(&self, node: NodeId, nodes: &Nodes) -> Result<CpuSet, TopologyError> {
        let folder = self.node_folder().join(format!("node{}/access0/initiators", node.0));
        if !folder.is_dir() {
            return Ok(CpuSet::EMPTY);
        }
        let numbers: Vec<u32> = numbered_entries(&folder, "node")?;
        let cpus = numbers.iter().filter_map(|number| nodes.get(&NodeId(*number)));
        Ok(cpus.fold(CpuSet::EMPTY, |all, cpus| all.or(cpus)))
    }

    fn node_distances(&self, numbers: &[u32]) -> Result<NodeDistances, TopologyError> {
        let mut distances = NodeDistances::new();
        for from in numbers {
            let path = self.node_folder().join(format!("node{from}/distance"));
            let Some(line) = text(&path)? else { continue };
            // One column per online node, in rising order of their numbers.
            for (to, column) in numbers.iter().zip(line.split_whitespace()) {
                let distance = column.parse().map_err(|_| TopologyError::Malformed {
                    path: path.clone(),
                    value: line.clone(),
                    expected: "distances: whole numbers separated by spaces",
                })?;
                distances.insert((NodeId(*from), NodeId(*to)), distance);
            }
        }
        Ok(distances)
    }
}

/// The CPUs of the nodes nearest to a memory-only `node`; none if all are equally far.
fn nearest_cpus(
    node: NodeId,
    nodes: &Nodes,
    distances: &NodeDistances,
    listed_count: usize,
) -> CpuSet {
    let to = |other: &NodeId| distances.get(&(node, *other)).copied();
    let others = || nodes.iter().filter(|(other, _)| **other != node);
    let Some(nearest) = others().filter_map(|(other, _)| to(other)).min() else {
        return CpuSet::EMPTY;
    };
    let at_nearest = || others().filter(|(other, _)| to(other) == Some(nearest));
    let local = to(&node).unwrap_or(0);
    if nearest <= local || at_nearest().count() == listed_count - 1 {
        return CpuSet::EMPTY;
    }
    at_nearest().fold(CpuSet::EMPTY, |all, (_, cpus)| all.or(cpus))
}

fn describe(
    folder: &Path,
    cpu: CpuId,
    online: &CpuSet,
    nodes: &Nodes,
    modules: bool,
) -> Result<Cpu, TopologyError> {
    let home = folder.join(format!("cpu{cpu}"));
    let group = |names: [&str; 2], otherwise: CpuSet| -> Result<CpuSet, TopologyError> {
        for name in names {
            if let Some(set) = mask_or_list(&home.join("topology"), name)? {
                // A mask that lacks its own CPU says nothing about it.
                let set = set.and(online);
                if set.contains(cpu) {
                    return Ok(set);
                }
            }
        }
        Ok(otherwise)
    };
    let mut core = group(["core_cpus", "thread_siblings"], CpuSet::of(cpu))?;
    if modules && core_ids_differ(folder, &core)? {
        core = CpuSet::of(cpu);
    }
    let package = group(["package_cpus", "core_siblings"], *online)?;
    let llc = last_level_cache(&home.join("cache"), cpu)?.map(|set| set.and(online));
    Ok(Cpu {
        cpu,
        core: core.first().unwrap_or(cpu),
        llc: llc.map(|set| set.first().unwrap_or(cpu)),
        numa_nodes: nodes.iter().filter(|(_, set)| set.contains(cpu)).map(|(id, _)| *id).collect(),
        package: package.first().unwrap_or(cpu),
    })
}

fn core_ids_differ(folder: &Path, siblings: &CpuSet) -> Result<bool, TopologyError> {
    let ids = siblings.iter().map(|cpu| text(&folder.join(format!("cpu{cpu}/topology/core_id"))));
    let ids: Vec<Option<String>> = ids.collect::<Result<_, _>>()?;
    Ok(ids.windows(2).any(|pair| pair[0] != pair[1]))
}

/// The CPUs that share the outermost data or unified cache of `cpu`.
fn last_level_cache(folder: &Path, cpu: CpuId) -> Result<Option<CpuSet>, TopologyError> {
    let mut outermost: Option<(u32, CpuSet)> = None;
    if !folder.is_dir() {
        return Ok(None);
    }
    for index in numbered_entries::<u32>(folder, "index")? {
        let home = folder.join(format!("index{index}"));
        let (Some(level), Some(kind)) = (text(&home.join("level"))?, text(&home.join("type"))?)
        else {
            continue;
        };
        if kind == "Instruction" {
            continue;
        }
        let level: u32 = level.parse().map_err(|_| TopologyError::Malformed {
            path: home.join("level"),
            value: level.clone(),
            expected: "a cache level: a whole number",
        })?;
        let shared = mask_or_list(&home, "shared_cpu")?.filter(|set| set.contains(cpu));
        if outermost.as_ref().is_none_or(|(found, _)| level > *found) {
            outermost = Some((level, shared.unwrap_or(CpuSet::of(cpu))));
        }
    }
    Ok(outermost.map(|(_, set)| set))
}

/// Numbers of the entries named `PREFIXn`, in rising order.
fn numbered_entries<N: FromStr + Ord>(
    folder: &Path,
    prefix: &str,
) -> Result<Vec<N>, TopologyError> {
    let unreadable = |error| TopologyError::unreadable(folder, error);
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let number: Option<N> =
            name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The trimmed content; `None` if there is no such file, or the kernel has nothing to say (some
/// attributes of offline CPUs exist but fail to read).
pub(crate) fn text(path: &Path) -> Result<Option<String>, TopologyError> {
    match fs::read(path) {
        Ok(content) => {
            // A list of mounts may have a name that is no text; what we look for is text.
            let content = String::from_utf8_lossy(&content);
            // Some kernels end an attribute with a NUL.
            let content = content.trim_matches(|c: char| c.is_whitespace() || c == '\0');
            Ok(Some(content.to_owned()))
        }
        Err(error) if says_nothing_of_the_file(&error) => {
            Err(TopologyError::unreadable(path, error))
        }
        Err(_) => Ok(None),
    }
}

/// Whether the file may be there all the same, and be readable at another time, or by another user.
fn says_nothing_of_the_file(error: &io::Error) -> bool {
    let scarce = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR];
    let scarce = scarce.map(|errno| Some(errno.raw_os_error())).contains(&error.raw_os_error());
    scarce || error.kind() == io::ErrorKind::PermissionDenied
}

/// `NAME_list`, `NAME_map` or `NAME`: kernels differ in which they have.
fn mask_or_list(folder: &Path, name: &str) -> Result<Option<CpuSet>, TopologyError> {
    for file in [name.to_owned(), format!("{name}_map")] {
        if let Some(set) = mask(&folder.join(file))? {
            return Ok(Some(set));
        }
    }
    cpu_list(&folder.join(format!("{name}_list")))
}

fn mask(path: &Path) -> Result<Option<CpuSet>, TopologyError> {
    let Some(content) = text(path)?.filter(|content| !content.is_empty()) else {
        return Ok(None);
    };
    CpuSet::from_mask(&content).map(Some).map_err(|_| TopologyError::Malformed {
        path: path.to_owned(),
        value: content,
        expected: "a mask of CPUs: hexadecimal words separated by commas",
    })
}

pub(crate) fn cpu_list(path: &Path) -> Result<Option<CpuSet>, TopologyError> {
    let Some(content) = text(path)? else {
        return Ok(None);
    };
    content.parse().map(Some).map_err(|_| TopologyError::Malformed {
        path: path.to_owned(),
        value: content,
        expected: "a list of CPUs, as in 0-3,8",
    })
}
