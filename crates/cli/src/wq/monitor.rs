//! `homing wq monitor`: what workqueues have done, again and again, as the kernel's
//! `wq_monitor.py` shows it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use clap::Args;
use homing_control::ClientError;
use regex::Regex;
use serde_json::{Value, json};

use crate::attributes::ControlArgs;
use crate::source::{Source, UNKNOWN, keyed};
use crate::spans::{seconds, span};
use crate::stop::Stop;
use crate::{output, table};

#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct MonitorArgs {
    /// Only workqueues whose names match one of these
    #[arg(value_name = "REGEX", value_parser = Regex::new)]
    names: Vec<Regex>,

    /// Seconds between tables; 0 prints one and ends
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,

    #[command(flatten)]
    control: ControlArgs,

    /// Print JSON: an object for each workqueue and table, on a line of its own
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Examples:
  homing wq monitor --socket disk.control
  homing wq monitor crypt '^flush$' -i 5        with HOMING_SOCKET set
  homing wq monitor -i 0 --json                 once, for programs

The columns, since the workqueue was made (except infl):
  total    items begun
  infl     items begun and not ended
  CPUtime  seconds of CPU time
  CPUhog   items that kept a CPU for too long
  CMW/RPR  per-CPU workqueues: items that lost their CPU because they blocked
           or ran for long; unbound ones: items that were sent back to their
           queue because the item before them blocked or ran for long
  mayday   calls for the rescuer (with mem_reclaim only)
  rescued  items that it ran (with mem_reclaim only)
  home, llc, node, remote
           items by how far they were pulled
  age_p99  99 of 100 items waited less than this
A - means that it is unknown.

With --json an object has timestamp (seconds since 1970), name, unbound, mem_reclaim, started, \
completed, cpu_time (microseconds, as the kernel's is), cpu_intensive, cm_wakeup, repatriated, \
mayday, rescued, pulls (an object: home, llc, node, remote), and queue_age_p99_ns; null means \
unknown.";

pub(crate) fn run(args: &MonitorArgs) -> anyhow::Result<()> {
    // One table takes little time: there a signal may end this program as it ends any other.
    let stop = if args.interval.is_zero() { None } else { Some(Stop::on_signals()?) };
    let mut is_first = true;
    loop {
        // Connect anew each time: a server hangs up on clients that say nothing for long.
        let mut source = Source::connect(&args.control, "workqueue")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wanted = |name: &String| {
            args.names.is_empty() || args.names.iter().any(|regex| regex.is_match(name))
        };
        let names = source.names("workqueue").into_iter().filter(wanted);
        let rows = names.map(|name| Row::read(&mut source, name)).collect::<Result<Vec<_>, _>>()?;
        // Later one that was there may have gone.
        if rows.is_empty() && is_first && !args.names.is_empty() {
            let wanted: Vec<_> = args.names.iter().map(Regex::as_str).collect();
            let there = source.names("workqueue").join(", ");
            bail!("no workqueue has a name like {}; there are: {there}", wanted.join(", "));
        }
        is_first = false;
        if args.json {
            rows.iter().try_for_each(|row| output::print_json(&row.json(now)))?;
        } else {
            let cells = rows.iter().map(Row::cells);
            let text =
                table::plain(&HEADER, cells, 1, &WIDTHS) + if stop.is_some() { "\n" } else { "" };
            output::print(text.as_bytes())?;
        }
        drop(source);
        let goes_on = stop.as_ref().map(|stop| stop.within(args.interval)).transpose()?;
        if goes_on != Some(true) {
            return Ok(());
        }
    }
}

const HEADER: [&str; 13] = [
    "", "total", "infl", "CPUtime", "CPUhog", "CMW/RPR", "mayday", "rescued", "home", "llc",
    "node", "remote", "age_p99",
];
/// The widths that the figures of a day need, so that one table looks like the next.
const WIDTHS: [u16; 13] = [16, 8, 5, 8, 7, 7, 7, 7, 8, 8, 8, 8, 7];
/// Distances of pulls, nearest first.
const PULLS: [&str; 4] = ["home", "llc", "node", "remote"];

/// A workqueue at one moment. `None` is for what the program did not say.
struct Row {
    name: String,
    unbound: Option<bool>,
    mem_reclaim: Option<bool>,
    counters: String,
}

impl Row {
    fn read(source: &mut Source, name: String) -> Result<Self, ClientError> {
        let mut get = |attribute: &str| source.get(&format!("workqueue/{name}/{attribute}"));
        let flags = get("flags")?;
        let mem_reclaim = flags.map(|flags| flags.split_whitespace().any(|f| f == "mem_reclaim"));
        let unbound = get("per_cpu")?.map(|per_cpu| per_cpu == "0");
        Ok(Self { unbound, mem_reclaim, counters: get("counters")?.unwrap_or_default(), name })
    }

    fn counter(&self, key: &str) -> Option<u64> {
        keyed(&self.counters).get(key)?.parse().ok()
    }

    fn in_flight(&self) -> Option<u64> {
        let begun_not_ended =
            || Some(self.counter("started")?.saturating_sub(self.counter("completed")?));
        self.counter("infl").or_else(begun_not_ended)
    }

    /// A counter of the rescuer; without `mem_reclaim` there is none.
    fn of_rescuer(&self, key: &str) -> Option<u64> {
        self.counter(key).filter(|_| self.mem_reclaim != Some(false))
    }

    fn cells(&self) -> Vec<String> {
        let text = |count: Option<u64>| count.map_or(UNKNOWN.to_owned(), |count| count.to_string());
        let cpu_time = self.counter("cpu_time_ns").map(|ns| format!("{:.1}", ns as f64 / 1e9));
        let wakes_or_returns = match self.unbound {
            Some(true) => self.counter("repatriated"),
            Some(false) => self.counter("cm_wakeup"),
            None => None,
        };
        let mut cells = vec![
            self.name.clone(),
            text(self.counter("started")),
            text(self.in_flight()),
            cpu_time.unwrap_or(UNKNOWN.to_owned()),
            text(self.counter("cpu_intensive")),
            text(wakes_or_returns),
            text(self.of_rescuer("mayday")),
            text(self.of_rescuer("rescued")),
        ];
        cells.extend(PULLS.map(|distance| text(self.counter(&format!("pulled_{distance}")))));
        cells.push(self.counter("queue_age_p99_ns").map_or(UNKNOWN.to_owned(), span));
        cells
    }

    fn json(&self, now: Duration) -> Value {
        let pulls = PULLS.map(|distance| {
            (distance.to_owned(), json!(self.counter(&format!("pulled_{distance}"))))
        });
        json!({
            "timestamp": now.as_secs_f64(),
            "name": self.name,
            "unbound": self.unbound,
            "mem_reclaim": self.mem_reclaim,
            "started": self.counter("started"),
            "completed": self.counter("completed"),
            "cpu_time": self.counter("cpu_time_ns").map(|ns| ns / 1000),
            "cpu_intensive": self.counter("cpu_intensive"),
            "cm_wakeup": self.counter("cm_wakeup"),
            "repatriated": self.counter("repatriated"),
            "mayday": self.of_rescuer("mayday"),
            "rescued": self.of_rescuer("rescued"),
            "pulls": pulls.into_iter().collect::<Value>(),
            "queue_age_p99_ns": self.counter("queue_age_p99_ns"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_a_dash() {
        let counters = "started 7\ncompleted 5\nmayday 3\ncm_wakeup -\nrepatriated 2\nnews 1";
        let mut row = Row {
            name: "crypt".to_owned(),
            unbound: Some(true),
            mem_reclaim: Some(false),
            counters: counters.to_owned(),
        };
        let cells = row.cells().join(" ");
        assert_eq!(cells, "crypt 7 2 - - 2 - - - - - - -");
        row.mem_reclaim = Some(true);
        row.unbound = Some(false);
        assert_eq!(row.cells()[5..7], ["-", "3"]);
        assert_eq!(row.json(Duration::from_millis(1500))["timestamp"], json!(1.5));
        row.counters.clear();
        assert_eq!(row.cells()[1..], ["-"; 12]);
    }
}
