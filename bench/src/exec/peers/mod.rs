//! The executors that are compared. All of them stand behind one trait, with static dispatch: the
//! cost of an item, its allocation included, is each peer's own.
//!
//! Left out: forte, because its versions for Rust 1.95 (up to 1.0.0-alpha.4) run items spawned from
//! outside on the caller and never share items spawned from inside, and its later ones need Rust
//! 1.96; and runtimes with a thread for each core that do not share work, such as glommio and
//! monoio.

mod cb_channel;
mod cb_deque;
mod closures;
mod futures;
pub(super) mod homing;

use std::str::FromStr;

use anyhow::bail;
use serde::{Serialize, Serializer};

use super::load::{self, Setting};
use super::workload::Workload;
use crate::cell::Figures;

/// A way to run closures on a fixed number of threads.
pub(crate) trait Pool: Sized + Send + Sync + 'static {
    /// Starts this many workers.
    fn start(workers: usize) -> anyhow::Result<Self>;

    /// Runs `work`, which nobody waits for. May be called from any thread: a pool that can tell
    /// that the caller is a worker of its own may use that.
    fn submit(&'static self, work: impl FnOnce() + Send + 'static);

    /// Runs many items at once, from an item.
    fn fan_out(&'static self, items: impl Iterator<Item = impl FnOnce() + Send + 'static>) {
        items.for_each(|item| self.submit(item));
    }

    /// Runs `work`, which is declared to block.
    fn submit_blocking(&'static self, work: impl FnOnce() + Send + 'static) {
        self.submit(work);
    }
}

/// A peer, as a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Ours.
    Homing,
    /// Ours, with a `blocking` workqueue for items that block.
    HomingDeclared,
    /// Ours, with a handle for each item, which is let go at once.
    HomingHandle,
    /// Ours, with work items that are queued again and again.
    HomingWork,
    /// Ours, at most 64 items at a time.
    HomingLimited,
    /// Ours, one item at a time.
    HomingOrdered,
    /// Ours, which can be frozen.
    HomingFreezable,
    /// Ours, whose attributes change.
    HomingChanged,
    /// rayon's `spawn`.
    Rayon,
    /// tokio's `spawn` on its multi-threaded runtime.
    Tokio,
    /// The same, with `spawn_blocking` for items that block.
    TokioDeclared,
    /// tokio's `spawn_blocking`, for everything.
    TokioBlocking,
    /// smol's executor on threads that run it.
    AsyncExecutor,
    /// bevy's task pool, which is the same executor with other threads.
    BevyTasks,
    /// The crate threadpool: a channel.
    Threadpool,
    /// surrealdb's pool for blocking jobs.
    Affinitypool,
    /// A minimal pool on crossbeam-deque.
    CbDeque,
    /// A minimal pool on crossbeam-channel.
    CbChannel,
}

impl Peer {
    /// All of them, in the order of the columns.
    pub(crate) const ALL: [Self; 18] = [
        Self::Homing,
        Self::HomingDeclared,
        Self::HomingHandle,
        Self::HomingWork,
        Self::HomingLimited,
        Self::HomingOrdered,
        Self::HomingFreezable,
        Self::HomingChanged,
        Self::Rayon,
        Self::Tokio,
        Self::TokioDeclared,
        Self::TokioBlocking,
        Self::AsyncExecutor,
        Self::BevyTasks,
        Self::Threadpool,
        Self::Affinitypool,
        Self::CbDeque,
        Self::CbChannel,
    ];

    /// The name in the results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Homing => "homing",
            Self::HomingDeclared => "homing+blocking",
            Self::HomingHandle => "homing+handle",
            Self::HomingWork => "homing+work",
            Self::HomingLimited => "homing+max_active",
            Self::HomingOrdered => "homing+ordered",
            Self::HomingFreezable => "homing+freezable",
            Self::HomingChanged => "homing+changes",
            Self::Rayon => "rayon",
            Self::Tokio => "tokio",
            Self::TokioDeclared => "tokio+blocking",
            Self::TokioBlocking => "tokio-blocking",
            Self::AsyncExecutor => "async-executor",
            Self::BevyTasks => "bevy_tasks",
            Self::Threadpool => "threadpool",
            Self::Affinitypool => "affinitypool",
            Self::CbDeque => "cb-deque",
            Self::CbChannel => "cb-channel",
        }
    }

    /// Whether it takes part in `workload`.
    pub(crate) const fn takes(self, workload: Workload) -> bool {
        match self {
            Self::Homing => true,
            // If nothing blocks, they are the same as homing and tokio.
            Self::HomingDeclared | Self::TokioDeclared => {
                matches!(workload, Workload::BlockingMix)
            }
            Self::HomingHandle | Self::HomingWork => matches!(workload, Workload::Issue(..)),
            Self::HomingLimited | Self::HomingOrdered | Self::HomingFreezable => {
                matches!(workload, Workload::Gate(_))
            }
            Self::HomingChanged => matches!(workload, Workload::Live(_)),
            _ => !workload.is_of_ours(),
        }
    }

    /// The ways of ours that are compared with each other under `workload`.
    pub(crate) const fn pairs(workload: Workload) -> &'static [(Self, Self)] {
        match workload {
            Workload::Issue(..) => {
                &[(Self::HomingWork, Self::HomingHandle), (Self::HomingWork, Self::Homing)]
            }
            Workload::Gate(_) => &[
                (Self::HomingLimited, Self::Homing),
                (Self::HomingOrdered, Self::Homing),
                (Self::HomingFreezable, Self::Homing),
            ],
            Workload::Live(_) => &[(Self::HomingChanged, Self::Homing)],
            _ => &[],
        }
    }

    /// Whether it is ours.
    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Homing | Self::HomingDeclared) || self.is_way_of_ours()
    }

    /// Whether it is ours and compared with ours only.
    const fn is_way_of_ours(self) -> bool {
        matches!(
            self,
            Self::HomingHandle
                | Self::HomingWork
                | Self::HomingLimited
                | Self::HomingOrdered
                | Self::HomingFreezable
                | Self::HomingChanged
        )
    }

    /// The peer of ours by which `workload` is judged.
    pub(crate) const fn ours(workload: Workload) -> Self {
        if matches!(workload, Workload::BlockingMix) { Self::HomingDeclared } else { Self::Homing }
    }

    /// Measures `workload` in this process, which is good for one measurement only.
    pub(crate) fn measure(self, workload: Workload, setting: &Setting) -> anyhow::Result<Figures> {
        if workload.is_of_ours() {
            return load::run_ours(workload, self, setting);
        }
        let run = match self {
            Self::Homing => load::run::<homing::Homing>,
            Self::HomingDeclared => load::run::<homing::HomingDeclared>,
            Self::HomingHandle
            | Self::HomingWork
            | Self::HomingLimited
            | Self::HomingOrdered
            | Self::HomingFreezable
            | Self::HomingChanged => {
                bail!("{} does not take part in {}", self.name(), workload.name())
            }
            Self::Rayon => load::run::<closures::Rayon>,
            Self::Tokio => load::run::<futures::Tokio>,
            Self::TokioDeclared => load::run::<futures::TokioDeclared>,
            Self::TokioBlocking => load::run::<futures::TokioBlocking>,
            Self::AsyncExecutor => load::run::<futures::AsyncExecutor>,
            Self::BevyTasks => load::run::<futures::BevyTasks>,
            Self::Threadpool => load::run::<closures::Threadpool>,
            Self::Affinitypool => load::run::<futures::Affinitypool>,
            Self::CbDeque => load::run::<cb_deque::CbDeque>,
            Self::CbChannel => load::run::<cb_channel::CbChannel>,
        };
        run(workload, setting)
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|peer| peer.name() == name);
        let known = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("{name:?} is no peer: use {}", known()))
    }
}

impl Serialize for Peer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// Checks that items from outside, from inside and in numbers all run.
    fn exercise<P: Pool>() {
        let pool: &'static P = Box::leak(Box::new(P::start(2).unwrap()));
        let (done, wait) = mpsc::channel();
        for _ in 0..100 {
            let done = done.clone();
            pool.submit(move || {
                let items = (0..10).map(|_| {
                    let done = done.clone();
                    move || done.send(()).unwrap()
                });
                pool.fan_out(items.collect::<Vec<_>>().into_iter());
            });
        }
        pool.submit_blocking(move || done.send(()).unwrap());
        for _ in 0..1001 {
            wait.recv_timeout(Duration::from_secs(60)).unwrap();
        }
    }

    #[test]
    fn every_peer_runs_everything() {
        exercise::<homing::Homing>();
        exercise::<homing::HomingDeclared>();
        exercise::<closures::Rayon>();
        exercise::<futures::Tokio>();
        exercise::<futures::TokioDeclared>();
        exercise::<futures::TokioBlocking>();
        exercise::<futures::AsyncExecutor>();
        exercise::<futures::BevyTasks>();
        exercise::<closures::Threadpool>();
        exercise::<futures::Affinitypool>();
        exercise::<cb_deque::CbDeque>();
        exercise::<cb_channel::CbChannel>();
    }

    #[test]
    fn names_round_trip_and_unknown_ones_list_the_choices() {
        for peer in Peer::ALL {
            assert_eq!(peer.name().parse(), Ok(peer));
        }
        let error = "forte".parse::<Peer>().unwrap_err();
        assert!(error.contains("\"forte\"") && error.contains("cb-deque"), "{error}");
    }
}
