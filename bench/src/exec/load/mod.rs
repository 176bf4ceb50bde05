//! The workloads, in the process that was made for one workload on one peer. Threads that still run
//! when the figures are there end with the process.

mod blocking;
mod clients;
mod crypt;
mod fan_out;
mod hold;
mod issue;
mod live;
mod outside;
mod window;

use std::time::Duration;

use anyhow::bail;

use super::peers::{Peer, Pool};
use super::workload::Workload;
use crate::cell::Figures;
use crate::procfs;

/// What all cells of a run have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// How long it is measured, after a warm-up.
    pub(crate) duration: Duration,
    /// How many workers each pool has.
    pub(crate) workers: usize,
    /// The result of [`steps_per_ms`](super::spin::steps_per_ms).
    pub(crate) steps_per_ms: u64,
}

impl Setting {
    /// The steps of an item of this many nanoseconds.
    fn steps(&self, nanoseconds: u64) -> u64 {
        (self.steps_per_ms * nanoseconds / 1_000_000).max(1)
    }
}

/// Runs `workload` on a pool of this kind.
pub(crate) fn run<P: Pool>(workload: Workload, setting: &Setting) -> anyhow::Result<Figures> {
    let pool: &'static P = Box::leak(Box::new(P::start(setting.workers)?));
    let mut figures = match workload {
        Workload::Outside(ns) => outside::throughput(pool, setting, ns),
        Workload::Inside(ns) => fan_out::throughput(pool, setting, ns),
        Workload::Ping => clients::ping(pool, setting),
        Workload::Pairs(count) => clients::pairs(pool, setting, count),
        Workload::Crypt(count) => crypt::issuers(pool, setting, count),
        Workload::BlockingMix => blocking::mix(pool, setting),
        Workload::IdleBurn => outside::idle_burn(pool, setting),
        Workload::Memory(0) => hold::memory::<P, 0>(pool, setting),
        Workload::Memory(16) => hold::memory::<P, 2>(pool, setting),
        Workload::Memory(_) => hold::memory::<P, 8>(pool, setting),
        Workload::Issue(..) | Workload::Gate(_) | Workload::Live(_) => {
            bail!("{} is not for all pools", workload.name())
        }
    }?;
    let peak = procfs::peak_memory(std::process::id())?;
    figures.insert("peak_rss_mib".to_owned(), peak as f64 / f64::from(1 << 20));
    Ok(figures)
}

/// Runs `workload`, which compares ways of homing with each other; `peer` is one of them.
pub(crate) fn run_ours(
    workload: Workload,
    peer: Peer,
    setting: &Setting,
) -> anyhow::Result<Figures> {
    match workload {
        Workload::Issue(side, ns) => issue::ways(peer, setting, side, ns),
        Workload::Gate(side) => issue::gates(peer, setting, side),
        Workload::Live(ns) => live::changes(peer, setting, ns),
        _ => bail!("{} is not homing's alone", workload.name()),
    }
}
