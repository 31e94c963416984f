//! A rank of µDECK's that `deckperf cpu` conducts.

use std::{hint, time::Instant};

use udeck::{Postbox, Protocol, Received, World};

use super::{
    batch::{self, End, LIMIT},
    order::{CpuOrder, Waiting, Way},
};
use crate::{
    commands::peers::rank::follow,
    experiment::{messages, plan::Batch, rank_pair::RankPair},
    failure::{PerfError, Result},
};

/// Protocol of all messages: the default of a program that chooses none.
const PROTOCOL: Protocol = Protocol::Auto;
/// Polls between two reads of the clock.
const POLLS: u32 = 1 << 16;

/// Follows the conductor until it hangs up.
///
/// # Errors
/// Errors of the library, or a message that differs from the posted one.
pub fn serve(world: &World) -> Result {
    let pair = RankPair::open(world, &[PROTOCOL])?;
    follow(world.rank(), world.size(), |line| {
        let order: CpuOrder = line.parse().map_err(PerfError::BadOrder)?;
        if order.way != Way::Mailbox {
            return Err(PerfError::BadOrder(line.to_owned()));
        }
        let answer = batch::perform(&mut Side::new(&pair, order)?, &order, pair.leads())?;
        Ok(answer.to_string())
    })
}

/// One end of the mailbox, for one batch.
struct Side<'p, 'w> {
    pair: &'p RankPair<'w>,
    outlet: &'p Postbox<u8>,
    order: CpuOrder,
    batch: Batch,
}

impl<'p, 'w> Side<'p, 'w> {
    fn new(pair: &'p RankPair<'w>, order: CpuOrder) -> Result<Self> {
        let CpuOrder { payload, bytes: size, warm_up, iterations, .. } = order;
        let batch = Batch { protocol: PROTOCOL, payload, size, warm_up, iterations };
        Ok(Self { pair, outlet: pair.outlet(PROTOCOL)?, order, batch })
    }

    #[inline]
    fn take(&self) -> Result<Received<u8>> {
        let inbox = self.pair.inbox();
        if self.order.waiting == Waiting::Blocking {
            return Ok(inbox.retrieve()?);
        }
        let started = Instant::now();
        while started.elapsed() < LIMIT {
            for _ in 0..POLLS {
                if let Some(message) = inbox.try_retrieve()? {
                    return Ok(message);
                }
                hint::spin_loop();
            }
        }
        Err(PerfError::Overdue("a message of the other rank"))
    }
}

impl End for Side<'_, '_> {
    fn meet(&mut self) -> Result {
        Ok(self.pair.world().barrier()?)
    }

    #[inline]
    fn post(&mut self, number: u64) -> Result {
        messages::send(self.pair, self.outlet, &self.batch, number)
    }

    fn await_acknowledgement(&mut self, _turn: u64) -> Result<u64> {
        let answer = self.take()?;
        self.pair.check_length(PROTOCOL, 0, answer.len())?;
        Ok(0)
    }

    fn take_window(&mut self, turn: u64) -> Result<u64> {
        let depth = self.order.depth;
        for slot in 0..depth {
            let message = self.take()?;
            messages::check(self.pair, &self.batch, &message, turn * depth + slot)?;
        }
        self.pair.acknowledge()?;
        Ok(0)
    }
}
