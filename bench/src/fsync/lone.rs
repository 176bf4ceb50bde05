//! One issuer that writes a file and syncs it, again and again: alone first, and then while another
//! makes thousands durable.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use homing::Durable;
use homing_lab::fsync::Files;

use super::bulk;
use super::engines::Engines;
use super::strategy::Strategy;
use crate::cell::Figures;
use crate::latency;

/// This many lone syncs during bulks are enough.
const SAMPLES: usize = 400;
/// The greatest number of bulks, however few syncs fit into their time.
const BULKS_MAX: usize = 12;

/// Measures latencies alone for a time, and then during bulks of `count` files.
pub(crate) fn run(
    strategy: Strategy,
    issuers: usize,
    engines: &mut Engines,
    files: &Arc<Files>,
    count: usize,
    length: Duration,
) -> anyhow::Result<Figures> {
    // Both use the same engine: it has to tell them apart.
    let durable = if strategy.is_ours() { Some(engines.durable()?.clone()) } else { None };
    let mut lone = Lone { durable, files: Arc::clone(files), made: 0 };
    let until = Instant::now() + length;
    let mut figures = Figures::new();
    let mut quiet = Vec::new();
    while Instant::now() < until {
        quiet.push(lone.sync()?);
    }
    tell("quiet", &quiet, &mut figures);

    let (bell, bells) = channel();
    let (answer, answers) = channel();
    let beside = thread::spawn(move || lone.beside(&bells, &answer));
    let mut busy = Vec::new();
    for bulk in 0..BULKS_MAX {
        let paths: Arc<Vec<PathBuf>> = Arc::new(files.make_many(&format!("bulk-{bulk}"), count)?);
        bell.send(true)?;
        bulk::sync_all(strategy, issuers, engines, &paths, || Ok(()))?;
        bell.send(false)?;
        busy.extend(answers.recv().context("the lone issuer has failed")?);
        files.remove(&paths)?;
        if busy.len() >= SAMPLES {
            break;
        }
    }
    drop(bell);
    match beside.join() {
        Ok(result) => result?,
        Err(_) => bail!("the lone issuer panicked"),
    }
    tell("busy", &busy, &mut figures);
    if let (Some(busy), Some(quiet)) = (figures.get("busy_p99_us"), figures.get("quiet_p99_us")) {
        let ratio = busy / quiet;
        figures.insert("busy_to_quiet".to_owned(), ratio);
    }
    Ok(figures)
}

struct Lone {
    durable: Option<Durable>,
    files: Arc<Files>,
    made: usize,
}

impl Lone {
    fn sync(&mut self) -> anyhow::Result<Duration> {
        let file = self.files.make(&format!("lone-{}", self.made))?;
        self.made += 1;
        let began = Instant::now();
        match &self.durable {
            Some(durable) => durable.fsync_and_wait(&file)?,
            None => file.sync_all()?,
        }
        Ok(began.elapsed())
    }

    /// Syncs as long as the bell says so. Returns how long each sync took that began meanwhile.
    fn beside(
        mut self,
        bells: &Receiver<bool>,
        answers: &Sender<Vec<Duration>>,
    ) -> anyhow::Result<()> {
        while bells.recv().is_ok() {
            let mut took = Vec::new();
            while let Err(TryRecvError::Empty) = bells.try_recv() {
                took.push(self.sync()?);
            }
            answers.send(took)?;
        }
        Ok(())
    }
}

fn tell(when: &str, took: &[Duration], figures: &mut Figures) {
    let recorded = latency::of(took);
    figures.insert(format!("{when}_syncs"), took.len() as f64);
    if took.is_empty() {
        return;
    }
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
        let micros = recorded.value_at_quantile(quantile) as f64 / 1e3;
        figures.insert(format!("{when}_{name}_us"), micros);
    }
}
