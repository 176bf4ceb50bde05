//! Real threads, real sleeping and waking, everything at once: each item runs once, and all are
//! accounted for. An item that is left is a hang, which a time limit turns into a failure. A single
//! lost wake-up need not be one, because the monitor looks for items that are overdue. That there
//! is no lost wake-up is for the models to show (`cargo xtask loom`, `shuttle`), where the monitor
//! does not look.
//!
//! `HOMING_STRESS_SECONDS` makes it longer (default 2 for each test and machine).
//! `HOMING_STRESS_ITEMS` lets the test of the contract go on until that many items have run,
//! however long that takes.

mod accounts;
mod contract;
mod items;

use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{Builder, JoinError, JoinHandle, Runtime};
use homing_topology::Machine;

/// Runtimes with this machine's caches, and with many: two nodes of two caches of two CPUs, whose
/// threads the kernel places.
pub(crate) fn each_machine(mut test: impl FnMut(Builder)) {
    test(Runtime::builder());
    let caches = Machine::from_grid("2x2x2x1").expect("a grid");
    test(Runtime::builder().on_machine(caches));
}

/// How long each test lasts, on each machine.
pub(crate) fn duration() -> Duration {
    let given = std::env::var("HOMING_STRESS_SECONDS").ok();
    Duration::from_secs(given.and_then(|text| text.parse().ok()).unwrap_or(2))
}

/// A generator good enough to mix things up (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Waits for the handle without the runtime's help, so that a lost wake-up is seen as such.
pub(crate) fn wait<T: Send>(mut handle: JoinHandle<T>) -> Result<T, JoinError> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match handle.try_join() {
            Ok(result) => return result,
            Err(unfinished) => handle = unfinished,
        }
        assert!(Instant::now() < deadline, "an item was left waiting for 30 s");
        thread::yield_now();
    }
}

/// Panics on purpose would fill the screen.
pub(crate) fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        if info.payload().downcast_ref() != Some(&"on purpose") {
            eprintln!("{info}");
        }
    }));
}
