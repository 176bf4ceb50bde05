//! The log of a server, on standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// What `HOMING_LOG` asks for. What it does not name is logged as by default, and a part that is
/// neither a level nor names one is a mistake: to the library it is the name of a target, for which
/// everything is logged, and nothing for the rest.
fn filter(wanted: &str) -> Result<EnvFilter, String> {
    let mut parts = vec!["info"];
    for part in wanted.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        if !part.contains(['=', '[']) && part.parse::<LevelFilter>().is_err() {
            return Err(format!("{part:?} is no level"));
        }
        parts.push(part);
    }
    EnvFilter::try_new(parts.join(",")).map_err(|error| error.to_string())
}

/// Logs what `HOMING_LOG` asks for, or what is of interest to whoever runs a server.
pub(crate) fn log_to_stderr() {
    let wanted = std::env::var_os("HOMING_LOG").map(|wanted| wanted.to_string_lossy().into_owned());
    let wanted = wanted.filter(|wanted| !wanted.is_empty());
    let parsed = wanted.as_deref().map(filter).transpose();
    let problem = parsed.as_ref().err().cloned();
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
            "HOMING_LOG={wanted} is ignored: {problem}; use error, warn, info, debug or trace, or \
             name=level for a part of the program, as in homing_server=debug"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_for_all_but_what_is_named_and_a_mistake_is_told() {
        let shown = |wanted| filter(wanted).map(|filter| filter.to_string());
        for (wanted, most) in [("warn", "warn"), ("DEBUG", "debug"), ("off", "off"), ("3", "info")]
        {
            assert_eq!(shown(wanted).as_deref(), Ok(most));
        }
        let named = shown("homing_server=debug").unwrap();
        assert!(named.contains("homing_server=debug") && named.contains("info"), "{named}");
        let both = shown("homing_server=debug, error").unwrap();
        assert!(both.contains("error") && !both.contains("info"), "{both}");
        for mistaken in ["warning", "debg", "info,verbose", "a=b=c"] {
            assert!(filter(mistaken).is_err(), "{mistaken} is taken");
        }
    }
}
