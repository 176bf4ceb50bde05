//! The CPUs of the process. A cache may be made, and its threads be begun, by a thread that is
//! pinned to one CPU, as the runtime's workers are: what such a thread has says nothing of the
//! rest.

#[cfg(all(target_os = "linux", not(miri)))]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How many CPUs the process may use.
pub(crate) fn count() -> usize {
    let here = || std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    #[cfg(all(target_os = "linux", not(miri)))]
    if let Some(all) = more_than_own() {
        // The standard library also knows of quotas.
        let asked = std::thread::Builder::new().spawn(move || {
            let _ = sched_setaffinity(None, &all);
            here()
        });
        if let Some(count) = asked.ok().and_then(|asked| asked.join().ok()) {
            return count;
        }
    }
    here()
}

/// Lets the calling thread run wherever the process may.
pub(crate) fn unpin() {
    #[cfg(all(target_os = "linux", not(miri)))]
    if let Some(all) = more_than_own() {
        // The thread does its work anywhere.
        let _ = sched_setaffinity(None, &all);
    }
}

/// The CPUs of the process's first thread, if this one has a part of them. If the first one is
/// pinned itself, there is no telling.
#[cfg(all(target_os = "linux", not(miri)))]
fn more_than_own() -> Option<CpuSet> {
    let own = sched_getaffinity(None).ok()?;
    let all = sched_getaffinity(Some(rustix::process::getpid())).ok()?;
    let is_part = (0..CpuSet::MAX_CPU).all(|cpu| all.is_set(cpu) || !own.is_set(cpu));
    (is_part && own.count() < all.count()).then_some(all)
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_counts_all_and_can_be_let_go() {
        let all = sched_getaffinity(Some(rustix::process::getpid())).unwrap();
        if all.count() == 1 {
            eprintln!("skipped: this needs two CPUs");
            return;
        }
        let unpinned = count();
        let pinned = std::thread::spawn(move || {
            let mut one = CpuSet::new();
            let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
            one.set(first);
            sched_setaffinity(None, &one).unwrap();
            let counted = count();
            assert_eq!(sched_getaffinity(None).unwrap(), one, "it stays where it is");
            unpin();
            assert_eq!(sched_getaffinity(None).unwrap(), all);
            counted
        });
        assert_eq!(pinned.join().unwrap(), unpinned);
    }
}
