//! Fills all containers at once, through their servers, so that no block is a hole and every read
//! decrypts.
//!
//! They are filled in step, piece by piece, so that all lie in the same kind of memory. When they
//! were filled one after the other, one server under two names could differ from itself in every
//! round of a run. Exports are also read through, so that a cache has what fits into it when it is
//! measured.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;

use super::server::{Server, uri};
use crate::child::Running;
use crate::interrupt::Interrupt;

/// How much every server gets before the next piece.
const PIECE_LEN: usize = 1 << 20;

/// How long filling may take before a server is taken to hang.
const LIMIT: Duration = Duration::from_secs(600);

/// How long nbdcopy may take for what is in flight when all has been written.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);

/// Fills the exports of `servers`, which run, with `size` random bytes, the same for all. Returns
/// for each server how it went.
pub(crate) fn fill(
    nbdcopy: &Path,
    servers: &[&Server],
    size: u64,
    bar: &ProgressBar,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<anyhow::Result<()>>> {
    let copies = servers.iter().map(|server| {
        let mut command = Command::new(nbdcopy);
        command.arg("-").arg(uri(&server.socket));
        let log = server.socket.with_extension("fill.log");
        let mut copy = Running::start("nbdcopy", &mut command, Stdio::piped(), &log)?;
        let sink = copy.take_stdin().context("nbdcopy has no standard input")?;
        Ok((copy, Some(sink)))
    });
    let copies: Vec<_> = copies.collect::<anyhow::Result<_>>()?;
    let (mut copies, mut sinks): (Vec<Running>, Vec<_>) = copies.into_iter().unzip();

    // Writing blocks if a server hangs, so another thread has to watch.
    let written = AtomicU64::new(0);
    let fed = thread::scope(|scope| {
        let feeder = scope.spawn(|| feed(&mut sinks, size, &written));
        let start = Instant::now();
        while !feeder.is_finished() {
            let late = start.elapsed() >= LIMIT;
            if late || interrupt.check().is_err() {
                // Without the copies the pipes break, and the feeder ends.
                copies.clear();
            }
            bar.set_position(written.load(Ordering::Relaxed));
            thread::sleep(Duration::from_millis(20));
        }
        feeder.join()
    });
    interrupt.check()?;
    let Ok(fed) = fed else { bail!("filling the containers panicked") };
    fed.context("filling the containers failed")?;
    ensure!(!copies.is_empty(), "the containers are not filled after {} s", LIMIT.as_secs());

    // A missing sink broke before the end.
    let complete: Vec<bool> = sinks.iter().map(Option::is_some).collect();
    drop(sinks);
    let results = copies.into_iter().zip(complete).map(|(copy, complete)| {
        copy.finish(FLUSH_LIMIT, interrupt)?;
        ensure!(complete, "nbdcopy did not take all of {size} bytes");
        Ok(())
    });
    Ok(results.collect())
}

/// Reads all of an export.
pub(crate) fn read_through(
    nbdcopy: &Path,
    server: &Server,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    copy(nbdcopy, server, &[&server.uri(), "null:"], interrupt)
}

/// Runs nbdcopy to or from a server.
pub(crate) fn copy(
    nbdcopy: &Path,
    server: &Server,
    args: &[&str],
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut command = Command::new(nbdcopy);
    command.args(args);
    let log = server.socket.with_extension("copy.log");
    Running::start("nbdcopy", &mut command, Stdio::null(), &log)?.finish(LIMIT, interrupt)
}

/// Writes random bytes into all `sinks` in step. A sink that breaks is dropped: its reader has
/// ended, and the reader's exit status and output say why.
fn feed(sinks: &mut [Option<ChildStdin>], size: u64, written: &AtomicU64) -> io::Result<()> {
    let mut source = File::open("/dev/urandom")?;
    let mut piece = vec![0; PIECE_LEN];
    let mut left = size;
    while left > 0 && sinks.iter().any(Option::is_some) {
        let piece = &mut piece[..left.min(PIECE_LEN as u64) as usize];
        source.read_exact(piece)?;
        for sink in sinks.iter_mut() {
            if sink.as_mut().is_some_and(|sink| sink.write_all(piece).is_err()) {
                *sink = None;
            }
        }
        left -= piece.len() as u64;
        written.store(size - left, Ordering::Relaxed);
    }
    Ok(())
}
