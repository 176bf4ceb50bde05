//! How long a cache line takes to get from one CPU to another, which is what pods should follow.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use homing_topology::{CpuId, CpuSet};

use crate::threads::affinity::pin_to;

const ROUND_TRIPS: u32 = 2_000;
const ROUNDS: usize = 5;

/// One-way latencies between CPUs, in nanoseconds.
///
/// ```
/// use homing_runtime::{CpuSet, LatencyMatrix};
///
/// let cpus = "0-2".parse::<CpuSet>()?.iter().collect();
/// let one_way_ns = vec![vec![0., 90., 30.], vec![90., 0., 90.], vec![30., 90., 0.]];
/// let matrix = LatencyMatrix { cpus, one_way_ns };
/// // The CPU that is nearest to CPU 0:
/// let others = matrix.cpus.iter().zip(&matrix.one_way_ns[0]).skip(1);
/// let nearest = others.min_by(|(_, one), (_, other)| one.total_cmp(other));
/// assert_eq!(nearest.map(|(cpu, _)| cpu.index()), Some(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LatencyMatrix {
    /// The CPUs, in rising order: both the rows and the columns.
    pub cpus: Vec<CpuId>,
    /// `one_way_ns[row][column]`, the median of several rounds; 0 on the diagonal.
    pub one_way_ns: Vec<Vec<f64>>,
}

/// Measures every pair of `cpus` in turn: two pinned threads hand a cache line back and forth.
///
/// A pair takes about 2 ms. Before each pair, `progress` is called with the number of pairs done
/// and the number of all pairs. A pair is `NaN` if one of its threads cannot be created
/// or pinned.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// let two = runtime.cpus().iter().take(2).collect();
/// let matrix = homing_runtime::core_to_core(&two, |done, all| println!("{done} of {all} pairs"));
/// println!("{:?}", matrix.one_way_ns);
/// assert_eq!(matrix.one_way_ns[0][0], 0.0, "to itself");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn core_to_core(cpus: &CpuSet, mut progress: impl FnMut(usize, usize)) -> LatencyMatrix {
    let cpus: Vec<CpuId> = cpus.iter().collect();
    let count = cpus.len();
    let mut one_way_ns = vec![vec![0.0; count]; count];
    let pairs = (0..count).flat_map(|row| (0..row).map(move |column| (row, column)));
    for (done, (row, column)) in pairs.enumerate() {
        progress(done, count * (count - 1) / 2);
        let measured = measure(cpus[row], cpus[column]).unwrap_or(f64::NAN);
        one_way_ns[row][column] = measured;
        one_way_ns[column][row] = measured;
    }
    LatencyMatrix { cpus, one_way_ns }
}

/// Even numbers are the first thread's turn, odd ones the second's. The last number ends the
/// measurement.
#[repr(align(128))]
struct Ball(AtomicU32);

fn measure(first: CpuId, second: CpuId) -> Option<f64> {
    const END: u32 = ROUNDS as u32 * ROUND_TRIPS * 2;
    let ball = &Ball(AtomicU32::new(0));
    let (there, partner_there) = mpsc::channel();
    thread::scope(|scope| {
        // If the other one cannot be created or pinned, this one ends.
        let server = thread::Builder::new().spawn_scoped(scope, move || {
            let pinned = pin_to(&CpuSet::of(first)).is_ok();
            partner_there.recv().ok()?;
            let mut rounds: Vec<f64> = (0..ROUNDS as u32)
                .map(|round| {
                    let start = Instant::now();
                    for trip in 0..ROUND_TRIPS {
                        let turn = (round * ROUND_TRIPS + trip) * 2;
                        await_turn(ball, turn);
                        ball.0.store(turn + 1, Ordering::Release);
                    }
                    start.elapsed().as_nanos() as f64 / f64::from(ROUND_TRIPS * 2)
                })
                .collect();
            rounds.sort_by(f64::total_cmp);
            pinned.then_some(rounds[ROUNDS / 2])
        });
        let server = server.ok()?;
        let partner = thread::Builder::new().spawn_scoped(scope, move || {
            pin_to(&CpuSet::of(second)).ok()?;
            there.send(()).ok()?;
            let mut turn = 1;
            while turn < END {
                await_turn(ball, turn);
                ball.0.store(turn + 1, Ordering::Release);
                turn += 2;
            }
            Some(())
        });
        let median = server.join().ok().flatten();
        partner.ok()?.join().ok()?.and(median)
    })
}

/// Spins. Yields now and then, so that two threads that share a CPU after all still make progress.
fn await_turn(ball: &Ball, turn: u32) {
    let mut spins = 0_u32;
    while ball.0.load(Ordering::Acquire) != turn {
        spins += 1;
        if spins.is_multiple_of(10_000) {
            thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_symmetric_and_covers_all_pairs() {
        let online = rustix::thread::sched_getaffinity(None).unwrap();
        let usable = (0..64).filter(|n| online.is_set(*n)).filter_map(CpuId::new).take(3);
        let matrix = core_to_core(&usable.collect(), |_, _| {});
        for (row, values) in matrix.one_way_ns.iter().enumerate() {
            for (column, value) in values.iter().enumerate() {
                assert!(value.total_cmp(&matrix.one_way_ns[column][row]).is_eq());
                assert_eq!(row == column, *value == 0.0);
            }
        }
    }
}
