//! Statistics over batches: order statistics, which are robust against other users of the machine, and means without the
//! extremes.

pub mod noise;
pub mod steady;
pub mod student;

use serde::Serialize;

/// The median; `None` for no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        even if even.is_multiple_of(2) => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        _ => Some(sorted[middle]),
    }
}

/// The smallest value that at least `percent` of the values do not exceed (nearest rank); `None` for
/// no values.
pub fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
    sorted(values).get(rank.saturating_sub(1)).copied()
}

/// Median and bounds of a ratio of two figures of the same rounds, or of one figure of each round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Median over the rounds.
    pub median: f64,
    /// Lower 95 % bound of the median.
    pub low: f64,
    /// Upper 95 % bound of the median.
    pub high: f64,
    /// Rounds that were measured.
    pub rounds: usize,
}

/// Median over rounds of the ratio within each round, so that a disturbance of a whole round cancels out.
///
/// The bounds are the order statistics n/2 ∓ 0.98 √n (binomial, normal approximation), which assumes
/// nothing about the distribution; under about six rounds they are the extremes.
pub fn paired_ratio(numerators: &[f64], denominators: &[f64]) -> Option<Ratio> {
    let ratios: Vec<f64> = numerators
        .iter()
        .zip(denominators)
        .filter(|&(_, &denominator)| denominator > 0.0)
        .map(|(numerator, denominator)| numerator / denominator)
        .collect();
    bounded_median(&ratios)
}

/// The median of a figure that each round has, with the same bounds.
pub fn bounded_median(values: &[f64]) -> Option<Ratio> {
    let Spread { median, low, high, rounds, .. } = spread(values)?;
    Some(Ratio { median, low, high, rounds })
}

/// Distribution of figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Median of the figures.
    pub median: f64,
    /// Lower 95 % bound of the median.
    pub low: f64,
    /// Upper 95 % bound of the median.
    pub high: f64,
    /// 10th percentile.
    pub p10: f64,
    /// 90th percentile.
    pub p90: f64,
    /// Number of figures.
    pub rounds: usize,
}

/// Computes the distribution, with the bounds of [`paired_ratio`]; `None` for no values.
pub fn spread(values: &[f64]) -> Option<Spread> {
    let (sorted, rounds) = (sorted(values), values.len());
    let below = (rounds as f64 / 2.0 - 0.98 * (rounds as f64).sqrt()).floor().max(0.0) as usize;
    Some(Spread {
        median: median(&sorted)?,
        low: sorted[below],
        high: sorted[rounds - 1 - below],
        p10: percentile(&sorted, 10.0)?,
        p90: percentile(&sorted, 90.0)?,
        rounds,
    })
}

/// The mean; not a number for no values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The mean without the lowest and the highest quarter. So a round in which the system took a core away does not count, and each
/// of two moods of the machine counts for its share.
pub fn middle_mean(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    let cut = sorted.len() / 4;
    mean(&sorted[cut..sorted.len() - cut])
}

/// Sum of the squares of deviations.
pub fn squares(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|value| (value - mean).powi(2)).sum()
}

/// The values in ascending order.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_nothing() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 50.0), Some(100.0));
        assert_eq!(percentile(&values, 99.0), Some(198.0));
        assert_eq!(percentile(&values, 100.0), Some(200.0));
        assert_eq!(percentile(&[7.0], 99.0), Some(7.0));
        assert_eq!(percentile(&[7.0], 0.0), Some(7.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn a_disturbance_of_whole_rounds_cancels_out() {
        let weather = [1.0, 50.0, 3.0, 1.0, 9.0, 2.0, 2.0];
        let slow: Vec<f64> = weather.iter().map(|w| 6.0 * w).collect();
        let fast: Vec<f64> = weather.iter().map(|w| 4.0 * w).collect();
        assert_eq!(paired_ratio(&slow, &fast), Some(Ratio { median: 1.5, low: 1.5, high: 1.5, rounds: 7 }));
    }

    #[test]
    fn the_bounds_are_order_statistics() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        let ones = [1.0; 100];
        let ratio = paired_ratio(&values, &ones).expect("rounds");
        assert_eq!((ratio.low, ratio.median, ratio.high), (41.0, 50.5, 60.0));
        let few = paired_ratio(&values[..4], &ones).expect("rounds");
        assert_eq!((few.low, few.high), (1.0, 4.0));
    }

    #[test]
    fn a_spread_has_the_bounds_of_its_median_and_the_outer_tenths() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let wanted = Spread { median: 50.5, low: 41.0, high: 60.0, p10: 10.0, p90: 90.0, rounds: 100 };
        assert_eq!(spread(&values), Some(wanted));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn no_ratio_without_rounds() {
        assert_eq!(paired_ratio(&[], &[1.0]), None);
        assert_eq!(paired_ratio(&[1.0], &[0.0]), None);
    }
}
