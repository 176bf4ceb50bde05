//! What the models share: how many preemptions the checker tries, and a thread that waits. The
//! models themselves stand in `loom_tests.rs`, `loom_flush_tests.rs` and `loom_work_tests.rs`.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use crate::threads::sleeper::Sleeper;
use crate::workqueues::flush::Wait;

/// Runs the model in every interleaving that has at most so many preemptions.
pub(crate) fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Where a thread sleeps while it waits for others.
struct Bed(Sleeper);

impl Wake for Bed {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }
}

/// Waits. A wait that nobody ends is a deadlock, which loom reports.
pub(crate) fn block(wait: &Wait) {
    let bed = Arc::new(Bed(Sleeper::new()));
    let waker = Waker::from(Arc::clone(&bed));
    while wait.poll(&mut Context::from_waker(&waker)).is_pending() {
        bed.0.sleep(None);
    }
}
