//! Hands the counters to the recorder of the `metrics` ecosystem that is installed, for example one
//! that writes Prometheus' text.

use ::metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use homing_sched::Reach;

use crate::measure::books::QueueAges;
use crate::runtime::Runtime;

impl Runtime {
    /// Hands the counters of all workqueues and CPUs, as they are now, to the recorder of the
    /// `metrics` ecosystem that is installed. Call this before each scrape, or now and then.
    ///
    /// ```
    /// use homing_runtime::Runtime;
    /// use metrics_exporter_prometheus::PrometheusBuilder;
    ///
    /// let recorder = PrometheusBuilder::new().build_recorder();
    /// let text = recorder.handle();
    /// let runtime = Runtime::new()?;
    /// runtime.queue(|| ()).join()?;
    /// metrics::with_local_recorder(&recorder, || runtime.record_metrics());
    /// let line = r#"homing_workqueue_completed_total{workqueue="events"} 1"#;
    /// assert!(text.render().lines().any(|known| known == line), "{}", text.render());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_metrics(&self) {
        describe();
        for state in self.shared().workqueues.all() {
            let counters = state.counters();
            let name = || state.name.to_string();
            let totals = [
                ("homing_workqueue_queued_total", counters.queued),
                ("homing_workqueue_started_total", counters.started),
                ("homing_workqueue_completed_total", counters.completed),
                ("homing_workqueue_cancelled_total", counters.cancelled),
                ("homing_workqueue_panicked_total", counters.panicked),
                ("homing_workqueue_woken_total", counters.woken),
                ("homing_workqueue_repatriated_total", counters.repatriated),
                ("homing_workqueue_blocked_total", counters.blocked),
                ("homing_workqueue_cpu_intensive_total", counters.cpu_intensive),
                ("homing_workqueue_mayday_total", counters.mayday),
                ("homing_workqueue_rescued_total", counters.rescued),
                ("homing_workqueue_cpu_nanoseconds_total", counters.cpu_time_ns),
            ];
            for (metric, total) in totals {
                counter!(metric, "workqueue" => name()).absolute(total);
            }
            for (reach, taken) in Reach::ALL.into_iter().zip(counters.taken) {
                let labels = [("workqueue", name()), ("distance", distance(reach).to_owned())];
                counter!("homing_workqueue_taken_total", &labels).absolute(taken);
            }
            let inactive = state.gate().map_or(0, crate::workqueues::gate::Gate::inactive);
            gauge!("homing_workqueue_inactive", "workqueue" => name()).set(inactive as f64);
            for (age, quantile) in ages(&counters.queue_age) {
                let labels = [("workqueue", name()), quantile];
                gauge!("homing_workqueue_age_seconds", &labels).set(age);
            }
        }
        for (cpu, counters) in self.cpu_counters() {
            let cpu = || cpu.to_string();
            let totals = [
                ("homing_cpu_started_total", counters.started),
                ("homing_cpu_items_total", counters.items),
                ("homing_cpu_busy_nanoseconds_total", counters.busy_ns),
                ("homing_cpu_cpu_nanoseconds_total", counters.cpu_time_ns),
                ("homing_cpu_parked_nanoseconds_total", counters.parked_ns),
                ("homing_cpu_searched_nanoseconds_total", counters.searched_ns),
                ("homing_cpu_parks_total", counters.parks),
                ("homing_cpu_wakes_total", counters.wakes),
                ("homing_cpu_repatriated_total", counters.repatriated),
            ];
            for (metric, total) in totals {
                counter!(metric, "cpu" => cpu()).absolute(total);
            }
            for (reach, pulls) in Reach::ALL.into_iter().zip(counters.pulls) {
                let labels = [("cpu", cpu()), ("distance", distance(reach).to_owned())];
                counter!("homing_cpu_pulls_total", &labels).absolute(pulls);
            }
            gauge!("homing_cpu_running", "cpu" => cpu()).set(counters.running as f64);
            for (age, quantile) in ages(&counters.queue_age) {
                gauge!("homing_cpu_age_seconds", &[("cpu", cpu()), quantile]).set(age);
            }
        }
        gauge!("homing_threads").set(self.thread_count() as f64);
        counter!("homing_threads_refused_total").absolute(self.threads_refused());
        counter!("homing_stalls_total").absolute(self.stalls());
    }
}

/// How long items waited, in seconds, each with the label of its quantile.
fn ages(ages: &QueueAges) -> impl Iterator<Item = (f64, (&'static str, String))> {
    let quantiles = [(0.5, "0.5"), (0.99, "0.99"), (0.999, "0.999")];
    quantiles.into_iter().filter_map(|(quantile, label)| {
        Some((ages.quantile_ns(quantile)? as f64 / 1e9, ("quantile", label.to_owned())))
    })
}

fn distance(reach: Reach) -> &'static str {
    match reach {
        Reach::Home => "home",
        Reach::Llc => "llc",
        Reach::Node => "node",
        Reach::Remote => "remote",
    }
}

fn describe() {
    let counters = [
        ("homing_workqueue_queued_total", "items queued"),
        ("homing_workqueue_started_total", "items begun"),
        ("homing_workqueue_completed_total", "items ended, by returning or by a panic"),
        ("homing_workqueue_cancelled_total", "items aborted, refused or cancelled"),
        ("homing_workqueue_panicked_total", "items that panicked"),
        ("homing_workqueue_taken_total", "items taken by workers, by the distance of their home"),
        ("homing_workqueue_woken_total", "CPUs woken for items"),
        ("homing_workqueue_repatriated_total", "items taken by a worker that went back"),
        ("homing_workqueue_blocked_total", "items that blocked without saying so"),
        ("homing_workqueue_cpu_intensive_total", "items that used their CPU for long"),
        ("homing_workqueue_mayday_total", "calls for the rescuer"),
        ("homing_workqueue_rescued_total", "items that the rescuer ran"),
        ("homing_workqueue_cpu_nanoseconds_total", "CPU time of items"),
        ("homing_cpu_started_total", "items begun on a CPU; of a batch under way, one counts"),
        ("homing_cpu_items_total", "items run on a CPU, in batches that have ended"),
        ("homing_cpu_busy_nanoseconds_total", "time a CPU's worker ran items"),
        ("homing_cpu_cpu_nanoseconds_total", "CPU time of the items that a CPU's worker ran"),
        ("homing_cpu_parked_nanoseconds_total", "time a CPU's worker slept"),
        ("homing_cpu_searched_nanoseconds_total", "time a CPU's worker was awake without work"),
        ("homing_cpu_parks_total", "times that a CPU's worker slept"),
        ("homing_cpu_wakes_total", "times that a CPU's worker was woken"),
        ("homing_cpu_repatriated_total", "items that a CPU's worker had taken and that went back"),
        (
            "homing_cpu_pulls_total",
            "batches that a CPU's worker took, by the distance of their home",
        ),
        ("homing_threads_refused_total", "threads that the system refused to create"),
        ("homing_stalls_total", "queues that the watchdog found standing still"),
    ];
    for (name, what) in counters {
        describe_counter!(name, what);
    }
    describe_gauge!("homing_workqueue_inactive", "items that wait because of max_active");
    let age = "how long sampled items waited, rounded up to a power of two";
    describe_gauge!("homing_workqueue_age_seconds", Unit::Seconds, age);
    describe_gauge!("homing_cpu_running", "1 while a CPU's worker has a batch under way, else 0");
    let age = "how long sampled items that a CPU's worker took had waited, likewise";
    describe_gauge!("homing_cpu_age_seconds", Unit::Seconds, age);
    describe_gauge!("homing_threads", "threads of the runtime, without the monitor");
}
