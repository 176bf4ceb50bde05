//! The progress bar of a long comparison, on standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `len` steps that also moves while a step lasts. `template` is indicatif's.
pub(crate) fn bar(len: u64, template: &str) -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template(template)?;
    let bar = ProgressBar::new(len).with_style(style);
    bar.enable_steady_tick(Duration::from_secs(1));
    Ok(bar)
}
