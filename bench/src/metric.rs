//! What a figure is called, and which of two is the better one.

/// Which of two figures is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    /// The greater.
    More,
    /// The smaller.
    Less,
}

/// A figure that some workloads yield.
#[derive(Debug)]
pub(crate) struct Metric {
    /// Its name in JSON.
    pub(crate) key: &'static str,
    /// Its name in tables.
    pub(crate) title: &'static str,
    /// What tables divide it by.
    pub(crate) unit: f64,
    /// Which is better.
    pub(crate) better: Better,
}

/// A figure, in a line.
pub(crate) const fn metric(
    key: &'static str,
    title: &'static str,
    unit: f64,
    better: Better,
) -> Metric {
    Metric { key, title, unit, better }
}
