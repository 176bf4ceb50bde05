//! What a server asks of the kernel for its process: no core dumps, and enough files.

use std::sync::Arc;

use anyhow::Context;
use homing_volume::FILES_EACH;
use signal_hook::consts::SIGXFSZ;

/// Keys and plaintext are in our memory: keep them out of core files and from other processes of
/// the user.
pub(crate) fn forbid_core_dumps() {
    let behavior = rustix::process::DumpableBehavior::NotDumpable;
    if let Err(error) = rustix::process::set_dumpable_behavior(behavior) {
        tracing::warn!(%error, "core dumps could not be forbidden");
    }
}

/// Makes a file that may not grow any more (`ulimit -f`) an error for the thread that writes, not
/// the end of the program.
pub(crate) fn outlive_file_limits() -> anyhow::Result<()> {
    // Any handler will do: without one the signal is deadly.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).context("cannot handle signals")?;
    Ok(())
}

/// Lets this program have as many files as it may ask for: each client takes one, and each volume
/// several.
pub(crate) fn allow_files(connections_max: usize, volumes: usize) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
        // If this is refused, the limit stays as it was.
        let _ = setrlimit(Resource::Nofile, most);
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if files <= connections_max.saturating_add(volumes * FILES_EACH) as u64 {
        tracing::warn!(
            files,
            connections_max,
            volumes,
            "clients need a file each, and volumes {FILES_EACH}: raise `ulimit -n`"
        );
    }
}
