//! Random programs against the runtime and against a model of its contract: every result, counter
//! and order that can be seen must be the model's, after every operation.

mod driver;
mod model;
mod works;

use std::time::Duration;

use homing_runtime::{CpuId, CpuSet, Nice, Scope};
use proptest::prelude::*;
use proptest::test_runner::Config;

use driver::{Driver, Kind, NEVER, Order};
use model::Who;
use works::Wait;

/// Unlimited, limited, ordered; some can be frozen.
const KINDS: [Kind; 6] = [
    (false, None, false),
    (false, Some(2), false),
    (false, Some(1), false),
    (false, Some(3), true),
    (true, None, true),
    (false, None, true),
];
/// With more of them, nobody could tell whose husk has gone.
const WORKS_EACH: usize = 1;

/// Each running item has a thread.
const RUNNING_MAX: usize = 20;
/// Out of 16 colours: beyond these, flushes share colours.
const COLOURS_MAX: usize = 13;

#[derive(Clone, Copy, Debug)]
enum Op {
    Queue,
    QueueWork,
    End,
    Panic,
    Cancel,
    Disable,
    Enable,
    QueueDelayed,
    ModDelayed,
    QueueNow,
    Flush,
    FlushWork,
    CancelSync,
    DisableSync,
    Abort,
    SetMaxActive,
    SetAttribute,
    Freeze,
    Thaw,
    Drain,
    QueueWithin,
    QueueWorkWithin,
    QueueItself,
}

/// An operation with three numbers that say on what.
type Step = (Op, usize, usize, usize);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use Op::*;
    let op = prop_oneof![
        8 => Just(Queue), 8 => Just(QueueWork), 12 => Just(End), 1 => Just(Panic),
        3 => Just(Cancel), 1 => Just(Disable), 2 => Just(Enable), 2 => Just(QueueDelayed),
        3 => Just(ModDelayed), 2 => Just(QueueNow), 3 => Just(Flush), 3 => Just(FlushWork),
        2 => Just(CancelSync), 1 => Just(DisableSync), 2 => Just(Abort), 2 => Just(SetMaxActive),
        2 => Just(SetAttribute), 1 => Just(Freeze), 2 => Just(Thaw), 1 => Just(Drain),
        2 => Just(QueueWithin), 3 => Just(QueueWorkWithin), 2 => Just(QueueItself),
    ];
    prop::collection::vec((op, 0..60_usize, 0..60_usize, 0..4_usize), 20..150)
}

fn cpu(number: usize) -> CpuId {
    CpuId::new(number).unwrap()
}

/// One of the items that run, picked by any number.
fn any_running(driver: &Driver, number: usize) -> Option<(usize, Who)> {
    let running = driver.model.running();
    let place = number.checked_rem(running.len())?;
    running.get(place).copied()
}

/// Whether the test knows the home of what is queued for no CPU in particular.
fn home_is_known(driver: &Driver, work: usize) -> bool {
    let queue = &driver.model.queues[driver.model.queue_of_work(work)];
    queue.gate.is_none() || queue.ordered || !queue.homes_are_cpus
}

fn step(driver: &mut Driver, (op, one, two, three): Step) {
    let queue = one % driver.queues.len();
    let work = one % driver.works.len();
    let crowded = driver.model.running().len() >= RUNNING_MAX;
    match op {
        Op::Queue if !crowded => {
            let id = driver.model.queue(queue, three, None);
            let closure = driver.closure(queue, id);
            let handle = driver.queues[queue].queue_on(cpu(three), closure).unwrap();
            driver.keep_handle(id, handle);
        }
        Op::QueueWork => {
            let expected = driver.model.queue_work(work, three, None);
            assert_eq!(driver.works[work].queue_on(cpu(three)).unwrap(), expected);
        }
        Op::QueueNow if home_is_known(driver, work) => {
            let expected = driver.model.queue_work(work, 0, None);
            let real = &driver.works[work];
            let queued = if three == 0 { real.queue() } else { real.queue_delayed(Duration::ZERO) };
            assert_eq!(queued, expected);
        }
        Op::End | Op::Panic => {
            let Some((item, who)) = any_running(driver, one) else { return };
            let panics = matches!(op, Op::Panic);
            driver.order(who, if panics { Order::Panic } else { Order::End });
            driver.model.end(item, panics);
        }
        Op::Cancel => {
            let expected = driver.model.cancel(work);
            assert_eq!(driver.works[work].cancel(), expected);
        }
        Op::Disable => {
            let expected = driver.model.disable(work);
            assert_eq!(driver.works[work].disable(), expected);
        }
        Op::Enable => {
            let of = &driver.model.works[work];
            if of.disabled > 0 && of.waited_for == 0 {
                let expected = driver.model.enable(work);
                assert_eq!(driver.works[work].enable(), expected);
            }
        }
        Op::QueueDelayed => {
            let expected = driver.model.queue_delayed(work);
            assert_eq!(driver.works[work].queue_delayed(NEVER), expected);
        }
        Op::ModDelayed => {
            let at_once = three < 2 && home_is_known(driver, work);
            let expected = driver.model.mod_delayed(work, at_once);
            let delay = if at_once { Duration::ZERO } else { NEVER };
            assert_eq!(driver.works[work].mod_delayed(delay), expected);
        }
        Op::Flush if driver.model.colours(queue) < COLOURS_MAX => {
            let wait = driver.model.flush(queue);
            let flush = driver.queues[queue].flushed();
            driver.add_future(wait, true, async move {
                flush.await;
                true
            });
        }
        Op::FlushWork => {
            let wait = driver.model.flush_work(work);
            let (real, had) = (driver.works[work].clone(), !matches!(wait, Wait::Nothing));
            driver.add_future(wait, had, async move { real.flushed().await });
        }
        Op::CancelSync | Op::DisableSync if driver.model.works[work].disabled == 0 => {
            let cancels = matches!(op, Op::CancelSync);
            let was_pending = driver.model.disable(work);
            driver.model.works[work].waited_for += 1;
            let real = driver.works[work].clone();
            driver.add_thread(Wait::NoRun(work, cancels), was_pending, move || {
                if cancels { real.cancel_sync() } else { real.disable_sync() }
            });
        }
        Op::Abort => {
            let Some((id, handle)) = driver.handle(one) else { return };
            let aborted = handle.abort();
            assert_eq!(aborted, driver.model.abort(id));
        }
        Op::SetMaxActive if !driver.model.queues[queue].ordered => {
            let max_active = [None, Some(1), Some(2), Some(5)][three];
            driver.queues[queue].set_max_active(max_active).unwrap();
            driver.model.set_max_active(queue, max_active);
        }
        Op::SetAttribute => set_attribute(driver, queue, two, three),
        Op::Freeze if KINDS[queue].2 && !driver.queues[queue].is_frozen() => {
            driver.model.set_frozen(queue, true);
            let real = driver.queues[queue].clone();
            driver.add_thread(Wait::Frozen(queue), true, move || real.freeze(NEVER).is_ok());
        }
        Op::Thaw => thaw(driver, queue),
        Op::Drain => drain(driver, queue),
        Op::QueueWithin if !crowded => {
            let Some((item, who)) = any_running(driver, two) else { return };
            let from = driver.model.queue_of(item);
            let id = driver.model.queue(queue, three, Some(from));
            let (closure, real) = (driver.closure(queue, id), driver.queues[queue].clone());
            let handle = driver.within(who, move || real.queue_on(cpu(three), closure).unwrap());
            driver.keep_handle(id, handle);
        }
        Op::QueueWorkWithin | Op::QueueItself => {
            let Some((item, who)) = any_running(driver, two) else { return };
            let work = match (op, who) {
                (Op::QueueItself, Who::Work(itself)) => itself,
                _ => work,
            };
            let from = driver.model.queue_of(item);
            let expected = driver.model.queue_work(work, three, Some(from));
            let real = driver.works[work].clone();
            let queued = driver.within(who, move || real.queue_on(cpu(three)).unwrap());
            assert_eq!(queued, expected);
        }
        _ => {}
    }
}

fn set_attribute(driver: &mut Driver, queue: usize, which: usize, value: usize) {
    let (real, model) = (&driver.queues[queue], &mut driver.model.queues[queue]);
    match which % 5 {
        0 => {
            let scope = [Scope::Cpu, Scope::Cache, Scope::Numa, Scope::System][value];
            real.set_affinity_scope(scope).unwrap();
        }
        1 => real.set_affinity_strict(value > 1).unwrap(),
        2 => real.set_localize(value == 0).unwrap(),
        3 => real.set_nice(Nice::new(value as i8 * 5 - 5).unwrap()).unwrap(),
        // If there are several homes, the mask decides about them.
        4 if model.ordered => {
            real.set_cpumask((value > 0).then(|| CpuSet::of(cpu(value)))).unwrap();
        }
        _ => {}
    }
    model.homes_are_cpus = real.affinity().scope == Scope::Cpu || real.localize();
}

fn thaw(driver: &mut Driver, queue: usize) {
    let freezing = driver.waits(|wait| matches!(wait, Wait::Frozen(of) if *of == queue));
    if driver.queues[queue].is_frozen() && !freezing {
        driver.model.set_frozen(queue, false);
        driver.queues[queue].thaw();
    }
}

fn drain(driver: &mut Driver, queue: usize) {
    if driver.model.in_flight(queue).is_empty() {
        return;
    }
    let (real, to_drain) = (driver.queues[queue].clone(), driver.queues[queue].clone());
    driver.add_thread(Wait::Drained(queue), true, move || {
        to_drain.drain();
        true
    });
    // The drain has begun when other items are refused.
    while driver.model.queues[queue].drains == 0 {
        std::thread::sleep(Duration::from_millis(1));
        let probe = real.queue_on(cpu(0), || ()).unwrap();
        if !probe.is_finished() && probe.abort() {
            let id = driver.model.queue(queue, 0, None);
            driver.model.abort(id);
            continue;
        }
        let model = &mut driver.model.queues[queue];
        model.queued += 1;
        if probe.join().is_ok() {
            model.completed += 1;
        } else {
            model.cancelled += 1;
            break;
        }
    }
    driver.model.queues[queue].drains += 1;
}

/// Ends all there is, in order.
fn finish(driver: &mut Driver) {
    for work in 0..driver.works.len() {
        let expected = driver.model.cancel(work);
        assert_eq!(driver.works[work].cancel(), expected);
    }
    driver.agree("cancelling all");
    while (0..KINDS.len()).any(|queue| !driver.model.in_flight(queue).is_empty()) {
        if let Some((item, who)) = any_running(driver, 0) {
            driver.order(who, Order::End);
            driver.model.end(item, false);
        } else {
            (0..KINDS.len()).for_each(|queue| thaw(driver, queue));
        }
        driver.agree("ending all");
    }
}

proptest! {
    #![proptest_config(Config { cases: 256, max_shrink_iters: 400, ..Config::default() })]

    #[test]
    fn the_runtime_does_what_the_model_does(steps in steps(), end in 0..3_u32) {
        let mut driver = Driver::new(&KINDS, WORKS_EACH);
        for (number, each) in steps.into_iter().enumerate() {
            step(&mut driver, each);
            driver.agree(&format!("step {number}, {each:?}"));
        }
        if end > 0 {
            finish(&mut driver);
        }
        driver.shut_down(end == 1);
    }
}
