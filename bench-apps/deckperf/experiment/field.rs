//! The schedule of contenders any of which may fail: all are calibrated, then each runs one batch in every round.

use std::time::{Duration, Instant};

use udeck_cli::progress;

use super::rounds::repeat;
use crate::failure::Result;

/// Contenders, by their indices.
pub trait Field {
    /// Reason for which a contender fails.
    type Failure;

    /// Number of contenders.
    fn count(&self) -> usize;

    /// Finds how much work fills a batch of a contender.
    fn calibrate(&mut self, index: usize) -> Result<(), Self::Failure>;

    /// Contenders of a round, in the order of their turns.
    fn order(&mut self, round: usize) -> Vec<usize>;

    /// Runs one batch of a contender.
    fn turn(&mut self, round: usize, index: usize) -> Result<(), Self::Failure>;

    /// Leaves a contender out that has failed.
    ///
    /// # Errors
    /// The run is of no use without it.
    fn lose(&mut self, index: usize, failure: Self::Failure) -> Result;
}

/// Runs rounds until the time is used up, at least five, and shows how far it is. Returns their number, and the time with the
/// calibration.
///
/// # Errors
/// The same as [`Field::lose`]'s.
pub fn measure(field: &mut impl Field, time: Duration, what: &'static str) -> Result<(usize, Duration)> {
    let started = Instant::now();
    let bar = progress::bar(time.as_millis() as u64, what);
    let passed = || bar.set_position(started.elapsed().as_millis() as u64);
    for index in 0..field.count() {
        field.calibrate(index).or_else(|failure| field.lose(index, failure))?;
        passed();
    }
    let measured = repeat(started, time, |round| {
        field.order(round).into_iter().try_for_each(|index| {
            field.turn(round, index).or_else(|failure| field.lose(index, failure))?;
            passed();
            Ok(())
        })
    });
    bar.finish_and_clear();
    measured
}
