//! What a machine is made of: CPUs, cores, last-level caches, NUMA nodes, packages, and how far
//! they are from each other.
//!
//! ```text
//! Machine
//! └─ package            a socket
//!    └─ NUMA node       CPUs with memory of their own (a CPU may belong to none, or to several)
//!       └─ LLC          CPUs that share the outermost data cache
//!          └─ core      SMT siblings
//!             └─ CPU    one hardware thread
//! ```
//!
//! A [`Machine`] is read once and never changes. It comes from a `/sys` tree ([`Machine::read`]),
//! an hwloc XML export ([`Machine::from_hwloc_xml`]) or a grid such as `4x3x2`
//! ([`Machine::from_grid`]). [`Machine::pods`] cuts it into the groups of an affinity [`Scope`].
//! [`Allowed`] says what this process may use of the CPUs, and [`Memory`] what it may use of the
//! memory.
//!
//! ```
//! use homing_topology::{Machine, Scope};
//!
//! let ryzen = Machine::from_grid("4x3x2")?; // 4 LLCs of 3 cores of 2 threads
//! assert_eq!(ryzen.pods(Scope::Cache).len(), 4);
//! assert_eq!(ryzen.pods(Scope::Smt).len(), 12);
//! # Ok::<(), homing_topology::TopologyError>(())
//! ```
//!
//! Threads, pinning and decisions are not here. Nothing in this crate writes anything.
//!
//! Read the modules in this order: `cpu_set`, `machine`, `scope`, `pods`, then the readers `sysfs`,
//! `hwloc`, `grid`, and `allowed`, `memory`.
#![forbid(unsafe_code)]

mod allowed;
mod cpu_set;
mod error;
mod grid;
mod hwloc;
mod machine;
mod memory;
mod pods;
mod scope;
mod sysfs;

pub use allowed::{Allowed, CpuQuota};
pub use cpu_set::{CPU_COUNT_MAX, CpuId, CpuSet, ParseCpuSetError};
pub use error::TopologyError;
pub use machine::{Cpu, Distance, Machine, NodeId};
pub use memory::Memory;
pub use pods::{CORES_PER_SHARD, Pods};
pub use scope::{ParseScopeError, Scope};
