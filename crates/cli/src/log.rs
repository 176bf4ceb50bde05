//! The log of a server, on standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// Logs what `HOMING_LOG` asks for, or what is of interest to whoever runs a server.
pub(crate) fn log_to_stderr() {
    let wanted = std::env::var_os("HOMING_LOG").map(|wanted| wanted.to_string_lossy().into_owned());
    let wanted = wanted.filter(|wanted| !wanted.is_empty());
    let parsed = wanted.as_deref().map(EnvFilter::try_new).transpose();
    let problem = parsed.as_ref().err().map(ToString::to_string);
    let filter = parsed.ok().flatten().unwrap_or_else(|| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A log that nobody reads is no reason to stop serving.
        .log_internal_errors(false)
        .with_writer(|| Log)
        .with_ansi(io::stderr().is_terminal())
        .init();
    if let Some(problem) = problem {
        let wanted = wanted.unwrap_or_default();
        tracing::warn!(
            "HOMING_LOG={wanted} is ignored: {problem}; use error, warn, info, debug or trace"
        );
    }
}

/// Standard error, as far as somebody reads it: a full pipe that nobody reads would hold up every
/// thread that logs, and with them the end of the server.
struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        // A pipe that has any room has room for this much.
        let piece = &bytes[..bytes.len().min(4096)];
        let mut stderr = io::stderr().lock();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let has_room = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&now));
        if has_room == Ok(0) {
            return Ok(bytes.len());
        }
        stderr.write(piece)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
