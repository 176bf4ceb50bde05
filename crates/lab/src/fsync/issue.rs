//! What an issuer does with its share of the files, by each strategy.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use homing::{Durable, Runtime};

use super::asynchronous::begin_and_await;
use super::error::FsyncError;
use super::pool::Pool;
use super::strategy::Strategy;

/// What a strategy runs on. It is made before the clock starts, anew for each measurement, so that
/// no measurement learns from another.
pub(super) enum Engine {
    Own,
    Threads(Pool),
    /// The engine is dropped before its runtime.
    Homing(Durable, #[expect(dead_code, reason = "the engine's")] Runtime),
}

/// Why an issuer ended early.
pub(super) enum Ended {
    /// It was told to stop.
    Stopped,
    /// What was done, and why it failed. It is reported with the folder, other errors as they are.
    Io(&'static str, io::Error),
    Failed(FsyncError),
}

impl<E: Into<FsyncError>> From<E> for Ended {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Engine {
    pub(super) fn of(strategy: Strategy) -> Result<Self, Ended> {
        Ok(match strategy {
            Strategy::Serial | Strategy::Syncfs => Self::Own,
            Strategy::Threads => {
                let pool = Pool::new(Strategy::THREADS);
                Self::Threads(pool.map_err(|error| Ended::Io("creating threads", error))?)
            }
            Strategy::Homing | Strategy::HomingMany => {
                let runtime = Runtime::new()?;
                Self::Homing(Durable::of(&runtime), runtime)
            }
        })
    }

    /// Opens the files, makes them durable and closes them. Returns how long each took, from the
    /// moment when its sync was asked for until its issuer could know that it was durable.
    pub(super) fn sync(
        &self,
        strategy: Strategy,
        share: &[PathBuf],
        stop: &AtomicBool,
    ) -> Result<Vec<Duration>, Ended> {
        match (self, strategy) {
            (Self::Threads(pool), _) => pool.sync(share, stop).map_err(syncing)?.ok_or_else(|| {
                if stop.load(Ordering::Relaxed) {
                    Ended::Stopped
                } else {
                    FsyncError::Panicked.into()
                }
            }),
            (Self::Homing(durable, _), Strategy::HomingMany) => {
                let files: Vec<_> = share.iter().map(open).collect::<Result<_, _>>()?;
                let asked = Instant::now();
                for verdict in durable.fsync_many(&files).wait() {
                    verdict?;
                }
                Ok(vec![asked.elapsed(); share.len()])
            }
            (Self::Homing(durable, _), _) => begin_and_await(share.len(), |number| {
                if stop.load(Ordering::Relaxed) {
                    return Err(Ended::Stopped);
                }
                let file = open(&share[number])?;
                let asked = Instant::now();
                Ok((asked, durable.fsync(&file)))
            }),
            (Self::Own, Strategy::Syncfs) => {
                let Some(first) = share.first() else { return Ok(Vec::new()) };
                let asked = Instant::now();
                let synced = rustix::fs::syncfs(open(first)?);
                synced.map_err(|errno| Ended::Io("syncfs", errno.into()))?;
                Ok(vec![asked.elapsed(); share.len()])
            }
            (Self::Own, _) => share.iter().map(|path| one_after_the_other(path, stop)).collect(),
        }
    }
}

fn one_after_the_other(path: &Path, stop: &AtomicBool) -> Result<Duration, Ended> {
    if stop.load(Ordering::Relaxed) {
        return Err(Ended::Stopped);
    }
    let file = open(path)?;
    let asked = Instant::now();
    file.sync_all().map_err(syncing)?;
    Ok(asked.elapsed())
}

fn open(path: impl AsRef<Path>) -> Result<Arc<File>, Ended> {
    File::open(path).map(Arc::new).map_err(|error| Ended::Io("opening files", error))
}

fn syncing(error: io::Error) -> Ended {
    Ended::Io("fsync of files", error)
}
