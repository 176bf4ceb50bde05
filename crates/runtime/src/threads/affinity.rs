//! On which CPUs the kernel lets threads run.

use std::cell::Cell;
use std::io;
use std::sync::atomic::Ordering;

use homing_topology::CpuSet;

use crate::sync::lock;
use crate::threads::local::{self, Local};

/// [`Member::pinned_to`](crate::threads::crew::Member) of a thread that is pinned to no CPU.
pub(crate) const NOWHERE: u32 = u32::MAX;
/// That of a thread that somebody else may have moved since.
pub(crate) const MOVED: u32 = u32::MAX - 1;
/// That of a thread that is [`unpinned`] for a while.
pub(crate) const LET_GO: u32 = u32::MAX - 2;
/// That of a thread that has lost its CPU and may use those that its item may.
pub(crate) const STRAY: u32 = u32::MAX - 3;

#[cfg(all(target_os = "linux", not(shuttle)))]
pub(crate) type Mask = rustix::thread::CpuSet;

/// The affinity mask of the calling thread.
#[cfg(all(target_os = "linux", not(shuttle)))]
pub(crate) fn read_mask() -> Option<Mask> {
    rustix::thread::sched_getaffinity(None).ok()
}

/// A thread is asked again after this long whether it is pinned. Chosen: asking takes half a
/// microsecond.
const PINNED_NS: u64 = 100_000_000;

std::thread_local! {
    /// Whether the thread is pinned to one CPU, and when that was asked.
    static PINNED: Cell<Option<(bool, u64)>> = const { Cell::new(None) };
}

/// Whether the calling thread may run on one CPU only, as it was a moment ago.
pub(crate) fn is_pinned(now_ns: u64) -> bool {
    if let Some((pinned, asked_ns)) = PINNED.get()
        && now_ns.saturating_sub(asked_ns) < PINNED_NS
    {
        return pinned;
    }
    #[cfg(all(target_os = "linux", not(shuttle)))]
    let pinned = read_mask().is_some_and(|mask| mask.count() == 1);
    #[cfg(not(all(target_os = "linux", not(shuttle))))]
    let pinned = false;
    PINNED.set(Some((pinned, now_ns)));
    pinned
}

#[cfg(all(target_os = "linux", not(shuttle)))]
fn pid(tid: u32) -> Option<rustix::thread::Pid> {
    tid.try_into().ok().and_then(rustix::thread::Pid::from_raw)
}

/// Whether the thread that the kernel knows as `tid` may run on a CPU other than this one, by
/// number.
#[cfg(all(target_os = "linux", not(shuttle)))]
pub(crate) fn may_leave(tid: u32, number: u32) -> bool {
    let mask = pid(tid).and_then(|tid| rustix::thread::sched_getaffinity(Some(tid)).ok());
    mask.is_some_and(|mask| mask.count() != 1 || !mask.is_set(number as usize))
}

#[cfg(all(target_os = "linux", not(shuttle)))]
fn set_mask(mask: &Mask) -> io::Result<()> {
    Ok(rustix::thread::sched_setaffinity(None, mask)?)
}

#[cfg(all(target_os = "linux", not(shuttle)))]
pub(crate) fn mask_of(cpus: &CpuSet) -> Mask {
    let mut mask = Mask::new();
    cpus.iter().for_each(|cpu| mask.set(cpu.index()));
    mask
}

/// Lets the calling thread run on these CPUs only.
#[cfg(all(target_os = "linux", not(shuttle)))]
pub(crate) fn pin_to(cpus: &CpuSet) -> io::Result<()> {
    set_mask(&mask_of(cpus))
}

/// Sets the affinity mask of the thread that the kernel knows as `tid`.
#[cfg(all(target_os = "linux", not(shuttle)))]
pub(crate) fn set_mask_of(tid: u32, mask: &Mask) -> io::Result<()> {
    let tid = pid(tid).ok_or(io::ErrorKind::NotFound)?;
    Ok(rustix::thread::sched_setaffinity(Some(tid), mask)?)
}

#[cfg(not(all(target_os = "linux", not(shuttle))))]
pub(crate) type Mask = ();

#[cfg(not(all(target_os = "linux", not(shuttle))))]
pub(crate) fn read_mask() -> Option<Mask> {
    None
}

#[cfg(not(all(target_os = "linux", not(shuttle))))]
pub(crate) fn may_leave(_tid: u32, _number: u32) -> bool {
    false
}

#[cfg(not(all(target_os = "linux", not(shuttle))))]
fn set_mask((): &Mask) -> io::Result<()> {
    Ok(())
}

#[cfg(not(all(target_os = "linux", not(shuttle))))]
pub(crate) fn pin_to(_: &CpuSet) -> io::Result<()> {
    Ok(())
}

#[cfg(not(all(target_os = "linux", not(shuttle))))]
pub(crate) fn mask_of(_: &CpuSet) -> Mask {}

#[cfg(not(all(target_os = "linux", not(shuttle))))]
pub(crate) fn set_mask_of(_tid: u32, (): &Mask) -> io::Result<()> {
    Ok(())
}

/// Runs `make` on the CPUs that the whole runtime may use. A new thread, or a child process,
/// inherits the CPUs of the thread that creates it, and a worker has only one. So an item that
/// creates some, or asks `available_parallelism`, does so in here, or all of them share that CPU.
/// For short work: meanwhile the kernel may move the worker away. Anywhere else, it is a plain
/// call.
///
/// ```
/// let runtime = homing_runtime::Runtime::new()?;
/// let cpus = || rustix::thread::sched_getaffinity(None).map(|cpus| cpus.count());
/// let of_a_thread = move || std::thread::spawn(cpus).join().unwrap();
/// let item = runtime.queue(move || homing_runtime::unpinned(of_a_thread));
/// assert_eq!(item.join()??, cpus()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn unpinned<T>(make: impl FnOnce() -> T) -> T {
    let _unpinned = Unpinned::begin();
    make()
}

/// A pinned worker, which is not pinned as long as this lives: the threads that it creates would
/// inherit its one CPU.
pub(crate) struct Unpinned(Local);

impl Unpinned {
    /// `None` if the calling thread is not a pinned worker.
    pub(crate) fn begin() -> Option<Self> {
        let local = local::current().filter(|local| local.shared.settings.pinned)?;
        let pinned_to = local.member.pinned_to.load(Ordering::Relaxed);
        if [NOWHERE, LET_GO].contains(&pinned_to) || !local::is_worker_of(&local.shared) {
            return None;
        }
        let mask = (*lock(&local.shared.mask))?;
        set_mask(&mask).ok()?;
        local.member.pinned_to.store(LET_GO, Ordering::Relaxed);
        Some(Self(local))
    }
}

impl Drop for Unpinned {
    fn drop(&mut self) {
        let Local { shared, member } = &self.0;
        shared.place(member, local::current_cpu());
    }
}
