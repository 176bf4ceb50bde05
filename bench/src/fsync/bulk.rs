//! Files that have been written, and closed: each is opened, made durable, and closed again.

use std::fs::File;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail};
use homing::Durable;

use super::engines::Engines;
use super::queue::Queue;
use super::strategy::Strategy;
use crate::latency::record;

/// Makes all of them durable. Calls `ready` before the first of them, when all issuers are there.
pub(crate) fn sync_all(
    strategy: Strategy,
    issuers: usize,
    engines: &mut Engines,
    paths: &Arc<Vec<PathBuf>>,
    mut ready: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if !strategy.has_threads() {
        ready()?;
    }
    match strategy {
        Strategy::Fsync => on_threads(issuers, paths, ready, |file| Ok(file.sync_all()?)),
        Strategy::Homing => {
            let durable = engines.durable()?.clone();
            on_threads(issuers, paths, ready, |file| Ok(durable.fsync_and_wait(&file)?))
        }
        Strategy::HomingAsync => begun_one_by_one(engines.durable()?, issuers, paths, ready),
        Strategy::HomingMany | Strategy::HomingFiles => at_once(engines.durable()?, paths),
        Strategy::Syncfs => by_filesystem(paths),
        Strategy::SyncfsOpened => {
            let files = open_all(paths)?;
            by_filesystem(paths)?;
            drop(files);
            Ok(())
        }
        Strategy::Tokio => {
            let take = taker(paths);
            by_tasks(engines, issuers, move |_| {
                let take = take.clone();
                async move {
                    while let Some(path) = take() {
                        let file = tokio::fs::File::from_std(File::open(path)?);
                        timed(file.sync_all()).await?;
                    }
                    Ok(())
                }
            })
        }
        Strategy::TokioAll => {
            let paths = Arc::clone(paths);
            by_tasks(engines, paths.len(), move |number| {
                let paths = Arc::clone(&paths);
                async move {
                    let file = tokio::fs::File::from_std(File::open(&paths[number])?);
                    timed(file.sync_all()).await
                }
            })
        }
        Strategy::LinuxAio | Strategy::IoUring | Strategy::IoUringWorkers | Strategy::PosixAio => {
            queued(engines.queue(strategy, issuers)?, issuers, paths)
        }
    }
}

/// Hands out the paths, each once.
fn taker(paths: &Arc<Vec<PathBuf>>) -> impl Fn() -> Option<PathBuf> + Clone + Send + 'static {
    let (paths, next) = (Arc::clone(paths), Arc::new(AtomicUsize::new(0)));
    move || paths.get(next.fetch_add(1, Ordering::Relaxed)).cloned()
}

fn on_threads(
    threads: usize,
    paths: &Arc<Vec<PathBuf>>,
    ready: impl FnMut() -> anyhow::Result<()>,
    sync: impl Fn(File) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let take = taker(paths);
    by_issuers(threads, ready, || {
        while let Some(path) = take() {
            let file = File::open(path)?;
            let began = Instant::now();
            sync(file)?;
            record(began.elapsed());
        }
        Ok(())
    })
}

fn by_issuers(
    threads: usize,
    mut ready: impl FnMut() -> anyhow::Result<()>,
    issuer: impl Fn() -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let gate = Mutex::new(());
    let one = || {
        // Whether it is poisoned does not matter: it opens if a thread cannot be started, too.
        drop(gate.lock());
        issuer()
    };
    thread::scope(|scope| {
        let closed = gate.lock();
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        ready()?;
        drop(closed);
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("an issuer panicked"),
        })
    })
}

fn open_all(paths: &[PathBuf]) -> io::Result<Vec<Arc<File>>> {
    paths.iter().map(|path| File::open(path).map(Arc::new)).collect()
}

fn at_once(durable: &Durable, paths: &[PathBuf]) -> anyhow::Result<()> {
    let files = open_all(paths)?;
    for verdict in durable.fsync_many(&files).wait() {
        verdict?;
    }
    Ok(())
}

fn begun_one_by_one(
    durable: &Durable,
    issuers: usize,
    paths: &Arc<Vec<PathBuf>>,
    ready: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let take = taker(paths);
    by_issuers(issuers, ready, || {
        let mut begun = Vec::new();
        while let Some(path) = take() {
            begun.push(durable.fsync(&Arc::new(File::open(path)?)));
        }
        for synced in begun {
            synced.wait()?;
        }
        Ok(())
    })
}

fn by_filesystem(paths: &[PathBuf]) -> anyhow::Result<()> {
    let first = paths.first().context("there are no files")?;
    rustix::fs::syncfs(File::open(first)?)?;
    Ok(())
}

async fn timed(sync: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let began = Instant::now();
    sync.await?;
    record(began.elapsed());
    Ok(())
}

fn by_tasks<F>(engines: &mut Engines, tasks: usize, task: impl Fn(usize) -> F) -> anyhow::Result<()>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    engines.tokio()?.block_on(async {
        let tasks: Vec<_> = (0..tasks).map(|number| tokio::spawn(task(number))).collect();
        for task in tasks {
            task.await??;
        }
        Ok(())
    })
}

fn queued(queue: &mut dyn Queue, depth: usize, paths: &[PathBuf]) -> anyhow::Result<()> {
    let mut began = vec![Instant::now(); depth];
    let mut free: Vec<usize> = (0..depth).collect();
    let mut paths = paths.iter();
    loop {
        while let Some(slot) = free.last().copied() {
            let Some(path) = paths.next() else { break };
            let file = File::open(path)?;
            began[slot] = Instant::now();
            queue.begin(slot, file)?;
            free.pop();
        }
        if free.len() == depth {
            return Ok(());
        }
        for slot in queue.ended()? {
            record(began[slot].elapsed());
            free.push(slot);
        }
    }
}
