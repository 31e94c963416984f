//! The timed loops, which both ranks run in step.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use udeck::Protocol;

use crate::{
    experiment::{
        Experiment, Timing,
        rank_pair::RankPair,
        rounds::{Contend, Trial},
    },
    failure::Result,
};

/// Role of rank 0, whose time is measured.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedSide {
    /// Rank 0 posts, computes, and waits for the word that the message has been read.
    Sender,
    /// Rank 0 says that it is ready, computes, and retrieves.
    Receiver,
}

/// A fixed amount of computation, in steps that depend on each other and touch no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work(u64);

impl Work {
    /// No computation.
    pub const NONE: Work = Work(0);

    /// Shortest time of 1000 steps on this machine.
    pub fn calibrate() -> Duration {
        const STEPS: u64 = 1 << 20;
        let fastest = (0..5).map(|_| timed_work(1, Work(STEPS))).min().unwrap_or_default();
        fastest.mul_f64(1000.0 / STEPS as f64)
    }

    /// Computation that lasts about `time`, where 1000 steps last `per_1000`.
    pub fn lasting(time: Duration, per_1000: Duration) -> Self {
        let steps = time.as_secs_f64() / per_1000.as_secs_f64().max(1e-9) * 1000.0;
        Work((steps as u64).max(1))
    }

    #[inline]
    fn perform(self) {
        let mut value = self.0;
        for _ in 0..self.0 {
            value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
}

/// Runs only the computation, `iterations` times, and returns its time.
pub fn timed_work(iterations: u64, work: Work) -> Duration {
    let mut lasted = Duration::ZERO;
    for _ in 0..iterations {
        let started = Instant::now();
        work.perform();
        lasted += started.elapsed();
    }
    lasted
}

/// Role of rank 0, and protocol of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Role of rank 0, which computes.
    pub timed: TimedSide,
    /// Protocol of the messages.
    pub protocol: Protocol,
}

impl Contend for Side {}

/// Messages that are timed each by itself: the time between them does not count.
pub struct Overlapped<'l, 'w> {
    /// Link to the other rank.
    pub pair: &'l RankPair<'w>,
    /// Computation of rank 0 with each message. Rank 1 never computes.
    pub work: Work,
}

impl Experiment for Overlapped<'_, '_> {
    type Contender = Side;

    fn perform(&mut self, trial: &Trial<Side>) -> Result<Timing> {
        let (pair, mut lasted) = (self.pair, Duration::ZERO);
        for _ in 0..trial.shape.iterations {
            match (trial.contender.timed, pair.leads()) {
                (TimedSide::Sender, true) => lasted += send(pair, trial, self.work)?,
                (TimedSide::Receiver, true) => lasted += receive(pair, trial, self.work)?,
                (TimedSide::Sender, false) => take(pair, trial)?,
                (TimedSide::Receiver, false) => give(pair, trial)?,
            }
        }
        Ok(lasted.into())
    }
}

fn send(pair: &RankPair<'_>, trial: &Trial<Side>, work: Work) -> Result<Duration> {
    let outlet = pair.outlet(trial.contender.protocol)?;
    pair.await_acknowledgement()?; // rank 1 retrieves next
    let message = pair.world().buf_reused::<u8>(trial.size)?;
    let started = Instant::now();
    outlet.post(message)?;
    work.perform();
    pair.await_acknowledgement()?; // rank 1 has the message
    Ok(started.elapsed())
}

fn receive(pair: &RankPair<'_>, trial: &Trial<Side>, work: Work) -> Result<Duration> {
    let started = Instant::now();
    pair.acknowledge()?;
    work.perform();
    let message = pair.inbox().retrieve()?;
    pair.check_length(trial.contender.protocol, trial.size, message.len())?;
    let lasted = started.elapsed();
    drop(message);
    Ok(lasted)
}

/// Retrieves a message as rank 1, and says so.
fn take(pair: &RankPair<'_>, trial: &Trial<Side>) -> Result {
    pair.acknowledge()?;
    pair.check_length(trial.contender.protocol, trial.size, pair.inbox().retrieve()?.len())?;
    pair.acknowledge()
}

/// Posts a message as rank 1 when rank 0 is ready.
fn give(pair: &RankPair<'_>, trial: &Trial<Side>) -> Result {
    let message = pair.world().buf_reused::<u8>(trial.size)?;
    pair.await_acknowledgement()?;
    Ok(pair.outlet(trial.contender.protocol)?.post(message)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_asked_for_by_time() {
        let per_1000 = Duration::from_micros(2);
        assert_eq!(Work::lasting(Duration::from_micros(10), per_1000), Work(5000));
        assert_eq!(Work::lasting(Duration::ZERO, per_1000), Work(1), "never none");
    }
}
