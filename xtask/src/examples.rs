//! Checks that each item of the crates that programs use, and of the decisions, is shown by an
//! example, which is also a test: its own, or another one of the crate that uses it. An example
//! uses a method if it calls one of that name and stands in the same file or has the type's name,
//! too.

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
    file: String,
    line: usize,
    /// The type whose method it is.
    of: Option<String>,
    name: String,
    has_own: bool,
}

/// The code of an example, without strings and comments.
struct Example {
    file: String,
    code: String,
}

impl Item {
    fn told(&self) -> String {
        let of = self.of.as_ref().map(|of| format!("{of}::")).unwrap_or_default();
        format!("{}:{}: {of}{}", self.file, self.line, self.name)
    }
}

#[derive(Default)]
struct Found {
    items: Vec<Item>,
    examples: Vec<Example>,
    /// Names that are exported only for tests.
    hidden: Vec<String>,
}

impl Found {
    fn read(&mut self, file: &str, text: &str) {
        let (mut has_own, mut is_hidden, mut of_tests) = (false, false, false);
        // `Some` between fences: whether the code there is an example.
        let mut within = None;
        let (mut in_attribute, mut of) = (false, None);
        for (number, whole) in text.lines().enumerate() {
            let line = whole.trim();
            let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            if let Some(doc) = doc.map(str::trim) {
                if let Some(kind) = doc.strip_prefix("```") {
                    within = if within.is_some() { None } else { Some(kind != "text") };
                    if within == Some(true) {
                        has_own = true;
                        self.examples.push(Example { file: file.to_owned(), code: String::new() });
                    }
                } else if let (Some(true), Some(example)) = (within, self.examples.last_mut()) {
                    example.code.push_str(&code(doc));
                    example.code.push('\n');
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
            if whole.starts_with('}') {
                of = None;
            }
            if whole.starts_with("impl") {
                of = implemented(whole).map(str::to_owned);
            }
            if let (true, Some(names)) = (is_hidden, line.strip_prefix("pub use")) {
                self.hidden.extend(words(names).map(str::to_owned));
            } else if let Some(name) = item(line).filter(|_| !is_hidden) {
                let of = of.clone().filter(|_| whole.starts_with(' '));
                let (file, line) = (file.to_owned(), number + 1);
                self.items.push(Item { file, line, of, name: name.to_owned(), has_own });
            }
            (has_own, is_hidden, of_tests) = (false, false, false);
        }
    }

    fn shows(&self, item: &Item) -> bool {
        item.has_own
            || self.hidden.contains(&item.name)
            || self.examples.iter().any(|example| example.uses(item))
    }
}

impl Example {
    fn uses(&self, item: &Item) -> bool {
        let has = |name: &str| words(&self.code).any(|word| word == name);
        let Some(of) = &item.of else { return has(&item.name) };
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let is_here = self.file == item.file;
        self.code.match_indices(&item.name).any(|(at, name)| {
            let (before, after) = (&self.code[..at], &self.code[at + name.len()..]);
            if after.starts_with(is_word) {
                return false;
            }
            let is_called = after.starts_with('(') || after.starts_with("::<");
            let is_field = !is_called || before.ends_with("..");
            let path = before.strip_suffix("::").map(|path| path.rsplit(|c| !is_word(c)).next());
            let is_path =
                path.flatten().is_some_and(|last| last == of || is_here && last == "Self");
            is_path || before.ends_with('.') && !is_field && (is_here || has(of))
        })
    }
}

/// The type that a line `impl<T> Trait for Type<T> {` is about.
fn implemented(line: &str) -> Option<&str> {
    let subject = match line.split_once(" for ") {
        Some((_, subject)) => subject,
        // Past the parameters, which have no spaces at their end.
        None if line.starts_with("impl<") => line.split_once("> ")?.1,
        None => line.strip_prefix("impl ")?,
    };
    words(subject).next()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The items of a file with one example, and one method of each of two types.
    fn missing(example: &str) -> Vec<String> {
        let text = format!(
            "/// ```\n/// {example}\n/// ```\npub struct Near;\nimpl Near {{\n    pub fn len(&self) {{}}\n}}\n"
        );
        let other = "impl<K: Eq, V> Clone for Far<K, V> {\n    pub fn len(&self) {}\n}\n";
        let mut found = Found::default();
        found.read("near.rs", &text);
        found.read("far.rs", other);
        found.items.iter().filter(|item| !found.shows(item)).map(Item::told).collect()
    }

    #[test]
    fn a_method_is_shown_where_it_is_called_and_its_type_is_near() {
        let (near, far) = ("near.rs:6: Near::len", "far.rs:2: Far::len");
        assert_eq!(missing("let len = 1;"), [near, far], "a variable");
        assert_eq!(missing("x.len();"), [far], "it may be of any type, so of the file's");
        assert_eq!(missing("Far::new().len();"), [] as [&str; 0]);
        assert_eq!(missing("Far::len(x);"), [near]);
        assert_eq!(missing("x.lengthen(); // x.len()"), [near, far]);
        assert_eq!(missing("(0..len(Far)).chain(x.len)"), [near, far], "no method is called");
        assert_eq!(missing("AFar::len(x); Near::len(x)"), [far]);
        assert_eq!(missing("lens.map(Far::len)"), [near]);
    }
}
