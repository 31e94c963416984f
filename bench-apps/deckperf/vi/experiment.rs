//! The timed loops, which both ranks run in step, and the two roles around them.

use std::time::{Duration, Instant};

use udeck::via::{Deadline, Descriptor, Region, RemoteBuffer};

use super::{
    ViPlan,
    contender::{Look, ViContender, ways},
    ends::{BatchTurns, RegionPool, ViEnds},
    lane::Lane,
    order::{ViBatch, ViOrder},
};
use crate::{
    baseline::{BaselineSample, Baselines},
    failure::{Failure, Result},
    rank_pair::RankPair,
    rounds::{Runner, Sample, Shape},
};

/// Far beyond what a waiting rank spins and yields before it sleeps.
const PEER_FALLS_ASLEEP: Duration = Duration::from_micros(600);

/// Rank 0: gives the orders and holds the clock.
pub struct ViConductor<'l, 'w> {
    /// To rank 1.
    pub pair: &'l RankPair<'w>,
    /// `None` where there is no second core to measure them on.
    pub raw: Option<Baselines>,
    /// This rank's.
    pub ends: ViEnds,
}

impl Runner for ViConductor<'_, '_> {
    type Contender = ViContender;

    /// What it took; the time that both ranks let the other fall asleep is not the messages'.
    fn post(&mut self, order: ViOrder) -> Result<Sample> {
        let pair = self.pair;
        pair.send_words(&order.encode())?;
        let mut turn = Turn::prepare(pair, &mut self.ends, order)?;
        pair.receive_words()?; // rank 1 is prepared too
        let lasted = turn.perform()?;
        let rested = turn.finish()?;
        let report = pair.receive_words()?;
        let &[rested_there] = &report[..] else { return Err(Failure::BadReport(report.len())) };
        let resting = rested + Duration::from_nanos(rested_there);
        Ok(Sample { lasted, elapsed: lasted.saturating_sub(resting), copied: 0 })
    }

    fn raw(&mut self, size: usize) -> Result<Option<BaselineSample>> {
        self.raw.as_mut().map(|raw| raw.measure(size)).transpose()
    }
}

/// Rank 1: follows orders until there are no more. Between them it sleeps in `retrieve` and leaves its core
/// to the raw measurements.
pub fn follow(pair: &RankPair<'_>, plan: &ViPlan) -> Result {
    let ways = ways(plan, pair.world().nic().caps());
    let mut ends = ViEnds::open(pair, &ways, plan.largest())?;
    loop {
        let order = ViOrder::decode(&pair.receive_words()?)?;
        if order == ViOrder::Stop {
            return Ok(());
        }
        let mut turn = Turn::prepare(pair, &mut ends, order)?;
        pair.send_words(&[])?;
        turn.perform()?;
        let rested = turn.finish()?;
        pair.send_words(&[rested.as_nanos() as u64])?;
    }
}

/// So many receives are posted when the first message of a ping-pong comes, and when each later one does.
const RECEIVES_AHEAD: u64 = 2;

/// In a ping-pong: the peer has read a message when it answers it, but it may not have said so.
const SENDS_UNDER_WAY: u64 = 2;

/// One rank's part in one order. All descriptors are made before the clock starts and taken apart after it has
/// stopped.
struct Turn<'e> {
    batch: ViBatch,
    /// Windows of messages, not round trips.
    streams: bool,
    leads: bool,
    deadline: Deadline,
    lane: &'e mut Lane,
    /// Of this batch, among those of its way.
    number: u64,
    memory: &'e mut RegionPool,
    /// To send with: as many as may be under way.
    idle: Vec<Descriptor>,
    /// Of the message that came last, until the answer is on its way.
    taken: Option<Descriptor>,
    /// Receives that no more messages come for.
    spent: Vec<Descriptor>,
    /// The VI that the next message is sent on.
    next_on: usize,
    sent: u64,
    /// Receives: exactly as many as messages come, so that none is left over for a batch of another size.
    posted: u64,
    incoming: u64,
    /// Under the clock.
    rested: Duration,
}

impl<'e> Turn<'e> {
    /// Makes the descriptors, and posts the first receives: as many as the peer may send before it hears from us.
    fn prepare(pair: &RankPair<'_>, ends: &'e mut ViEnds, order: ViOrder) -> Result<Self> {
        let (batch, streams) = match order {
            ViOrder::PingPong(batch) => (batch, false),
            ViOrder::Stream(batch) => (batch, true),
            ViOrder::Stop => return Err(Failure::BadOrder(format!("{order:?} is not timed"))),
        };
        let leads = pair.leads();
        let (BatchTurns { lane, number }, memory, place) = ends.of(batch.way, batch.size)?;
        let Shape { warm_up, iterations, messages } = batch.shape;
        let repeats = warm_up + iterations;
        let (incoming, ahead, under_way) = match (streams, leads) {
            (false, _) => (repeats, RECEIVES_AHEAD, SENDS_UNDER_WAY),
            (true, true) => (repeats, 1, messages),
            (true, false) => (repeats * messages, messages, 1),
        };
        let ahead = ahead.min(incoming);
        let mut turn = Self {
            batch,
            streams,
            leads,
            deadline: Deadline::after(pair.world().config().deadline),
            lane,
            number,
            memory,
            idle: Vec::with_capacity(under_way as usize),
            taken: None,
            spent: Vec::with_capacity(ahead as usize),
            next_on: 0,
            sent: 0,
            posted: 0,
            incoming,
            rested: Duration::ZERO,
        };
        turn.next_on = turn.on(0);
        for _ in 0..ahead {
            let fresh = turn.fresh_receive(place)?;
            turn.post_receive(fresh)?;
        }
        for _ in 0..under_way {
            let fresh = turn.fresh_send(place)?;
            turn.idle.push(fresh);
        }
        Ok(turn)
    }

    fn fresh_receive(&mut self, place: Option<RemoteBuffer>) -> Result<Descriptor> {
        // Acknowledgements are empty, and an RDMA write's data go elsewhere.
        if place.is_some() || (self.streams && self.leads) {
            return Ok(nothing());
        }
        Ok(Descriptor::new([self.memory.take(self.batch.size)?]))
    }

    fn fresh_send(&mut self, place: Option<RemoteBuffer>) -> Result<Descriptor> {
        if self.streams && !self.leads {
            return Ok(nothing()); // an acknowledgement
        }
        let region = self.memory.take(self.batch.size)?;
        Ok(match place {
            None => Descriptor::new([region]),
            Some(place) => Descriptor::rdma_write([region], place).immediate(0),
        })
    }

    /// How long the timed iterations lasted.
    fn perform(&mut self) -> Result<Duration> {
        match (self.streams, self.leads) {
            (false, true) => self.timed(|turn| {
                turn.send()?;
                turn.receive()
            }),
            (false, false) => self.timed(|turn| {
                turn.receive()?;
                turn.send()
            }),
            (true, true) => self.timed(Self::send_window),
            (true, false) => self.timed(Self::receive_window),
        }
    }

    #[inline]
    fn timed(&mut self, mut iteration: impl FnMut(&mut Self) -> Result) -> Result<Duration> {
        let Shape { warm_up, iterations, .. } = self.batch.shape;
        let mut lasted = Duration::ZERO;
        // One loop for both: the warm-up warms the very instructions that are timed.
        for iterations in [warm_up, iterations] {
            self.rested = Duration::ZERO;
            let started = Instant::now();
            for _ in 0..iterations {
                iteration(self)?;
            }
            lasted = started.elapsed();
        }
        Ok(lasted)
    }

    /// Posts the next message; all that can wait is done while it is under way.
    #[inline]
    fn send(&mut self) -> Result {
        if self.batch.way.look == Look::Asleep {
            self.rest();
        }
        let descriptor = match self.idle.pop() {
            Some(descriptor) => descriptor,
            None => self.lane.reclaim(&mut self.idle, self.deadline)?,
        };
        self.lane.post_send(self.next_on, descriptor, &mut self.idle, self.deadline)?;
        self.sent += 1;
        self.next_on = self.on(self.sent);
        match self.taken.take() {
            Some(taken) => self.post_receive(taken),
            None => Ok(()),
        }
    }

    /// Takes the next message, and does nothing else: the answer comes first.
    #[inline]
    fn receive(&mut self) -> Result {
        self.taken = Some(self.lane.receive(self.batch.size, self.deadline)?);
        Ok(())
    }

    /// For the next message that has none yet, unless no more come.
    #[inline]
    fn post_receive(&mut self, descriptor: Descriptor) -> Result {
        if self.posted == self.incoming {
            self.spent.push(descriptor);
            return Ok(());
        }
        let on = self.on(self.posted);
        self.posted += 1;
        self.lane.post_receive(on, descriptor)
    }

    #[inline]
    fn on(&self, number: u64) -> usize {
        self.batch.traffic.on(number, self.number, self.lane.len())
    }

    fn send_window(&mut self) -> Result {
        for _ in 0..self.batch.shape.messages {
            self.send()?;
        }
        let acknowledgement = self.lane.receive(0, self.deadline)?;
        self.post_receive(acknowledgement)
    }

    fn receive_window(&mut self) -> Result {
        for _ in 0..self.batch.shape.messages {
            let taken = self.lane.receive(self.batch.size, self.deadline)?;
            self.post_receive(taken)?;
        }
        self.send() // "Everything so far has arrived."
    }

    /// Keeps this rank awake, and the other one waiting.
    fn rest(&mut self) {
        let started = Instant::now();
        while started.elapsed() < PEER_FALLS_ASLEEP {
            std::hint::spin_loop();
        }
        self.rested += started.elapsed();
    }

    /// Gives all memory back. How long this rank rested.
    fn finish(mut self) -> Result<Duration> {
        self.lane.settle(&mut self.idle, self.deadline)?;
        for descriptor in self.idle.into_iter().chain(self.spent).chain(self.taken) {
            self.memory.give_back(descriptor);
        }
        Ok(self.rested)
    }
}

fn nothing() -> Descriptor {
    Descriptor::new(Vec::<Region>::new())
}
