//! Issuers that each write a new file, sync it, close it, and go on with the next: for a time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use homing_lab::fsync::Files;

use super::engines::Engines;
use super::queue::Queue;
use super::strategy::Strategy;
use crate::latency::record;

/// Lets the issuers run for a time. Returns how many files became durable.
pub(crate) fn run(
    strategy: Strategy,
    issuers: usize,
    engines: &mut Engines,
    files: &Arc<Files>,
    length: Duration,
) -> anyhow::Result<usize> {
    let until = Instant::now() + length;
    match strategy {
        Strategy::Fsync => on_threads(issuers, files, until, |file| Ok(file.sync_all()?)),
        Strategy::Homing => {
            let durable = engines.durable()?.clone();
            on_threads(issuers, files, until, |file| Ok(durable.fsync_and_wait(file)?))
        }
        Strategy::HomingAsync => by_our_tasks(issuers, engines, files, until),
        Strategy::Tokio => by_tasks(issuers, engines, files, until),
        Strategy::LinuxAio | Strategy::IoUring | Strategy::IoUringWorkers | Strategy::PosixAio => {
            queued(engines.queue(strategy, issuers)?, issuers, files, until)
        }
        _ => bail!("{strategy} is no way to sync one file at a time"),
    }
}

fn on_threads(
    issuers: usize,
    files: &Files,
    until: Instant,
    sync: impl Fn(&std::fs::File) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<usize> {
    let go = |issuer: usize| {
        for count in 0.. {
            if Instant::now() >= until {
                return anyhow::Ok(count);
            }
            let file = files.make(&format!("{issuer}-{count}"))?;
            let began = Instant::now();
            sync(&file)?;
            record(began.elapsed());
        }
        Ok(0)
    };
    let go = &go;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..issuers).map(|issuer| scope.spawn(move || go(issuer))).collect();
        let mut sum = 0;
        for thread in threads {
            match thread.join() {
                Ok(count) => sum += count?,
                Err(_) => bail!("an issuer panicked"),
            }
        }
        Ok(sum)
    })
}

fn by_our_tasks(
    issuers: usize,
    engines: &mut Engines,
    files: &Arc<Files>,
    until: Instant,
) -> anyhow::Result<usize> {
    let durable = engines.durable()?.clone();
    let runtime = engines.runtime()?;
    let task = |issuer: usize| {
        let (files, durable) = (Arc::clone(files), durable.clone());
        async move {
            for count in 0.. {
                if Instant::now() >= until {
                    return anyhow::Ok(count);
                }
                let file = Arc::new(files.make(&format!("{issuer}-{count}"))?);
                let began = Instant::now();
                durable.fsync(&file).await?;
                record(began.elapsed());
            }
            Ok(0)
        }
    };
    let tasks: Vec<_> = (0..issuers).map(|issuer| runtime.spawn(task(issuer))).collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.join().map_err(|error| anyhow::anyhow!("an issuer: {error}"))??;
    }
    Ok(sum)
}

fn by_tasks(
    issuers: usize,
    engines: &mut Engines,
    files: &Arc<Files>,
    until: Instant,
) -> anyhow::Result<usize> {
    let sum = Arc::new(AtomicUsize::new(0));
    let task = |issuer: usize| {
        let (files, sum) = (Arc::clone(files), Arc::clone(&sum));
        async move {
            for count in 0.. {
                if Instant::now() >= until {
                    sum.fetch_add(count, Ordering::Relaxed);
                    break;
                }
                let file = tokio::fs::File::from_std(files.make(&format!("{issuer}-{count}"))?);
                let began = Instant::now();
                file.sync_all().await?;
                record(began.elapsed());
            }
            io::Result::Ok(())
        }
    };
    engines.tokio()?.block_on(async {
        let tasks: Vec<_> = (0..issuers).map(|issuer| tokio::spawn(task(issuer))).collect();
        for task in tasks {
            task.await??;
        }
        anyhow::Ok(())
    })?;
    Ok(sum.load(Ordering::Relaxed))
}

/// One thread for all issuers: each is a slot.
fn queued(
    queue: &mut dyn Queue,
    issuers: usize,
    files: &Files,
    until: Instant,
) -> anyhow::Result<usize> {
    let mut began = vec![Instant::now(); issuers];
    let mut free: Vec<usize> = (0..issuers).collect();
    let mut made = 0;
    let mut done = 0;
    loop {
        if Instant::now() < until {
            for slot in free.drain(..) {
                let file = files.make(&made.to_string())?;
                made += 1;
                began[slot] = Instant::now();
                queue.begin(slot, file)?;
            }
        }
        if made == done {
            return Ok(done);
        }
        for slot in queue.ended()? {
            record(began[slot].elapsed());
            done += 1;
            free.push(slot);
        }
    }
}
