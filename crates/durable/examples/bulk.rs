//! Makes thousands of new files durable: one after the other, and all at once. Takes a folder on
//! the filesystem to try, and the number of files: 1000 by default, since one after the other takes
//! a while.
//!
//! ```sh
//! cargo run --release -p homing-durable --example bulk -- . 10000
//! ```

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use homing_durable::{Backend, Durable, Strategy, WriteBack};
use homing_runtime::Runtime;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| ".".to_owned());
    let count: usize = arguments.next().map_or(Ok(1000), |count| count.parse())?;
    let runtime = Runtime::new()?;
    let durable = Durable::new(&runtime)?;

    let took = timed(&folder, count, |files| {
        files.iter().try_for_each(|file| file.sync_all())?;
        Ok(())
    })?;
    println!("{:<25} {took:>9.0} files/s", "serial");
    let ways = [
        (Strategy::Files, Backend::Threads, WriteBack::Late),
        (Strategy::Files, Backend::Threads, WriteBack::Early),
        (Strategy::Files, Backend::IoUring, WriteBack::Late),
        (Strategy::Files, Backend::IoUring, WriteBack::Early),
        (Strategy::Filesystem, Backend::Threads, WriteBack::Auto),
        (Strategy::Auto, Backend::Threads, WriteBack::Auto),
    ];
    for (strategy, backend, write_back) in ways {
        durable.set_strategy(strategy);
        durable.set_write_back(write_back);
        if let Err(error) = durable.set_backend(backend) {
            println!("{:<25} skipped: {error}", backend.name());
            continue;
        }
        let rate = timed(&folder, count, |files| {
            durable.fsync_many(files).wait().into_iter().collect::<Result<(), _>>()?;
            Ok(())
        })?;
        let way = format!("{} {} {}", strategy.name(), backend.name(), write_back.name());
        println!("{way:<25} {rate:>9.0} files/s");
    }
    println!("{:?}", durable.counters());
    Ok(())
}

/// The number of files made durable in a second.
fn timed(
    folder: &str,
    count: usize,
    sync: impl FnOnce(&[Arc<File>]) -> io::Result<()>,
) -> io::Result<f64> {
    let folder = tempfile::tempdir_in(Path::new(folder))?;
    let files: Vec<Arc<File>> = (0..count)
        .map(|number| {
            let mut file = File::create(folder.path().join(number.to_string()))?;
            file.write_all(&[7; 4096])?;
            Ok(Arc::new(file))
        })
        .collect::<io::Result<_>>()?;
    let began = Instant::now();
    sync(&files)?;
    Ok(count as f64 / began.elapsed().as_secs_f64())
}
