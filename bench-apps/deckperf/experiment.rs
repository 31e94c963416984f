//! The driver of every experiment among ranks: rank 0 gives the orders and holds the clock, and the other ranks follow.
//!
//! A command gives the operations under measurement ([`Experiment`]) and the cells of its tables. All ranks have the same
//! command line, and so the same cells: an order is the number of a cell, with the numbers of iterations and messages.
//! Between orders a rank sleeps in `retrieve` and leaves its core to the machine's own limits ([`baseline`]).

pub mod baseline;
pub mod binding;
pub mod exchange;
pub mod field;
pub mod handicap;
pub mod memory;
pub mod messages;
pub mod off_cache;
pub mod payload;
pub mod places;
pub mod plan;
pub mod rank_pair;
pub mod rounds;
pub mod sizes;
pub mod turn;

use std::time::Duration;

use udeck::{Received, World};
use udeck_cli::progress;

use self::{
    baseline::{BaselineSample, Baselines},
    plan::Pace,
    rank_pair::{RankPair, report},
    rounds::{Contend, Results, Runner, Sample, Shape, Trial},
};
use crate::failure::{PerfError, Result};

/// Operations under measurement. Each rank has one of these, and performs its own part of every batch.
pub trait Experiment {
    /// Contender whose batches are timed.
    type Contender: Contend;

    /// Whether the machine's copies limit the figures, and not only its hand-over of a cache line.
    const COPIES: bool = true;

    /// Is called at rank 0 when a round begins; batches before the first round belong to the calibration.
    fn begin_round(&mut self, _number: usize) {}

    /// Ranks that take part in a batch, without rank 0.
    fn followers(&self, _trial: &Trial<Self::Contender>) -> Vec<usize> {
        vec![1]
    }

    /// Performs this rank's part of a batch, and returns its time; only rank 0's counts.
    fn perform(&mut self, trial: &Trial<Self::Contender>) -> Result<Timing>;
}

/// Time of a batch at one rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timing {
    /// Time of the timed iterations.
    pub lasted: Duration,
    /// Part of this time that does not count: rests between messages, and work around the timed operation.
    pub rested: Duration,
}

impl From<Duration> for Timing {
    fn from(lasted: Duration) -> Self {
        Self { lasted, rested: Duration::ZERO }
    }
}

/// Words between rank 0 and the other ranks: orders and reports.
pub trait Link {
    /// The world of the ranks.
    fn world(&self) -> &World;

    /// Sends words from rank 0 to another rank, or from another rank to rank 0.
    fn send(&self, rank: usize, words: &[u64]) -> Result;

    /// Waits for the next words of `rank`.
    fn receive(&self, rank: usize) -> Result<Received<u64>>;
}

impl Link for RankPair<'_> {
    fn world(&self) -> &World {
        RankPair::world(self)
    }

    fn send(&self, _rank: usize, words: &[u64]) -> Result {
        self.send_words(words)
    }

    fn receive(&self, _rank: usize) -> Result<Received<u64>> {
        self.receive_words()
    }
}

/// Runs an experiment at one rank, and returns the results at rank 0. All ranks pass the same cells; `raw` prepares the
/// measurement of the machine's limits up to a size.
pub fn run<E: Experiment>(
    link: &impl Link,
    pace: Pace,
    cells: Results<E::Contender>,
    raw: impl FnOnce(usize) -> Option<Baselines>,
    experiment: &mut E,
) -> Result<Option<Results<E::Contender>>> {
    if link.world().rank() != 0 {
        follow(link, &cells, experiment)?;
        return Ok(None);
    }
    let sizes = cells.raws.iter().map(|raw| raw.size);
    let raw = raw(sizes.max().filter(|_| E::COPIES).unwrap_or(0));
    let bar = progress::bar(pace.time.as_millis() as u64, "measuring");
    let passed = |passed: Duration| bar.set_position(passed.as_millis() as u64);
    let results = rounds::measure(pace, cells, &mut Conductor { link, raw, experiment }, passed)?;
    bar.finish_and_clear();
    stop(link)?;
    Ok(Some(results))
}

/// Rank 0's role.
struct Conductor<'r, L, E> {
    link: &'r L,
    /// Measures the machine's limits; `None` without a second core.
    raw: Option<Baselines>,
    experiment: &'r mut E,
}

impl<L: Link, E: Experiment> Runner for Conductor<'_, L, E> {
    type Contender = E::Contender;

    fn begin_round(&mut self, number: usize) {
        self.experiment.begin_round(number);
    }

    fn run(&mut self, cell: usize, trial: &Trial<E::Contender>) -> Result<Sample> {
        conduct(self.link, cell, trial, self.experiment)
    }

    fn raw(&mut self, size: usize) -> Result<Option<BaselineSample>> {
        let size = if E::COPIES { size } else { 0 };
        self.raw.as_mut().map(|raw| raw.measure(size)).transpose()
    }
}

/// Runs one batch as rank 0.
pub fn conduct<E: Experiment>(
    link: &impl Link,
    cell: usize,
    trial: &Trial<E::Contender>,
    experiment: &mut E,
) -> Result<Sample> {
    let followers = experiment.followers(trial);
    followers.iter().try_for_each(|&rank| link.send(rank, &encode(cell, trial.shape)))?;
    let copied_before = link.world().stats().bytes_copied;
    let Timing { lasted, mut rested } = experiment.perform(trial)?;
    let mut copied = link.world().stats().bytes_copied - copied_before;
    for rank in followers {
        // All messages have arrived here, so the other rank has made its last copies and may count them now.
        link.send(rank, &[])?;
        let [copied_there, rested_there] = report(&link.receive(rank)?)?;
        copied = copied.saturating_add(copied_there);
        rested += Duration::from_nanos(rested_there);
    }
    Ok(Sample { elapsed: lasted.saturating_sub(rested), lasted, copied })
}

/// Ends the other ranks' part.
pub fn stop(link: &impl Link) -> Result {
    (1..link.world().size()).try_for_each(|rank| link.send(rank, &[]))
}

/// Follows orders until there are no more, as any rank but 0.
pub fn follow<E: Experiment>(link: &impl Link, cells: &Results<E::Contender>, experiment: &mut E) -> Result {
    while let Some(trial) = decode(&link.receive(0)?, cells)? {
        let copied_before = link.world().stats().bytes_copied;
        let rested = experiment.perform(&trial)?.rested;
        link.receive(0)?;
        let copied = link.world().stats().bytes_copied - copied_before;
        link.send(0, &[copied, rested.as_nanos() as u64])?;
    }
    Ok(())
}

/// Encodes an order as `[cell, warm-up, iterations, messages]`. No words at all are the last order.
fn encode(cell: usize, Shape { warm_up, iterations, messages }: Shape) -> [u64; 4] {
    [cell as u64, warm_up, iterations, messages]
}

/// Decodes an order of rank 0; `None` is the last one.
fn decode<C: Contend>(words: &[u64], cells: &Results<C>) -> Result<Option<Trial<C>>> {
    let bad = |what: &str| PerfError::BadOrder(format!("{what} in {words:?}"));
    let (cell, shape) = match *words {
        [] => return Ok(None),
        [cell, warm_up, iterations, messages] => (cell, Shape { warm_up, iterations, messages }),
        _ => return Err(bad("not four words")),
    };
    let series = usize::try_from(cell).ok().and_then(|cell| cells.posts.get(cell));
    let series = series.ok_or_else(|| bad("no such cell"))?;
    Ok(Some(Trial { contender: series.contender, size: series.size, shape }))
}

#[cfg(test)]
mod tests {
    use udeck::Protocol;

    use super::{
        plan::{PROTOCOLS, Payload, Test},
        rounds::Contender,
        *,
    };

    fn cells() -> Results {
        let of = |protocol: Protocol| {
            let payloads = [Payload::Untouched, Payload::WrittenRead];
            payloads.map(|payload| (Contender { test: Test::Latency, protocol, payload }, 4099))
        };
        Results::empty(&[4099], PROTOCOLS.into_iter().flat_map(of))
    }

    #[test]
    fn orders_survive_the_journey() {
        let (cells, shape) = (cells(), Shape { warm_up: 3, iterations: 1000, messages: 64 });
        for (cell, series) in cells.posts.iter().enumerate() {
            let trial = Trial { contender: series.contender, size: 4099, shape };
            assert_eq!(decode(&encode(cell, shape), &cells).expect("decodes"), Some(trial));
        }
        assert_eq!(decode(&[], &cells).expect("decodes"), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for (words, part) in [
            (&[1; 3][..], "not four words"),
            (&[1; 5], "not four words"),
            (&[99, 0, 1, 1], "no such cell"),
            (&[u64::MAX, 0, 1, 1], "no such cell"),
        ] {
            let error = decode(words, &cells()).expect_err("nonsense").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
