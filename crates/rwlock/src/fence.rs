//! A fence that costs one side nothing: readers only keep the compiler from reordering, and the
//! writer has the kernel put a full fence into each running thread of the process.
//!
//! `membarrier(2)`, `MEMBARRIER_CMD_PRIVATE_EXPEDITED`: M. Desnoyers, Linux 4.14.

use std::sync::OnceLock;

/// Whether the fence is available. Call this before the first use of the fence: it registers the
/// process.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(backend::register)
}

/// The readers' side. It stands between a store and a load that must not overtake the store.
#[inline]
pub(crate) fn light() {
    backend::light();
}

/// The writer's side. For each thread of the process, either what it did before its light fence is
/// seen after this call, or what it does after its light fence sees all that was done before this
/// call.
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
        // The process is a child of fork(2), on a kernel that does not pass the registration on.
        if !register() || membarrier(MembarrierCommand::PrivateExpedited).is_err() {
            // Going on would let a writer in while others read. Only a filter of system calls that
            // came after the registration can cause this. Nor must this panic if nobody reads the
            // message.
            let line =
                "membarrier(2) was allowed and is not any more: no lock can be had without it";
            let _ = writeln!(std::io::stderr(), "{line}");
            std::process::abort();
        }
    }
}

/// Here both sides pay for a fence, which model checkers and interpreters understand.
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

/// Without the fence, all readers take the lock.
#[cfg(not(any(target_os = "linux", loom, miri)))]
mod backend {
    pub(super) fn register() -> bool {
        false
    }

    pub(super) fn light() {}

    pub(super) fn heavy() {}
}
