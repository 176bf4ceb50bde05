//! What the clients of a block server's exports get, between two samples.

use std::collections::BTreeMap;

use serde::Serialize;

use super::rates::Change;
use super::sample::Sample;

#[derive(Debug, Default, Serialize)]
pub(super) struct Export {
    pub(super) name: String,
    pub(super) clients: Option<u64>,
    /// Requests that have come and are not answered.
    pub(super) in_flight: Option<u64>,
    /// Requests that failed, since the start.
    pub(super) errors: Option<u64>,
    pub(super) read: Operation,
    pub(super) write: Operation,
    pub(super) write_zeroes: Operation,
    pub(super) trim: Operation,
    pub(super) flush: Operation,
    /// Block status, reading ahead, and fast zeroes, which are refused.
    pub(super) other: Operation,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Operation {
    pub(super) requests_per_s: Option<f64>,
    pub(super) bytes_per_s: Option<f64>,
    /// Since the start.
    pub(super) errors: Option<u64>,
    /// Times of the requests between the samples, each at most a fourth too long; none if there
    /// were no requests.
    pub(super) latency_p50_ns: Option<u64>,
    pub(super) latency_p99_ns: Option<u64>,
}

impl Export {
    pub(super) fn of(change: &Change<'_>, name: String) -> Self {
        let now = |figure| change.now.counter(&format!("export/{name}/stat"), figure);
        let of = |operation| Operation::of(change, &name, operation);
        let operations = ["read", "write", "write_zeroes", "trim", "flush", "other"];
        let [read, write, write_zeroes, trim, flush, other] = operations.map(of);
        let all = [&read, &write, &write_zeroes, &trim, &flush, &other];
        Self {
            clients: now("clients"),
            in_flight: now("in_flight"),
            errors: all.into_iter().filter_map(|of| of.errors).reduce(|one, two| one + two),
            read,
            write,
            write_zeroes,
            trim,
            flush,
            other,
            name,
        }
    }
}

impl Operation {
    fn of(change: &Change<'_>, export: &str, operation: &str) -> Self {
        let stat = format!("export/{export}/stat");
        let per_s = |figure: &str| change.per_s(&stat, &format!("{operation}_{figure}"));
        let times = times_between(change, export, operation);
        let quantile = |quantile| times.as_ref().and_then(|times| self::quantile(times, quantile));
        Self {
            requests_per_s: per_s("requests"),
            bytes_per_s: per_s("bytes"),
            errors: change.now.counter(&stat, &format!("{operation}_errors")),
            latency_p50_ns: quantile(0.5),
            latency_p99_ns: quantile(0.99),
        }
    }
}

/// More than an hour is not told apart.
const TIME_MAX: u64 = 1 << 42;

/// Times that requests stayed below, and how many.
type Times = BTreeMap<u64, u64>;

/// Of the requests that were answered between the samples; `None` if that is not known.
fn times_between(change: &Change<'_>, export: &str, operation: &str) -> Option<Times> {
    let before = times(change.before?, export, operation)?;
    let mut times = times(change.now, export, operation)?;
    for (below, count) in before {
        let now = times.get_mut(&below)?;
        *now = now.checked_sub(count)?;
    }
    Some(times)
}

fn times(sample: &Sample, export: &str, operation: &str) -> Option<Times> {
    let text = sample.value(&format!("export/{export}/latency_ns"))?;
    let of = text.lines().filter_map(|line| line.strip_prefix(operation)?.strip_prefix(' '));
    let time = |line: &str| {
        let (below, count) = line.split_once(' ')?;
        Some((below.parse().ok()?, count.parse().ok()?))
    };
    Some(of.filter_map(time).collect())
}

/// The time that the share `quantile` of the requests stayed below; `None` if there were none.
fn quantile(times: &Times, quantile: f64) -> Option<u64> {
    let wanted = (times.values().sum::<u64>() as f64 * quantile).max(1.0);
    let mut seen = 0;
    let found = times.iter().find(|(_, count)| {
        seen += **count;
        seen as f64 >= wanted
    });
    // The last bucket has no bound.
    found.map(|(below, _)| (*below).min(TIME_MAX))
}
