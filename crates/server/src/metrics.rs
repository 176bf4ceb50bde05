//! Hands the counters of a server to the recorder of the `metrics` ecosystem that is installed.

use ::metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

use crate::attributes::ServerAttributes;
use crate::counters::{Operation, Totals};

/// Bounds of the times that are told, as powers of two: from 4 us to 17 s. The next one is beyond
/// all bounds.
const BOUNDS: std::ops::RangeInclusive<u32> = 12..=34;

impl ServerAttributes {
    /// Hands the counters, as they are now, to the recorder of the `metrics` ecosystem that is
    /// installed. Call this before each scrape, or now and then.
    ///
    /// Times are cumulative counters in the form of a Prometheus histogram, for example for
    /// `histogram_quantile`; see [`ServerAttributes`] for what is timed.
    pub fn record_metrics(&self) {
        describe();
        for (export, present) in self.0.exports().iter().zip(self.present()) {
            let name = || export.name.clone();
            gauge!("homing_export_clients", "export" => name()).set(present.clients as f64);
            gauge!("homing_export_in_flight", "export" => name()).set(present.in_flight as f64);
            for operation in Operation::ALL {
                record(export.name.as_str(), operation.name(), &export.read(operation));
            }
        }
        let mut clients = 0_u32;
        self.0.look_at(|_| clients += 1);
        gauge!("homing_server_clients").set(f64::from(clients));
    }
}

fn record(export: &str, operation: &'static str, totals: &Totals) {
    let labels = || [("export", export.to_owned()), ("operation", operation.to_owned())];
    let all = [
        ("homing_export_requests_total", totals.requests),
        ("homing_export_bytes_total", totals.bytes),
        ("homing_export_errors_total", totals.errors),
        ("homing_export_nanoseconds_total", totals.time_ns),
    ];
    for (metric, total) in all {
        counter!(metric, &labels()).absolute(total);
    }
    if totals.requests == 0 {
        return;
    }
    let bounds = BOUNDS.map(|power| 1_u64 << power);
    let bounds = bounds.map(|ns| ((ns as f64 / 1e9).to_string(), totals.below(ns)));
    let beyond = ("+Inf".to_owned(), totals.times().map(|(_, count)| count).sum());
    for (bound, count) in bounds.chain([beyond]) {
        let [export, operation] = labels();
        let labels = [export, operation, ("le", bound)];
        counter!("homing_export_latency_seconds_bucket", &labels).absolute(count);
    }
}

fn describe() {
    let counters = [
        ("homing_export_requests_total", "requests answered"),
        ("homing_export_bytes_total", "bytes of the requests that were done"),
        ("homing_export_errors_total", "requests that failed"),
        ("homing_export_nanoseconds_total", "time that requests took, together"),
        ("homing_export_latency_seconds_bucket", "requests that took less than le"),
    ];
    for (name, what) in counters {
        describe_counter!(name, what);
    }
    describe_gauge!("homing_export_clients", "clients of the export");
    describe_gauge!("homing_export_in_flight", Unit::Count, "its requests under way");
    describe_gauge!("homing_server_clients", "connections, also of clients that still negotiate");
}
