//! Work of a known length that asks no clock: a chain of shifts. The parent calibrates it once, so
//! that all children do the same number of steps.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// The least time of one trial of the calibration: less than a turn on a busy CPU.
const TRIAL: Duration = Duration::from_micros(500);

/// The fastest trial counts: the others were disturbed, or came before the CPU was at full speed.
const TRIALS: u32 = 400;

/// Takes `steps` steps of a xorshift generator, each on the result of the one before. (A chain of
/// multiplications and additions will not do: compilers shorten it.) Never inlined: on some CPUs
/// the same loop is a tenth slower at another address, so all peers are to run the same one.
#[inline(never)]
pub(crate) fn spin(steps: u64) {
    let mut value = black_box(steps | 1);
    for _ in 0..steps {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
    }
    black_box(value);
}

/// How many steps one millisecond has room for.
pub(crate) fn steps_per_ms() -> u64 {
    let mut steps = 1_u64 << 14;
    let mut fastest = 1;
    let mut trials = 0;
    while trials < TRIALS {
        let began = Instant::now();
        spin(steps);
        let took = began.elapsed();
        if took < TRIAL {
            steps *= 2;
            continue;
        }
        fastest = fastest.max(u128::from(steps) * 1_000_000 / took.as_nanos());
        trials += 1;
    }
    fastest as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_steps_take_about_twice_the_time() {
        let per_ms = steps_per_ms();
        assert!(per_ms > 1000, "{per_ms}");
        let best = |steps| {
            let times = (0..20).map(|_| {
                let began = Instant::now();
                spin(steps);
                began.elapsed().as_secs_f64()
            });
            times.fold(f64::INFINITY, f64::min)
        };
        let ratio = best(2 * per_ms) / best(per_ms);
        // The bounds are wide, since the machine may be busy with other tests.
        assert!((1.2..4.0).contains(&ratio), "{ratio}");
    }
}
