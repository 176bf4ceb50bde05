//! Numbers of things of which there must be at least one.

use std::num::NonZeroUsize;

/// Reads an option's value; the error says what is accepted.
pub(crate) fn count(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| format!("{text:?} is no count here: use a whole number, at least 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_count_is_refused_with_what_is_one() {
        assert_eq!(count("16").unwrap().get(), 16);
        for bad in ["0", "-1", "", "many", "1.5", "99999999999999999999"] {
            let refused = count(bad).unwrap_err();
            assert!(refused.contains(bad) && refused.contains("at least 1"), "{refused}");
        }
    }
}
