//! Standard output, and who reads it.

use std::io::{self, Write};

use anyhow::Context;

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

/// Prints a line.
pub(crate) fn print_line(line: &str) -> anyhow::Result<()> {
    print(format!("{line}\n").as_bytes())
}
