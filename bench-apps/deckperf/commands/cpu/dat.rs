//! A rank of uDAPL's that `deckperf cpu` conducts: one end point of `udeck-dat` on the NIC of a world.
//!
//! Both sides have as many buffers as messages may be under way, and use them in turn, as the programs of 2004 did. The sender takes
//! a buffer again when its completion has come; the receiver posts one again as soon as it has read it.

use std::collections::VecDeque;

use udeck::{World, via::Deadline};

use super::{
    MOST_UNDER_WAY,
    batch::{self, End, LIMIT},
    order::{CpuAnswer, CpuOrder, Waiting, Way},
};
use crate::{
    commands::{
        dat::{DatEnds, DatLane, DatPost, LmrPool, Work},
        peers::rank::follow,
        vi::Transfer,
    },
    experiment::{payload, plan::Payload, rank_pair::RankPair, turn::Lane},
    failure::{PerfError, Result},
};

/// Longest message, in bytes. Any adapter takes it, and the memory for the largest number of buffers stays small.
pub const LARGEST: usize = 1 << 20;

/// Follows the conductor until it hangs up.
///
/// # Errors
/// Errors of the library, or a message that differs from the posted one.
pub fn serve(world: &World) -> Result {
    let pair = RankPair::open(world, &[])?;
    let mut ends = connect(&pair)?;
    follow(world.rank(), world.size(), |line| {
        let order: CpuOrder = line.parse().map_err(PerfError::BadOrder)?;
        if order.way != Way::Dat || order.depth > MOST_UNDER_WAY {
            return Err(PerfError::BadOrder(line.to_owned()));
        }
        Ok(perform(&pair, &mut ends, order)?.to_string())
    })
}

fn connect(pair: &RankPair<'_>) -> Result<DatEnds> {
    DatEnds::open(pair, &[Transfer::Send], 1, 0, MOST_UNDER_WAY)
}

fn perform(pair: &RankPair<'_>, ends: &mut DatEnds, order: CpuOrder) -> Result<CpuAnswer> {
    let (lane, memory) = ends.of(Transfer::Send, 0)?;
    lane.blocks = order.waiting == Waiting::Blocking;
    let mut side = DatSide::prepare(pair, lane, memory, order)?;
    let answer = batch::perform(&mut side, &order, pair.leads())?;
    side.finish()?;
    Ok(answer)
}

/// One end of the connection, for one batch.
struct DatSide<'e, 'w> {
    pair: &'e RankPair<'w>,
    lane: &'e mut DatLane,
    memory: &'e mut LmrPool,
    order: CpuOrder,
    /// Buffers of the program, which were in use longest ago at the front.
    free: VecDeque<DatPost>,
    /// Buffers of requests that have just completed.
    completed: Vec<DatPost>,
    /// Receives that were posted: in the end as many as messages come, so that none is left over for a batch of another size.
    posted: u64,
    /// Messages that come in this batch, warm-up included.
    incoming: u64,
    /// Deadline of each wait of this window.
    deadline: Deadline,
}

impl<'e, 'w> DatSide<'e, 'w> {
    /// Takes the buffers. The receiver posts all of them, the sender posts a receive for the first acknowledgement.
    fn prepare(
        pair: &'e RankPair<'w>,
        lane: &'e mut DatLane,
        memory: &'e mut LmrPool,
        order: CpuOrder,
    ) -> Result<Self> {
        let windows = order.warm_up + order.iterations;
        let (buffers, incoming) =
            if pair.leads() { (1, windows) } else { (order.depth, windows * order.depth) };
        let mut side = DatSide {
            pair,
            lane,
            memory,
            order,
            free: VecDeque::new(),
            completed: Vec::new(),
            posted: 0,
            incoming,
            deadline: Deadline::after(LIMIT),
        };
        for _ in 0..buffers.min(incoming) {
            let post = side.buffer(if pair.leads() { 0 } else { order.bytes })?;
            side.post_receive(post)?;
        }
        if pair.leads() {
            for _ in 0..order.depth {
                let post = side.buffer(order.bytes)?;
                side.free.push_back(post);
            }
        }
        Ok(side)
    }

    fn buffer(&mut self, bytes: usize) -> Result<DatPost> {
        Ok(DatPost { lmr: self.memory.take(bytes)?, work: Work::Send })
    }

    /// Posts a buffer for a message that is still to come, or keeps it.
    #[inline]
    fn post_receive(&mut self, post: DatPost) -> Result {
        if self.posted == self.incoming {
            self.memory.give_back(post);
            return Ok(());
        }
        self.posted += 1;
        self.lane.post_receive(0, post)
    }

    /// Returns the buffer that has been free for longest; waits until one is.
    #[inline]
    fn free_buffer(&mut self) -> Result<DatPost> {
        if let Some(post) = self.free.pop_front() {
            return Ok(post);
        }
        let post = self.lane.reclaim(&mut self.completed, self.deadline)?;
        // `reclaim` has taken the youngest of those that had completed.
        self.completed.push(post);
        self.free.extend(self.completed.drain(..));
        self.free.pop_front().ok_or(PerfError::Overdue("a request to complete"))
    }

    /// Gives all buffers back, when nothing is under way any more.
    fn finish(mut self) -> Result {
        self.lane.settle(&mut self.completed, self.deadline)?;
        self.free.into_iter().chain(self.completed).for_each(|post| self.memory.give_back(post));
        Ok(())
    }
}

impl End for DatSide<'_, '_> {
    fn meet(&mut self) -> Result {
        Ok(self.pair.world().barrier()?)
    }

    #[inline]
    fn post(&mut self, number: u64) -> Result {
        let mut post = self.free_buffer()?;
        if self.order.payload == Payload::WrittenRead {
            payload::write(&mut post.lmr[..self.order.bytes], number);
        }
        self.lane.post_send(0, post, &mut self.completed, self.deadline)?;
        self.free.extend(self.completed.drain(..));
        Ok(())
    }

    fn await_acknowledgement(&mut self, _turn: u64) -> Result<u64> {
        let acknowledgement = self.lane.receive(0, self.deadline)?;
        self.post_receive(acknowledgement)?;
        self.deadline = Deadline::after(LIMIT);
        Ok(0)
    }

    fn take_window(&mut self, turn: u64) -> Result<u64> {
        self.deadline = Deadline::after(LIMIT);
        for slot in 0..self.order.depth {
            let came = self.lane.receive(self.order.bytes, self.deadline)?;
            let number = turn * self.order.depth + slot;
            let message = &came.lmr[..self.order.bytes];
            if self.order.payload == Payload::WrittenRead
                && payload::sum(message) != payload::expected_sum(message.len(), number)
            {
                return Err(PerfError::BadEvent(format!(
                    "a receive of message {number}, which arrived damaged"
                )));
            }
            self.post_receive(came)?;
        }
        self.lane.post_notice()?;
        self.lane.collect(&mut self.completed, false)?;
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_however_one_waits() {
        let played = udeck::run_local(2, |world| {
            let pair = RankPair::open(&world, &[]).expect("mailboxes");
            let mut ends = connect(&pair).expect("end points");
            for waiting in [Waiting::Polling, Waiting::Blocking] {
                for bytes in [1, 100, 64_000] {
                    for rate in [0, 2000] {
                        let (payload, way) = (Payload::WrittenRead, Way::Dat);
                        let (warm_up, iterations, depth) = (1, 3, 4);
                        let order =
                            CpuOrder { payload, bytes, warm_up, iterations, depth, rate, waiting, way };
                        let answer = perform(&pair, &mut ends, order).expect("plays");
                        assert_eq!((answer.messages, answer.lost), (12, 0), "{order}");
                    }
                }
            }
            world.finish()
        });
        played.expect("two ranks");
    }
}
