//! Sizes in bytes as people write them: `512M`, `1G`.

/// Reads a whole number of bytes, or of binary units where it ends in K, M, G or T.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        Some((at, 't' | 'T')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let size = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    size.ok_or_else(|| format!("{text:?} is not a size: write it as in 512M or 1G"))
}

/// The size in the largest of these units that says it shortly: `1 GiB`, `1.5 GiB`, `96 MiB`.
pub(crate) fn show(bytes: u64) -> String {
    let (unit, name) = if bytes >= 1 << 30 { (1 << 30, "GiB") } else { (1 << 20, "MiB") };
    let amount = format!("{:.1}", bytes as f64 / f64::from(unit));
    format!("{} {name}", amount.strip_suffix(".0").unwrap_or(&amount))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary_and_what_is_no_size_is_named() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("32k"), Ok(32 << 10));
        assert_eq!(parse("1G"), Ok(1 << 30));
        for wrong in ["", "G", "1.5G", "-1", "1GiB", "99999999999T"] {
            assert!(parse(wrong).unwrap_err().contains(&format!("{wrong:?}")));
        }
    }

    #[test]
    fn whole_amounts_are_shown_without_a_fraction() {
        assert_eq!(show(1 << 30), "1 GiB");
        assert_eq!(show(3 << 29), "1.5 GiB");
        assert_eq!(show(96 << 20), "96 MiB");
    }
}
