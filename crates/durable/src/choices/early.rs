//! Decides whether the write-back of many files is begun for all of them before the first is
//! synced. Pure.
//!
//! A sync of a file begins its write-back, waits for it, and then for the journal and the device.
//! If more files wait than are synced side by side, the disk has nothing to do for the others
//! meanwhile, and the journal hears of them only one after the other. If the write-back of all is
//! begun first, most are on the disk when their turn comes, and the journal writes them together.
//! But beginning takes a system call for each file, during which nobody waits for the disk. So both
//! ways are timed: the files that wait at the same time are a wave, and what counts is how many
//! files a wave makes durable in a second.

use std::time::Instant;

use crate::choices::choice::Choice;

/// Whether write-back is begun early. This applies to files that are synced by themselves, and to
/// those of a commit that serves callers with one file each.
///
/// ```
/// # let runtime = homing_runtime::Runtime::new()?;
/// # let durable = homing_durable::Durable::new(&runtime)?;
/// use homing_durable::WriteBack;
///
/// durable.set_write_back(WriteBack::Late);
/// assert_eq!(durable.write_back(), WriteBack::Late);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteBack {
    /// Early where it has been faster.
    #[default]
    Auto,
    /// Wherever two or more files wait.
    Early,
    /// Never: each sync begins the write-back of its own file, and a commit that of its files.
    Late,
}

impl WriteBack {
    /// All settings.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Early, Self::Late];

    /// The name in the attribute `durable/write_back`.
    ///
    /// ```
    /// assert_eq!(homing_durable::WriteBack::Early.name(), "early");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Early => "early",
            Self::Late => "late",
        }
    }
}

/// The way that begins write-back early; the other way is 0.
const EARLY: usize = 1;

/// The waves of one filesystem, one after the other.
#[derive(Debug)]
pub(crate) struct Waves {
    choice: Choice,
    wave: Option<Wave>,
}

/// Files that waited at the same time.
#[derive(Debug)]
struct Wave {
    began: Instant,
    files: usize,
    left: usize,
    /// The wave follows the choice, and all its files so far were synced by themselves.
    counts: bool,
}

impl Default for Waves {
    /// Early: it was faster on most disks that were measured.
    fn default() -> Self {
        Self { choice: Choice::new(2, EARLY), wave: None }
    }
}

impl Waves {
    /// Whether this many files that wait are a wave, if `depth` can be synced side by side; and if
    /// so, whether its write-back is begun early. One wave ends before the next begins.
    pub(crate) fn begin(
        &mut self,
        write_back: WriteBack,
        files: usize,
        depth: usize,
        now: Instant,
    ) -> Option<bool> {
        let is_wave = match write_back {
            WriteBack::Auto => files > depth,
            WriteBack::Early => files > 1,
            WriteBack::Late => false,
        };
        if !is_wave || self.wave.is_some() {
            return None;
        }
        let counts = write_back == WriteBack::Auto;
        self.wave = Some(Wave { began: now, files, left: files, counts });
        Some(!counts || self.is_early())
    }

    /// Notes that this many files of the wave have been synced, by themselves or not.
    pub(crate) fn end(&mut self, files: usize, by_themselves: bool, now: Instant) {
        let Some(wave) = &mut self.wave else { return };
        wave.left = wave.left.saturating_sub(files);
        wave.counts &= by_themselves;
        if wave.left > 0 {
            return;
        }
        let took = now.saturating_duration_since(wave.began).as_secs_f64();
        if wave.counts && took > 0.0 {
            self.choice.note(wave.files as f64 / took);
        }
        self.wave = None;
    }

    /// Whether the write-back of a wave begins early now.
    pub(crate) fn is_early(&self) -> bool {
        self.choice.way() == EARLY
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Simulates a thousand waves of 100 files, which take this many milliseconds early and late.
    /// Returns how many were early.
    fn early(waves: &mut Waves, now: &mut Instant, milliseconds: [u64; 2]) -> usize {
        let wave = |_: &i32| {
            let is_early = waves.begin(WriteBack::Auto, 100, 64, *now).unwrap();
            assert_eq!(waves.begin(WriteBack::Auto, 100, 64, *now), None, "one at a time");
            *now += Duration::from_millis(milliseconds[usize::from(!is_early)]);
            (0..100).for_each(|_| waves.end(1, true, *now));
            is_early
        };
        (0..1000).filter(wave).count()
    }

    #[test]
    fn what_was_faster_goes_on_and_the_other_is_tried_seldom() {
        let (mut waves, mut now) = (Waves::default(), Instant::now());
        assert!(early(&mut waves, &mut now, [10, 15]) > 980);
        assert!(early(&mut waves, &mut now, [15, 10]) < 300);
        assert!(early(&mut waves, &mut now, [15, 10]) < 20);
        assert!(early(&mut waves, &mut now, [10, 10]) < 20, "no better is no reason");
    }

    #[test]
    fn few_files_are_no_wave_and_what_is_forced_or_committed_teaches_nothing() {
        let (mut waves, now) = (Waves::default(), Instant::now());
        assert_eq!(waves.begin(WriteBack::Auto, 64, 64, now), None);
        assert_eq!(waves.begin(WriteBack::Late, 1000, 64, now), None);
        assert_eq!(waves.begin(WriteBack::Early, 1, 64, now), None);
        let later = now + Duration::from_millis(1);
        assert_eq!(waves.begin(WriteBack::Early, 2, 64, now), Some(true));
        waves.end(2, true, later);
        assert_eq!(waves.begin(WriteBack::Auto, 65, 64, now), Some(true));
        waves.end(60, true, later);
        waves.end(5, false, later);
        assert_eq!(waves.choice.rate(), None);
        waves.end(1, true, later);
        assert_eq!(waves.begin(WriteBack::Auto, 65, 64, now), Some(true));
        waves.end(65, true, later);
        assert!((waves.choice.rate().unwrap() - 65_000.0).abs() < 1.0);
    }
}
