//! Checks that each item of the crates that programs use, and of the decisions, is shown by an
//! example, which is also a test: its own example, or another one of the crate that has its name.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use crate::tidy::files;

/// The crates whose items `homing` re-exports, and the one that decides.
const CRATES: [&str; 6] = ["cache", "control", "durable", "runtime", "sched", "topology"];

pub(crate) fn check(root: &Path) -> anyhow::Result<()> {
    let (mut count, mut missing) = (0, Vec::new());
    for name in CRATES {
        let folder = root.join("crates").join(name).join("src");
        let mut found = Found::default();
        for path in files(&folder, "rs")? {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            if !name.contains("tests") {
                found.read(&name, &text);
            }
        }
        count += found.items.len();
        missing.extend(found.items.iter().filter(|item| !found.shows(item)).map(Item::told));
    }
    if !missing.is_empty() {
        bail!("shown by no example:\n  {}", missing.join("\n  "));
    }
    println!("examples: {count} items of {} crates", CRATES.len());
    Ok(())
}

struct Item {
    place: String,
    name: String,
    has_own: bool,
}

impl Item {
    fn told(&self) -> String {
        format!("{}: {}", self.place, self.name)
    }
}

#[derive(Default)]
struct Found {
    items: Vec<Item>,
    /// The lines of all examples.
    examples: String,
    /// Names that are exported only for tests.
    hidden: Vec<String>,
}

impl Found {
    fn read(&mut self, file: &str, text: &str) {
        let (mut has_own, mut is_hidden, mut of_tests) = (false, false, false);
        // `Some` between fences: whether the code there is an example.
        let mut within = None;
        let mut in_attribute = false;
        for (number, line) in text.lines().map(str::trim).enumerate() {
            let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            if let Some(doc) = doc.map(str::trim) {
                if let Some(kind) = doc.strip_prefix("```") {
                    within = if within.is_some() { None } else { Some(kind != "text") };
                    has_own |= within == Some(true);
                } else if within == Some(true) {
                    self.examples.push_str(&code(doc));
                    self.examples.push('\n');
                }
                continue;
            }
            within = None;
            if in_attribute || line.starts_with("#[") {
                in_attribute = !line.ends_with(']');
                is_hidden |= line == "#[doc(hidden)]";
                of_tests |= line.starts_with("#[cfg(test)") || line.starts_with("#[cfg(all(test");
                continue;
            }
            if of_tests && line.ends_with('{') {
                return;
            }
            if let (true, Some(names)) = (is_hidden, line.strip_prefix("pub use")) {
                self.hidden.extend(words(names).map(str::to_owned));
            } else if let Some(name) = item(line).filter(|_| !is_hidden) {
                let (place, name) = (format!("{file}:{}", number + 1), name.to_owned());
                self.items.push(Item { place, name, has_own });
            }
            (has_own, is_hidden, of_tests) = (false, false, false);
        }
    }

    fn shows(&self, item: &Item) -> bool {
        item.has_own
            || self.hidden.contains(&item.name)
            || words(&self.examples).any(|word| word == item.name)
    }
}

/// The name of the public item that begins on this line.
fn item(line: &str) -> Option<&str> {
    let mut words = words(line.strip_prefix("pub ")?);
    let is_kind = |word: &&str| ["fn", "struct", "enum", "trait", "type"].contains(word);
    words
        .by_ref()
        .take_while(|word| ["const", "unsafe", "async"].contains(word) || is_kind(word))
        .find(is_kind)?;
    words.next()
}

/// A line without its strings and its comment.
fn code(line: &str) -> String {
    let parts = line.split('"').enumerate().filter(|(number, _)| number % 2 == 0);
    let code: Vec<&str> = parts.map(|(_, part)| part).collect();
    let code = code.join("\"");
    code.split("//").next().unwrap_or_default().to_owned()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}
