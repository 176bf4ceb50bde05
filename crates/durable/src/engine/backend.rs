//! Who syncs single files: threads of the runtime, or the kernel's threads, through `io_uring`.
//! Commits of filesystems and syncs on the callers' own threads are plain system calls either way.

use std::io;
use std::sync::Arc;

use crate::choices::depth::DEPTH_AUTO_MAX;
#[cfg(target_os = "linux")]
pub(crate) use crate::engine::ring::Ring;
use crate::files::{DEPTHS_MAX, FILESYSTEMS_MAX};

/// Who syncs single files.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// use homing_durable::Backend;
///
/// durable.set_backend(Backend::Threads)?;
/// // If the kernel has no io_uring, or this program may not use it, nothing changes.
/// let chosen = durable.set_backend(Backend::IoUring).map_or(Backend::Threads, |()| Backend::IoUring);
/// assert_eq!(durable.backend(), chosen);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// The workqueue `durable`.
    #[default]
    Threads,
    /// The kernel's own threads, as many as syncs are under way. Linux only, and only where it is
    /// not forbidden.
    IoUring,
}

impl Backend {
    /// All backends.
    pub const ALL: [Self; 2] = [Self::Threads, Self::IoUring];

    /// The name in the attribute `durable/backend`.
    ///
    /// ```
    /// assert_eq!(homing_durable::Backend::IoUring.name(), "io_uring");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::IoUring => "io_uring",
        }
    }
}

/// The backend that was chosen. A ring is made when it is first wanted, and kept.
#[derive(Default)]
pub(crate) struct Chosen {
    backend: Backend,
    ring: Option<Arc<Ring>>,
}

impl Chosen {
    /// Sets the backend. Returns the old ring if there is a new one: to be dropped without the
    /// lock.
    pub(crate) fn set(
        &mut self,
        backend: Backend,
        depth: Option<usize>,
    ) -> io::Result<Option<Arc<Ring>>> {
        let has_ring = self.ring.as_ref().is_some_and(|ring| !ring.is_broken());
        let mut old = None;
        if backend == Backend::IoUring && !has_ring {
            old = self.ring.replace(Arc::new(Ring::new(workers(depth))?));
        }
        self.backend = backend;
        Ok(old)
    }

    pub(crate) fn set_depth(&self, depth: Option<usize>) {
        if let Some(ring) = &self.ring {
            ring.set_workers(workers(depth));
        }
    }

    /// Who syncs files: threads, too, after a ring has failed.
    pub(crate) fn backend(&self) -> Backend {
        match &self.ring {
            Some(ring) if ring.is_broken() => Backend::Threads,
            _ => self.backend,
        }
    }

    /// The ring, if it is what syncs files.
    pub(crate) fn ring(&self) -> Option<Arc<Ring>> {
        self.ring.clone().filter(|_| self.backend == Backend::IoUring)
    }
}

/// As many as there may be jobs, so that no disk's syncs wait for a worker that another disk keeps.
fn workers(depth: Option<usize>) -> u32 {
    let jobs =
        depth.unwrap_or(DEPTH_AUTO_MAX).saturating_mul(DEPTHS_MAX).saturating_add(FILESYSTEMS_MAX);
    // The kernel's limit.
    u32::try_from(jobs.min(i32::MAX as usize)).expect("it fits")
}

/// Other systems have no ring.
#[cfg(not(target_os = "linux"))]
pub(crate) struct Ring;

#[cfg(not(target_os = "linux"))]
impl Ring {
    pub(crate) fn new(_workers: u32) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn sync(
        &self,
        _file: Arc<std::fs::File>,
        _kind: crate::durable::Kind,
        done: Box<dyn FnOnce(io::Result<()>) + Send>,
    ) {
        done(Err(io::ErrorKind::Unsupported.into()));
    }

    pub(crate) fn set_workers(&self, _workers: u32) {}

    pub(crate) fn is_broken(&self) -> bool {
        true
    }
}
