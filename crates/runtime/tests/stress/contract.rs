//! The contract under load: workqueues of all kinds, work items and closures, whatever can be done
//! to them at random, and every instance accounted for in the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{Builder, CpuId, CpuSet, JoinHandle, Nice, Runtime, Scope, Work, blocking};

use crate::accounts::{ISSUERS, Kind, LIMIT, Ledger, Life, Place, add, die, until};
use crate::{Random, duration, each_machine, quiet_panics, wait};

/// Work items of each life in each workqueue.
const WORKS: usize = 4;

/// If nothing has run for so long, somebody was left asleep.
const HANG: Duration = Duration::from_secs(60);

/// A work item, and its books.
struct Counted {
    work: Work,
    ledger: Arc<Ledger>,
    place: Arc<Place>,
}

/// What all threads of the test share.
struct Stage {
    places: Vec<Arc<Place>>,
    works: Vec<Counted>,
    cpus: Vec<CpuId>,
    /// Items that have run.
    ran: Arc<AtomicU64>,
    /// Work items do not queue themselves any more.
    ending: Arc<AtomicBool>,
    /// Every closure and every function holds one.
    alive: Arc<()>,
}

/// Whether the issuers go on: until so many items have run, or for a time.
fn goes_on() -> impl Fn(u64) -> bool + Clone + Send {
    let items = std::env::var("HOMING_STRESS_ITEMS").ok();
    let items: Option<u64> = items.map(|text| text.parse().expect("a number of items"));
    let end = Instant::now() + duration();
    move |ran| items.map_or_else(|| Instant::now() < end, |items| ran < items)
}

#[test]
fn every_instance_is_accounted_for() {
    quiet_panics();
    each_machine(account_for_every_instance);
}

fn account_for_every_instance(builder: Builder) {
    let (refuse, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let runtime = builder
        .keep_alive(Duration::from_millis(5))
        .refuse_threads(Arc::clone(&refuse))
        .thread_name("contract")
        .build()
        .unwrap();
    let stage = Arc::new(Stage::new(&runtime));
    let (began, goes_on) = (Instant::now(), goes_on());
    let chaos = {
        let (stage, over) = (Arc::clone(&stage), Arc::clone(&over));
        thread::spawn(move || stage.disturb(&over))
    };
    let refuser = {
        let over = Arc::clone(&over);
        thread::spawn(move || refuse_now_and_then(&refuse, &over))
    };
    let watch = {
        let (stage, over) = (Arc::clone(&stage), Arc::clone(&over));
        thread::spawn(move || stage.watch(&over))
    };
    let issuers: Vec<_> = (0..ISSUERS)
        .map(|issuer| {
            let (stage, goes_on) = (Arc::clone(&stage), goes_on.clone());
            thread::spawn(move || stage.issue(issuer, goes_on))
        })
        .collect();
    for issuer in issuers {
        issuer.join().unwrap();
    }
    stage.ending.store(true, Ordering::SeqCst);
    over.store(true, Ordering::SeqCst);
    chaos.join().unwrap();
    refuser.join().unwrap();
    // What is on a timer is waited for, too.
    stage.works.iter().for_each(|one| while one.work.flush() {});
    stage.places.iter().for_each(|place| place.queue.flush());
    stage.works.iter().for_each(|one| one.ledger.check_end(&one.work, &one.place));
    stage.places.iter().for_each(|place| place.check_end());
    watch.join().unwrap();
    let ran = stage.ran.load(Ordering::SeqCst);
    println!("{ran} items in {:?}", began.elapsed());

    let alive = Arc::downgrade(&stage.alive);
    stage.places.iter().for_each(|place| place.queue.destroy());
    drop(Arc::into_inner(stage).expect("all threads have ended"));
    let left = || Weak::strong_count(&alive);
    until("all functions and closures are freed", || left() == 0);
    drop(runtime);
}

impl Stage {
    fn new(runtime: &Runtime) -> Self {
        let nodes = runtime.machine().cpus().iter().flat_map(|cpu| &cpu.numa_nodes);
        let nodes = nodes.collect::<std::collections::BTreeSet<_>>().len() as u64;
        let place = |(kind, drains, blocks): (Kind, bool, bool)| {
            let builder = runtime.workqueue("contract");
            let builder = match kind {
                Kind::Plain => builder,
                Kind::Limited => builder.max_active(LIMIT),
                Kind::Ordered => builder.ordered(),
                Kind::PerCpu => builder.per_cpu(),
                Kind::Freezable => builder.freezable(),
                Kind::MemReclaim => builder.mem_reclaim(),
            };
            let builder = if blocks { builder.blocking() } else { builder };
            let mut place = Place::new(builder.build().unwrap(), kind, drains, nodes);
            place.blocks = blocks;
            Arc::new(place)
        };
        let kinds = [
            (Kind::Plain, false, false),
            (Kind::Limited, false, false),
            (Kind::Ordered, false, false),
            (Kind::PerCpu, false, false),
            (Kind::Freezable, false, false),
            (Kind::MemReclaim, false, false),
            (Kind::Plain, true, false),
            (Kind::Ordered, true, false),
            (Kind::Limited, true, false),
            (Kind::Plain, false, true),
            (Kind::Limited, false, true),
            (Kind::Ordered, true, true),
            (Kind::Freezable, false, true),
            (Kind::MemReclaim, false, true),
        ];
        let mut stage = Self {
            places: kinds.map(place).into(),
            works: Vec::new(),
            cpus: runtime.cpus().iter().collect(),
            ran: Arc::default(),
            ending: Arc::default(),
            alive: Arc::default(),
        };
        for place in stage.places.clone() {
            for life in [Life::Queued, Life::Moved, Life::Disabled, Life::Anything] {
                // A move that is refused, because the workqueue drains, does not say so.
                if !place.drains || matches!(life, Life::Queued | Life::Disabled) {
                    let works: Vec<_> = (0..WORKS).map(|_| stage.work(&place, life)).collect();
                    stage.works.extend(works);
                }
            }
        }
        stage
    }

    fn work(&self, place: &Arc<Place>, life: Life) -> Counted {
        let ledger = Arc::new(Ledger::new(life));
        let (books, at, ran) = (Arc::clone(&ledger), Arc::clone(place), Arc::clone(&self.ran));
        let (ending, alive) = (Arc::clone(&self.ending), Arc::clone(&self.alive));
        let mut own = 0;
        let work = place.queue.work(move |work| {
            // It is held as long as the function is.
            assert!(Arc::strong_count(&alive) > 1);
            let _inside = at.enter();
            own += 1;
            books.run(own, || {
                dawdle(own.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48, at.blocks);
                if own.is_multiple_of(7) && !ending.load(Ordering::Relaxed) {
                    books.want();
                    books.queued(work.queue());
                }
            });
            add(&at.works_ran);
            add(&ran);
            assert!(!own.is_multiple_of(1000), "on purpose");
        });
        Counted { work, ledger, place: Arc::clone(place) }
    }

    /// One of the threads that queue, wait and cancel.
    fn issue(&self, issuer: usize, goes_on: impl Fn(u64) -> bool) {
        let mut random = Random(issuer as u64);
        let mut handles = Vec::new();
        let (mut number, mut turn) = (0, 0_u32);
        loop {
            turn += 1;
            if turn.is_multiple_of(256) {
                if !goes_on(self.ran.load(Ordering::Relaxed)) {
                    break;
                }
                // Items that nobody waits for must not pile up.
                self.places.iter().for_each(|place| place.queue.flush());
            }
            if random.below(3) == 0 {
                let place = &self.places[random.below(self.places.len())];
                number += 1;
                self.closure(place, (issuer, number), &mut random, &mut handles);
                if handles.len() > random.below(64) {
                    handles.drain(..).for_each(|(place, handle)| settle(&place, handle));
                }
            } else {
                self.touch(&mut random);
            }
        }
        handles.drain(..).for_each(|(place, handle)| settle(&place, handle));
    }

    /// Queues a closure, in one way or another.
    fn closure(
        &self,
        place: &Arc<Place>,
        (issuer, number): (usize, u64),
        random: &mut Random,
        handles: &mut Vec<(Arc<Place>, JoinHandle<()>)>,
    ) {
        let (at, ran) = (Arc::clone(place), Arc::clone(&self.ran));
        let (alive, pause) = (Arc::clone(&self.alive), random.next() >> 48);
        let run = move |in_order: bool| {
            // It is held as long as the closure is.
            assert!(Arc::strong_count(&alive) > 1);
            let _inside = at.enter();
            if in_order {
                at.check_order(issuer, number);
            }
            add(&at.closures_ran);
            add(&ran);
            dawdle(pause, at.blocks);
            assert!(pause % 512 != 7, "on purpose");
        };
        let kept = |handle| Some((Arc::clone(place), handle));
        add(&place.closures);
        let handle = match random.below(8) {
            0 => kept(place.queue.queue(move || run(true))),
            1 => {
                let cpu = self.cpus[random.below(self.cpus.len())];
                kept(place.queue.queue_on(cpu, move || run(true)).unwrap())
            }
            2 => {
                let handle = place.queue.queue(move || run(true));
                handle.abort();
                kept(handle)
            }
            3 => {
                // Queued by an item of another workqueue, so in no order with the rest.
                let (inner, count) = (Arc::clone(place), Arc::clone(place));
                let outer = &self.places[0];
                add(&outer.closures);
                let (of_outer, ran) = (Arc::clone(outer), Arc::clone(&self.ran));
                let handle = outer.queue.queue(move || {
                    let _inside = of_outer.enter();
                    add(&of_outer.closures_ran);
                    add(&ran);
                    let handle = inner.queue.queue(move || run(false));
                    settle_within(&count, handle);
                });
                Some((Arc::clone(outer), handle))
            }
            _ => {
                place.queue.execute(move || run(true));
                None
            }
        };
        handles.extend(handle);
    }

    /// Does something to a work item.
    fn touch(&self, random: &mut Random) {
        let Counted { work, ledger, .. } = &self.works[random.below(self.works.len())];
        let delay = Duration::from_micros(random.below(300) as u64);
        let cancels = ledger.life != Life::Queued;
        let disables = matches!(ledger.life, Life::Disabled | Life::Anything);
        let moves = matches!(ledger.life, Life::Moved | Life::Anything);
        match random.below(64) {
            0..2 if cancels => ledger.cancelled(work.cancel()),
            2 if disables => ledger.cancelled(work.cancel_sync()),
            3 if disables => {
                ledger.cancelled(work.disable());
                thread::yield_now();
                work.enable();
            }
            4 if disables => {
                ledger.cancelled(work.disable_sync());
                work.enable();
            }
            5..9 if moves => ledger.moved(work.mod_delayed(delay)),
            9 if moves => ledger.moved(work.mod_delayed(Duration::ZERO)),
            10..14 => {
                ledger.want();
                ledger.queued(work.queue_delayed(delay));
            }
            14 => _ = work.flush(),
            15 => _ = work.flush_delayed(),
            16..20 => {
                let cpu = self.cpus[random.below(self.cpus.len())];
                ledger.want();
                ledger.queued(work.queue_on(cpu).unwrap());
            }
            _ => {
                ledger.want();
                ledger.queued(work.queue());
            }
        }
    }

    /// The thread that changes, freezes and drains.
    fn disturb(&self, over: &AtomicBool) {
        let mut random = Random(99);
        while !over.load(Ordering::Relaxed) {
            let place = &self.places[random.below(self.places.len())];
            self.change(place, &mut random);
            match random.below(8) {
                0 if place.drains => place.queue.drain(),
                1 if place.kind == Kind::Freezable => {
                    if place.queue.freeze(Duration::from_millis(20)).is_ok() {
                        let quiet = (0..20).all(|_| {
                            thread::yield_now();
                            place.running() == 0
                        });
                        if !quiet {
                            die("an item runs in a frozen workqueue");
                        }
                        place.queue.thaw();
                    }
                }
                _ => thread::sleep(Duration::from_micros(300)),
            }
        }
    }

    fn change(&self, place: &Place, random: &mut Random) {
        let queue = &place.queue;
        let bound = place.kind == Kind::PerCpu;
        match random.below(6) {
            0 if !bound => queue.set_affinity_scope(Scope::ALL[random.below(6)]),
            1 if !bound => queue.set_affinity_strict(random.below(2) == 0),
            2 if !bound => queue.set_localize(random.below(2) == 0),
            // A runtime has 255 combinations of attributes at most.
            3 if !bound && !place.blocks => {
                let one = CpuSet::of(self.cpus[random.below(self.cpus.len().min(2))]);
                queue.set_cpumask((random.below(2) == 0).then_some(one))
            }
            4 => queue.set_nice([Nice::HIGHPRI, Nice::NORMAL][random.below(2)]),
            5 if place.kind == Kind::Limited => {
                queue.set_max_active(Some(1 + random.below(LIMIT as usize) as u32))
            }
            _ => Ok(()),
        }
        .unwrap();
    }

    /// Ends the test if nothing happens any more.
    fn watch(&self, over: &AtomicBool) {
        let (mut before, mut since) = (0, Instant::now());
        while !over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
            let ran = self.ran.load(Ordering::Relaxed);
            if ran != before {
                (before, since) = (ran, Instant::now());
            }
            if since.elapsed() > HANG {
                self.places.iter().for_each(|place| eprintln!("{:?}", place.queue));
                let busy =
                    self.works.iter().filter(|it| it.work.is_pending() || it.work.is_running());
                busy.for_each(|it| eprintln!("{:?}", it.work));
                die("nothing has run for a minute");
            }
        }
    }
}

/// Refuses threads for a while. A thread that waits for nothing does so, because items that wait
/// for others may need threads.
fn refuse_now_and_then(refuse: &AtomicBool, over: &AtomicBool) {
    let mut random = Random(7);
    while !over.load(Ordering::Relaxed) {
        refuse.store(random.below(3) == 0, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(1 + random.below(20) as u64));
    }
    refuse.store(false, Ordering::Relaxed);
}

/// Most items are short; some take their time, with or without saying so.
fn dawdle(dice: u64, blocks: bool) {
    match dice % 4096 {
        ..256 if blocks => thread::sleep(Duration::from_micros(dice % 100)),
        0 => thread::sleep(Duration::from_millis(1)),
        1..8 => blocking(|| thread::sleep(Duration::from_micros(50))),
        8..64 => (0..dice).for_each(|_| std::hint::spin_loop()),
        _ => {}
    }
}

/// Waits for a closure and writes down whether it was cancelled: aborted, or refused.
fn settle(place: &Place, handle: JoinHandle<()>) {
    if matches!(wait(handle), Err(homing_runtime::JoinError::Cancelled)) {
        add(&place.cancelled);
    }
}

/// [`settle`] within an item.
fn settle_within(place: &Place, handle: JoinHandle<()>) {
    if matches!(handle.join(), Err(homing_runtime::JoinError::Cancelled)) {
        add(&place.cancelled);
    }
}
