//! Overlap of transfer and computation, computed from three times.

use super::batch::{Side, Work};
use crate::stats::{median, percentile};

/// Times of a message in one round, in µs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverlapSample {
    /// Time of the transfer alone.
    pub transfer: f64,
    /// Time of the computation alone.
    pub compute: f64,
    /// Time of both at once: post, compute, wait.
    pub both: f64,
}

impl OverlapSample {
    /// The fraction of the transfer that is hidden behind the computation: 1 - (both - compute) / transfer. Below 0 when
    /// computing makes the transfer slower; noise can take it above 1.
    pub fn hidden(&self) -> f64 {
        1.0 - (self.both - self.compute) / self.transfer
    }

    /// The fraction of the time that remains for the program's computation.
    pub fn availability(&self) -> f64 {
        self.compute / self.both
    }
}

/// One row: a protocol at one size, seen from one side.
#[derive(Clone, Debug)]
pub struct OverlapSeries {
    /// Role of rank 0, and protocol of the messages.
    pub side: Side,
    /// Bytes per message.
    pub size: usize,
    /// Messages in a batch.
    pub iterations: u64,
    /// Computation that goes with each message.
    pub work: Work,
    /// Samples, one per round.
    pub samples: Vec<OverlapSample>,
}

impl OverlapSeries {
    /// A series without samples.
    pub fn new(side: Side, size: usize) -> Self {
        Self { side, size, iterations: 1, work: Work::NONE, samples: Vec::new() }
    }

    /// The median over the rounds; `None` before the first.
    pub fn p50(&self, of: impl Fn(&OverlapSample) -> f64) -> Option<f64> {
        median(&self.of(of))
    }

    /// A percentile over the rounds; `None` before the first.
    pub fn percentile(&self, of: impl Fn(&OverlapSample) -> f64, percent: f64) -> Option<f64> {
        percentile(&self.of(of), percent)
    }

    fn of(&self, of: impl Fn(&OverlapSample) -> f64) -> Vec<f64> {
        self.samples.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::overlap::batch::TimedSide;

    #[test]
    fn what_hides_costs_nothing_beyond_the_computation() {
        let at = |both| OverlapSample { transfer: 10.0, compute: 20.0, both };
        assert_eq!((at(20.0).hidden(), at(20.0).availability()), (1.0, 1.0));
        assert_eq!((at(25.0).hidden(), at(25.0).availability()), (0.5, 0.8));
        assert_eq!(at(30.0).hidden(), 0.0, "one after the other");
        assert_eq!(at(40.0).hidden(), -1.0, "each in the other's way");
    }

    #[test]
    fn a_rows_figures_are_those_of_its_rounds() {
        let side = Side { timed: TimedSide::Sender, protocol: udeck::Protocol::Copy };
        let mut series = OverlapSeries::new(side, 8);
        assert_eq!(series.p50(OverlapSample::hidden), None);
        let rounds = [20.0, 25.0, 30.0, 25.0, 28.0];
        series.samples = rounds.map(|both| OverlapSample { transfer: 10.0, compute: 20.0, both }).to_vec();
        assert_eq!(series.p50(OverlapSample::hidden), Some(0.5));
        assert_eq!(series.percentile(OverlapSample::hidden, 1.0), Some(0.0));
        assert_eq!(series.percentile(OverlapSample::hidden, 99.0), Some(1.0));
        assert_eq!(series.p50(|sample| sample.both), Some(25.0));
    }
}
