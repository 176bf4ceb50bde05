//! What a thread does that waits for an item of its runtime when no thread can be had to run it.
//!
//! While it waits its CPU is free, and a spare thread serves it. Where there is none, and none can
//! be created, the monitor asks one of those that wait: that one serves the CPU on top of the item
//! that waits, until what it waits for is there or nothing is left to do. Else items that wait for
//! others could hold all threads there are, for ever.
//!
//! Only where nobody else can, because an item that is run on top of another one must not wait for
//! what that one holds.
//!
//! One word for each thread says how it stands:
//!
//! ```text
//! 0 --the thread begins to wait--> WAITS --the monitor asks--> CPU --the thread takes it--> WAITS
//!                                  WAITS, CPU --the waiting is over--> 0
//! ```
//!
//! Who asks unparks the thread after the change; who waits looks after each poll, before it parks:
//! so a request is not slept through. One that comes as the waiting ends is dropped: the monitor
//! asks again as long as there is need.

use std::sync::Arc;

use homing_topology::CpuId;

use crate::crew::Member;
use crate::local;
use crate::shared::Shared;
use crate::sync::{AtomicU32, Ordering};
use crate::worker;

/// Who has used so many quarters of its stack runs nothing more on top of it. Who waits for an item runs it on its own
/// stack up to half of that ([`JoinHandle::join`](crate::JoinHandle::join)), so that some is left for helping out.
const STACK_QUARTERS_MAX: usize = 3;

const WAITS: u32 = 1;
/// A CPU's number and this.
const ASKED: u32 = 2;

/// A member's word.
#[derive(Debug, Default)]
pub(crate) struct Asked(AtomicU32);

impl Asked {
    /// Asks the thread to serve a CPU, if it waits and was not asked yet. Whether it does.
    pub(crate) fn ask(&self, cpu: CpuId) -> bool {
        let asked = ASKED + cpu.index() as u32;
        self.0.compare_exchange(WAITS, asked, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn take(&self) -> Option<CpuId> {
        let word = self.0.swap(WAITS, Ordering::AcqRel);
        word.checked_sub(ASKED).and_then(|number| CpuId::new(number as usize))
    }
}

/// A thread of a runtime that waits for an item or a future.
pub(crate) struct Waits {
    shared: Arc<Shared>,
    member: Arc<Member>,
}

impl Waits {
    /// `None` on other threads, and where there is too much on the stack already.
    pub(crate) fn begin() -> Option<Self> {
        let local::Local { shared, member } = local::current()?;
        (local::stack_quarters() < STACK_QUARTERS_MAX).then_some(Self { shared, member })
    }

    /// To be called before each sleep: whether something was run instead, until there was nothing
    /// left or `is_over`.
    pub(crate) fn helped(&self, is_over: impl Fn() -> bool) -> bool {
        let (crew, asked) = (&self.shared.crew, self.member.asked.take());
        if let Some(cpu) = asked {
            worker::help(&self.shared, &self.member, cpu, is_over);
        } else if crew.refused.load(Ordering::Relaxed) > 0 && crew.is_short() {
            // The monitor may have looked for one that waits just before.
            self.shared.monitor.call();
        }
        asked.is_some()
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.member.asked.0.store(0, Ordering::Release);
    }
}
