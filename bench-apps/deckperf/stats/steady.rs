//! Warm-up detection: finds in the figures which of the first rounds were still warming up.
//!
//! Batches warm up by themselves (see [`Shape`](crate::experiment::rounds::Shape)), so few runs have such rounds: a processor that still
//! raises its clock, memory that the kernel still maps, an interpreter of the host that still learns.

use crate::stats::{median, percentile};

/// Most rounds that are dropped: in the middle of a measurement nobody can say what is steady.
pub const MOST: usize = 16;

/// Rounds in a run whose median is tested: one round says nothing.
const RUN: usize = 3;

/// Fewest rounds after the run; with fewer, nothing is dropped.
const REST: usize = 8;

/// Percentiles of the later rounds between which the median of the run has to lie. They are a choice: nine in ten single rounds
/// lie between them, and the median of three such rounds more often than one round.
const BOUNDS: [f64; 2] = [5.0, 95.0];

/// Result of the warm-up detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmUp {
    /// Number of first rounds that do not count.
    pub dropped: usize,
    /// Whether the rounds after them still differed from the later ones.
    pub unsettled: bool,
}

impl WarmUp {
    /// Finds the warm-up rounds. `slowness` has the time of each round as a multiple of the median of the whole run.
    pub fn find(slowness: &[f64]) -> Self {
        let most = MOST.min(slowness.len() / 4);
        match (0..=most).find(|&dropped| fits(&slowness[dropped..])) {
            Some(dropped) => WarmUp { dropped, unsettled: false },
            None => WarmUp { dropped: most, unsettled: true },
        }
    }

    /// Sentence for the report's method.
    pub fn sentence(self) -> String {
        let WarmUp { dropped, unsettled } = self;
        let rule = format!(
            "until the median of {RUN} rounds lies between the {}th and the {}th percentile of those after them",
            BOUNDS[0], BOUNDS[1]
        );
        match (dropped, unsettled) {
            (_, true) => format!(
                "warm-up: the first {dropped} rounds are dropped, the most that may be, and the machine was not \
                 steady then ({rule})"
            ),
            (0, false) => format!("warm-up: no round is dropped ({rule})"),
            (_, false) => format!("warm-up: the first {dropped} rounds are dropped ({rule})"),
        }
    }
}

fn fits(slowness: &[f64]) -> bool {
    let Some((run, rest)) = slowness.split_at_checked(RUN).filter(|(_, rest)| rest.len() >= REST) else {
        return true;
    };
    let (Some(run), Some(low), Some(high)) =
        (median(run), percentile(rest, BOUNDS[0]), percentile(rest, BOUNDS[1]))
    else {
        return true;
    };
    (low..=high).contains(&run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(slow: &[f64], steady: usize) -> Vec<f64> {
        let steady = (0..steady).map(|round| 1.0 + (round * 7 % 10) as f64 / 100.0);
        slow.iter().copied().chain(steady).collect()
    }

    #[test]
    fn slow_rounds_at_the_beginning_are_dropped_and_no_others() {
        assert_eq!(WarmUp::find(&rounds(&[], 40)), WarmUp::default());
        let found = WarmUp::find(&rounds(&[3.0, 2.0, 1.6, 1.4], 40));
        // The last slow round does not move the median of three.
        assert_eq!(found, WarmUp { dropped: 3, unsettled: false });
        assert_eq!(WarmUp::find(&rounds(&[3.0], 40)), WarmUp::default(), "one disturbance");
        assert!(found.sentence().contains("the first 3 rounds are dropped (until"), "{}", found.sentence());
    }

    #[test]
    fn a_machine_that_never_settles_is_said_to_be_so() {
        let falling: Vec<f64> = (0..100).map(|round| 2.0 - f64::from(round) / 100.0).collect();
        let found = WarmUp::find(&falling);
        assert_eq!(found, WarmUp { dropped: MOST, unsettled: true });
        assert!(found.sentence().contains("was not steady"), "{}", found.sentence());
    }

    #[test]
    fn few_rounds_are_all_kept() {
        assert_eq!(WarmUp::find(&[9.0, 5.0, 1.0, 1.0, 1.0]), WarmUp::default());
        assert_eq!(WarmUp::find(&[]), WarmUp::default());
    }
}
