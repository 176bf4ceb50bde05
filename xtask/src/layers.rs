//! Compares the layer table of ARCHITECTURE.md with what `cargo metadata` says.
//!
//! The table has a row for each crate, `| NAME | may use | ... |`, from the top floor down. A crate
//! may use the crates that its row names, and these have lower rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};

const BEGIN: &str = "<!-- layers -->";
const END: &str = "<!-- /layers -->";

pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let path = root.join("ARCHITECTURE.md");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let table = parse(&text)?;
    let metadata = MetadataCommand::new().current_dir(root).no_deps().exec()?;
    // The README's first command is a plain `cargo run`.
    let runnable: Vec<_> =
        metadata.workspace_default_packages().iter().map(|p| p.name.to_string()).collect();
    if runnable != ["homing-cli"] {
        bail!(
            "default-members of the workspace are {runnable:?}: plain cargo run must mean homing"
        );
    }
    let members: BTreeSet<&str> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
    let mut actual = BTreeMap::new();
    for package in &metadata.packages {
        let ours = package.dependencies.iter().filter(|dependency| {
            dependency.kind == DependencyKind::Normal && members.contains(dependency.name.as_str())
        });
        actual.insert(short(&package.name), ours.map(|d| short(&d.name)).collect());
    }
    let problems = compare(&table, &actual);
    if !problems.is_empty() {
        bail!("ARCHITECTURE.md and cargo metadata differ:\n  {}", problems.join("\n  "));
    }
    println!("layers: {} crates as in ARCHITECTURE.md", actual.len());
    Ok(())
}

type Uses = BTreeMap<String, BTreeSet<String>>;

/// The name in the table: `homing-sched` is called `sched` there; the crate `homing` keeps its
/// name.
fn short(package: &str) -> String {
    package.strip_prefix("homing-").unwrap_or(package).to_owned()
}

/// The rows in order: a crate and the crates that it may use.
fn parse(text: &str) -> anyhow::Result<Vec<(String, BTreeSet<String>)>> {
    let begin = text.find(BEGIN).with_context(|| format!("ARCHITECTURE.md lacks {BEGIN}"))?;
    let end = text.find(END).with_context(|| format!("ARCHITECTURE.md lacks {END}"))?;
    let word = |cell: &str| cell.trim().trim_matches('`').to_owned();
    let rows = text[begin..end].lines().filter(|line| line.starts_with("| `"));
    Ok(rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').collect();
            let uses = cells.get(2).unwrap_or(&"").split(',').map(word);
            (word(cells[1]), uses.filter(|name| !name.is_empty() && name != "-").collect())
        })
        .collect())
}

fn compare(table: &[(String, BTreeSet<String>)], actual: &Uses) -> Vec<String> {
    let mut problems = Vec::new();
    let position = |name: &str| table.iter().position(|(other, _)| other == name);
    for (index, (name, uses)) in table.iter().enumerate() {
        match actual.get(name) {
            None => problems.push(format!("the table has {name}, which is no crate")),
            Some(real) if real != uses => {
                problems.push(format!("{name} uses {real:?}; the table says {uses:?}"));
            }
            Some(_) => {}
        }
        for used in uses.iter().filter(|used| position(used).is_some_and(|at| at <= index)) {
            problems.push(format!("{name} uses {used}, which does not stand below it"));
        }
    }
    let missing = actual.keys().filter(|name| position(name).is_none());
    problems.extend(missing.map(|name| format!("{name} is not in the table")));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "<!-- layers -->\n| crate | uses |\n| --- | --- |\n| `a` | `b` |\n| `b` | - |\n<!-- /layers -->";

    fn uses(pairs: &[(&str, &[&str])]) -> Uses {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        pairs.iter().map(|(name, used)| ((*name).to_owned(), set(used))).collect()
    }

    #[test]
    fn differences_are_found() {
        let table = parse(TABLE).unwrap();
        assert!(compare(&table, &uses(&[("a", &["b"]), ("b", &[])])).is_empty());
        assert_eq!(compare(&table, &uses(&[("a", &[]), ("b", &[])])).len(), 1);
        assert_eq!(compare(&table, &uses(&[("a", &["b"]), ("b", &[]), ("c", &[])])).len(), 1);
        let upward = parse(&TABLE.replace("| `b` | - |", "| `b` | `a` |")).unwrap();
        assert_eq!(compare(&upward, &uses(&[("a", &["b"]), ("b", &["a"])])).len(), 1);
    }
}
