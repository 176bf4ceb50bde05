//! Reads a machine from `/sys`, below any folder that stands for `/`.
//!
//! Follows what real machines hold rather than what the documentation promises: CPUs that are
//! offline or have no topology folder, sparse numbers, masks that name offline CPUs, caches whose
//! mask is empty, nodes without CPUs. hwloc's Linux reader showed which of these exist.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::cpu_set::{CpuId, CpuSet};
use crate::error::TopologyError;
use crate::machine::{Cpu, Machine, NodeId};

impl Machine {
    /// Reads the machine below `root`: `/` for this one, or a folder with a capture of another
    /// machine's `/sys` and `/proc`. Holds every online CPU, whether this process may use it or
    /// not ([`crate::Allowed`] tells).
    pub fn read(root: &Path) -> Result<Self, TopologyError> {
        Reader { root }.machine()
    }
}

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
        // A CPU without a topology folder is on its way in or out; but where no CPU has one, the
        // kernel is too old to tell, and every CPU is a core of its own.
        let has_topology = |cpu: &CpuId| folder.join(format!("cpu{cpu}/topology")).is_dir();
        let described: CpuSet = present.iter().filter(has_topology).collect();
        let online = if described.is_empty() {
            present
        } else {
            described
        };
        if online.is_empty() {
            return Err(TopologyError::NoCpu {
                root: self.root.to_owned(),
            });
        }

        let nodes = self.nodes(&online)?;
        let modules = self.has_compute_units();
        let cpus = online
            .iter()
            .map(|cpu| describe(&folder, cpu, &online, &nodes, modules));
        let cpus = cpus.collect::<Result<_, _>>()?;
        Ok(Machine::new(cpus, self.node_distances(&nodes)?))
    }

    /// AMD's families 15h and 16h list the two cores of a compute unit as thread siblings.
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

    /// Every NUMA node with the CPUs it lists: possibly none.
    fn nodes(&self, online: &CpuSet) -> Result<BTreeMap<NodeId, CpuSet>, TopologyError> {
        let folder = self.node_folder();
        let numbers = if folder.is_dir() {
            numbered_entries(&folder, "node")?
        } else {
            Vec::new()
        };
        if numbers.is_empty() {
            // A kernel built without NUMA: all memory is one node.
            return Ok(BTreeMap::from([(NodeId(0), *online)]));
        }
        let node = |number: usize| {
            let home = folder.join(format!("node{number}"));
            let cpus = match mask(&home.join("cpumap"))? {
                Some(cpus) => Some(cpus),
                None => cpu_list(&home.join("cpulist"))?,
            };
            Ok((NodeId(number as u32), cpus.unwrap_or(CpuSet::EMPTY)))
        };
        numbers.into_iter().map(node).collect()
    }

    fn node_distances(
        &self,
        nodes: &BTreeMap<NodeId, CpuSet>,
    ) -> Result<BTreeMap<(NodeId, NodeId), u32>, TopologyError> {
        let mut distances = BTreeMap::new();
        for from in nodes.keys() {
            let path = self.node_folder().join(format!("node{}/distance", from.0));
            let Some(line) = text(&path)? else { continue };
            // One column per online node, in rising order of their numbers.
            for (to, column) in nodes.keys().zip(line.split_whitespace()) {
                let distance = column.parse().map_err(|_| TopologyError::Malformed {
                    path: path.clone(),
                    value: line.clone(),
                    expected: "distances: whole numbers separated by spaces",
                })?;
                distances.insert((*from, *to), distance);
            }
        }
        Ok(distances)
    }
}

fn describe(
    folder: &Path,
    cpu: CpuId,
    online: &CpuSet,
    nodes: &BTreeMap<NodeId, CpuSet>,
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
        numa_nodes: nodes
            .iter()
            .filter(|(_, set)| set.contains(cpu))
            .map(|(id, _)| *id)
            .collect(),
        package: package.first().unwrap_or(cpu),
    })
}

fn core_ids_differ(folder: &Path, siblings: &CpuSet) -> Result<bool, TopologyError> {
    let ids = siblings
        .iter()
        .map(|cpu| text(&folder.join(format!("cpu{cpu}/topology/core_id"))));
    let ids: Vec<Option<String>> = ids.collect::<Result<_, _>>()?;
    Ok(ids.windows(2).any(|pair| pair[0] != pair[1]))
}

/// The CPUs that share the outermost data or unified cache of `cpu`.
fn last_level_cache(folder: &Path, cpu: CpuId) -> Result<Option<CpuSet>, TopologyError> {
    let mut outermost: Option<(u32, CpuSet)> = None;
    if !folder.is_dir() {
        return Ok(None);
    }
    for index in numbered_entries(folder, "index")? {
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
fn numbered_entries(folder: &Path, prefix: &str) -> Result<Vec<usize>, TopologyError> {
    let unreadable = |error| TopologyError::unreadable(folder, error);
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let number: Option<usize> = name
            .to_str()
            .and_then(|name| name.strip_prefix(prefix)?.parse().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The trimmed content; `None` where there is no such file, or the kernel has nothing to say
/// (some attributes of offline CPUs exist but fail to read).
pub(crate) fn text(path: &Path) -> Result<Option<String>, TopologyError> {
    match fs::read_to_string(path) {
        // Some kernels end an attribute with a NUL.
        Ok(content) => Ok(Some(
            content
                .trim_matches(|c: char| c.is_whitespace() || c == '\0')
                .to_owned(),
        )),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(TopologyError::unreadable(path, error))
        }
        Err(_) => Ok(None),
    }
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
    CpuSet::from_mask(&content)
        .map(Some)
        .map_err(|_| TopologyError::Malformed {
            path: path.to_owned(),
            value: content,
            expected: "a mask of CPUs: hexadecimal words separated by commas",
        })
}

pub(crate) fn cpu_list(path: &Path) -> Result<Option<CpuSet>, TopologyError> {
    let Some(content) = text(path)? else {
        return Ok(None);
    };
    content
        .parse()
        .map(Some)
        .map_err(|_| TopologyError::Malformed {
            path: path.to_owned(),
            value: content,
            expected: "a list of CPUs, as in 0-3,8",
        })
}
