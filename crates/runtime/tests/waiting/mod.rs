//! Waiting for what other threads do.

use std::thread;
use std::time::{Duration, Instant};

/// Far beyond what any of this takes on a busy machine; a lost wake-up takes for ever.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Waits until `condition` returns `true`. Panics if that takes too long.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen within {LONG:?}");
        thread::sleep(Duration::from_millis(1));
    }
}
