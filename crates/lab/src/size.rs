//! Sizes of caches as people write them: `5%` of a trace's pages, or `4096` pages.

use std::fmt;
use std::str::FromStr;

/// The parts into which 100% is divided: the least share is `0.0001%`.
const WHOLE: u64 = 1_000_000;

/// How large a cache is, in pages or as a share of the different pages of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Size {
    /// A share of the different pages, in millionths.
    Share(u32),
    /// A number of pages.
    Pages(u32),
}

/// A text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a size of a cache: write a share of the trace's pages from 0.0001% to 100%, \
     as in 5%, or a number of pages from 1, as in 4096"
)]
pub struct ParseSizeError {
    text: String,
}

impl Size {
    /// How many pages this is for a trace of `pages` different pages. Shares are rounded down, but
    /// never to 0.
    pub fn capacity(self, pages: usize) -> usize {
        match self {
            Self::Pages(count) => count as usize,
            Self::Share(millionths) => {
                let share = pages as u64 * u64::from(millionths) / WHOLE;
                usize::try_from(share).unwrap_or(usize::MAX).max(1)
            }
        }
    }

    /// How much this is of `pages` different pages, in per cent.
    pub fn per_cent(self, pages: usize) -> f64 {
        match self {
            Self::Pages(count) => f64::from(count) * 100.0 / pages.max(1) as f64,
            Self::Share(millionths) => f64::from(millionths) / 1e4,
        }
    }
}

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let parsed = match text.strip_suffix('%') {
            Some(percent) => millionths(percent).map(Self::Share),
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().ok().filter(|count| *count > 0).map(Self::Pages)
            }
            None => None,
        };
        parsed.ok_or_else(|| ParseSizeError { text: text.to_owned() })
    }
}

/// Reads per cents, such as `2.5`, as millionths, without the rounding of floating-point numbers.
fn millionths(percent: &str) -> Option<u32> {
    let (whole, fraction) = percent.split_once('.').unwrap_or((percent, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 4 || !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let fraction: u64 = format!("{fraction:0<4}").parse().ok()?;
    let share = whole.checked_mul(10_000)?.checked_add(fraction)?;
    (1..=WHOLE).contains(&share).then_some(share as u32)
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages(count) => write!(f, "{count}"),
            Self::Share(_) => write!(f, "{}%", self.per_cent(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_read_and_rounded_down() {
        for (text, size, of_1011) in [
            ("5%", Size::Share(50_000), 50),
            ("25%", Size::Share(250_000), 252),
            ("0.5%", Size::Share(5_000), 5),
            ("0.0001%", Size::Share(1), 1),
            ("100%", Size::Share(1_000_000), 1011),
            ("4096", Size::Pages(4096), 4096),
        ] {
            assert_eq!(text.parse(), Ok(size));
            assert_eq!(size.to_string(), text);
            assert_eq!(size.capacity(1011), of_1011, "{text}");
        }
        assert_eq!(Size::Share(1).capacity(0), 1);
        assert_eq!(Size::Share(1_000_000).capacity(1 << 31), 1 << 31);
    }

    #[test]
    fn what_is_no_size_is_named() {
        for bad in ["", "%", "0", "0%", "101%", "-5%", "5.00001%", "5 %", "1e3", "4294967296"] {
            let error = bad.parse::<Size>().unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(millionths in 1_u32..=1_000_000, pages in 1_u32..) {
            for size in [Size::Share(millionths), Size::Pages(pages)] {
                prop_assert_eq!(size.to_string().parse(), Ok(size));
            }
        }

        #[test]
        fn any_text_is_a_size_or_named(text in prop_oneof![any::<String>(), "[0-9]{0,12}[.%]{0,2}[0-9]{0,5}%?"]) {
            let _ = text.parse::<Size>();
        }
    }
}
