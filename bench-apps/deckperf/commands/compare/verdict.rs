//! Verdicts on cells. A comparison has many cells, so chance alone makes some of them differ: the false discovery rate
//! is controlled over all of them (Benjamini and Hochberg 1995). If nothing has changed, this rate is the probability that any
//! cell is reported as changed.

use clap::ValueEnum;

use super::effect::Effect;

/// Verdict on a cell.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Slower by more than the threshold, and not by chance.
    Slower,
    /// Faster by more than the threshold, and not by chance.
    Faster,
    /// The bounds are wider than the threshold.
    #[value(name = "too noisy to tell")]
    TooNoisy,
    /// Both bounds are within the threshold.
    Same,
}

/// Expected share of chance findings among all cells that are reported as changed.
pub const FALSE_DISCOVERIES: f64 = 0.05;

/// A verdict for each effect; `threshold` is the smallest change that counts, 0.05 for 5 %.
pub fn verdicts(effects: &[Option<Effect>], threshold: f64) -> Vec<Verdict> {
    let limit = limit(effects.iter().flatten().map(|effect| effect.p_value).collect());
    let one = |effect: &Option<Effect>| {
        let Some(effect) = effect else { return Verdict::TooNoisy };
        let (slow, fast) = (1.0 + threshold, 1.0 / (1.0 + threshold));
        match effect.p_value <= limit {
            true if effect.ratio > slow => Verdict::Slower,
            true if effect.ratio < fast => Verdict::Faster,
            _ if effect.low >= fast && effect.high <= slow => Verdict::Same,
            _ => Verdict::TooNoisy,
        }
    };
    effects.iter().map(one).collect()
}

/// The largest probability of chance that still counts as a change; negative if there is none.
fn limit(mut p_values: Vec<f64>) -> f64 {
    p_values.sort_unstable_by(f64::total_cmp);
    let count = p_values.len() as f64;
    let allowed = |place: usize| FALSE_DISCOVERIES * (place + 1) as f64 / count;
    let last = (0..p_values.len()).rev().find(|&place| p_values[place] <= allowed(place));
    last.map_or(-1.0, |place| p_values[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(ratio: f64, reach: f64, p_value: f64) -> Option<Effect> {
        let (low, high) = (ratio - reach, ratio + reach);
        Some(Effect { ratio, low, high, p_value, absolute: ratio, relative: None, limit: None })
    }

    #[test]
    fn a_change_has_to_be_large_and_no_chance() {
        let cases = [
            (effect(1.1, 0.02, 0.001), Verdict::Slower),
            (effect(0.9, 0.02, 0.001), Verdict::Faster),
            (effect(1.03, 0.01, 0.001), Verdict::Same),
            (effect(1.04, 0.03, 0.001), Verdict::TooNoisy),
            (effect(1.1, 0.2, 0.3), Verdict::TooNoisy),
            (effect(1.0, 0.02, 1.0), Verdict::Same),
            (None, Verdict::TooNoisy),
        ];
        for (effect, verdict) in cases {
            assert_eq!(verdicts(std::slice::from_ref(&effect), 0.05), [verdict], "{effect:?}");
        }
    }

    #[test]
    fn one_of_many_may_be_chance() {
        let mut effects = vec![effect(1.0, 0.01, 0.9); 19];
        effects.push(effect(1.2, 0.1, 0.03));
        assert!(verdicts(&effects, 0.05).iter().all(|&verdict| verdict != Verdict::Slower));
        effects.pop();
        effects.push(effect(1.2, 0.1, 0.002));
        assert_eq!(verdicts(&effects, 0.05)[19], Verdict::Slower);
        // If all have changed, each needs less evidence.
        assert_eq!(verdicts(&vec![effect(1.2, 0.1, 0.04); 20], 0.05), [Verdict::Slower; 20]);
    }

    #[test]
    fn nothing_has_no_verdicts() {
        assert!(verdicts(&[], 0.05).is_empty());
    }
}
