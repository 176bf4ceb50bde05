//! What is told while several volumes are opened, which takes a while for each: a bar to who waits
//! at a terminal, and to systemd that it should go on waiting.

use std::path::Path;
use std::time::Duration;

use indicatif::ProgressBar;
use sd_notify::NotifyState;

use crate::progress;
use crate::systemd::tell_systemd;

/// How long one volume may take: a passphrase is tried for seconds, on a busy machine for more.
const EACH: Duration = Duration::from_secs(120);

pub(crate) struct Opening {
    bar: ProgressBar,
    count: usize,
}

impl Opening {
    /// `is_quiet`: whether nothing is asked meanwhile, and nothing made, of which the log tells.
    pub(crate) fn of(count: usize, is_quiet: bool) -> Self {
        let bar = if count > 1 && is_quiet {
            progress::bar("opening {bar:24} {pos}/{len}  {msg}", count)
        } else {
            ProgressBar::hidden()
        };
        Self { bar, count }
    }

    /// This one is opened next.
    pub(crate) fn next(&self, image: &Path) {
        if self.count > 1 {
            let status = format!("opening {} of {}", self.bar.position() + 1, self.count);
            tell_systemd(&NotifyState::Status(&status));
            tell_systemd(&NotifyState::ExtendTimeoutUsec(EACH.as_micros() as u32));
        }
        self.bar.set_message(image.display().to_string());
    }

    pub(crate) fn done(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if self.count > 1 {
            tell_systemd(&NotifyState::Status(""));
        }
    }
}
