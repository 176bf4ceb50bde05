//! CPUs that come and go: every guarantee holds. The mask is the whole process's, so these tests
//! are a program of their own.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{CpuId, CpuSet, Runtime, Scope, unpinned};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::Pid;

fn threads() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let tid = |task: fs::DirEntry| task.file_name().to_str()?.parse().ok();
    tasks.filter_map(tid).filter_map(Pid::from_raw).collect()
}

/// Gives all threads of the process this mask, as `taskset -a` does; threads come and go
/// meanwhile.
fn set_mask(cpus: &CpuSet) {
    set_mask_of(&threads(), cpus);
}

fn set_mask_of(threads: &[Pid], cpus: &CpuSet) {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(cpu.index()));
    for &tid in threads {
        let _ = rustix::thread::sched_setaffinity(Some(tid), &set);
    }
}

/// Keeps the runtime at work for so long: a monitor that rests looks at no masks.
fn work_for(runtime: &Runtime, time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        (0..20).for_each(|_| runtime.events().execute(|| ()));
        thread::sleep(Duration::from_millis(2));
    }
}

/// One test after the other: the mask is everybody's, and so is the limit of descriptors.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn no_worker_goes_back_to_a_cpu_that_it_may_not_use_where_nobody_can_tell_which_these_are() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = Runtime::new().unwrap();
    let all = runtime.cpus();
    let bound = runtime.workqueue("bound").per_cpu().build().unwrap();
    for cpu in all.iter() {
        bound.queue_on(cpu, || ()).unwrap().join().unwrap();
    }
    let (threads, one) = (threads(), CpuSet::of(all.iter().last().unwrap()));
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
    set_mask_of(&threads, &one);
    work_for(&runtime, Duration::from_secs(1));
    let is_elsewhere = |&tid: &Pid| {
        let mask = rustix::thread::sched_getaffinity(Some(tid));
        mask.is_ok_and(|mask| all.iter().any(|cpu| mask.is_set(cpu.index()) && !one.contains(cpu)))
    };
    let elsewhere = threads.iter().filter(|tid| is_elsewhere(tid)).count();
    setrlimit(Resource::Nofile, limit).unwrap();
    set_mask(&all);
    assert_eq!(elsewhere, 0, "threads are where the mask does not let them be");
}

#[test]
fn an_item_may_build_a_runtime_within_what_it_runs_unpinned() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = Runtime::new().unwrap();
    let cpus = || rustix::thread::sched_getaffinity(None).unwrap().count();
    let inner = runtime.events().clone();
    let of_a_thread = runtime.queue(move || {
        unpinned(|| {
            // The monitor has looked by then.
            for _ in 0..300 {
                inner.execute(|| ());
                thread::sleep(Duration::from_millis(2));
            }
            drop(Runtime::new().unwrap());
            thread::spawn(cpus).join().unwrap()
        })
    });
    assert_eq!(of_a_thread.join().unwrap(), cpus());
}

#[test]
fn what_runs_unpinned_may_use_what_the_runtime_may_use_by_then() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = Runtime::new().unwrap();
    let all = runtime.cpus();
    let one = CpuSet::of(all.iter().last().unwrap());
    for cpus in [&one, &all] {
        set_mask(cpus);
        let began = Instant::now();
        while runtime.cpus() != *cpus {
            assert!(began.elapsed() < Duration::from_secs(20), "the mask was not followed");
            work_for(&runtime, Duration::from_millis(5));
        }
        let may_use = || rustix::thread::sched_getaffinity(None).unwrap();
        let mask = runtime.queue(move || unpinned(may_use)).join().unwrap();
        let used = all.iter().filter(|cpu| mask.is_set(cpu.index()));
        assert!(used.eq(cpus.iter()), "{cpus}");
    }
}

#[test]
fn a_mask_that_shrinks_to_one_pod_and_grows_again_keeps_every_guarantee() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = Runtime::new().unwrap();
    let all = runtime.cpus();
    if all.len() < 2 {
        println!("skipped: there is one CPU only");
        return;
    }
    let ordered = runtime.workqueue("ordered").ordered().build().unwrap();
    let limited = runtime.workqueue("limited").max_active(3).build().unwrap();
    let bound = runtime.workqueue("bound").per_cpu().build().unwrap();
    let strict = runtime.workqueue("strict").affinity_scope(Scope::Cpu).affinity_strict(true);
    let strict = strict.build().unwrap();
    let (order, ran) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let stop = Arc::new(AtomicBool::new(false));
    let issuer = {
        let (stop, ran, order) = (Arc::clone(&stop), Arc::clone(&ran), Arc::clone(&order));
        let (ordered, limited, bound) = (ordered.clone(), limited.clone(), bound.clone());
        let strict = strict.clone();
        thread::spawn(move || {
            let mut issued = 0;
            while !stop.load(Ordering::Relaxed) {
                for cpu in all.iter().map(CpuId::index) {
                    let cpu = CpuId::new(cpu).unwrap();
                    let order = Arc::clone(&order);
                    ordered.execute(move || order.lock().unwrap().push(issued));
                    for queue in [&bound, &strict] {
                        let ran = Arc::clone(&ran);
                        let item = move || _ = ran.fetch_add(1, Ordering::Relaxed);
                        queue.queue_on(cpu, item).unwrap().detach();
                    }
                    let (now, most) = (Arc::clone(&now), Arc::clone(&most));
                    limited.execute(move || {
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                    });
                    issued += 1;
                }
                thread::sleep(Duration::from_micros(500));
                // Where others use the CPUs, each `yield_now` costs a turn of theirs.
                while limited.counters().in_flight() > 200 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            (issued, most.load(Ordering::SeqCst))
        })
    };
    for cpu in all.iter() {
        set_mask(&CpuSet::of(cpu));
        let began = Instant::now();
        while runtime.cpus() != CpuSet::of(cpu) {
            assert!(began.elapsed() < Duration::from_secs(20), "the mask was not followed");
            thread::sleep(Duration::from_millis(5));
        }
        // What waits for a CPU that has gone runs elsewhere, and a flush comes to its end.
        for queue in [&bound, &strict, &ordered, &limited] {
            queue.flush();
        }
        set_mask(&all);
        let began = Instant::now();
        while runtime.cpus() != all {
            assert!(began.elapsed() < Duration::from_secs(20), "CPUs did not come back");
            thread::sleep(Duration::from_millis(5));
        }
    }
    let is_pinned = |cpu: CpuId| {
        let mask = || rustix::thread::sched_getaffinity(None).unwrap();
        let mask = bound.queue_on(cpu, mask).unwrap().join().unwrap();
        mask.is_set(cpu.index()) && mask.count() == 1
    };
    // Setting the mask that there is, or one that is changed back before the monitor looks, lets
    // workers loose as well.
    set_mask(&all);
    for cpu in all.iter() {
        let began = Instant::now();
        while !is_pinned(cpu) {
            assert!(began.elapsed() < Duration::from_secs(20), "its worker is not on {cpu} again");
            thread::sleep(Duration::from_millis(5));
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (issued, most) = issuer.join().unwrap();
    for queue in [&bound, &strict, &ordered, &limited] {
        queue.flush();
        let counters = queue.counters();
        assert_eq!((counters.in_flight(), counters.cancelled), (0, 0));
    }
    assert_eq!(ran.load(Ordering::Relaxed), 2 * issued);
    assert!(order.lock().unwrap().iter().copied().eq(0..issued));
    assert!(most <= 3, "{most}");
}
