//! When a command that runs on and on is to end.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Signals that are closer together than this count as one: `timeout` signals a program and then
/// its whole group, and a wrapper may pass on a Ctrl-C that the terminal has sent to the program,
/// too. Nobody who has read what the first one led to presses the keys again within this time.
const ONE_WISH: Duration = Duration::from_millis(300);

/// Calls `stop` at the first of these signals; another one, later, ends the program at once. SIGHUP
/// never counts as another one: a shell and the kernel both send it when a terminal is closed.
pub(crate) fn stop_then_end(mut signals: Signals, stop: impl Fn(), before_end: impl Fn()) {
    let mut first: Option<Instant> = None;
    for signal in signals.forever() {
        match first {
            None => {
                first = Some(Instant::now());
                stop();
            }
            Some(first) if signal == SIGHUP || first.elapsed() < ONE_WISH => {}
            Some(_) => {
                before_end();
                std::process::exit(128 + signal);
            }
        }
    }
}

/// Runs what waits for signals, on a thread of its own.
pub(crate) fn beside(wait: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}

/// The signals at which a program ends in good order. This includes the closing of its terminal,
/// since there may be much that only this program has.
pub(crate) fn ending_signals() -> Vec<i32> {
    let mut all = vec![SIGINT, SIGTERM];
    all.extend((!is_ignored(SIGHUP)).then_some(SIGHUP));
    all
}

/// Whether a signal is ignored, as by nohup. If that cannot be told, nobody has asked for it.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    ignored.unwrap_or(0) >> (signal - 1) & 1 == 1
}

/// When to stop: on a signal, or when nobody reads our output any more.
pub(crate) struct Stop {
    signalled: UnixStream,
}

impl Stop {
    pub(crate) fn on_signals() -> anyhow::Result<Self> {
        Self::register().context("cannot handle signals")
    }

    fn register() -> io::Result<Self> {
        let (signalled, signal) = UnixStream::pair()?;
        let signals = Signals::new(ending_signals())?;
        let wait = move || {
            // The second signal ends the program at once: a server that does not answer takes its
            // time.
            stop_then_end(signals, || drop((&signal).write_all(&[0])), || {});
        };
        beside(wait)?;
        Ok(Self { signalled })
    }

    /// Waits this long, or until told to stop. Returns whether to go on.
    pub(crate) fn within(&self, time: Duration) -> anyhow::Result<bool> {
        let deadline = Instant::now() + time;
        let stdout = io::stdout();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).context("cannot wait this long")?;
            // `poll` reports that the reader has left even if it is not asked to.
            let mut sources = [
                PollFd::new(&self.signalled, PollFlags::IN),
                PollFd::new(&stdout, PollFlags::empty()),
            ];
            match poll(&mut sources, Some(&left)) {
                Ok(0) => return Ok(true),
                Ok(_) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait"),
            }
        }
    }
}
