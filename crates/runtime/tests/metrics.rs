//! What a scrape sees: with the feature `metrics`.
#![cfg(feature = "metrics")]

use homing_runtime::Runtime;
use metrics_exporter_prometheus::PrometheusBuilder;

#[test]
fn the_counters_reach_prometheus() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let scrape = recorder.handle();
    let runtime = Runtime::new().unwrap();
    let disk = runtime.workqueue("disk").max_active(2).build().unwrap();
    (0..10).for_each(|_| disk.execute(|| ()));
    disk.flush();
    metrics::with_local_recorder(&recorder, || runtime.record_metrics());
    let text = scrape.render();
    for line in [
        r#"homing_workqueue_queued_total{workqueue="disk"} 10"#,
        r#"homing_workqueue_completed_total{workqueue="disk"} 10"#,
        r#"homing_workqueue_inactive{workqueue="disk"} 0"#,
        r#"homing_workqueue_completed_total{workqueue="events"} 0"#,
        "# TYPE homing_workqueue_queued_total counter",
        "homing_stalls_total 0",
        "# TYPE homing_cpu_running gauge",
    ] {
        assert!(text.lines().any(|known| known == line), "{line} is not in:\n{text}");
    }
}
