//! CPUs that come and go while items are queued: every guarantee holds. The mask is the whole
//! process's, so this is a test of its own.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use homing_runtime::{CpuId, CpuSet, Runtime, Scope};

/// Gives all threads of the process this mask, as `taskset -a` does; threads come and go
/// meanwhile.
fn set_mask(cpus: &CpuSet) {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(cpu.index()));
    for task in fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok) {
        let tid = task.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(tid) = tid.and_then(rustix::thread::Pid::from_raw) {
            let _ = rustix::thread::sched_setaffinity(Some(tid), &set);
        }
    }
}

#[test]
fn a_mask_that_shrinks_to_one_pod_and_grows_again_keeps_every_guarantee() {
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
    // By who sets the mask that there is, or is back before anybody looks, workers are let loose as well.
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
