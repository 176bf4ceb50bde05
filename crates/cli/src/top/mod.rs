//! `homing top`: what a running program does now, seen through its attributes alone.
//!
//! ```text
//! sample   its counters at one moment
//! rates    what happened between two of them
//! exports  the same, of what a server's clients get
//! screen   the same, drawn
//! live     the terminal: keys, a reader that does not hold them up, and how it was before
//! ```

mod exports;
mod live;
mod rates;
mod sample;
mod screen;

use std::io::{self, IsTerminal};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use homing_control::ClientError;

use crate::attributes::ControlArgs;
use crate::output;
use crate::spans::seconds;
use crate::stop::Stop;
use rates::Rates;
use sample::Sample;

#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    control: ControlArgs,

    /// Seconds between looks
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,

    /// End after this many looks
    #[arg(short = 'n', long, value_name = "COUNT")]
    count: Option<u64>,

    /// Print JSON: an object for each look, on a line of its own
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  homing top --socket disk.control
  homing top -i 5                               with HOMING_SOCKET set
  homing top --json -n 1                        one second, for programs

What is shown, since the previous refresh unless it says otherwise:
  workers      how much of its time each CPU's worker ran items, how often it
               slept; and the CPUs that the whole process uses: a server's
               connections encrypt on their own threads (see serve --crypt-on)
  exports      of a server: its clients' reads, writes and flushes, bytes a
               second, 99th percentile of their times; errors since the start
  workqueues   items a second, CPU time, how far items were pulled, and
               since the start how long 99 of 100 waited
  durability   syncs requested, those that shared one, commits, callers
               a sync; since the start their times
  cache        each group's memory, and how many of its reads were hits
  caches of objects, of programs that have some in their tree:
               what they hold, and how many reads were hits

Keys: s sorts workqueues by CPU time, items or name; space pauses; q quits.

NO_COLOR is respected. If the program ends, top waits for it to come back. With --json it ends, too; \
with a count that is an error.";

/// The least time between two looks: more of them would be work for the program.
const INTERVAL_MIN: Duration = Duration::from_millis(50);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = seconds(text).map_err(|_| "use a number of seconds, as in 1 or 0.5".to_owned());
    match interval? {
        short if short < INTERVAL_MIN => Err("use 0.05 seconds or more".to_owned()),
        interval => Ok(interval),
    }
}

pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    // A mistyped path is an error at once; a program that goes away later is waited for.
    let first = Sample::read(&args.control)?;
    if args.json {
        return print_rates(args, first);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!(
            "standard input or output is not a terminal: use --json, or homing wq monitor for plain text"
        );
    }
    if std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb") {
        bail!(
            "TERM is dumb, so nothing can be drawn: use --json, or homing wq monitor for plain text"
        );
    }
    live::run(args, first)
}

fn print_rates(args: &TopArgs, first: Sample) -> anyhow::Result<()> {
    let stop = Stop::on_signals()?;
    let mut before = first;
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 && stop.within(args.interval)? {
        let now = match Sample::read(&args.control) {
            // Without a count, the end of the program is no error.
            Err(ClientError::Io { source, .. }) if args.count.is_none() && is_gone(&source) => {
                break;
            }
            now => now?,
        };
        output::print_json(&Rates::between(Some(&before), &now))?;
        before = now;
        left -= 1;
    }
    Ok(())
}

/// Whether the program is gone, as far as this error tells.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    let gone = [BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof];
    gone.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_not_too_often() {
        assert_eq!(interval("0.05"), Ok(INTERVAL_MIN));
        assert!(interval("0").unwrap_err().contains("0.05"));
        assert!(interval("fast").unwrap_err().contains("as in 1 or 0.5"));
    }
}
