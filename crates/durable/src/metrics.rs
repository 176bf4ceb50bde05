//! Hands the counters to the recorder of the `metrics` ecosystem that is installed.

use ::metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use crate::durable::Durable;
use crate::log::Log;

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

impl Log {
    /// As [`Durable::record_metrics`], under the label `log` with this name. The totals count
    /// records since the log was made.
    ///
    /// ```
    /// # let runtime = homing_runtime::Runtime::new()?;
    /// # let durable = homing_durable::Durable::new(&runtime)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("log");
    /// use metrics_exporter_prometheus::PrometheusBuilder;
    ///
    /// let recorder = PrometheusBuilder::new().build_recorder();
    /// let text = recorder.handle();
    /// let (log, _) = homing_durable::Log::open(&durable, &path)?;
    /// log.append(b"one")?;
    /// metrics::with_local_recorder(&recorder, || log.record_metrics("orders"));
    /// for line in [
    ///     r#"homing_log_appended_total{log="orders"} 1"#,
    ///     r#"homing_log_durable_total{log="orders"} 0"#,
    ///     r#"homing_log_pending_bytes{log="orders"} 19"#,
    /// ] {
    ///     assert!(text.render().lines().any(|known| known == line), "{}", text.render());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_metrics(&self, name: &str) {
        describe_log();
        let label = || name.to_owned();
        // In this order, so that never more is durable than appended.
        let totals = [
            ("homing_log_cut_off_total", self.first_sequence().get() - 1),
            ("homing_log_durable_total", self.durable_sequence().get()),
            ("homing_log_appended_total", self.last_sequence().get()),
        ];
        for (metric, total) in totals {
            counter!(metric, "log" => label()).absolute(total);
        }
        gauge!("homing_log_pending_bytes", "log" => label()).set(self.pending_bytes() as f64);
        gauge!("homing_log_kept_bytes", "log" => label()).set(self.kept_bytes() as f64);
    }
}

fn describe_log() {
    describe_counter!("homing_log_cut_off_total", "records that are not kept any more");
    describe_counter!("homing_log_durable_total", "records that have become durable");
    describe_counter!("homing_log_appended_total", "records that were appended");
    let pending = "appended and not durable: in memory";
    describe_gauge!("homing_log_pending_bytes", Unit::Bytes, pending);
    let kept = "on the disk: what recovery would read";
    describe_gauge!("homing_log_kept_bytes", Unit::Bytes, kept);
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
