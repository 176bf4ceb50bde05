//! homing: a user-space runtime for storage servers.
//!
//! While CPUs are busy, deferred work stays in the cache domain that it came from. A CPU that would
//! go idle takes work from elsewhere, the nearest first.
//!
//! ```
//! use homing::{Runtime, Scope};
//!
//! let runtime = Runtime::new()?;
//! let sums = runtime.workqueue("sums").affinity_scope(Scope::Cache).build()?;
//! let handles: Vec<_> = (0..8_u64).map(|n| sums.queue(move || n * n)).collect();
//! let total: u64 = handles.into_iter().map(|handle| handle.join().unwrap()).sum();
//! assert_eq!(total, 140);
//! sums.set_affinity_scope(Scope::Numa)?; // live: for what is queued from now on
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Features: `control` (on by default) adds the attribute tree and its socket. `metrics` hands the
//! counters to the ecosystem of that name. `async-io` and `tokio` let futures use the timers and
//! sockets of those crates. `tracing` adds spans and events.
//!
//! `docs/workqueues.md` is the guide to workqueues, for readers who know the kernel's.
//!
//! This crate is the facade: it re-exports what programs use and contains no code of its own.
//! Examples name the crate that something is from (`homing_runtime`, `homing_cache`,
//! `homing_durable`, `homing_topology`, `homing_control`): write `homing` there, `homing::pages`
//! for `homing_cache::pages`, and `homing::control` for `homing_control`. Names that say little
//! without their crate are longer here: `homing_durable::Record` is [`LogRecord`], for one.
#![forbid(unsafe_code)]

// The public interface is:
#[cfg(feature = "control")]
pub use homing_cache::CacheAttributes;
pub use homing_cache::{
    BuildError as CacheBuildError, Builder as CacheBuilder, Cache, Cause,
    DefaultHasher as CacheHasher, Group, GroupStats, Pinned, RandomState as CacheRandomState,
    Stats as CacheStats,
};
pub use homing_durable::{
    Backend as DurableBackend, Batch as SyncBatch, Counters as DurableCounters, Description,
    DurabilityError, Durable, Fsync, Histogram, Kind as SyncKind, Log, LogError, LogOptions,
    RECORD_LENGTH_MAX as LOG_RECORD_LENGTH_MAX, Record as LogRecord, Records as LogRecords,
    Recovery as LogRecovery, ReplaceError, Replaced, Sequence as LogSequence, SharedFile,
    Sharing as DurableSharing, Strategy as DurableStrategy, Synced, SyncedMany,
    WriteBack as DurableWriteBack,
};
#[cfg(feature = "control")]
pub use homing_durable::{DurableAttributes, LogAttributes};
#[cfg(feature = "control")]
pub use homing_runtime::RuntimeAttributes;
#[doc(inline)]
pub use homing_runtime::recorded;
pub use homing_runtime::{
    AbortOnDrop, Affinity, Builder, Counters, CpuCounters, Features, HandOff, ItemPanic, JoinError,
    JoinHandle, LatencyMatrix, Nice, ParseFeaturesError, PullCost, QueueAges, Reach, Runtime,
    RuntimeError, ShutdownError, Stall, Work, WorkScope, Workqueue, WorkqueueBuilder,
    WorkqueueError, blocking, consume_budget, core_to_core, unpinned, yield_now,
};
pub use homing_topology::{
    Allowed, CPU_COUNT_MAX, Cpu, CpuId, CpuQuota, CpuSet, Distance, Machine, Memory, NodeId,
    ParseCpuSetError, ParseScopeError, Pods, Scope, TopologyError,
};

/// Pages of files and volumes in memory, with write-back.
pub mod pages {
    #[cfg(feature = "control")]
    pub use homing_cache::pages::PageCacheAttributes;
    pub use homing_cache::pages::{
        Background, Backing, BuildError, Builder, CachedFile, CloseError, FileError, Group,
        GroupBuilder, GroupInUse, GroupStats, Job, OpenError, PageCache, ResizeError, Stats,
    };
}

/// Live attributes by path, and the socket on which other programs read and write them.
#[cfg(feature = "control")]
pub mod control {
    pub use homing_control::{
        Attribute, AttributeError, AttributeTree, Below, ByteSize, Client, ClientError,
        ControlSocket, Switch, Trees, flat_keyed,
    };
}

// The guide's programs are tests.
#[cfg(all(doctest, feature = "control"))]
#[doc = include_str!("../../../docs/workqueues.md")]
struct Guide;
