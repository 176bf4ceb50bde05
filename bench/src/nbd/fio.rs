//! Runs fio against one export and reads its results.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;

use super::scenario::Scenario;
use crate::child::Running;
use crate::interrupt::Interrupt;

/// How long fio may take beyond the time it was given, for connecting and for what is in flight.
const GRACE: Duration = Duration::from_secs(60);

/// fio, and the folder for what it writes.
pub(crate) struct Fio {
    /// The program.
    pub(crate) program: PathBuf,
    /// The folder.
    pub(crate) folder: PathBuf,
    /// How long each load lasts.
    pub(crate) seconds: u32,
    /// The size of every export.
    pub(crate) size: u64,
}

/// What one run of fio did, all jobs together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moved {
    /// Read and written.
    pub(crate) bytes: u64,
    /// Reads and writes.
    pub(crate) requests: u64,
    /// From the first request to the last completion.
    pub(crate) seconds: f64,
    /// The 99th percentile of completion latency: of reads or of writes, whichever is worse.
    pub(crate) p99_ms: f64,
    /// CPU time of the jobs, user and system, without fio's own start.
    pub(crate) cpu_seconds: f64,
    /// The surplus of reads over writes, as a share of writes. If reads and writes are mixed
    /// evenly, this is about 0, unless what was written was read back.
    pub(crate) read_surplus: f64,
}

impl Fio {
    /// Puts `scenario` on the server behind `socket`.
    pub(crate) fn run(
        &self,
        scenario: Scenario,
        socket: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Moved> {
        let output = self.folder.join("fio.json");
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder);
        command.args(["--name=load", "--ioengine=nbd", "--group_reporting", "--time_based"]);
        command.arg(format!("--runtime={}", self.seconds));
        command.arg(format!("--uri={}", super::server::uri(socket)));
        command.args(scenario.fio_options(self.size));
        command.arg(format!("--output={}", output.display())).arg("--output-format=json");
        let log = self.folder.join("fio.log");
        let child = Running::start("fio", &mut command, Stdio::null(), &log)?;
        child.finish(Duration::from_secs(self.seconds.into()) + GRACE, interrupt)?;
        let text = fs::read_to_string(&output).context("fio's results cannot be read")?;
        parse(&text, scenario.jobs())
    }
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<Group>,
}

/// All jobs, as fio sums them under `--group_reporting`.
#[derive(Deserialize)]
struct Group {
    error: i64,
    /// Milliseconds, summed over the jobs.
    job_runtime: u64,
    /// Percent of `job_runtime`.
    usr_cpu: f64,
    sys_cpu: f64,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    io_bytes: u64,
    total_ios: u64,
    /// Milliseconds, of the job that took longest.
    runtime: u64,
    clat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    /// Absent if nothing went in this direction.
    #[serde(default)]
    percentile: BTreeMap<String, u64>,
}

fn parse(text: &str, jobs: u64) -> anyhow::Result<Moved> {
    // Warnings may come first.
    let start = text.find('{').unwrap_or(0);
    let output: Output =
        serde_json::from_str(&text[start..]).context("fio's results make no sense")?;
    let [group] = &output.jobs[..] else {
        bail!("fio reports {} groups of jobs: expected 1", output.jobs.len());
    };
    if group.error != 0 {
        bail!("fio reports error {}", group.error);
    }
    let Group { read, write, .. } = group;
    // fio counts the time of reads and of writes separately, and if it verifies, neither is the
    // whole. The mean of the jobs is the whole, but shorter than the longest job. So the longest of
    // these counts.
    let window = (group.job_runtime / jobs).max(read.runtime).max(write.runtime);
    let bytes = read.io_bytes + write.io_bytes;
    if bytes == 0 || window == 0 {
        bail!("fio moved {bytes} bytes in {window} ms");
    }
    let p99 = |direction: &Direction| direction.clat_ns.percentile.get("99.000000").copied();
    let Some(p99) = p99(read).max(p99(write)) else {
        bail!("fio reports no 99th percentile");
    };
    let cpu_percent = group.usr_cpu + group.sys_cpu;
    Ok(Moved {
        bytes,
        requests: read.total_ios + write.total_ios,
        seconds: window as f64 / 1e3,
        p99_ms: p99 as f64 / 1e6,
        cpu_seconds: group.job_runtime as f64 / 1e3 * cpu_percent / 100.0,
        read_surplus: read.total_ios as f64 / write.total_ios.max(1) as f64 - 1.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As fio 3.33 writes it, with most of the unused fields removed.
    const SAMPLE: &str = r#"fio: a warning
{
  "fio version" : "fio-3.33",
  "jobs" : [ {
      "jobname" : "load", "groupid" : 0, "error" : 0, "eta" : 0, "elapsed" : 4,
      "read" : {
        "io_bytes" : 1143275520, "io_kbytes" : 1116480, "bw_bytes" : 380205000,
        "iops" : 11602.8, "runtime" : 3007, "total_ios" : 34890,
        "clat_ns" : { "min" : 206426, "max" : 58433038, "mean" : 10485262.5, "N" : 34890,
          "percentile" : { "1.000000" : 3096576, "99.000000" : 24510464, "99.990000" : 5 } }
      },
      "write" : {
        "io_bytes" : 623771648, "io_kbytes" : 609152, "bw_bytes" : 321365000,
        "iops" : 9807.3, "runtime" : 1941, "total_ios" : 19036,
        "clat_ns" : { "min" : 248244, "max" : 179043070, "mean" : 14109551.6, "N" : 19036,
          "percentile" : { "1.000000" : 3129344, "99.000000" : 23199744, "99.990000" : 6 } }
      },
      "trim" : { "io_bytes" : 0, "total_ios" : 0, "runtime" : 0,
        "clat_ns" : { "min" : 0, "max" : 0, "mean" : 0.0, "N" : 0 } },
      "job_runtime" : 12020, "usr_cpu" : 25.0, "sys_cpu" : 5.0, "ctx" : 69552
  } ],
  "disk_util" : [ ]
}"#;

    #[test]
    fn a_verifying_run_counts_all_bytes_over_the_whole_time() {
        let moved = parse(SAMPLE, 4).unwrap();
        assert_eq!(moved.bytes, 1_143_275_520 + 623_771_648);
        assert_eq!(moved.requests, 34890 + 19036);
        assert!((moved.seconds - 3.007).abs() < 1e-9);
        assert!((moved.p99_ms - 24.510_464).abs() < 1e-9, "the reads' are worse");
        assert!((moved.cpu_seconds - 12.02 * 0.3).abs() < 1e-9);
        assert!(moved.read_surplus > 0.8);
    }

    #[test]
    fn a_direction_without_requests_has_no_percentiles() {
        let percentiles =
            r#","percentile" : { "1.000000" : 3129344, "99.000000" : 23199744, "99.990000" : 6 }"#;
        let start = SAMPLE.find(r#""write""#).unwrap();
        let writes =
            SAMPLE[start..].replace("19036,\n          \"percentile\"", "19036,\"percentile\"");
        let text = SAMPLE[..start].to_owned() + &writes.replace(percentiles, "");
        assert!((parse(&text, 4).unwrap().p99_ms - 24.510_464).abs() < 1e-9);
        let none = text.replace("99.000000", "98.000000");
        assert!(parse(&none, 4).unwrap_err().to_string().contains("99th percentile"));
    }

    #[test]
    fn failures_are_named() {
        let failed = SAMPLE.replace(r#""error" : 0"#, r#""error" : 84"#);
        assert_eq!(parse(&failed, 4).unwrap_err().to_string(), "fio reports error 84");
        assert!(parse("fio: connection refused", 4).is_err());
        assert!(parse(r#"{"jobs":[]}"#, 4).unwrap_err().to_string().contains("0 groups"));
    }
}
