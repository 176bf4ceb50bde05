//! Spans of time, as people write and read them.

use std::time::Duration;

/// Reads a number of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let seconds = seconds.filter(|seconds| *seconds <= Duration::from_secs(86400 * 365));
    seconds.ok_or_else(|| "use a number of seconds, as in 1, 0.5, or 0 for once".to_owned())
}

/// Nanoseconds in the unit that fits them.
pub(crate) fn span(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{:.1}us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}ms", ns as f64 / 1e6),
        _ => format!("{:.1}s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_units_that_fit() {
        let texts = [999, 1500, 2_500_000, 60_000_000_000].map(span);
        assert_eq!(texts, ["999ns", "1.5us", "2.5ms", "60.0s"]);
    }

    #[test]
    fn seconds_may_be_parts_of_one_and_nothing_else() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        for text in ["-1", "", "x", "NaN", "inf", "1e300", "1e12"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
