//! Load as the host's scheduler sees it: sums that halve every 32 periods of 1,024 us, in integers
//! (per-entity load tracking, Linux 3.8 and later).

use crate::agenda::Ns;

/// The sum for something that runs all the time.
pub(crate) const FULL: u64 = 1024;

const PERIOD_SHIFT: u32 = 20; // 2^20 ns are 1,024 us and some
const HALF_LIFE: usize = 32;

/// `2^(-i/32)` in units of `2^-32`, by taking the square root of a half five times.
const DECAY: [u64; HALF_LIFE + 1] = {
    const ONE: u128 = 1 << 62;
    let mut step = ONE / 2;
    let mut roots = 0;
    while roots < 5 {
        step = (step * ONE).isqrt();
        roots += 1;
    }
    let mut table = [0; HALF_LIFE + 1];
    let (mut value, mut index) = (ONE, 0);
    while index <= HALF_LIFE {
        table[index] = (value >> 30) as u64;
        value = value * step / ONE;
        index += 1;
    }
    table
};

/// The factor by which `elapsed_ns` decays a sum, in units of `2^-32`.
fn decay(elapsed_ns: Ns) -> u64 {
    let periods = (elapsed_ns >> PERIOD_SHIFT) as usize;
    let halvings = periods / HALF_LIFE;
    if halvings > 40 {
        return 0;
    }
    let (here, next) = (DECAY[periods % HALF_LIFE], DECAY[periods % HALF_LIFE + 1]);
    let part = elapsed_ns & ((1 << PERIOD_SHIFT) - 1);
    (here - (((here - next) * part) >> PERIOD_SHIFT)) >> halvings
}

/// The input of the averages at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Input {
    /// The weight of the runnable threads.
    pub(crate) load: u64,
    /// [`FULL`] for each runnable thread.
    pub(crate) runnable: u64,
    /// [`FULL`] if a thread runs.
    pub(crate) util: u64,
}

/// Three decaying averages, in 1,024ths of their unit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Average {
    at_ns: Ns,
    load: u64,
    runnable: u64,
    util: u64,
}

const FINE: u32 = 10;

impl Average {
    /// An average as if it had been running for ever, with which new threads start.
    pub(crate) fn full(now_ns: Ns, weight: u64) -> Self {
        let half = FULL << (FINE - 1);
        Self { at_ns: now_ns, load: weight << FINE, runnable: half, util: half }
    }

    /// Brings it up to `now_ns`, if `input` has held since the last time.
    pub(crate) fn advance(&mut self, now_ns: Ns, input: Input) {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns);
        if elapsed_ns < 1_024 {
            return; // as coarse as the kernel's, and cheaper
        }
        self.at_ns = now_ns;
        let keep = decay(elapsed_ns);
        let mix = |old: u64, input: u64| {
            let input = input << FINE;
            let apart = ((u128::from(input.abs_diff(old)) * u128::from(keep)) >> 32) as u64;
            if input >= old { input - apart } else { input + apart }
        };
        self.load = mix(self.load, input.load);
        self.runnable = mix(self.runnable, input.runnable);
        self.util = mix(self.util, input.util);
    }

    /// Adds the averages that a thread brings.
    pub(crate) fn attach(&mut self, other: &Self) {
        self.load += other.load;
        self.runnable += other.runnable;
        self.util += other.util;
    }

    /// Subtracts the averages that a thread takes along.
    pub(crate) fn detach(&mut self, other: &Self) {
        self.load = self.load.saturating_sub(other.load);
        self.runnable = self.runnable.saturating_sub(other.runnable);
        self.util = self.util.saturating_sub(other.util);
    }

    pub(crate) fn load(&self) -> u64 {
        self.load >> FINE
    }

    pub(crate) fn runnable(&self) -> u64 {
        self.runnable >> FINE
    }

    pub(crate) fn util(&self) -> u64 {
        self.util >> FINE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_halve_in_32_periods() {
        let mut average = Average::full(0, FULL);
        average.attach(&Average::full(0, FULL));
        assert_eq!((average.load(), average.util()), (2 * FULL, FULL));
        let half_life_ns = 32 << PERIOD_SHIFT;
        average.advance(half_life_ns, Input::default());
        assert_eq!((average.load(), average.util()), (FULL, FULL / 2));
        let on = Input { load: FULL, runnable: 3 * FULL, util: FULL };
        average.advance(2 * half_life_ns, on);
        assert_eq!((average.load(), average.util()), (FULL, FULL * 3 / 4));
        for step in 0..1000 {
            average.advance((3 + step) * half_life_ns, on);
        }
        let nearly = |value: u64, full: u64| value.abs_diff(full) <= 1;
        assert!(nearly(average.load(), FULL) && nearly(average.runnable(), 3 * FULL));
        average.advance(u64::MAX, Input::default());
        assert_eq!((average.load(), average.util()), (0, 0));
    }

    #[test]
    fn small_steps_and_one_large_one_agree() {
        let on = Input { load: FULL, runnable: FULL, util: FULL };
        let (mut fine, mut coarse) = (Average::default(), Average::default());
        (1..=2_000).for_each(|step| fine.advance(step * 10_000, on));
        coarse.advance(20_000_000, on);
        assert!(fine.util().abs_diff(coarse.util()) <= 2, "{fine:?} {coarse:?}");
    }
}
