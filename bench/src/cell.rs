//! One measurement in a fresh child process of this program, which answers with a line of JSON. So
//! no measurement finds the memory, the threads and the caches that another left behind.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::child::Running;
use crate::interrupt::Interrupt;

/// The figures of a measurement, by [`Metric::key`](crate::metric::Metric::key).
pub(crate) type Figures = BTreeMap<String, f64>;

/// Whether a cell can be measured for so long.
pub(crate) fn check_seconds(seconds: f64) -> anyhow::Result<()> {
    ensure!(
        (0.01..=600.0).contains(&seconds),
        "--seconds {seconds} cannot be used: it must be between 0.01 and 600"
    );
    Ok(())
}

/// Lets `subcommand` measure something called `name`, within `limit`. The child's output goes to a
/// file in `folder`; `environment` is added to ours.
pub(crate) fn ask(
    name: &str,
    subcommand: &str,
    options: &[(&str, String)],
    environment: &[(&str, &str)],
    limit: Duration,
    folder: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<Figures> {
    let log = folder.join("cell.log");
    let mut command = Command::new(env::current_exe()?);
    command.arg(subcommand).envs(environment.iter().copied());
    // Only the last few lines of a child's output are quoted, and they are to hold the error.
    command.env("RUST_BACKTRACE", "0");
    for (option, value) in options {
        command.args([option, value.as_str()]);
    }
    Running::start(name, &mut command, Stdio::null(), &log)?.finish(limit, interrupt)?;
    let said = fs::read_to_string(&log)?;
    let answer = said.lines().next_back().unwrap_or_default();
    serde_json::from_str(answer).with_context(|| format!("{name} answered {answer:?}"))
}

/// The child's answer.
pub(crate) fn answer(mut figures: Figures) -> anyhow::Result<()> {
    // A division by nothing is not finite, and JSON has no word for that.
    figures.retain(|_, figure| figure.is_finite());
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}
