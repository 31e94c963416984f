//! A rank of µDECK's that `deckperf cpu` conducts.

use std::{
    hint, thread,
    time::{Duration, Instant},
};

use udeck::{Postbox, Protocol, Received, World};

use super::{
    order::{CpuAnswer, CpuOrder, Waiting, Way},
    usage::Usage,
};
use crate::{
    commands::peers::rank::follow,
    experiment::{messages, plan::Batch, rank_pair::RankPair},
    failure::{PerfError, Result},
};

/// Protocol of all messages: the default of a program that chooses none.
const PROTOCOL: Protocol = Protocol::Auto;
/// Longest wait for a message that is polled for. The loss of a peer is noticed at once, so only an error can last that long.
const LIMIT: Duration = Duration::from_secs(20);
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
        Side::new(&pair, order)?.perform().map(|answer| answer.to_string())
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

    fn perform(&self) -> Result<CpuAnswer> {
        let (world, order) = (self.pair.world(), &self.order);
        let failed = || PerfError::system("reading this process's processor time");
        world.barrier()?; // all ranks are awake
        for turn in 0..order.warm_up {
            self.window(turn, None)?;
        }
        let (before, started) = (Usage::now().map_err(failed())?, Instant::now());
        for turn in order.warm_up..order.warm_up + order.iterations {
            self.window(turn, Some(started).filter(|_| order.rate > 0))?;
        }
        let usage = before.since().map_err(failed())?;
        world.barrier()?; // nobody leaves the library while a message is under way
        Ok(CpuAnswer { usage, messages: order.messages(), lost: 0 })
    }

    /// Runs one window. Its messages are posted one behind the other or, with `paced`, each when it is due after that time.
    fn window(&self, turn: u64, paced: Option<Instant>) -> Result {
        let depth = self.order.depth;
        if self.pair.leads() {
            for slot in 0..depth {
                if let Some(started) = paced {
                    let number = (turn - self.order.warm_up) * depth + slot;
                    thread::sleep(self.order.due(number).saturating_sub(started.elapsed()));
                }
                messages::send(self.pair, self.outlet, &self.batch, turn * depth + slot)?;
            }
            let answer = self.take()?;
            return self.pair.check_length(PROTOCOL, 0, answer.len());
        }
        for slot in 0..depth {
            let message = self.take()?;
            messages::check(self.pair, &self.batch, &message, turn * depth + slot)?;
        }
        self.pair.acknowledge()
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
