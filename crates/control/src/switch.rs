//! On or off, as people and the kernel write it in attributes.

use std::fmt;
use std::str::FromStr;

/// Whether something is on. Read from the words that the kernel takes (`kstrtobool`), in any case:
/// `1`, `y`, `yes`, `t`, `true`, `on`, or `0`, `n`, `no`, `f`, `false`, `off`. Written as `1` or
/// `0`.
///
/// ```
/// use homing_control::Switch;
///
/// for (on, off) in [("1", "0"), ("y", "N"), ("ON", "off")] {
///     assert_eq!((on.parse(), off.parse()), (Ok(Switch(true)), Ok(Switch(false))));
/// }
/// assert!("2".parse::<Switch>().unwrap_err().contains(Switch::FORM));
/// assert_eq!(Switch(true).to_string(), "1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch(
    /// Whether it is on.
    pub bool,
);

impl Switch {
    /// How it is written, for error messages.
    pub const FORM: &str = "0 or 1, n or y, off or on";
}

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "1" | "y" | "yes" | "t" | "true" | "on" => Ok(Self(true)),
            "0" | "n" | "no" | "f" | "false" | "off" => Ok(Self(false)),
            _ => Err(format!("{text:?} is neither on nor off: write {}", Self::FORM)),
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "1" } else { "0" })
    }
}
