//! Sizes as people write them, in attributes and options: `4096`, `64K`, `512M`, `10G`, `10GiB`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Suffixes are powers of 1024, as `qemu-img` and `truncate` have them.
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
    /// How one is written, for errors.
    pub const FORM: &str = "a number of bytes, or one with K, M, G or T, as in 10G";
}

const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a size: write {}", Self::FORM);
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let suffix = suffix.trim().to_ascii_uppercase();
        let suffix = suffix.strip_suffix("IB").or(suffix.strip_suffix('B')).unwrap_or(&suffix);
        let power = UNITS.iter().position(|unit| *unit == suffix).ok_or_else(bad)?;
        let number: u64 = number.parse().map_err(|_| bad())?;
        let bytes = number.checked_mul(1 << (10 * power)).ok_or_else(bad)?;
        Ok(Self(bytes))
    }
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
        fn any_text_is_a_size_or_named(text in prop_oneof![any::<String>(), "[0-9]{0,22} ?[kMGTPiB]{0,4}"]) {
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
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)));
            assert_eq!(ByteSize(bytes).to_string(), shown);
        }
        for bad in ["", "G", "ten", "-1", "1.5G", "99999999999P", "5X"] {
            let error = bad.parse::<ByteSize>().unwrap_err();
            assert!(error.contains(bad), "{error}");
        }
    }
}
