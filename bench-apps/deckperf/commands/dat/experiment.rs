//! The two roles around the [timed loops](crate::experiment::turn), which both ranks run in step, at either level.

use std::time::Duration;

use udeck::via::Deadline;

use super::{
    DatPlan,
    contender::{Api, DatContender, TRANSFERS, has},
    ends::{DatEnds, LmrPool, work_of},
    lane::{DatLane, DatPost, Work},
    order::{DatBatch, DatOrder},
};
use crate::{
    commands::vi::{self, Detection, Traffic, Transfer, ViBatch, ViEnds, ViSetup},
    experiment::{
        baseline::{BaselineSample, Baselines},
        rank_pair::RankPair,
        rounds::{Runner, Sample},
        turn::{Part, PostKind, Turn},
    },
    failure::{PerfError, Result},
};

/// One rank's connections at both levels.
pub struct Both {
    dat: DatEnds,
    vi: ViEnds,
}

/// Setup of the virtual interfaces: their receiver polls a completion queue, as uDAPL's dispatchers do.
fn setup(transfer: Transfer) -> ViSetup {
    ViSetup { transfer, detection: Detection::CompletionQueue, vis: 1 }
}

impl Both {
    /// Opens the connections. Both ranks call this with the same plan; blocks until all are connected.
    pub fn open(pair: &RankPair<'_>, plan: &DatPlan) -> Result<Self> {
        let caps = pair.world().nic().attributes().caps;
        let dat = DatEnds::open(pair, plan.largest(), plan.pace.window)?;
        let setups: Vec<ViSetup> =
            TRANSFERS.into_iter().filter(|&transfer| has(Api::Vi, transfer, caps)).map(setup).collect();
        Ok(Self { dat, vi: ViEnds::open(pair, &setups, plan.largest())? })
    }

    /// Plays one rank's part, in step with the other; calls `meet` when everything is prepared.
    fn play(
        &mut self,
        pair: &RankPair<'_>,
        order: DatOrder,
        meet: impl FnOnce() -> Result,
    ) -> Result<Duration> {
        let DatOrder::Time(batch) = order else {
            return Err(PerfError::BadOrder(format!("{order:?} is not timed")));
        };
        let DatBatch { api, transfer, pattern, size, shape } = batch;
        if api == Api::Vi {
            let batch = ViBatch { way: setup(transfer), traffic: Traffic::OneBusy, size, shape };
            let mut turn = vi::prepare(pair, &mut self.vi, batch, pattern)?;
            meet()?;
            let lasted = turn.perform()?;
            turn.finish()?;
            return Ok(lasted);
        }
        let (lane, memory) = self.dat.of(transfer, size)?;
        let mut turn = prepare(pair, lane, memory, batch)?;
        meet()?;
        let lasted = turn.perform()?;
        turn.finish(|post| memory.give_back(post))?;
        Ok(lasted)
    }
}

fn prepare<'l>(
    pair: &RankPair<'_>,
    lane: &'l mut DatLane,
    memory: &mut LmrPool,
    DatBatch { transfer, pattern, size, shape, .. }: DatBatch,
) -> Result<Turn<'l, DatLane, impl Fn(u64) -> usize + use<>>> {
    // The data of an RDMA write need no receive; the empty message behind them takes one.
    let arrives = if transfer == Transfer::Send { size } else { 0 };
    let deadline = Deadline::after(pair.world().config().deadline);
    let part = Part { pattern, leads: pair.leads(), arrives, shape, rests: false, deadline };
    Turn::prepare(
        part,
        lane,
        |_| 0,
        |fresh| {
            Ok(match fresh {
                PostKind::Receive => DatPost { lmr: memory.take(arrives)?, work: Work::Send },
                PostKind::Request => DatPost { lmr: memory.take(size)?, work: work_of(transfer) },
                PostKind::EmptyReceive | PostKind::EmptyRequest => {
                    DatPost { lmr: memory.take(0)?, work: Work::Send }
                }
            })
        },
    )
}

/// Rank 0's role: it gives the orders and holds the clock.
pub struct DatConductor<'l, 'w> {
    /// Link to rank 1.
    pub pair: &'l RankPair<'w>,
    /// Measures the raw limits; `None` without a second core.
    pub raw: Option<Baselines>,
    /// This rank's connections.
    pub both: Both,
}

impl Runner for DatConductor<'_, '_> {
    type Contender = DatContender;

    fn post(&mut self, order: DatOrder) -> Result<Sample> {
        let pair = self.pair;
        pair.send_words(&order.encode())?;
        // Rank 1's message says that it is prepared, too.
        let lasted = self.both.play(pair, order, || pair.receive_words().map(drop))?;
        pair.receive_words()?;
        Ok(Sample { lasted, elapsed: lasted, copied: 0 })
    }

    fn raw(&mut self, size: usize) -> Result<Option<BaselineSample>> {
        self.raw.as_mut().map(|raw| raw.measure(size)).transpose()
    }
}

/// Follows orders as rank 1 until there are no more.
pub fn follow(pair: &RankPair<'_>, plan: &DatPlan) -> Result {
    let mut both = Both::open(pair, plan)?;
    loop {
        let order = DatOrder::decode(&pair.receive_words()?)?;
        if order == DatOrder::Stop {
            return Ok(());
        }
        both.play(pair, order, || pair.send_words(&[]))?;
        pair.send_words(&[])?;
    }
}
