//! Threads that call fsync of each file that they are handed.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// A file to sync.
struct Job {
    path: PathBuf,
    asked: Instant,
    tell: Sender<io::Result<Duration>>,
}

/// The threads. They end when this is dropped.
pub(super) struct Pool {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    /// Whether files that still wait are not to be synced any more.
    given_up: Arc<AtomicBool>,
}

impl Pool {
    pub(super) fn new(threads: usize) -> io::Result<Self> {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let given_up = Arc::new(AtomicBool::new(false));
        let mut pool = Self { jobs: Some(sender), threads: Vec::new(), given_up };
        for _ in 0..threads {
            let (receiver, given_up) = (Arc::clone(&receiver), Arc::clone(&pool.given_up));
            let builder = Builder::new().name("fsync".to_owned());
            pool.threads.push(builder.spawn(move || work(&receiver, &given_up))?);
        }
        Ok(pool)
    }

    /// Hands all files over, and waits. Returns how long each took since it was handed over; `None`
    /// if `stop` was set, or a thread has gone.
    pub(super) fn sync(
        &self,
        paths: &[PathBuf],
        stop: &AtomicBool,
    ) -> io::Result<Option<Vec<Duration>>> {
        let (tell, told) = channel();
        for path in paths {
            let job = Job { path: path.clone(), asked: Instant::now(), tell: tell.clone() };
            // If no thread takes the job, none answers either, and the count below shows that.
            let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
        }
        drop(tell);
        let mut latencies = Vec::with_capacity(paths.len());
        for latency in told {
            latencies.push(latency?);
            if stop.load(Ordering::Relaxed) {
                self.given_up.store(true, Ordering::Relaxed);
                return Ok(None);
            }
        }
        Ok((latencies.len() == paths.len()).then_some(latencies))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A thread that has panicked did not answer, so its sync was already found missing.
            let _ = thread.join();
        }
    }
}

fn work(jobs: &Mutex<Receiver<Job>>, given_up: &AtomicBool) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { path, asked, tell }) = job else { return };
        if given_up.load(Ordering::Relaxed) {
            continue;
        }
        let synced = File::open(path).and_then(|file| file.sync_all());
        // After a stop, nobody waits for the answer.
        let _ = tell.send(synced.map(|()| asked.elapsed()));
    }
}
