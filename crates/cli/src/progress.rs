//! Bars that show how far long work has come.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on a terminal, and nothing anywhere else.
pub(crate) fn bar(template: &str, len: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    ProgressBar::new(len as u64).with_style(style(template))
}

/// How a bar looks: `template` is one of this program's own.
pub(crate) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is well-formed")
}
