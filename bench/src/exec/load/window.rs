//! The time between two moments: how long it was, what it cost this process, what was done in it,
//! and how busy the machine was with others.

use std::thread;
use std::time::Duration;

use super::super::count::counted;
use super::{Figures, Setting};
use crate::latency;
use crate::stopwatch::{Elapsed, Stopwatch};

/// The warm-up lasts this part of the measurement.
const WARM_UP_DIVISOR: u32 = 4;

/// A moment from which on items and times count.
pub(super) struct Window {
    count: u64,
    watch: Stopwatch,
}

/// What happened since the window was opened.
pub(super) struct Span {
    /// Seconds.
    pub(super) seconds: f64,
    /// CPU seconds of this process.
    pub(super) cpu: f64,
    /// Items counted.
    pub(super) count: u64,
    /// The share of the machine's CPU time that went to others, in percent.
    others_percent: f64,
}

impl Window {
    /// Begins now. Latencies from before are forgotten.
    pub(super) fn open() -> anyhow::Result<Self> {
        latency::forget();
        Ok(Self { count: counted(), watch: Stopwatch::start()? })
    }

    /// What happened up to now.
    pub(super) fn close(&self) -> anyhow::Result<Span> {
        let Elapsed { seconds, cpu, others_percent } = self.watch.stop()?;
        let count = counted() - self.count;
        Ok(Span { seconds, cpu, count, others_percent })
    }

    /// A whole measurement of work that other threads do: this one sleeps.
    pub(super) fn watch(setting: &Setting) -> anyhow::Result<Span> {
        thread::sleep(warm_up(setting));
        let window = Self::open()?;
        thread::sleep(setting.duration);
        window.close()
    }
}

impl Span {
    /// These figures, and those that every workload has.
    pub(super) fn figures<const N: usize>(&self, figures: [(&str, f64); N]) -> Figures {
        let common = [("others_percent", self.others_percent)];
        figures.into_iter().chain(common).map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Items by time and CPU time.
    pub(super) fn throughput(&self) -> Figures {
        let count = self.count as f64;
        self.figures([
            ("items_per_s", count / self.seconds),
            ("cpu_ns_per_item", self.cpu * 1e9 / count),
        ])
    }
}

/// How long things run before they count.
pub(super) fn warm_up(setting: &Setting) -> Duration {
    setting.duration / WARM_UP_DIVISOR
}

/// Adds the median and the tail of the recorded latencies to `figures`.
pub(super) fn add_latencies(figures: &mut Figures) {
    let recorded = latency::recorded();
    for (key, quantile) in [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)] {
        let nanoseconds = recorded.value_at_quantile(quantile);
        figures.insert(key.to_owned(), nanoseconds as f64 / 1e3);
    }
}
