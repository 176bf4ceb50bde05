//! Standard output, and who reads it.

use std::fmt::Write as _;
use std::io::{self, Write};

use anyhow::Context;
use homing_control::printable_name;
use serde::Serialize;

/// Prints bytes and flushes. A reader that has left (`| head`) is no error.
pub(crate) fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Prints text for people. What would do something to a terminal is escaped: names may come from
/// anybody.
pub(crate) fn print_text(text: &str) -> anyhow::Result<()> {
    print(printable(text).as_bytes())
}

/// A text that does nothing to a terminal but end its lines.
pub(crate) fn printable(text: &str) -> String {
    text.split('\n').map(printable_name).collect::<Vec<_>>().join("\n")
}

/// Prints a line of JSON.
pub(crate) fn print_json(json: &impl Serialize) -> anyhow::Result<()> {
    print(json_line(json)?.as_bytes())
}

/// A line of JSON that does nothing to a terminal.
pub(crate) fn json_line(json: &impl Serialize) -> serde_json::Result<String> {
    Ok(printable_json(&serde_json::to_string(json)?) + "\n")
}

/// JSON in which the control characters that JSON allows are escaped, too: a terminal obeys some of
/// them. Its newlines stay.
pub(crate) fn printable_json(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, c| {
        if c.is_control() && c != '\n' {
            let _ = write!(line, "\\u{:04x}", u32::from(c));
        } else {
            line.push(c);
        }
        line
    })
}

/// Whether a terminal is to show colours: <https://no-color.org>.
pub(crate) fn has_colors() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty())
}

/// Prints a line.
pub(crate) fn print_line(line: &str) -> anyhow::Result<()> {
    print(format!("{line}\n").as_bytes())
}
