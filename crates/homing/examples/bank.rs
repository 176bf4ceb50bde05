//! A small database with all that makes one: a write-ahead log, pages in memory over a file,
//! checkpoints in the background, recovery. Accounts have balances, and many threads transfer from
//! one to another. After a crash, no transfer is half done, and none that a caller was told of is
//! lost.
//!
//! ```sh
//! cargo run --release -p homing --example bank -- FOLDER 5
//! ```
//!
//! runs for five seconds. Kill it with `kill -9` and run it again: it says how many transfers it
//! had to do again from the log, and that the sum is unchanged.
//!
//! The rules of such a program, and where they are kept:
//!
//! 1. A change is appended to the log before a page has it ([`Bank::transfer`]).
//! 2. A page goes to the file only when all that the page has is on disk in the log
//!    ([`Accounts::write`]).
//! 3. Records are cut off only when the pages that they changed are on the disk
//!    ([`Bank::checkpoint`]).
//! 4. Doing a record again changes nothing more: it holds the new balances, not the amounts added.
//! 5. If a change that is in the log cannot be made, only opening the bank again makes it whole:
//!    from then on nothing is changed, and no record cut off ([`Bank::order`]).

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use homing::pages::{Background, Backing, CachedFile, Job, PageCache};
use homing::{Durable, Log, Runtime, Work, Workqueue, blocking};

const COUNT: u64 = 100_000;
const SUM: u64 = COUNT * 1000;
const BALANCE: u64 = 8;

/// How often checkpoints begin, and the size in bytes of the segments in which the log is cut off.
/// Recovery reads the records since the last checkpoint, and up to a segment before.
const CHECKPOINTS: Duration = Duration::from_millis(500);
const SEGMENT: u64 = 1 << 20;

/// The file of balances.
struct Accounts {
    file: Arc<File>,
    durable: Durable,
    log: Log,
}

impl Backing for Accounts {
    fn size(&self) -> u64 {
        COUNT * BALANCE
    }

    fn read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(data, offset)
    }

    fn write(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        // Rule 2. Most of the time the log is on disk that far already, and this costs only a lock.
        self.log.commit_and_wait(self.log.last_sequence())?;
        self.file.write_all_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        // Unlike the system's own call, this goes on failing once it has failed.
        Ok(self.durable.fdatasync_and_wait(&self.file)?)
    }
}

/// Lets the runtime do the page cache's background work.
struct OnWorkqueue(Workqueue);

impl Background for OnWorkqueue {
    fn spawn(&self, job: Job) {
        self.0.execute(job);
    }
}

struct Bank {
    log: Log,
    accounts: CachedFile,
    /// Held while a change is appended and made, so that both happen in the same order. `false` if
    /// one was appended and could not be made: a write to a page fails if the disk is full and no
    /// memory is left.
    order: Mutex<bool>,
}

impl Bank {
    /// Opens the bank, or makes it. Also returns how many records had to be done again.
    fn open(runtime: &Runtime, folder: &Path) -> Result<(Arc<Self>, u64), Box<dyn Error>> {
        let durable = Durable::of(runtime);
        std::fs::create_dir_all(folder)?;
        let path = folder.join("accounts");
        if !path.exists() {
            // The file gets its name once it is whole.
            let (unborn, opening) = (folder.join("accounts.new"), (SUM / COUNT).to_le_bytes());
            std::fs::write(&unborn, opening.repeat(COUNT as usize))?;
            durable.fsync_and_wait(&File::open(&unborn)?)?;
            std::fs::rename(unborn, &path)?;
            durable.sync_parent(&path)?.wait()?;
        }
        let file = Arc::new(File::options().read(true).write(true).open(path)?);
        let (log, recovery) =
            Log::options().segment_length(SEGMENT).open(&durable, folder.join("log"))?;

        // The cache has room for a part of the file.
        let background = OnWorkqueue(runtime.workqueue("pages").mem_reclaim().blocking().build()?);
        let cache = PageCache::builder(2 << 20).background(background).build()?;
        let backing = Accounts { file, durable, log: log.clone() };
        let accounts = cache.open(Arc::new(backing), &cache.group("accounts").build())?;
        let bank = Self { log, accounts, order: Mutex::new(true) };
        for record in bank.log.records() {
            bank.apply(&record?.data)?;
        }
        bank.checkpoint()?;
        Ok((Arc::new(bank), recovery.records))
    }

    fn balance(&self, account: u64) -> io::Result<u64> {
        let mut balance = [0; BALANCE as usize];
        self.accounts.read(account * BALANCE, &mut balance)?;
        Ok(u64::from_le_bytes(balance))
    }

    /// Rule 5.
    fn whole(&self) -> io::Result<MutexGuard<'_, bool>> {
        let order = self.order.lock().unwrap();
        let text = "a transfer is made in part: open the bank again";
        if *order { Ok(order) } else { Err(io::Error::other(text)) }
    }

    /// When this has returned, the transfer is there, whatever happens.
    fn transfer(&self, from: u64, to: u64, amount: u64) -> Result<(), Box<dyn Error>> {
        let sequence = {
            let mut order = self.whole()?;
            let amount = amount.min(self.balance(from)?);
            if amount == 0 || from == to {
                return Ok(());
            }
            // Rules 1 and 4.
            let change = [from, self.balance(from)? - amount, to, self.balance(to)? + amount]
                .map(u64::to_le_bytes);
            let sequence = self.log.append(change.as_flattened())?;
            let made = self.apply(change.as_flattened());
            *order = made.is_ok();
            made?;
            sequence
        };
        // Not under the lock: transfers that come meanwhile share the next flush.
        Ok(self.log.commit_and_wait(sequence)?)
    }

    fn apply(&self, change: &[u8]) -> io::Result<()> {
        let numbers =
            change.chunks_exact(8).map(|number| number.try_into().map(u64::from_le_bytes));
        let Ok(&[from, of_from, to, of_to]) = numbers.collect::<Result<Vec<_>, _>>().as_deref()
        else {
            return Err(io::Error::other("a record of another program"));
        };
        for (account, balance) in [(from, of_from), (to, of_to)] {
            self.accounts.write(account * BALANCE, &balance.to_le_bytes())?;
        }
        Ok(())
    }

    /// Rule 3.
    fn checkpoint(&self) -> Result<(), Box<dyn Error>> {
        // While nobody else holds the lock, every change that was appended has been made in its
        // page, too.
        let last = {
            let _order = self.whole()?;
            self.log.last_sequence()
        };
        self.log.commit_and_wait(last)?;
        self.accounts.flush_all()?;
        Ok(self.log.truncate_before(last.next()).wait()?)
    }

    fn sum(&self) -> io::Result<u64> {
        let _order = self.order.lock().unwrap();
        (0..COUNT).map(|account| self.balance(account)).sum()
    }
}

/// A work item that queues itself again after each checkpoint.
fn checkpoints(runtime: &Runtime, bank: &Arc<Bank>) -> Result<Work, Box<dyn Error>> {
    let bank = Arc::clone(bank);
    let work = runtime.workqueue("checkpoints").build()?.work(move |this| {
        if let Err(error) = blocking(|| bank.checkpoint()) {
            // The next checkpoint may have room. A log that has failed says so to every transfer.
            eprintln!("no checkpoint: {error}");
        }
        this.queue_delayed(CHECKPOINTS);
    });
    work.queue_delayed(CHECKPOINTS);
    Ok(work)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("which folder?")?;
    let time = Duration::from_secs(arguments.next().map_or(Ok(5), |seconds| seconds.parse())?);
    let runtime = Runtime::new()?;
    let (bank, again) = Bank::open(&runtime, Path::new(&folder))?;
    let sum = bank.sum()?;
    println!("{again} transfers done again; the sum is {sum} of {SUM}");
    let work = checkpoints(&runtime, &bank)?;

    let (stops, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 1..=16 {
            let (bank, stops, done) = (&bank, &stops, &done);
            scope.spawn(move || {
                let mut next = thread * 0x9E37_79B9_u64;
                while !stops.load(Ordering::Relaxed) {
                    next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let [from, to] = [next >> 40, (next >> 16) & 0xFF_FFFF].map(|n| n % COUNT);
                    match bank.transfer(from, to, 10) {
                        Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                        Err(error) => return eprintln!("{error}"),
                    };
                }
            });
        }
        thread::sleep(time);
        stops.store(true, Ordering::Relaxed);
    });
    work.disable_sync();
    bank.checkpoint()?;
    let rate = done.into_inner() as f64 / time.as_secs_f64();
    println!("{rate:.0} transfers a second; the sum is {} of {SUM}", bank.sum()?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_transferred_is_there_though_no_page_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let balances = |bank: &Bank| [1, 2, 70_000].map(|account| bank.balance(account).unwrap());
        let runtime = Runtime::new().unwrap();
        let (bank, again) = Bank::open(&runtime, folder.path()).unwrap();
        assert_eq!((again, balances(&bank), bank.sum().unwrap()), (0, [1000; 3], SUM));
        let work = checkpoints(&runtime, &bank).unwrap();
        bank.transfer(1, 70_000, 300).unwrap();
        work.disable_sync();
        bank.checkpoint().unwrap();
        bank.transfer(2, 1, 5000).unwrap();
        let expected = [1700, 0, 1300];
        assert_eq!(balances(&bank), expected);
        // This is like a crash: another file replaces the one that the pages are written to.
        let copy = folder.path().join("copy");
        std::fs::create_dir_all(copy.join("log")).unwrap();
        std::fs::copy(folder.path().join("accounts"), copy.join("accounts")).unwrap();
        for segment in std::fs::read_dir(folder.path().join("log")).unwrap() {
            let segment = segment.unwrap();
            std::fs::copy(segment.path(), copy.join("log").join(segment.file_name())).unwrap();
        }
        let (bank, again) = Bank::open(&runtime, &copy).unwrap();
        assert_eq!((again, balances(&bank), bank.sum().unwrap()), (1, expected, SUM));
    }
}
