//! Hands the counters to the recorder of the `metrics` ecosystem that is installed.

use ::metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use crate::durable::Durable;

impl Durable {
    /// Hands the counters, as they are now, to the recorder of the `metrics` ecosystem that is
    /// installed, under the label `durable` with this name. Call this before each scrape, or now
    /// and then.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let file = tempfile::tempfile()?;
    /// use metrics_exporter_prometheus::PrometheusBuilder;
    ///
    /// let recorder = PrometheusBuilder::new().build_recorder();
    /// let text = recorder.handle();
    /// durable.fsync_and_wait(&file)?;
    /// metrics::with_local_recorder(&recorder, || durable.record_metrics("main"));
    /// for line in [
    ///     r#"homing_durable_asked_total{durable="main"} 1"#,
    ///     r#"homing_durable_failures{durable="main"} 0"#,
    /// ] {
    ///     assert!(text.render().lines().any(|known| known == line), "{}", text.render());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_metrics(&self, name: &str) {
        describe();
        let counters = self.counters();
        let totals = [
            ("homing_durable_asked_total", counters.asked),
            ("homing_durable_shared_total", counters.shared),
            ("homing_durable_files_total", counters.files),
            ("homing_durable_early_total", counters.early),
            ("homing_durable_commits_total", counters.commits),
            ("homing_durable_committed_total", counters.committed),
            ("homing_durable_flushes_saved_total", counters.flushes_saved()),
            ("homing_durable_failed_total", counters.failed),
        ];
        for (metric, total) in totals {
            counter!(metric, "durable" => name.to_owned()).absolute(total);
        }
        for (quantile, label) in [(0.5, "0.5"), (0.99, "0.99"), (0.999, "0.999")] {
            if let Some(ns) = counters.latency_ns.quantile(quantile) {
                let labels = [("durable", name.to_owned()), ("quantile", label.to_owned())];
                gauge!("homing_durable_latency_seconds", &labels).set(ns as f64 / 1e9);
            }
        }
        let failures = self.failures().len() as f64;
        gauge!("homing_durable_failures", "durable" => name.to_owned()).set(failures);
    }
}

fn describe() {
    let counters = [
        ("homing_durable_asked_total", "syncs asked for"),
        (
            "homing_durable_shared_total",
            "of these, syncs answered by one that others had asked for",
        ),
        ("homing_durable_files_total", "files synced one by one"),
        ("homing_durable_early_total", "files whose write-back began before their turn came"),
        ("homing_durable_commits_total", "commits of a filesystem"),
        ("homing_durable_committed_total", "files made durable by these commits"),
        ("homing_durable_flushes_saved_total", "syncs that cost the device no flush of their own"),
        ("homing_durable_failed_total", "syncs that failed"),
    ];
    for (name, what) in counters {
        describe_counter!(name, what);
    }
    let latency = "how long syncs took since the start, rounded up to a power of two";
    describe_gauge!("homing_durable_latency_seconds", Unit::Seconds, latency);
    describe_gauge!("homing_durable_failures", "files and logs that failed, not acknowledged");
}
