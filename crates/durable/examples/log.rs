//! Commits small records to a write-ahead log, with more and more committers, each of which waits
//! for its record. For comparison, each committer by itself makes a write and an `fdatasync`. Takes
//! a folder on the filesystem to try, and for how many seconds.
//!
//! ```sh
//! cargo run --release -p homing-durable --example log -- . 2
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use homing_durable::{Durable, Log};
use homing_runtime::Runtime;

const RECORD: [u8; 200] = [7; 200];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = tempfile::tempdir_in(arguments.next().unwrap_or_else(|| ".".to_owned()))?;
    let time = Duration::from_secs(arguments.next().map_or(Ok(2), |seconds| seconds.parse())?);
    let runtime = Runtime::new()?;
    let durable = Durable::new(&runtime)?;
    println!("committers  by itself/s       log/s");
    for committers in [1, 8, 64] {
        let file = File::create(folder.path().join(format!("plain-{committers}")))?;
        file.write_all_at(&vec![0; 64 << 20], 0)?;
        file.sync_all()?;
        let at = AtomicU64::new(0);
        let plain = rate(committers, time, || {
            let at = at.fetch_add(RECORD.len() as u64, Ordering::Relaxed);
            file.write_all_at(&RECORD, at % (64 << 20)).and_then(|()| file.sync_data()).unwrap();
        });
        let (log, _) = Log::open(&durable, folder.path().join(format!("log-{committers}")))?;
        let logged = rate(committers, time, || {
            log.commit_and_wait(log.append(&RECORD).unwrap()).unwrap();
        });
        println!("{committers:>10} {plain:>12.0} {logged:>11.0}");
    }
    Ok(())
}

/// How often all committers together do it in a second.
fn rate(committers: usize, time: Duration, commit: impl Fn() + Sync) -> f64 {
    let (count, began) = (AtomicU64::new(0), Instant::now());
    thread::scope(|scope| {
        for _ in 0..committers {
            scope.spawn(|| {
                while began.elapsed() < time {
                    commit();
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    count.into_inner() as f64 / began.elapsed().as_secs_f64()
}
