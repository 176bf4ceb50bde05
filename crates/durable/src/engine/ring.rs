//! Syncs files through `io_uring`: one thread submits them and takes the results; the kernel's own
//! workers, as many as it is told to use, do the waiting.
//!
//! One thread, because the kernel cancels the requests of a thread that ends.
#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use homing_runtime::unpinned;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::EventfdFlags;

use crate::durable::Kind;
use crate::sync::{Mutex, lock};

/// How many requests one system call submits; more requests take more calls.
const ENTRIES: u32 = 256;
/// The number of the request that waits for the bell.
const BELL: u64 = 0;

type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// A sync that somebody wants.
struct Order {
    file: Arc<File>,
    kind: Kind,
    /// Called with the result; `None` once it has been.
    done: Option<Done>,
}

impl Order {
    fn end(mut self, result: io::Result<()>) {
        if let Some(done) = self.done.take() {
            done(result);
        }
    }

    /// Ends an order that has not been begun, and will not be.
    fn cancel(self) {
        self.end(Err(io::Error::from_raw_os_error(libc::ECANCELED)));
    }
}

impl Drop for Order {
    /// An order that has not ended is dropped because the ring's thread panics: nobody knows what
    /// became of it.
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(io::Error::from_raw_os_error(libc::EIO)));
        }
    }
}

/// The ring. Dropping it waits for what is under way.
pub(crate) struct Ring {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    inbox: Mutex<Inbox>,
    bell: OwnedFd,
    /// The ring's descriptor, for tests that break it.
    #[cfg(all(test, not(shuttle)))]
    ring: std::os::fd::RawFd,
}

#[derive(Default)]
struct Inbox {
    orders: Vec<Order>,
    workers: Option<u32>,
    stops: bool,
    /// Nobody takes orders any more.
    is_broken: bool,
}

impl Ring {
    /// A ring whose syncs run on this many kernel threads.
    ///
    /// # Errors
    /// If the kernel has no `io_uring`, or does not let this program use it.
    pub(crate) fn new(workers: u32) -> io::Result<Self> {
        let ring = IoUring::new(ENTRIES)?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let inbox = Mutex::new(Inbox { workers: Some(workers), ..Inbox::default() });
        let shared = Arc::new(Shared {
            inbox,
            bell,
            #[cfg(all(test, not(shuttle)))]
            ring: ring.as_raw_fd(),
        });
        let for_thread = Arc::clone(&shared);
        let body = move || {
            let _broken = WhenGone(Arc::clone(&for_thread));
            let (under_way, waiting) = (HashMap::new(), VecDeque::new());
            Loop { ring, shared: for_thread, under_way, waiting, last: BELL }.run();
        };
        let named = thread::Builder::new().name("durable ring".to_owned());
        let thread = unpinned(|| named.spawn(body))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Whether it takes no orders any more.
    pub(crate) fn is_broken(&self) -> bool {
        lock(&self.shared.inbox).is_broken
    }

    /// Syncs a file, and calls `done` on the ring's thread. If the ring is broken, calls it with
    /// `ECANCELED` on this thread.
    pub(crate) fn sync(&self, file: Arc<File>, kind: Kind, done: Done) {
        let order = Order { file, kind, done: Some(done) };
        let refused = {
            let mut inbox = lock(&self.shared.inbox);
            if inbox.is_broken {
                Some(order)
            } else {
                inbox.orders.push(order);
                None
            }
        };
        match refused {
            Some(order) => order.cancel(),
            None => self.shared.ring_bell(),
        }
    }

    pub(crate) fn set_workers(&self, workers: u32) {
        self.shared.tell(|inbox| inbox.workers = Some(workers));
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.tell(|inbox| inbox.stops = true);
        let Some(thread) = self.thread.take() else { return };
        // The last `done` may have held the last reference to the engine: then this is the ring's
        // thread.
        if thread.thread().id() != thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn tell(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut lock(&self.inbox));
        self.ring_bell();
    }

    fn ring_bell(&self) {
        // Fails if the bell has rung 2^64 times unheard: then it will be heard anyway.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// What the ring's thread owns.
struct Loop {
    ring: IoUring,
    shared: Arc<Shared>,
    /// Each file stays open until its request has ended.
    under_way: HashMap<u64, Order>,
    /// Orders for which there was no room yet.
    waiting: VecDeque<Order>,
    last: u64,
}

/// Dropped when the ring's thread ends, whatever ends it: nobody takes orders any more.
struct WhenGone(Arc<Shared>);

impl Drop for WhenGone {
    fn drop(&mut self) {
        let orders = {
            let mut inbox = lock(&self.0.inbox);
            inbox.is_broken = true;
            std::mem::take(&mut inbox.orders)
        };
        orders.into_iter().for_each(Order::cancel);
    }
}

impl Loop {
    fn run(mut self) {
        let mut hears = false;
        loop {
            let (orders, workers, stops) = {
                let mut inbox = lock(&self.shared.inbox);
                (std::mem::take(&mut inbox.orders), inbox.workers.take(), inbox.stops)
            };
            if let Some(workers) = workers {
                // A kernel before 5.15 does not know this limit, and runs as many as it likes.
                let mut limits = [workers, workers];
                let _ = self.ring.submitter().register_iowq_max_workers(&mut limits);
            }
            self.waiting.extend(orders);
            if stops && self.under_way.is_empty() && self.waiting.is_empty() {
                return;
            }
            if !hears {
                let bell = types::Fd(self.shared.bell.as_raw_fd());
                let entry = opcode::PollAdd::new(bell, libc::POLLIN as u32).build();
                hears = self.push(&entry.user_data(BELL));
            }
            while let Some(order) = self.waiting.pop_front() {
                if let Err(order) = self.order(order) {
                    self.waiting.push_front(order);
                    break;
                }
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) => match error.raw_os_error() {
                    // Busy: results that are there must be taken first.
                    Some(libc::EINTR | libc::EBUSY) => {}
                    // Out of memory: asking again at once would take a CPU, and free no memory.
                    Some(libc::EAGAIN) => thread::sleep(Duration::from_millis(1)),
                    _ => return self.fail(&error),
                },
            }
            let ended: Vec<_> =
                self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            for (number, result) in ended {
                if number == BELL {
                    hears = false;
                    let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
                } else if let Some(order) = self.under_way.remove(&number) {
                    let failed = result < 0;
                    order.end(if failed {
                        Err(io::Error::from_raw_os_error(-result))
                    } else {
                        Ok(())
                    });
                }
            }
        }
    }

    /// Pushes an order. Gives it back if there is no room before the kernel has taken others.
    fn order(&mut self, order: Order) -> Result<(), Order> {
        let sync = opcode::Fsync::new(types::Fd(order.file.as_raw_fd()));
        let sync = match order.kind {
            Kind::Data => sync.flags(types::FsyncFlags::DATASYNC),
            Kind::All => sync,
        };
        let number = self.last + 1;
        if !self.push(&sync.build().user_data(number)) {
            return Err(order);
        }
        self.last = number;
        self.under_way.insert(number, order);
        Ok(())
    }

    /// Pushes a request. Returns whether there was room.
    fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the requests have no pointers, and their descriptors stay open until they have
        // ended: files in `under_way`, the bell as long as the ring's thread.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Ends all orders, because the ring is broken. Nobody knows what became of those under way.
    fn fail(mut self, error: &io::Error) {
        let errno = match error.raw_os_error() {
            None | Some(libc::ECANCELED) => libc::EIO,
            Some(errno) => errno,
        };
        let orders = {
            let mut inbox = lock(&self.shared.inbox);
            inbox.is_broken = true;
            std::mem::take(&mut inbox.orders)
        };
        for (_, order) in self.under_way.drain() {
            order.end(Err(io::Error::from_raw_os_error(errno)));
        }
        self.waiting.drain(..).chain(orders).for_each(Order::cancel);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use homing_runtime::Runtime;

    use super::*;
    use crate::files::file_id::FileId;
    use crate::files::{Asked, Job};
    use crate::{Backend, Durable};

    const LONG: Duration = Duration::from_secs(60);

    fn ring() -> Option<Ring> {
        match Ring::new(4) {
            Ok(ring) => Some(ring),
            Err(error) => {
                println!("skipped: no io_uring here: {error}");
                None
            }
        }
    }

    #[test]
    fn more_orders_than_there_is_room_for_are_all_carried_out() {
        let Some(ring) = ring() else { return };
        let file = Arc::new(tempfile::tempfile().unwrap());
        let (tell, told) = mpsc::channel();
        let count = 20 * ENTRIES as usize;
        for _ in 0..count {
            let tell = tell.clone();
            let done = move |result: io::Result<()>| tell.send(result.is_ok()).unwrap();
            ring.sync(Arc::clone(&file), Kind::Data, Box::new(done));
        }
        assert!((0..count).all(|_| told.recv_timeout(LONG).unwrap()));
    }

    #[test]
    fn where_its_thread_ends_everybody_is_told() {
        let Some(ring) = ring() else { return };
        let file = Arc::new(tempfile::tempfile().unwrap());
        ring.sync(Arc::clone(&file), Kind::Data, Box::new(|_| panic!("the ring's thread ends")));
        let (tell, told) = mpsc::channel();
        let mut asked = 0;
        while !ring.is_broken() {
            let tell = tell.clone();
            let done = move |result: io::Result<()>| drop(tell.send(result));
            ring.sync(Arc::clone(&file), Kind::Data, Box::new(done));
            asked += 1;
        }
        drop(tell);
        let told: Vec<_> = (0..asked).map(|_| told.recv_timeout(LONG).unwrap()).collect();
        let last = told.last().and_then(|last| last.as_ref().err()?.raw_os_error());
        assert!(asked == 0 || last == Some(libc::ECANCELED) || last == Some(libc::EIO), "{last:?}");
    }
    /// Puts another file under the ring's descriptor: the kernel refuses whatever is asked of it.
    fn break_it(ring: &Ring) {
        let other = File::open("/dev/null").unwrap();
        // SAFETY: the descriptor stays open, and is closed by the ring as before.
        assert!(unsafe { libc::dup2(other.as_raw_fd(), ring.shared.ring) } >= 0);
    }

    #[test]
    fn where_the_kernel_refuses_everybody_is_told() {
        let Some(ring) = ring() else { return };
        break_it(&ring);
        let file = Arc::new(tempfile::tempfile().unwrap());
        let (tell, told) = mpsc::channel();
        let ask = || {
            let tell = tell.clone();
            let done = move |result: io::Result<()>| tell.send(result.unwrap_err()).unwrap();
            ring.sync(Arc::clone(&file), Kind::Data, Box::new(done));
        };
        (0..100).for_each(|_| ask());
        let told = || told.recv_timeout(LONG).unwrap().raw_os_error().unwrap();
        // Orders that the ring has taken may have begun, for all anybody knows; the others have
        // not.
        let all: Vec<_> = (0..100).map(|_| told()).collect();
        assert!(all.iter().all(|errno| [libc::ECANCELED, libc::EOPNOTSUPP].contains(errno)));
        ask();
        assert_eq!((told(), ring.is_broken()), (libc::ECANCELED, true));
    }

    #[test]
    fn threads_go_on_where_the_ring_is_broken() {
        let runtime = Runtime::new().unwrap();
        let durable = Durable::new(&runtime).unwrap();
        if let Err(error) = durable.set_backend(Backend::IoUring) {
            println!("skipped: no io_uring here: {error}");
            return;
        }
        let ring = durable.engine.chosen().ring().unwrap();
        break_it(&ring);
        let files: Vec<_> = (0..200).map(|_| tempfile::tempfile().unwrap()).collect();
        let asked: Vec<_> = files.iter().map(|file| durable.fsync(file)).collect();
        let failed: Vec<_> = asked.into_iter().map(|synced| synced.wait().err()).collect();
        assert!(ring.is_broken());
        assert_eq!(durable.backend(), Backend::Threads);
        for (file, error) in files.iter().zip(failed) {
            // Nobody knows what became of the syncs that the ring had taken.
            assert_eq!(durable.fsync(file).wait().err(), error, "it is remembered");
            durable.acknowledge_loss(file);
            durable.fsync(file).wait().unwrap();
        }
        // Asking for the backend again makes a new ring.
        durable.set_backend(Backend::IoUring).unwrap();
        durable.fsync(&files[0]).wait().unwrap();
        assert_eq!(durable.backend(), Backend::IoUring);
        assert!(!durable.engine.chosen().ring().unwrap().is_broken());
    }

    /// Also if a call is asked for when its sync has just ended: others wait for the ring's thread.
    #[test]
    fn no_call_is_made_by_the_rings_thread() {
        let runtime = Runtime::new().unwrap();
        let durable = Durable::new(&runtime).unwrap();
        let (engine, file) = (&durable.engine, tempfile::tempfile().unwrap());
        let (sender, receiver) = mpsc::channel();
        for by_ring in [true, false] {
            let id = FileId::of(&file).unwrap();
            let asked = engine.ask(id, Kind::All, 1, &file, true).unwrap();
            let Asked::New(outcome) = asked else { panic!("nobody else asks") };
            let Some(Job::File(sync)) = engine.next_job() else { panic!("it is alone") };
            let sender = sender.clone();
            outcome.call(move |_| sender.send(thread::current().id()).unwrap());
            let more = engine.end((vec![sync], vec![Ok(())], false), Duration::ZERO, by_ring);
            assert!(more.is_none());
            let caller = receiver.recv_timeout(LONG).unwrap();
            assert_eq!(caller == thread::current().id(), !by_ring);
        }
    }
}
