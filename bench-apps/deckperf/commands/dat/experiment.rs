//! One rank's part around the [timed loops](crate::experiment::turn), which both ranks run in step, at either level.

use udeck::via::Deadline;

use super::{
    contender::{Api, DatContender, TRANSFERS, has},
    ends::{DatEnds, LANES, work_of},
    lane::{DatPost, Work},
};
use crate::{
    commands::vi::{self, Detection, Traffic, Transfer, ViBatch, ViEnds, ViSetup},
    experiment::{
        Experiment, Timing,
        plan::Plan,
        rank_pair::RankPair,
        rounds::Trial,
        turn::{Part, PostKind, Turn},
    },
    failure::Result,
};

/// One rank's connections at both levels.
pub struct Both<'l, 'w> {
    pair: &'l RankPair<'w>,
    dat: DatEnds,
    vi: ViEnds,
}

/// Setup of the virtual interfaces: their receiver polls a completion queue, as uDAPL's dispatchers do.
fn setup(transfer: Transfer) -> ViSetup {
    ViSetup { transfer, detection: Detection::CompletionQueue, vis: 1 }
}

impl<'l, 'w> Both<'l, 'w> {
    /// Opens the connections. Both ranks call this with the same plan; blocks until all are connected.
    pub fn open(pair: &'l RankPair<'w>, plan: &Plan) -> Result<Self> {
        let caps = pair.world().nic().attributes().caps;
        let dat = DatEnds::open(pair, &TRANSFERS, LANES, plan.largest(), plan.pace.window)?;
        let setups: Vec<ViSetup> =
            TRANSFERS.into_iter().filter(|&transfer| has(Api::Vi, transfer, caps)).map(setup).collect();
        Ok(Self { pair, dat, vi: ViEnds::open(pair, &setups, plan.largest())? })
    }
}

impl Experiment for Both<'_, '_> {
    type Contender = DatContender;

    fn perform(&mut self, trial: &Trial<DatContender>) -> Result<Timing> {
        let &Trial { contender, size, shape } = trial;
        let DatContender { api, transfer, .. } = contender;
        if api == Api::Vi {
            let (way, pattern) = (setup(transfer), contender.pattern());
            let batch = ViBatch { way, traffic: Traffic::OneBusy, pattern, size, shape };
            return vi::perform(self.pair, &mut self.vi, batch);
        }
        let (lane, memory) = self.dat.of(transfer, size)?;
        // The data of an RDMA write need no receive; the empty message behind them takes one.
        let arrives = if transfer == Transfer::Send { size } else { 0 };
        let deadline = Deadline::after(self.pair.world().config().deadline);
        let (pattern, leads) = (contender.pattern(), self.pair.leads());
        let part = Part { pattern, leads, arrives, shape, rests: false, deadline };
        let mut turn = Turn::prepare(
            part,
            lane,
            |_| 0,
            |fresh| {
                let (size, work) = match fresh {
                    PostKind::Receive => (arrives, Work::Send),
                    PostKind::Request => (size, work_of(transfer)),
                    PostKind::EmptyReceive | PostKind::EmptyRequest => (0, Work::Send),
                };
                Ok(DatPost { lmr: memory.take(size)?, work })
            },
        )?;
        self.pair.meet()?;
        let lasted = turn.perform()?;
        turn.finish(|post| memory.give_back(post))?;
        Ok(lasted.into())
    }
}
