//! When a command that goes on and on is to end.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

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
        let stopping = Arc::new(AtomicBool::new(false));
        for number in [SIGINT, SIGTERM] {
            // The second one ends us at once: a server that does not answer takes its time. The
            // order matters: the first one must not find the flag that it is to set.
            flag::register_conditional_shutdown(number, 128 + number, Arc::clone(&stopping))?;
            flag::register(number, Arc::clone(&stopping))?;
            low_level::pipe::register(number, signal.try_clone()?)?;
        }
        Ok(Self { signalled })
    }

    /// Waits this long, or until told to stop; whether to go on.
    pub(crate) fn within(&self, time: Duration) -> anyhow::Result<bool> {
        let deadline = Instant::now() + time;
        let stdout = io::stdout();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).context("cannot wait this long")?;
            // Of a reader that has left we are told without asking.
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
