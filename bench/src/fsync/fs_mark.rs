//! `fs_mark`, the published experiment's own tool, for context: how fast the filesystem and its
//! disk are, before homing and its peers are measured there and after.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};

use super::place::Place;

/// Threads, each with a folder of its own.
const THREADS: [usize; 2] = [1, 4];
/// Iterations, of which the middle one counts.
const ITERATIONS: &str = "3";

/// The result of one place: files a second, by threads.
pub(crate) struct Marks([f64; THREADS.len()]);

/// Runs it in `place`: makes and writes files there, then opens, syncs and closes them
/// (`-S 5`). The files a second are of all that, not of the syncs alone.
///
/// # Errors
/// If it is not installed, fails, or prints something that cannot be read.
pub(crate) fn run(place: &Place, size: usize) -> anyhow::Result<Marks> {
    let folder = tempfile::Builder::new().prefix("fs-mark-").tempdir_in(&place.path)?;
    let mut marks = Marks([0.0; THREADS.len()]);
    for (rate, threads) in marks.0.iter_mut().zip(THREADS) {
        *rate = median(folder.path(), threads, place.files.div_ceil(threads), size)?;
    }
    Ok(marks)
}

fn median(folder: &Path, threads: usize, files: usize, size: usize) -> anyhow::Result<f64> {
    let mut command = Command::new("fs_mark");
    // `fs_mark` takes no path of 40 bytes.
    command.current_dir(folder).args(["-S", "5", "-L", ITERATIONS, "-l", "log"]);
    for (option, number) in [("-n", files), ("-s", size), ("-t", threads)] {
        command.args([option, &number.to_string()]);
    }
    for thread in 0..threads {
        let own = thread.to_string();
        fs::create_dir_all(folder.join(&own))?;
        command.args(["-d", &own]);
    }
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("not installed (Debian has it in fsmark)"),
        _ => error,
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", output.status, said.lines().next().unwrap_or_default());
    }
    let mut rates = rates(&String::from_utf8_lossy(&output.stdout))?;
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().context("no iteration")
}

/// The column `Files/sec` of its table.
fn rates(table: &str) -> anyhow::Result<Vec<f64>> {
    let mut lines = table.lines().skip_while(|line| !line.trim_start().starts_with("FSUse%"));
    let head = lines.next().context("no table")?;
    let column = head.split_whitespace().position(|name| name == "Files/sec");
    let column = column.with_context(|| format!("no column Files/sec in {head:?}"))?;
    let mut rates = Vec::new();
    for line in lines.filter(|line| !line.trim().is_empty()) {
        let word = line.split_whitespace().nth(column);
        let rate = word.and_then(|word| word.parse::<f64>().ok());
        let rate = rate.with_context(|| format!("{line:?} has no files a second"))?;
        ensure!(rate.is_finite() && rate > 0.0, "{line:?} is no rate");
        rates.push(rate);
    }
    Ok(rates)
}

/// A sentence with the results before and after.
pub(crate) fn told(place: &str, before: &Marks, after: &Marks) -> String {
    let each = THREADS.iter().zip(before.0.iter().zip(after.0));
    let each = each.map(|(threads, (before, after))| {
        let plural = if *threads == 1 { "" } else { "s" };
        format!("{before:.0} and {after:.0} files/s with {threads} thread{plural}")
    });
    let each: Vec<_> = each.collect();
    format!("fs_mark -S 5 in {place}, before and after: {}", each.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "
#  fs_mark  -S  5  -n  2000
#\tTime: ...

FSUse%        Count         Size    Files/sec     App Overhead
    70         2000         4096        459.2             9945
    70         4000         4096        399.4            10668
";

    #[test]
    fn rates_are_read_and_nothing_else() {
        assert_eq!(rates(TABLE).unwrap(), [459.2, 399.4]);
        let marks = |one, two| Marks([one, two]);
        assert_eq!(
            told("xfs", &marks(459.2, 1000.0), &marks(399.4, 999.0)),
            "fs_mark -S 5 in xfs, before and after: 459 and 399 files/s with 1 thread, \
             1000 and 999 files/s with 4 threads"
        );
        for (from, to, named) in [
            ("FSUse%", "Use%", "no table"),
            ("Files/sec", "Rate", "Files/sec"),
            ("399.4", "fast", "fast"),
            ("399.4", "inf", "inf"),
        ] {
            let error = rates(&TABLE.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn it_runs_where_it_is_installed() {
        let place = tempfile::tempdir().unwrap();
        match median(place.path(), 4, 5, 100) {
            Ok(rate) => assert!(rate > 0.0),
            Err(error) => {
                assert!(error.to_string().contains("fsmark"), "{error:#}");
                eprintln!("skipped: {error:#}");
            }
        }
    }
}
