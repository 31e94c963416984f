//! Confidence of ratios: their 95 % bounds, and the verdicts on targets.

use clap::ValueEnum;

use super::targets::Bound;
use crate::{
    experiment::exchange,
    stats::{self, Ratio},
};

/// Figures of a contender in µs, one per round in which it took part.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    rounds: Vec<usize>,
    micros: Vec<f64>,
}

/// Verdict on a target.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Both bounds are on the good side.
    Met,
    /// Both bounds are on the bad side.
    Missed,
    /// The target lies between the bounds, or there are too few figures to have bounds.
    Inconclusive,
}

/// Fewest figures that have bounds: fewer have seen next to none of the machine's moods, whatever a bootstrap draws from them.
pub const MIN_FIGURES: usize = 5;

const RESAMPLES: usize = 2000;

impl Figures {
    /// Adds the figure of a round; rounds ascend.
    pub fn push(&mut self, round: usize, micros: f64) {
        self.rounds.push(round);
        self.micros.push(micros);
    }

    /// The median; `None` without figures.
    pub fn median(&self) -> Option<f64> {
        stats::median(&self.micros)
    }

    /// Number of figures.
    pub fn len(&self) -> usize {
        self.micros.len()
    }

    /// Figures by round, converted from µs by `show`; `None` for rounds without one.
    pub fn by_round(&self, rounds: usize, show: impl Fn(f64) -> f64) -> Vec<Option<f64>> {
        let mut all = vec![None; rounds];
        for (&round, &micros) in self.rounds.iter().zip(&self.micros) {
            if let Some(place) = all.get_mut(round) {
                *place = Some(show(micros));
            }
        }
        all
    }

    /// Quotients of the figures in the rounds that both have.
    fn paired(&self, other: &Self) -> Vec<f64> {
        let of = |round| other.rounds.binary_search(&round).ok().map(|at| other.micros[at]);
        let pairs = self.rounds.iter().zip(&self.micros);
        pairs.filter_map(|(&round, mine)| Some(mine / of(round)?)).collect()
    }
}

/// Ratio of `ours` to `theirs`: the median over rounds of the ratio within each round, so that a disturbance of a whole round
/// cancels out. The bounds are those of the percentile bootstrap (Efron 1979) over rounds.
pub fn ratio(ours: &Figures, theirs: &Figures) -> Option<Ratio> {
    let ratios = ours.paired(theirs);
    let mut chance = Chance(0);
    let mut draws: Vec<f64> =
        (0..RESAMPLES).filter_map(|_| stats::median(&chance.resample(&ratios))).collect();
    draws.sort_unstable_by(f64::total_cmp);
    Some(Ratio {
        median: stats::median(&ratios)?,
        low: stats::percentile(&draws, 2.5)?,
        high: stats::percentile(&draws, 97.5)?,
        rounds: ratios.len(),
    })
}

/// Ratio of the rates, if this is the ratio of the times.
pub fn inverted(Ratio { median, low, high, rounds }: Ratio) -> Ratio {
    Ratio { median: 1.0 / median, low: 1.0 / high, high: 1.0 / low, rounds }
}

impl Verdict {
    /// Verdict on a target; both bounds must agree.
    pub fn of(ratio: Ratio, bound: Bound) -> Self {
        let (met, missed) = match bound {
            Bound::AtMost(limit) => (ratio.high <= limit, ratio.low > limit),
            Bound::AtLeast(limit) => (ratio.low >= limit, ratio.high < limit),
        };
        match (met, missed) {
            _ if ratio.rounds < MIN_FIGURES => Verdict::Inconclusive,
            (true, _) => Verdict::Met,
            (_, true) => Verdict::Missed,
            _ => Verdict::Inconclusive,
        }
    }
}

/// Pseudo-random numbers, which are the same in every run from the same start, so that bounds can be recomputed.
#[derive(Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// A number less than `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 += 1;
        let chance = exchange::mix(self.0) >> 32; // uniform below 2^32
        ((chance * limit as u64) >> 32) as usize
    }

    /// Shuffles the items (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    fn resample(&mut self, values: &[f64]) -> Vec<f64> {
        values.iter().map(|_| values[self.below(values.len())]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(of: impl IntoIterator<Item = f64>) -> Figures {
        let mut figures = Figures::default();
        for (round, micros) in of.into_iter().enumerate() {
            figures.push(round, micros);
        }
        figures
    }

    fn between(low: f64, high: f64) -> Ratio {
        Ratio { median: (low + high) / 2.0, low, high, rounds: MIN_FIGURES }
    }

    #[test]
    fn weather_cancels_out() {
        let weather = [1.0, 50.0, 3.0, 1.0, 9.0, 2.0];
        let ratio = ratio(&figures(weather.map(|w| 3.0 * w)), &figures(weather.map(|w| 4.0 * w)));
        assert_eq!(ratio, Some(Ratio { median: 0.75, low: 0.75, high: 0.75, rounds: 6 }));
    }

    #[test]
    fn only_rounds_that_both_took_part_in_count() {
        let ours = figures([1.0, 2.0, 3.0, 4.0]);
        let mut theirs = Figures::default();
        theirs.push(1, 1.0);
        theirs.push(3, 2.0);
        theirs.push(7, 9.0);
        let ratio = ratio(&ours, &theirs).expect("two rounds");
        assert_eq!((ratio.median, ratio.rounds), (2.0, 2));
        assert_eq!(super::ratio(&ours, &Figures::default()), None);
    }

    #[test]
    fn bounds_enclose_the_median_and_narrow_with_more_rounds() {
        let spread = |rounds: usize| (0..rounds).map(|round| 1.0 + (round * 7 % 10) as f64 / 10.0);
        let ratio =
            |rounds| super::ratio(&figures(spread(rounds)), &figures(vec![1.0; rounds])).expect("rounds");
        let (few, many) = (ratio(10), ratio(1000));
        for ratio in [few, many] {
            assert!(
                ratio.low <= ratio.median && ratio.median <= ratio.high && ratio.low < ratio.high,
                "{ratio:?}"
            );
        }
        assert!(many.high - many.low < (few.high - few.low) / 2.0, "{many:?} {few:?}");
    }

    #[test]
    fn a_verdict_needs_both_bounds() {
        assert_eq!(Verdict::of(between(0.3, 0.6), Bound::AtMost(0.6)), Verdict::Met);
        assert_eq!(Verdict::of(between(0.3, 0.61), Bound::AtMost(0.6)), Verdict::Inconclusive);
        assert_eq!(Verdict::of(between(0.61, 0.7), Bound::AtMost(0.6)), Verdict::Missed);
        assert_eq!(Verdict::of(between(2.0, 2.5), Bound::AtLeast(2.0)), Verdict::Met);
        assert_eq!(Verdict::of(between(1.9, 2.5), Bound::AtLeast(2.0)), Verdict::Inconclusive);
        assert_eq!(Verdict::of(between(1.5, 1.9), Bound::AtLeast(2.0)), Verdict::Missed);
    }

    #[test]
    fn few_figures_decide_nothing() {
        let few = Ratio { rounds: MIN_FIGURES - 1, ..between(0.1, 0.1) };
        assert_eq!(Verdict::of(few, Bound::AtMost(0.6)), Verdict::Inconclusive);
        assert_eq!(Verdict::of(few, Bound::AtLeast(0.6)), Verdict::Inconclusive);
    }

    #[test]
    fn rates_are_the_other_way_round() {
        let Ratio { median, low, high, .. } = inverted(between(0.25, 0.75));
        assert_eq!((median, low, high), (2.0, 4.0 / 3.0, 4.0));
    }

    #[test]
    fn a_shuffle_keeps_everything_and_reaches_every_order() {
        let mut chance = Chance(0);
        let mut orders = std::collections::HashSet::new();
        for _ in 0..200 {
            let mut items = [0, 1, 2];
            chance.shuffle(&mut items);
            orders.insert(items);
            items.sort_unstable();
            assert_eq!(items, [0, 1, 2]);
        }
        assert_eq!(orders.len(), 6);
    }
}
