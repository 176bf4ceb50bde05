//! How many items of a workqueue may be active at a time: `max_active`, divided among the nodes.

/// The largest `max_active` that is a number, as in the kernel since 6.12. Without one there is no
/// limit.
pub const MAX_ACTIVE_MAX: u32 = 2048;

/// `min_active` where nobody has set it: the kernel's `WQ_DFL_MIN_ACTIVE`.
pub const MIN_ACTIVE: u32 = 8;

/// How many of `max_active` a node has that owns `cpus` of the `all` CPUs that the workqueue may
/// use. This is its share, rounded up, but at least `min_active`, so that this many items that wait
/// for each other make progress on any node. The sum over the nodes may therefore exceed
/// `max_active`: this is the kernel's rule since 6.9. A node without a CPU has `min_active`.
///
/// ```
/// use homing_sched::{MIN_ACTIVE, node_max_active};
///
/// // Two nodes of 24 CPUs and one of 2.
/// assert_eq!(node_max_active(100, MIN_ACTIVE, 24, 50), 48);
/// assert_eq!(node_max_active(100, MIN_ACTIVE, 2, 50), MIN_ACTIVE, "so that items may wait for each other");
/// ```
pub fn node_max_active(max_active: u32, min_active: u32, cpus: usize, all: usize) -> u32 {
    let min_active = min_active.min(max_active);
    let share = (u64::from(max_active) * cpus as u64).div_ceil(all.max(1) as u64);
    (share as u32).clamp(min_active, max_active)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_share_by_their_cpus_but_have_the_minimum() {
        assert_eq!(node_max_active(16, 8, 4, 8), 8);
        assert_eq!(node_max_active(17, 8, 4, 8), 9, "rounded up");
        assert_eq!(node_max_active(16, 8, 1, 8), 8, "the minimum");
        assert_eq!(node_max_active(16, 0, 1, 8), 2);
        assert_eq!(node_max_active(4, 8, 1, 8), 4, "no more than all");
        assert_eq!(node_max_active(2048, 8, 0, 8), 8, "no CPU online");
        assert_eq!(node_max_active(2048, 8, 0, 0), 8);
        assert_eq!(node_max_active(u32::MAX, 8, 1024, 1024), u32::MAX);
        assert_eq!(node_max_active(0, 8, 3, 8), 0, "frozen");
    }
}
