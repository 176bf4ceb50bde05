//! Reads a machine from an hwloc XML export (`lstopo machine.xml`), formats 1 to 3.

use std::collections::BTreeMap;

use roxmltree::{Document, Node, ParsingOptions};

use crate::cpu_set::{CPU_COUNT_MAX, CpuId, CpuSet};
use crate::error::TopologyError;
use crate::machine::{Cpu, Machine, NodeId, first_twice};

/// How deep objects may be nested. Derived: hwloc's own limit is below; each level costs stack.
const DEPTH_MAX: usize = 128;

/// What the objects around a PU say about it: the sets of the innermost package and core and of
/// the outermost data cache.
#[derive(Clone, Copy, Default)]
struct Surroundings {
    package: Option<CpuSet>,
    llc: Option<CpuSet>,
    core: Option<CpuSet>,
}

impl Machine {
    /// Reads the text of an hwloc XML export.
    ///
    /// ```
    /// use homing_topology::{Machine, Scope};
    ///
    /// let machine = Machine::from_hwloc_xml(
    ///     r#"<topology version="2.0"><object type="Machine" cpuset="0x3">
    ///         <object type="Core" cpuset="0x3">
    ///           <object type="PU" os_index="0"/><object type="PU" os_index="1"/>
    ///         </object>
    ///     </object></topology>"#,
    /// )?;
    /// assert_eq!(*machine.pods(Scope::Smt).cpus(0), "0-1".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_hwloc_xml(xml: &str) -> Result<Self, TopologyError> {
        let broken = |problem: String| TopologyError::Hwloc { problem };
        // The document names hwloc's DTD; nothing is ever fetched for it.
        let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
        let document =
            Document::parse_with_options(xml, options).map_err(|e| broken(e.to_string()))?;
        let root = document.root_element();
        if root.tag_name().name() != "topology" {
            return Err(broken(format!(
                "the outermost element is <{}>, not <topology>",
                root.tag_name().name()
            )));
        }

        let objects = || root.descendants().filter(|node| node.has_tag_name("object"));
        let mut nodes = BTreeMap::new();
        for node in objects().filter(|node| matches!(kind(node), "NUMANode" | "Node")) {
            let index = number(&node, "os_index")?;
            let id = u32::try_from(index)
                .map_err(|_| broken(format!("there is no NUMA node {index}")))?;
            if nodes.insert(NodeId(id), cpu_set(&node)?).is_some() {
                return Err(broken(format!("it has NUMA node {index} twice")));
            }
        }
        let mut places = Vec::new();
        for object in root.children().filter(|node| node.has_tag_name("object")) {
            collect_pus(object, Surroundings::default(), DEPTH_MAX, &mut places)?;
        }
        let online: CpuSet = places.iter().map(|(cpu, _)| *cpu).collect();
        if online.is_empty() {
            return Err(broken("it has no PU object".to_owned()));
        }
        if let Some(cpu) = first_twice(places.iter().map(|(cpu, _)| *cpu)) {
            return Err(broken(format!("it has the PU object of CPU {cpu} twice")));
        }
        let cpus = places.iter().map(|(cpu, around)| {
            let first =
                |set: Option<CpuSet>| set.map(|set| set.and(&online).first().unwrap_or(*cpu));
            Cpu {
                cpu: *cpu,
                core: first(around.core).unwrap_or(*cpu),
                llc: first(around.llc),
                numa_nodes: nodes
                    .iter()
                    .filter(|(_, s)| s.contains(*cpu))
                    .map(|(id, _)| *id)
                    .collect(),
                package: first(around.package.or(Some(online))).unwrap_or(*cpu),
            }
        });
        Ok(Self::named_anew(cpus.collect(), node_distances(&root)))
    }
}

fn kind<'a>(node: &Node<'a, '_>) -> &'a str {
    node.attribute("type").unwrap_or("")
}

fn collect_pus(
    object: Node<'_, '_>,
    mut around: Surroundings,
    depth_left: usize,
    places: &mut Vec<(CpuId, Surroundings)>,
) -> Result<(), TopologyError> {
    match kind(&object) {
        "PU" => {
            let index = number(&object, "os_index")?;
            let cpu = CpuId::new(index).ok_or(TopologyError::CpuNumber { number: index })?;
            places.push((cpu, around));
        }
        "Package" | "Socket" => around.package = Some(cpu_set(&object)?),
        "Core" => around.core = Some(cpu_set(&object)?),
        "Cache" | "L1Cache" | "L2Cache" | "L3Cache" | "L4Cache" | "L5Cache" => {
            let instruction = object.attribute("cache_type") == Some("2");
            if around.llc.is_none() && !instruction {
                around.llc = Some(cpu_set(&object)?);
            }
        }
        _ => {}
    }
    let deeper = depth_left.checked_sub(1).ok_or_else(|| TopologyError::Hwloc {
        problem: format!("its objects are more than {DEPTH_MAX} deep"),
    })?;
    for child in object.children().filter(|node| node.has_tag_name("object")) {
        collect_pus(child, around, deeper, places)?;
    }
    Ok(())
}

fn number(object: &Node<'_, '_>, attribute: &str) -> Result<usize, TopologyError> {
    let broken = |problem: String| TopologyError::Hwloc { problem };
    let kind = kind(object);
    let value = object.attribute(attribute);
    let value = value.ok_or_else(|| broken(format!("a {kind} object lacks its {attribute}")))?;
    let number = value.parse();
    number.map_err(|_| {
        broken(format!("a {kind} object has {value:?} as its {attribute}, not a number"))
    })
}

fn cpu_set(object: &Node<'_, '_>) -> Result<CpuSet, TopologyError> {
    let mask = object.attribute("cpuset").ok_or_else(|| TopologyError::Hwloc {
        problem: format!("a {} object lacks its cpuset", kind(object)),
    })?;
    CpuSet::from_mask(mask).map_err(|_| TopologyError::Hwloc {
        problem: format!(
            "a {} object has {mask:?} as its cpuset, not a hexadecimal mask of CPUs below {CPU_COUNT_MAX}, as \
             0x0000000f",
            kind(object)
        ),
    })
}

/// Distances between nodes, if the export has them (`distances2` of formats 2 and 3).
fn node_distances(root: &Node<'_, '_>) -> BTreeMap<(NodeId, NodeId), u32> {
    let mut distances = BTreeMap::new();
    let tables = root.children().filter(|node| node.has_tag_name("distances2"));
    // hwloc's `HWLOC_DISTANCES_KIND_MEANS_BANDWIDTH`: there, more means nearer.
    let is_bandwidth = |table: &Node<'_, '_>| {
        let kinds = table.attribute("kind").and_then(|kinds| kinds.parse().ok());
        kinds.is_some_and(|kinds: u64| kinds & 8 != 0)
    };
    for table in tables.filter(|table| kind(table) == "NUMANode" && !is_bandwidth(table)) {
        let numbers = |tag: &str| -> Vec<u32> {
            let texts = table.children().filter(|node| node.has_tag_name(tag));
            texts
                .filter_map(|node| node.text())
                .flat_map(str::split_whitespace)
                .filter_map(|word| word.parse().ok())
                .collect()
        };
        let (indexes, values) = (numbers("indexes"), numbers("u64values"));
        if indexes.is_empty() || values.len() != indexes.len() * indexes.len() {
            continue;
        }
        for (row, from) in values.chunks(indexes.len()).zip(&indexes) {
            for (distance, to) in row.iter().zip(&indexes) {
                distances.entry((NodeId(*from), NodeId(*to))).or_insert(*distance);
            }
        }
    }
    distances
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_export_is_refused_with_the_reason() {
        for (xml, reason) in [
            ("", "not a usable"),
            ("<html/>", "<html>"),
            ("<topology/>", "no PU"),
            ("<topology><object type=\"PU\"/></topology>", "os_index"),
            ("<topology><object type=\"PU\" os_index=\"5000\"/></topology>", "5000"),
            ("<topology><object type=\"Core\" cpuset=\"zz\"/></topology>", "zz"),
            (
                "<topology><object type=\"NUMANode\" os_index=\"4294967296\" cpuset=\"0x1\"/></topology>",
                "4294967296",
            ),
            (
                "<topology><object type=\"NUMANode\" os_index=\"3\" cpuset=\"0x1\"/>\
                 <object type=\"NUMANode\" os_index=\"3\" cpuset=\"0x2\"/></topology>",
                "node 3 twice",
            ),
        ] {
            let error = Machine::from_hwloc_xml(xml).unwrap_err().to_string();
            assert!(error.contains(reason), "{xml}: {error}");
        }
    }

    #[test]
    fn objects_without_end_are_refused_and_not_followed() {
        let xml = ["<topology>", &"<object>".repeat(50_000), &"</object>".repeat(50_000)].concat();
        let error = Machine::from_hwloc_xml(&(xml + "</topology>")).unwrap_err().to_string();
        assert!(error.contains("128 deep"), "{error}");
    }

    #[test]
    fn node_distances_and_the_outermost_cache_are_read() {
        let xml = r#"<topology version="2.0"><object type="Machine" cpuset="0x3">
            <object type="NUMANode" os_index="0" cpuset="0x1"/>
            <object type="NUMANode" os_index="7" cpuset="0x2"/>
            <object type="L3Cache" cpuset="0x3" cache_type="0">
              <object type="L2Cache" cpuset="0x1" cache_type="0"><object type="PU" os_index="0" cpuset="0x1"/></object>
              <object type="L1iCache" cpuset="0x2" cache_type="2"><object type="PU" os_index="1" cpuset="0x2"/></object>
            </object></object>
            <distances2 type="NUMANode" nbobjs="2" kind="9" name="NUMABandwidth"><indexes length="3">0 7</indexes>
              <u64values length="22">5000 300 300 5000 </u64values></distances2>
            <distances2 type="NUMANode" nbobjs="2" kind="5"><indexes length="3">0 7</indexes>
              <u64values length="11">10 21 </u64values><u64values length="5">22 10</u64values>
            </distances2></topology>"#;
        let machine = Machine::from_hwloc_xml(xml).unwrap();
        assert_eq!(machine.cpus()[1].llc, CpuId::new(0));
        assert_eq!(machine.node_distance(NodeId(7), NodeId(0)), 22);
        assert_eq!(machine.cpus()[1].numa_nodes, [NodeId(7)]);
    }
}
