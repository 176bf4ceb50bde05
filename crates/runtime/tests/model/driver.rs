//! The runtime next to the model: does the same to both, waits until they agree, and knows what it
//! means to agree. Every item, once begun, says so and waits for orders, so that everything happens
//! by order.

use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{JoinError, JoinHandle, Runtime, Work, Workqueue, blocking};
use homing_topology::Machine;

use crate::model::{ItemId, Model, Outcome, Who};
use crate::works::Wait;

/// How long both may disagree.
const PATIENCE: Duration = Duration::from_secs(10);
/// The delay of timers that are not to fire.
pub(crate) const NEVER: Duration = Duration::from_secs(3600);

/// What an item is told.
pub(crate) enum Order {
    End,
    Panic,
    Do(Box<dyn FnOnce() + Send>),
}

fn obey(orders: &Receiver<Order>) {
    loop {
        match blocking(|| orders.recv()) {
            Ok(Order::Do(act)) => act(),
            // Without a message on the screen.
            Ok(Order::Panic) => std::panic::resume_unwind(Box::new("on order")),
            Ok(Order::End) | Err(_) => return,
        }
    }
}

type Begun = Arc<Mutex<Vec<Who>>>;
type Waiting = Pin<Box<dyn Future<Output = bool> + Send>>;

/// A thread or a future that waits.
struct Waiter {
    how: How,
    /// The result that it is to end with.
    result: bool,
    /// Whether it is over in the model, in which it then stays so.
    is_over: bool,
    has_ended: bool,
}

enum How {
    /// A future that is polled by hand.
    Future(Waiting),
    /// A thread that blocks.
    Thread(Option<thread::JoinHandle<bool>>),
}

impl Waiter {
    fn new(how: How, result: bool) -> Self {
        Self { how, result, is_over: false, has_ended: false }
    }

    /// Whether it has ended: then with the result that it is to have.
    fn poll(&mut self) -> bool {
        let ended = match &mut self.how {
            _ if self.has_ended => return true,
            How::Future(future) => future.as_mut().poll(&mut Context::from_waker(Waker::noop())),
            How::Thread(thread) => match thread.take_if(|thread| thread.is_finished()) {
                Some(thread) => Poll::Ready(thread.join().unwrap()),
                None => Poll::Pending,
            },
        };
        self.has_ended = ended.is_ready();
        if let Poll::Ready(result) = ended {
            assert_eq!(result, self.result);
        }
        self.has_ended
    }
}

pub(crate) struct Driver {
    pub(crate) model: Model,
    pub(crate) runtime: Option<Runtime>,
    pub(crate) queues: Vec<Workqueue>,
    pub(crate) works: Vec<Work>,
    begun: Vec<Begun>,
    work_orders: Vec<Sender<Order>>,
    closures: Vec<(ItemId, Sender<Order>)>,
    handles: Vec<(ItemId, JoinHandle<ItemId>)>,
    waiters: Vec<(Wait, Waiter)>,
}

/// A workqueue: whether it is ordered, its limit, whether it can be frozen.
pub(crate) type Kind = (bool, Option<u32>, bool);

impl Driver {
    pub(crate) fn new(kinds: &[Kind], works_each: usize) -> Self {
        let machine = Machine::from_grid("1x4x1").unwrap();
        let runtime = Runtime::builder().on_machine(machine).build().unwrap();
        let mut driver = Self {
            model: Model::default(),
            runtime: None,
            queues: Vec::new(),
            works: Vec::new(),
            begun: Vec::new(),
            work_orders: Vec::new(),
            closures: Vec::new(),
            handles: Vec::new(),
            waiters: Vec::new(),
        };
        for (number, (ordered, max_active, freezable)) in kinds.iter().enumerate() {
            let name = format!("q{number}");
            let builder = runtime.workqueue(&name).affinity_scope(homing_runtime::Scope::Cache);
            let builder = if *ordered { builder.ordered() } else { builder };
            let builder = max_active.iter().fold(builder, |b, max| b.max_active(*max));
            let builder = if *freezable { builder.freezable() } else { builder };
            driver.queues.push(builder.build().unwrap());
            driver.begun.push(Begun::default());
            driver.model.add_queue(*ordered, *max_active, *freezable);
        }
        for queue in (0..kinds.len()).flat_map(|queue| [queue].repeat(works_each)) {
            let number = driver.works.len();
            let (orders, obeyed) = channel();
            let begun = Arc::clone(&driver.begun[queue]);
            driver.works.push(driver.queues[queue].work(move |_| {
                begun.lock().unwrap().push(Who::Work(number));
                obey(&obeyed);
            }));
            driver.work_orders.push(orders);
            driver.model.add_work(queue);
        }
        driver.runtime = Some(runtime);
        driver
    }

    /// The closure of an item that obeys.
    pub(crate) fn closure(
        &mut self,
        queue: usize,
        id: ItemId,
    ) -> impl FnOnce() -> ItemId + Send + use<> {
        let (orders, obeyed) = channel();
        self.closures.push((id, orders));
        let begun = Arc::clone(&self.begun[queue]);
        move || {
            begun.lock().unwrap().push(Who::Closure(id));
            obey(&obeyed);
            id
        }
    }

    pub(crate) fn keep_handle(&mut self, id: ItemId, handle: JoinHandle<ItemId>) {
        self.handles.push((id, handle));
    }

    /// One of the closures whose end nobody has looked at yet, picked by any number.
    pub(crate) fn handle(&self, number: usize) -> Option<(ItemId, &JoinHandle<ItemId>)> {
        let place = number.checked_rem(self.handles.len())?;
        self.handles.get(place).map(|(id, handle)| (*id, handle))
    }

    pub(crate) fn order(&mut self, who: Who, order: Order) {
        let sent = match who {
            Who::Work(work) => self.work_orders[work].send(order),
            Who::Closure(id) => {
                let place = self.closures.iter().position(|(of, _)| *of == id).unwrap();
                self.closures[place].1.send(order)
            }
        };
        assert!(sent.is_ok(), "{who:?} runs and hears nothing");
    }

    /// Lets an item that runs do something, and returns what came of it.
    pub(crate) fn within<T: Send + 'static>(
        &mut self,
        who: Who,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (answer, answered) = channel();
        self.order(who, Order::Do(Box::new(move || _ = answer.send(act()))));
        answered.recv_timeout(PATIENCE).expect("an item that runs obeys")
    }

    pub(crate) fn add_future(
        &mut self,
        wait: Wait,
        result: bool,
        future: impl Future<Output = bool> + Send + 'static,
    ) {
        let mut waiter = Waiter::new(How::Future(Box::pin(future)), result);
        // What it waits for is settled when it is first polled.
        waiter.poll();
        self.waiters.push((wait, waiter));
    }

    pub(crate) fn add_thread(
        &mut self,
        wait: Wait,
        result: bool,
        block: impl FnOnce() -> bool + Send + 'static,
    ) {
        let thread = thread::spawn(block);
        self.waiters.push((wait, Waiter::new(How::Thread(Some(thread)), result)));
    }

    pub(crate) fn waits(&self, of: impl Fn(&Wait) -> bool) -> bool {
        self.waiters.iter().any(|(wait, _)| of(wait))
    }

    /// Lets everything happen that may, in the model and in the runtime, and compares them.
    pub(crate) fn agree(&mut self, after: &str) {
        self.settle_model();
        let began = Instant::now();
        let mut pauses = 0_u32;
        while let Err(why) = self.compare() {
            self.forget_husks();
            assert!(began.elapsed() < PATIENCE, "after {after}: {why}\n{:#?}", self.model);
            pauses += 1;
            if pauses < 20 {
                thread::yield_now();
            } else {
                thread::sleep(Duration::from_micros(50));
            }
        }
        self.waiters.retain(|(_, waiter)| !waiter.has_ended);
    }

    fn settle_model(&mut self) {
        self.model.settle();
        for (wait, waiter) in &mut self.waiters {
            if !waiter.is_over && self.model.is_over(wait) {
                self.model.end_wait(wait);
                waiter.is_over = true;
            }
        }
        self.model.settle();
    }

    fn forget_husks(&mut self) {
        for number in 0..self.queues.len() {
            if self.queues[number].counters().cancelled > self.model.queues[number].cancelled {
                self.model.forget_husk(number);
            }
        }
        self.settle_model();
    }

    fn compare(&mut self) -> Result<(), String> {
        let same = |what: &str, number: usize, same: bool| {
            if same { Ok(()) } else { Err(format!("{what} of {number} differs")) }
        };
        for (number, queue) in self.model.queues.iter().enumerate() {
            let (real, counters) = (&self.queues[number], self.queues[number].counters());
            let mut begun = self.begun[number].lock().unwrap().clone();
            let mut expected = queue.begun.clone();
            if !queue.ordered {
                begun.sort_unstable();
                expected.sort_unstable();
            }
            same("begun", number, begun == expected)?;
            same("queued", number, counters.queued == queue.queued)?;
            same("completed", number, counters.completed == queue.completed)?;
            same("panicked", number, counters.panicked == queue.panicked)?;
            same("cancelled", number, counters.cancelled == queue.cancelled)?;
            let in_flight = self.model.in_flight(number).len() as u64;
            same("in flight", number, counters.in_flight() == in_flight)?;
            let congested = self.model.is_congested(number);
            same("congestion", number, real.is_congested() == congested)?;
            same("max_active", number, real.max_active() == queue.max_active)?;
            let frozen = queue.gate.as_ref().is_some_and(|gate| gate.frozen);
            same("frozen", number, real.is_frozen() == frozen)?;
        }
        for (number, work) in self.model.works.iter().enumerate() {
            let real = &self.works[number];
            same("pending", number, real.is_pending() == work.is_pending())?;
            same("running", number, real.is_running() == work.is_running())?;
            same("disabled", number, real.is_disabled() == (work.disabled > 0))?;
        }
        self.compare_waits()
    }

    fn compare_waits(&mut self) -> Result<(), String> {
        for (wait, waiter) in &mut self.waiters {
            if waiter.poll() != waiter.is_over {
                return Err(format!("{wait:?} has ended: {}", waiter.has_ended));
            }
        }
        let mut place = 0;
        while place < self.handles.len() {
            let (id, handle) = &self.handles[place];
            let (id, ended) = (*id, handle.is_finished());
            let Some(expected) = self.model.outcomes.get(&id) else {
                if ended {
                    return Err(format!("item {id} has ended"));
                }
                place += 1;
                continue;
            };
            if !ended {
                return Err(format!("item {id} has not ended"));
            }
            let (_, handle) = self.handles.swap_remove(place);
            let outcome = match handle.join() {
                Ok(of) => {
                    assert_eq!(of, id);
                    Outcome::Returned
                }
                Err(JoinError::Cancelled) => Outcome::Cancelled,
                Err(_) => Outcome::Panicked,
            };
            assert_eq!(outcome, *expected, "item {id}");
        }
        Ok(())
    }

    /// The runtime ends with whatever there is: all that wait are told, and nothing is left.
    pub(crate) fn shut_down(mut self, now: bool) {
        self.closures.clear();
        self.work_orders.clear();
        let runtime = self.runtime.take().unwrap();
        if now {
            runtime.shutdown_now();
        } else {
            drop(runtime);
        }
        let began = Instant::now();
        for (wait, waiter) in &mut self.waiters {
            // How it ends is another matter now.
            let mut is_over = || match &mut waiter.how {
                How::Future(future) => {
                    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
                }
                How::Thread(thread) => thread.as_ref().is_none_or(thread::JoinHandle::is_finished),
            };
            while !is_over() {
                assert!(began.elapsed() < PATIENCE, "{wait:?} is not over after shutdown");
                thread::sleep(Duration::from_micros(50));
            }
        }
        assert!(self.handles.iter().all(|(_, handle)| handle.is_finished()));
        assert!(self.works.iter().all(|work| !work.is_pending() && !work.is_running()));
        for queue in &self.queues {
            assert_eq!(queue.counters().in_flight(), 0, "{queue:?}");
        }
    }
}

/// Items are let go even if a test has failed, because the runtime waits for them.
impl Drop for Driver {
    fn drop(&mut self) {
        self.closures.clear();
        self.work_orders.clear();
    }
}
