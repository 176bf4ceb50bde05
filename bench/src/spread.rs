//! Median, least and greatest of a figure over the rounds.

use std::collections::BTreeMap;

use serde::Serialize;

/// The values of one figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// The middle one; of an even number, the mean of the middle two.
    pub(crate) median: f64,
    /// The least.
    pub(crate) min: f64,
    /// The greatest.
    pub(crate) max: f64,
}

impl Spread {
    /// The spread of all finite `values`; `None` if there is none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => return None,
            odd if odd % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Some(Self { median, min: sorted[0], max: sorted[sorted.len() - 1] })
    }

    /// The spread of `over` divided by `under`, round by round: what ran together shared the state
    /// of the machine. Both have rounds and figures.
    pub(crate) fn of_ratios(
        over: impl Iterator<Item = (u32, f64)>,
        under: impl Iterator<Item = (u32, f64)>,
    ) -> Option<Self> {
        let under: BTreeMap<_, _> = under.collect();
        Self::of(over.filter_map(|(round, over)| Some(over / under.get(&round)?)))
    }
}

/// The spread of each figure of the cells, by name.
pub(crate) fn spreads<'a>(
    cells: impl IntoIterator<Item = &'a BTreeMap<String, f64>>,
) -> BTreeMap<String, Spread> {
    let mut values: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (key, value) in cells.into_iter().flatten() {
        values.entry(key).or_default().push(*value);
    }
    let spread = |(key, values): (&String, _)| Some((key.clone(), Spread::of(values)?));
    values.into_iter().filter_map(spread).collect()
}

/// A note on how much of the machine others had while the cells were measured.
pub(crate) fn others<'a>(
    cells: impl IntoIterator<Item = &'a BTreeMap<String, f64>>,
) -> Option<String> {
    let percent = |figures: &BTreeMap<String, f64>| figures.get("others_percent").copied();
    let Spread { median, max, .. } = Spread::of(cells.into_iter().filter_map(percent))?;
    let [median, max] = [median, max].map(figure);
    Some(format!(
        "{median} % of the machine's CPU time went to others in the middle cell, and {max} % in the \
         worst"
    ))
}

/// A figure with three significant digits, whole from 100 on.
pub(crate) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        amount if amount >= 99.95 => 0,
        amount if amount >= 9.995 => 1,
        amount if amount >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_middle_two() {
        let odd = Spread::of([9.0, 1.0, 4.0]).unwrap();
        assert_eq!(odd, Spread { median: 4.0, min: 1.0, max: 9.0 });
        let even = Spread::of([9.0, 1.0, 4.0, 5.0]).unwrap();
        assert_eq!(even, Spread { median: 4.5, min: 1.0, max: 9.0 });
        let one = Spread::of([2.5]).unwrap();
        assert_eq!(one, Spread { median: 2.5, min: 2.5, max: 2.5 });
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The ratio of the medians would be 2.
        let rounds = |figures: &[f64]| (0..).zip(figures.to_vec()).collect::<Vec<(u32, f64)>>();
        let ratios = |over: &[f64], under: &[f64]| {
            Spread::of_ratios(rounds(over).into_iter(), rounds(under).into_iter())
        };
        let ratio = ratios(&[10.0, 20.0, 30.0], &[10.0, 5.0, 20.0]).unwrap();
        assert_eq!(ratio, Spread { median: 1.5, min: 1.0, max: 4.0 });
        assert_eq!(ratios(&[1.0, 0.0], &[0.0, 0.0]), None);
        // A round that one of the two lacks is left out.
        assert_eq!(ratios(&[4.0, 1.0], &[2.0]), Spread::of([2.0]));
    }

    #[test]
    fn figures_have_three_digits() {
        for (value, shown) in [
            (1234.5, "1234"),
            (99.96, "100"),
            (99.9, "99.9"),
            (9.996, "10.0"),
            (1.234, "1.23"),
            (0.9996, "1.00"),
            (0.0456, "0.046"),
            (0.0, "0"),
        ] {
            assert_eq!(figure(value), shown);
        }
    }
}
