//! A thread that looks at the workers now and then: it finds items that block without having said
//! so, items that use their CPU for long, CPUs without a thread, changes of the CPU mask, and
//! stalls. Between its looks it fires timers.

mod alarm;
pub(crate) mod bed;
pub(crate) mod next_look;

#[cfg(not(loom))]
mod long_items;
#[cfg(not(loom))]
pub(crate) mod looks;
#[cfg(not(loom))]
mod mask;
#[cfg(not(loom))]
mod shortage;
#[cfg(not(loom))]
pub(crate) mod stall;
#[cfg(not(loom))]
mod strays;
#[cfg(not(loom))]
pub(crate) mod timers;
#[cfg(not(loom))]
mod usage;
#[cfg(not(loom))]
pub(crate) mod watched;
