//! Sizes as people write them, in attributes and options: `4096`, `64K`, `512M`, `10G`, `10GiB`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Suffixes are powers of 1024, or powers of 1000 if they end in B, as
/// `truncate` has them.
///
/// ```
/// use homing_control::ByteSize;
///
/// assert_eq!("1536M".parse(), Ok(ByteSize(1536 << 20)));
/// assert_eq!(ByteSize(1536 << 20).to_string(), "1.5 GiB");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(
    /// The bytes.
    pub u64,
);

impl ByteSize {
    /// How a size is written, for error messages.
    pub const FORM: &str = "a number of bytes, or one with K, M, G, T or P, as in 10G or 1.5G";
}

const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = parse(text);
        let bytes = bytes.ok_or_else(|| format!("{text:?} is not a size: write {}", Self::FORM))?;
        let size = u64::try_from(bytes).map(Self);
        size.map_err(|_| format!("{text:?} is too large: sizes are below 16 EiB, that is 16384P"))
    }
}

/// The bytes, of which there may be too many.
fn parse(text: &str) -> Option<u128> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let suffix = suffix.trim().to_ascii_uppercase();
    // 10G and 10GiB are powers of 1024, 10GB one of 1000; B alone is none.
    let (name, base) = match suffix.strip_suffix('B') {
        Some("") => ("", 1),
        Some(name) => name.strip_suffix('I').map_or((name, 1000_u64), |name| (name, 1024)),
        None => (suffix.as_str(), 1024),
    };
    let power = UNITS.iter().position(|unit| *unit == name)?;
    let unit = u128::from(base.pow(u32::try_from(power).ok()?));
    let Some((whole, fraction)) = number.split_once('.') else {
        return Some(number_of(number)?.saturating_mul(unit));
    };
    if power == 0 || fraction.is_empty() || fraction.len() > 15 {
        return None;
    }
    let part = unit * u128::from(fraction.parse::<u64>().ok()?);
    let part = part / 10_u128.pow(fraction.len() as u32);
    Some(number_of(whole)?.saturating_mul(unit).saturating_add(part))
}

/// A number, or more than 64 bits hold.
fn number_of(digits: &str) -> Option<u128> {
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u128::MAX))
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = (1..UNITS.len()).rev().find(|power| self.0 >= 1 << (10 * power)).unwrap_or(0);
        if power == 0 {
            return write!(f, "{} bytes", self.0);
        }
        let value = self.0 as f64 / (1_u64 << (10 * power)) as f64;
        let digits = usize::from(value.fract() != 0.0);
        write!(f, "{value:.digits$} {}iB", UNITS[power])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_a_size_or_named(text in prop_oneof![any::<String>(), "[0-9]{0,22} ?[kMGTPiB.0-9]{0,6}"]) {
            match text.parse::<ByteSize>() {
                Ok(size) => prop_assert!(!size.to_string().is_empty()),
                Err(error) => {
                    let named = format!("{text:?}");
                    prop_assert!(error.contains(&named));
                }
            }
        }
    }

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes, shown) in [
            ("4096", 4096, "4 KiB"),
            ("10G", 10 << 30, "10 GiB"),
            ("1536m", 1536 << 20, "1.5 GiB"),
            ("64KiB", 64 << 10, "64 KiB"),
            ("100b", 100, "100 bytes"),
            ("10GB", 10_000_000_000, "9.3 GiB"),
            ("21.6 GiB", 23_192_823_398, "21.6 GiB"),
            ("1.5k", 1536, "1.5 KiB"),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)));
            assert_eq!(ByteSize(bytes).to_string(), shown);
        }
        for bad in ["", "G", "ten", "-1", "1.5", "1.G", ".5G", "1.2.3G", "5X"] {
            let error = bad.parse::<ByteSize>().unwrap_err();
            assert!(error.contains(bad) && error.contains("is not a size"), "{error}");
        }
        let nines = "9".repeat(60);
        for large in ["16384P", "99999999999G", "16384.5P", "18446744073709551616", &nines] {
            let error = large.parse::<ByteSize>().unwrap_err();
            assert!(error.contains(large) && error.contains("is too large"), "{error}");
        }
        assert_eq!("16383P".parse(), Ok(ByteSize(16383 << 50)));
    }
}
