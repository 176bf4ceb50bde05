//! A fence of which one side costs nothing: readers only keep the compiler from changing the order, and the
//! writer lets the kernel put a full fence into each running thread of the process.
//!
//! `membarrier(2)`, `MEMBARRIER_CMD_PRIVATE_EXPEDITED`: M. Desnoyers, Linux 4.14.

use std::sync::OnceLock;

/// Whether the fence can be had. Asked before the first use of it: it registers the process.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(backend::register)
}

/// The readers' side: between a store and a load that must not overtake it.
#[inline]
pub(crate) fn light() {
    backend::light();
}

/// The writer's side. For each thread of the process, either what it did before its light fence is seen by
/// whoever comes after this, or what comes after its light fence sees all that was done before this.
pub(crate) fn heavy() {
    backend::heavy();
}

#[cfg(all(target_os = "linux", not(any(loom, miri))))]
mod backend {
    use std::io::Write;
    use std::sync::atomic::{Ordering, compiler_fence};

    use rustix::thread::{MembarrierCommand, membarrier};

    pub(super) fn register() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    #[inline]
    pub(super) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    pub(super) fn heavy() {
        if membarrier(MembarrierCommand::PrivateExpedited).is_ok() {
            return;
        }
        // A child of fork(2), on a kernel that does not hand this down.
        if !register() || membarrier(MembarrierCommand::PrivateExpedited).is_err() {
            // To go on would let a writer in beside readers. Only a filter of system calls that came after
            // the registration can do this.
            // Nor must this panic where nobody reads it.
            let line =
                "membarrier(2) was allowed and is not any more: no lock can be had without it";
            let _ = writeln!(std::io::stderr(), "{line}");
            std::process::abort();
        }
    }
}

/// Both sides pay: what model checkers and interpreters understand.
#[cfg(any(loom, miri))]
mod backend {
    #[cfg(loom)]
    use loom::sync::atomic::{Ordering, fence};
    #[cfg(not(loom))]
    use std::sync::atomic::{Ordering, fence};

    pub(super) fn register() -> bool {
        true
    }

    pub(super) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

/// Without it, all take the lock.
#[cfg(not(any(target_os = "linux", loom, miri)))]
mod backend {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn light() {}

    pub(super) fn heavy() {}
}
