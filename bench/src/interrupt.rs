//! Ctrl-C and its kin: a flag that every wait looks at, so that on the way out what was started is
//! stopped, and what was written is removed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Whether the user has asked for the end.
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Takes over SIGINT, SIGTERM and SIGHUP for the rest of the process.
    pub(crate) fn install() -> io::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&asked))?;
        }
        Ok(Self { asked })
    }

    /// Returns an error once the user has asked for the end.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.asked.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}
