//! Noise of the machine: whether it was quiet enough to compare a run's figures with another run's.
//!
//! The measure is the raw hand-over of a cache line, in which no library has a part: whatever moves it during a run moves
//! every figure below it. Ratios within a round are not affected, absolute figures are.

use serde_json::{Value, json};

use super::{mean, median, percentile};

/// Largest quotient of the raw line's 90th and 10th percentiles that counts as quiet. The bound is a choice, not a
/// finding: beyond it, a difference of half between two runs may come from the machine alone.
const NOISY: f64 = 1.5;

/// Smallest quotient of the medians of two states; also a choice. The median of a run depends on the state in which it
/// was longer.
const APART: f64 = 1.25;

/// Smallest part of the rounds in each state, and largest part of the rounds between the states.
const SHARE: f64 = 0.1;

/// Fewest samples in which states are looked for.
const MIN_SAMPLES: usize = 20;

/// Variation of the raw line over a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Noise {
    /// The raw line's 90th percentile divided by its 10th.
    pub spread: f64,
    /// Medians of the two states, in µs, if the line had two states.
    pub states: Option<[f64; 2]>,
}

impl Noise {
    /// Noise of a run, from the raw line in all rounds, in µs; `None` where it was not measured.
    pub fn of(lines: &[f64]) -> Option<Self> {
        let [low, high] = [percentile(lines, 10.0)?, percentile(lines, 90.0)?];
        Some(Noise { spread: high / low, states: states(lines) })
    }

    /// Whether the figures of this run cannot be compared with another run's.
    pub fn is_noisy(&self) -> bool {
        self.spread > NOISY || self.states.is_some()
    }

    /// The noise in one sentence.
    pub fn sentence(&self) -> String {
        let states = self.states.map_or(String::new(), |[fast, slow]| {
            format!(", between two states of {:.0} and {:.0} ns", fast * 1e3, slow * 1e3)
        });
        match self.is_noisy() {
            true => format!(
                "the raw line moved by x{:.1} (p90 / p10) during this run{states}: figures below are not \
                 comparable with another run's; ratios within a round are",
                self.spread
            ),
            false => format!(
                "the raw line stayed within x{:.2} (p90 / p10; up to x{NOISY} is quiet) during this run",
                self.spread
            ),
        }
    }

    /// The noise as JSON.
    pub fn json(&self) -> Value {
        json!({
            "noisy": self.is_noisy(),
            "raw_line_p90_over_p10": self.spread,
            "states_us": self.states,
            "says": self.sentence(),
        })
    }
}

/// Splits the values where the two parts differ most from each other and least within (Otsu's method), then checks that
/// the parts are states: large, apart, and with few values between them.
fn states(lines: &[f64]) -> Option<[f64; 2]> {
    let mut logs: Vec<f64> = lines.iter().filter(|&&line| line > 0.0).map(|line| line.ln()).collect();
    if logs.len() < MIN_SAMPLES {
        return None;
    }
    logs.sort_unstable_by(f64::total_cmp);
    // The extremes are removed, because a single one would be a part of its own.
    let trimmed = logs.len() / 20;
    let logs = &logs[trimmed..logs.len() - trimmed];
    let contrast = |&at: &usize| {
        let (below, above) = logs.split_at(at);
        below.len() as f64 * above.len() as f64 * (mean(above) - mean(below)).powi(2)
    };
    let at = (1..logs.len()).max_by(|one, other| contrast(one).total_cmp(&contrast(other)))?;
    let (below, above) = logs.split_at(at);
    let [fast, slow] = [median(below)?, median(above)?];
    let quarter = (slow - fast) / 4.0;
    let between = logs.iter().filter(|&&log| log > fast + quarter && log < slow - quarter).count();
    let least = SHARE * logs.len() as f64;
    let large = below.len().min(above.len()) as f64 >= least;
    let clear = slow - fast >= APART.ln() && (between as f64) < least;
    (large && clear).then(|| [fast.exp(), slow.exp()])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values spread evenly around `around`, by at most the share `by` of it.
    fn cloud(around: f64, by: f64, count: usize) -> impl Iterator<Item = f64> {
        (0..count)
            .map(move |number| around * (1.0 - by + 2.0 * by * (number * 37 % count) as f64 / count as f64))
    }

    #[test]
    fn a_quiet_line_is_quiet() {
        let noise = Noise::of(&cloud(0.07, 0.1, 200).collect::<Vec<_>>()).expect("measured");
        assert!(!noise.is_noisy(), "{noise:?}");
        assert!(noise.sentence().starts_with("the raw line stayed within x1."), "{}", noise.sentence());
        assert_eq!(noise.json()["noisy"], false);
    }

    #[test]
    fn a_line_that_moves_is_noisy() {
        let noise = Noise::of(&cloud(0.1, 0.5, 200).collect::<Vec<_>>()).expect("measured");
        assert!(noise.is_noisy() && noise.states.is_none(), "{noise:?}");
        assert!(noise.sentence().contains("not comparable"), "{}", noise.sentence());
    }

    #[test]
    fn two_states_are_found_although_they_are_near() {
        let both: Vec<f64> = cloud(0.068, 0.02, 120).chain(cloud(0.09, 0.02, 80)).collect();
        let noise = Noise::of(&both).expect("measured");
        assert!(noise.spread < NOISY && noise.is_noisy(), "{noise:?}");
        assert!(noise.sentence().contains("two states of 68 and 90 ns"), "{}", noise.sentence());
        let outliers: Vec<f64> = cloud(0.068, 0.02, 195).chain(cloud(0.2, 0.02, 5)).collect();
        assert!(!Noise::of(&outliers).expect("measured").is_noisy(), "a few outliers are no state");
    }

    #[test]
    fn without_a_line_nothing_is_said() {
        assert_eq!(Noise::of(&[]), None);
    }
}
