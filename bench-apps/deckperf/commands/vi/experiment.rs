//! The two roles around the [timed loops](crate::experiment::turn), which both ranks run in step.

use std::time::Duration;

use udeck::via::{Deadline, Descriptor, Region};

use super::{
    ViPlan,
    contender::{Detection, Transfer, ViContender, setups},
    ends::{BatchTurns, RegionPool, ViEnds},
    lane::ViLane,
    order::{ViBatch, ViOrder},
};
use crate::{
    experiment::{
        baseline::{BaselineSample, Baselines},
        rank_pair::RankPair,
        rounds::{Runner, Sample},
        turn::{Part, Pattern, PostKind, Turn},
    },
    failure::{PerfError, Result},
};

/// Rank 0's role: it gives the orders and holds the clock.
pub struct ViConductor<'l, 'w> {
    /// Link to rank 1.
    pub pair: &'l RankPair<'w>,
    /// Measures the raw limits; `None` without a second core.
    pub raw: Option<Baselines>,
    /// This rank's ends of the connections.
    pub ends: ViEnds,
}

impl Runner for ViConductor<'_, '_> {
    type Contender = ViContender;

    /// Runs one batch. Time in which a rank rests so that the other falls asleep is subtracted from `elapsed`.
    fn post(&mut self, order: ViOrder) -> Result<Sample> {
        let pair = self.pair;
        pair.send_words(&order.encode())?;
        let (batch, pattern) = timed(order)?;
        let mut turn = prepare(pair, &mut self.ends, batch, pattern)?;
        pair.receive_words()?; // rank 1 is prepared too
        let lasted = turn.perform()?;
        let rested = turn.finish()?;
        let report = pair.receive_words()?;
        let &[rested_there] = &report[..] else { return Err(PerfError::BadReport(report.len())) };
        let resting = rested + Duration::from_nanos(rested_there);
        Ok(Sample { lasted, elapsed: lasted.saturating_sub(resting), copied: 0 })
    }

    fn raw(&mut self, size: usize) -> Result<Option<BaselineSample>> {
        self.raw.as_mut().map(|raw| raw.measure(size)).transpose()
    }
}

/// Follows orders as rank 1 until there are no more. Between orders it sleeps in `retrieve` and leaves its core
/// to the raw measurements.
pub fn follow(pair: &RankPair<'_>, plan: &ViPlan) -> Result {
    let setups = setups(plan, pair.world().nic().caps());
    let mut ends = ViEnds::open(pair, &setups, plan.largest())?;
    loop {
        let order = ViOrder::decode(&pair.receive_words()?)?;
        if order == ViOrder::Stop {
            return Ok(());
        }
        let (batch, pattern) = timed(order)?;
        let mut turn = prepare(pair, &mut ends, batch, pattern)?;
        pair.send_words(&[])?;
        turn.perform()?;
        let rested = turn.finish()?;
        pair.send_words(&[rested.as_nanos() as u64])?;
    }
}

/// One rank's part in one order.
pub struct ViTurn<'e, F> {
    turn: Turn<'e, ViLane, F>,
    memory: &'e mut RegionPool,
}

/// Does one rank's work before the clock starts.
pub fn prepare<'e>(
    pair: &RankPair<'_>,
    ends: &'e mut ViEnds,
    ViBatch { way, traffic, size, shape }: ViBatch,
    pattern: Pattern,
) -> Result<ViTurn<'e, impl Fn(u64) -> usize>> {
    let (BatchTurns { lane, number }, memory, place) = ends.of(way, size)?;
    let part = Part {
        pattern,
        leads: pair.leads(),
        arrives: size,
        shape,
        rests: way.detection == Detection::Asleep,
        deadline: Deadline::after(pair.world().config().deadline),
    };
    let vis = lane.len();
    let turn = Turn::prepare(
        part,
        lane,
        move |message| traffic.on(message, number, vis),
        |fresh| {
            // The data of an RDMA write do not go into its descriptor.
            Ok(match (fresh, place) {
                (PostKind::EmptyReceive | PostKind::EmptyRequest, _) | (PostKind::Receive, Some(_)) => {
                    Descriptor::new(Vec::<Region>::new())
                }
                (PostKind::Receive | PostKind::Request, None) => Descriptor::new([memory.take(size)?]),
                (PostKind::Request, Some(place)) if way.transfer == Transfer::RdmaRead => {
                    Descriptor::rdma_read([memory.take(size)?], place)
                }
                (PostKind::Request, Some(place)) => {
                    Descriptor::rdma_write([memory.take(size)?], place).immediate(0)
                }
            })
        },
    )?;
    Ok(ViTurn { turn, memory })
}

impl<F: Fn(u64) -> usize> ViTurn<'_, F> {
    /// Runs the batch, and returns the time of the timed iterations.
    pub fn perform(&mut self) -> Result<Duration> {
        self.turn.perform()
    }

    /// Gives the memory back, and returns the time that this rank rested.
    pub fn finish(self) -> Result<Duration> {
        let Self { turn, memory } = self;
        turn.finish(|descriptor| memory.give_back(descriptor))
    }
}

/// Batch and pattern of an order.
fn timed(order: ViOrder) -> Result<(ViBatch, Pattern)> {
    match order {
        ViOrder::PingPong(batch) => Ok((batch, Pattern::PingPong)),
        ViOrder::Stream(batch) => Ok((batch, Pattern::Stream)),
        ViOrder::Stop => Err(PerfError::BadOrder(format!("{order:?} is not timed"))),
    }
}
