//! What a subscriber of `tracing` sees: with the feature `tracing`.
#![cfg(feature = "tracing")]

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use homing_runtime::Runtime;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Writes down which spans are entered and left, and on which thread.
#[derive(Clone, Default)]
struct Notes {
    spans: Arc<AtomicU64>,
    made: Arc<Mutex<Vec<(u64, String)>>>,
    entered: Arc<Mutex<Vec<(u64, String)>>>,
    left: Arc<AtomicU64>,
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && *metadata.level() == Level::TRACE
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(span.metadata().name().to_owned());
        span.record(&mut fields);
        let number = self.spans.fetch_add(1, Ordering::Relaxed) + 1;
        self.made.lock().unwrap().push((number, fields.0));
        Id::from_u64(number)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, span: &Id) {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        self.entered.lock().unwrap().push((span.into_u64(), thread));
    }

    fn exit(&self, _: &Id) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn each_item_is_a_span_of_its_workqueue_on_its_worker() {
    let notes = Notes::default();
    // Workers are other threads: it has to be everybody's.
    tracing::subscriber::set_global_default(notes.clone()).unwrap();
    let runtime = Runtime::builder().thread_name("worker").build().unwrap();
    let disk = runtime.workqueue("disk").build().unwrap();
    (0..9).for_each(|_| disk.execute(|| ()));
    disk.execute(|| panic!("its span ends all the same"));
    disk.flush();
    drop(runtime);
    let made = notes.made.lock().unwrap();
    let of_disk: Vec<_> =
        made.iter().filter(|(_, text)| text.contains("workqueue=\"disk\"")).collect();
    assert_eq!(of_disk.len(), 10, "{made:?}");
    assert!(of_disk.iter().all(|(_, text)| text.starts_with("item ") && text.contains(" reach=")));
    let entered = notes.entered.lock().unwrap();
    for (number, _) in &of_disk {
        let on: Vec<_> = entered.iter().filter(|(span, _)| span == number).collect();
        assert!(matches!(on[..], [(_, thread)] if thread.starts_with("worker")), "{on:?}");
    }
    assert_eq!(notes.left.load(Ordering::Relaxed), entered.len() as u64);
}
