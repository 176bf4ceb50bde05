//! Several figures in one attribute.

/// Figures as text, a line each: its name, a space and its value, or `-` if it has none. The
/// kernel's cgroups call this form flat keyed.
///
/// ```
/// use homing_control::flat_keyed;
///
/// assert_eq!(flat_keyed([("hits", 7), ("misses", 2)]), "hits 7\nmisses 2");
/// assert_eq!(flat_keyed([("rescued", None), ("queued", Some(1))]), "rescued -\nqueued 1");
/// ```
pub fn flat_keyed<'a, V: Into<Option<u64>>>(
    figures: impl IntoIterator<Item = (&'a str, V)>,
) -> String {
    let lines = figures.into_iter().map(|(name, value)| match value.into() {
        Some(value) => format!("{name} {value}"),
        None => format!("{name} -"),
    });
    lines.collect::<Vec<_>>().join("\n")
}
