//! Checks that no compiler makes: every source file says what it is for, none is too long, rules
//! that are cited exist, unsafe code stays on its islands, and links in the documents lead
//! somewhere.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::links;

/// The most lines of a source file, tests included. This may only fall.
const FILE_LINES_MAX: usize = 600;
/// The most columns of a comment: rustfmt's limit, which it does not apply to comments.
const COMMENT_WIDTH_MAX: usize = 100;
/// The only files that may allow unsafe code, their own or a module's; ARCHITECTURE.md says why.
const UNSAFE_ISLANDS: [&str; 20] = [
    "bench/src/fsync/queue/io_uring.rs",
    "bench/src/fsync/queue/linux_aio.rs",
    "bench/src/fsync/queue/posix_aio.rs",
    "crates/cache/src/objects/mod.rs",
    "crates/durable/src/engine/ring.rs",
    "crates/durable/src/system/range.rs",
    "crates/mglru/src/prefetch.rs",
    "crates/runtime/src/handles/scope.rs",
    "crates/runtime/src/item/batch.rs",
    "crates/runtime/src/item/header.rs",
    "crates/runtime/src/item/joined.rs",
    "crates/runtime/src/item/lone.rs",
    "crates/runtime/src/item/memory.rs",
    "crates/runtime/src/item/prefetch.rs",
    "crates/runtime/src/item/resumed.rs",
    "crates/runtime/src/item/work.rs",
    "crates/rwlock/src/lib.rs",
    "crates/sched/tests/counting/mod.rs",
    "crates/volume/src/luks/hold.rs",
    "crates/volume/src/xts/aws_lc.rs",
];
/// Prefixes of rules (`WORD-n`) that are defined in a crate's page or a README and cited in code.
const RULE_PREFIXES: [&str; 8] =
    ["SCHED", "SERVE", "BATCH", "LANE", "BYTES", "SYNC", "DURABLE", "XTS"];

pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    let sources = files(root, "rs")?;
    let mut cited = BTreeSet::new();
    let mut defined = BTreeSet::new();
    for path in &sources {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        check_source(&name, &text, &mut problems);
        rules(&text, &mut defined, &mut cited);
    }
    for path in files(root, "md")? {
        let text = fs::read_to_string(&path)?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        rules(&text, &mut defined, &mut cited);
        links::check(&name, &path, &text, &mut problems);
    }
    let unknown = cited.difference(&defined);
    problems.extend(unknown.map(|rule| format!("rule {rule} is cited but defined nowhere")));
    if !problems.is_empty() {
        bail!("tidy:\n  {}", problems.join("\n  "));
    }
    println!("tidy: {} source files, {} rules", sources.len(), defined.len());
    Ok(())
}

fn check_source(name: &str, text: &str, problems: &mut Vec<String>) {
    let is_test_child = name.ends_with("/tests.rs");
    if !is_test_child && !text.starts_with("//!") {
        problems.push(format!("{name}: begin with //! and what the file is for"));
    }
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        problems.push(format!("{name}: {lines} lines; split it at {FILE_LINES_MAX}"));
    }
    // Spelled in two parts so that this file does not find itself.
    let allows = [concat!("allow(", "unsafe_code"), concat!("expect(", "unsafe_code")];
    let allows = allows.iter().any(|allows| text.contains(allows));
    if allows && !UNSAFE_ISLANDS.contains(&name) {
        problems.push(format!("{name}: unsafe code outside the islands {UNSAFE_ISLANDS:?}"));
    }
    for line in wide_comments(text) {
        problems.push(format!("{name}:{line}: a comment is wider than {COMMENT_WIDTH_MAX}"));
    }
    for word in [concat!("FIX", "ME"), concat!("TO", "DO"), concat!("db", "g!(")] {
        if text.contains(word) {
            problems.push(format!("{name}: {word} left over"));
        }
    }
}

/// The numbers of lines of comments that are too wide, except for examples, drawings and tables.
fn wide_comments(text: &str) -> Vec<usize> {
    let mut is_example = false;
    let mut wide = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let comment = line.trim_start().strip_prefix("//");
        let Some(comment) = comment.map(|rest| rest.trim_start_matches(['/', '!', ' '])) else {
            is_example = false;
            continue;
        };
        is_example ^= comment.starts_with("```");
        let is_prose = !is_example && !comment.starts_with('|');
        if is_prose && line.chars().count() > COMMENT_WIDTH_MAX {
            wide.push(index + 1);
        }
    }
    wide
}

/// Collects rules: "* `WORD-1` text" defines one, `WORD-1` anywhere else cites it.
fn rules(text: &str, defined: &mut BTreeSet<String>, cited: &mut BTreeSet<String>) {
    for line in text.lines() {
        let definition = line.trim_start_matches(['/', '!', ' ']).strip_prefix("* `");
        for prefix in RULE_PREFIXES {
            for (at, _) in line.match_indices(&format!("{prefix}-")) {
                let digits = line[at + prefix.len() + 1..].chars().take_while(char::is_ascii_digit);
                let rule = format!("{prefix}-{}", digits.collect::<String>());
                if rule.ends_with('-') {
                    continue;
                }
                if definition.is_some_and(|text| text.starts_with(&format!("{rule}`"))) {
                    defined.insert(rule);
                } else {
                    cited.insert(rule);
                }
            }
        }
    }
}

/// Files of the repository with this extension.
pub(crate) fn files(root: &Path, extension: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_found() {
        let (mut defined, mut cited) = (BTreeSet::new(), BTreeSet::new());
        rules("//! * `SERVE-1` text\n// see `SERVE-2`.", &mut defined, &mut cited);
        assert!(defined.contains("SERVE-1") && cited.contains("SERVE-2"));
    }

    #[test]
    fn faults_of_a_source_file_are_found() {
        let mut problems = Vec::new();
        check_source("a.rs", "fn main() {}", &mut problems);
        check_source("b.rs", &format!("//! b\n{}", "\n".repeat(700)), &mut problems);
        check_source("c.rs", concat!("//! c\n#![allow(", "unsafe_code)]"), &mut problems);
        let of_module = concat!("//! d\n#[allow(", "unsafe_code, reason = \"so\")]\nmod e;");
        check_source("d.rs", of_module, &mut problems);
        let wide = format!("//! e\n/// ```\n/// {0}\n/// ```\n// {0}", "x".repeat(100));
        check_source("e.rs", &wide, &mut problems);
        assert!(problems.len() == 5 && problems[4].starts_with("e.rs:5:"), "{problems:?}");
    }
}
