//! The timed loops, which both ranks run in step, and the two roles around them.

use std::time::{Duration, Instant};

use udeck::via::{Deadline, Descriptor, Region, RemoteBuffer};

use super::{
    Plan,
    contender::{Contender, Look, ways},
    ends::{Ends, Memory},
    lane::Lane,
    order::{Batch, Order},
};
use crate::{
    failure::{Failure, Result},
    link::Link,
    raw::{RawLimits, RawSample},
    rounds::{Runner, Sample},
};

/// Far beyond what a waiting rank spins and yields before it sleeps.
const PEER_FALLS_ASLEEP: Duration = Duration::from_micros(600);

/// Rank 0: gives the orders and holds the clock.
pub struct Conductor<'l, 'w> {
    /// To rank 1.
    pub link: &'l Link<'w>,
    /// `None` where there is no second core to measure them on.
    pub raw: Option<RawLimits>,
    /// This rank's.
    pub ends: Ends,
}

impl Runner for Conductor<'_, '_> {
    type Contender = Contender;

    /// What it took; the time that both ranks let the other fall asleep is not the messages'.
    fn post(&mut self, order: Order) -> Result<Sample> {
        let link = self.link;
        link.tell(&order.encode())?;
        let mut turn = Turn::prepare(link, &mut self.ends, order)?;
        link.hear()?; // rank 1 is prepared too
        let lasted = turn.perform()?;
        let rested = turn.finish()?;
        let report = link.hear()?;
        let &[rested_there] = &report[..] else { return Err(Failure::BadReport(report.len())) };
        let resting = rested + Duration::from_nanos(rested_there);
        Ok(Sample { lasted, elapsed: lasted.saturating_sub(resting), copied: 0 })
    }

    fn raw(&mut self, size: usize) -> Result<Option<RawSample>> {
        self.raw.as_mut().map(|raw| raw.measure(size)).transpose()
    }
}

/// Rank 1: follows orders until there are no more. Between them it sleeps in `retrieve` and leaves its core
/// to the raw measurements.
pub fn follow(link: &Link<'_>, plan: &Plan) -> Result {
    let ways = ways(plan, link.world().nic().caps());
    let mut ends = Ends::open(link, &ways, plan.largest())?;
    loop {
        let order = Order::decode(&link.hear()?)?;
        if order == Order::Stop {
            return Ok(());
        }
        let mut turn = Turn::prepare(link, &mut ends, order)?;
        link.tell(&[])?;
        turn.perform()?;
        let rested = turn.finish()?;
        link.tell(&[rested.as_nanos() as u64])?;
    }
}

/// One rank's part in one order.
struct Turn<'e> {
    order: Order,
    batch: Batch,
    leads: bool,
    deadline: Deadline,
    lane: &'e mut Lane,
    memory: &'e mut Memory,
    /// Where RDMA writes go; `None`: sends.
    place: Option<RemoteBuffer>,
    /// To send with again.
    idle: Vec<Descriptor>,
    /// Receives that are still to be posted: exactly as many as messages come, so that none is left over for a
    /// batch of another size.
    unposted: u64,
    /// Under the clock.
    rested: Duration,
}

impl<'e> Turn<'e> {
    /// Posts the first receives: as many as the peer may send before it hears from us.
    fn prepare(link: &Link<'_>, ends: &'e mut Ends, order: Order) -> Result<Self> {
        let (Order::PingPong(batch) | Order::Stream(batch)) = order else {
            return Err(Failure::BadOrder(format!("{order:?} is not timed")));
        };
        let leads = link.leads();
        let deadline = Deadline::after(link.world().config().deadline);
        let (lane, memory, place) = ends.of(batch.way, batch.size)?;
        let (idle, rested) = (Vec::new(), Duration::ZERO);
        let mut turn = Self { order, batch, leads, deadline, lane, memory, place, idle, unposted: 0, rested };
        let iterations = batch.shape.warm_up + batch.shape.iterations;
        let streams_in = matches!(order, Order::Stream(_)) && !leads;
        let (incoming, at_once) = match streams_in {
            true => (iterations * batch.shape.messages, batch.shape.messages),
            false => (iterations, 1),
        };
        turn.unposted = incoming;
        for _ in 0..at_once {
            let fresh = turn.fresh_receive()?;
            turn.post_receive(fresh, 0)?;
        }
        Ok(turn)
    }

    fn fresh_receive(&mut self) -> Result<Descriptor> {
        // Acknowledgements are empty, and an RDMA write's data go elsewhere.
        let acknowledgements = matches!(self.order, Order::Stream(_)) && self.leads;
        if self.place.is_some() || acknowledgements {
            return Ok(nothing());
        }
        Ok(Descriptor::new([self.memory.take(self.batch.size)?]))
    }

    /// For the message of this iteration, unless no more come.
    #[inline]
    fn post_receive(&mut self, descriptor: Descriptor, iteration: u64) -> Result {
        if self.unposted == 0 {
            self.memory.give_back(descriptor);
            return Ok(());
        }
        self.unposted -= 1;
        self.lane.post_receive(self.on(iteration), descriptor)
    }

    /// The VI that the message of this iteration comes on: as if by chance, but both ranks know it.
    #[inline]
    fn on(&self, iteration: u64) -> usize {
        match self.lane.len() {
            1 => 0,
            vis => {
                let mixed = iteration.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32; // Fibonacci hashing
                mixed as usize % vis
            }
        }
    }

    /// How long the timed iterations lasted.
    fn perform(&mut self) -> Result<Duration> {
        let shape = self.batch.shape;
        let mut started = Instant::now();
        for iteration in 0..shape.warm_up + shape.iterations {
            if iteration == shape.warm_up {
                self.rested = Duration::ZERO;
                started = Instant::now();
            }
            match (self.order, self.leads) {
                (Order::PingPong(_), true) => {
                    self.send(iteration)?;
                    self.receive(iteration)?;
                }
                (Order::PingPong(_), false) => {
                    self.receive(iteration)?;
                    self.send(iteration)?;
                }
                (Order::Stream(_), true) => self.send_window()?,
                (Order::Stream(_), false) => self.receive_window()?,
                (Order::Stop, _) => {}
            }
        }
        Ok(started.elapsed())
    }

    #[inline]
    fn send(&mut self, iteration: u64) -> Result {
        if self.batch.way.look == Look::Asleep {
            self.rest();
        }
        let descriptor = match self.idle.pop() {
            Some(descriptor) => descriptor,
            None => self.fresh_send()?,
        };
        self.lane.post_send(self.on(iteration), descriptor, &mut self.idle, self.deadline)
    }

    fn fresh_send(&mut self) -> Result<Descriptor> {
        let region = self.memory.take(self.batch.size)?;
        Ok(match self.place {
            None => Descriptor::new([region]),
            Some(place) => Descriptor::rdma_write([region], place).immediate(0),
        })
    }

    #[inline]
    fn receive(&mut self, iteration: u64) -> Result {
        let descriptor = self.lane.receive(self.batch.size, self.deadline)?;
        self.post_receive(descriptor, iteration + 1)
    }

    fn send_window(&mut self) -> Result {
        for _ in 0..self.batch.shape.messages {
            self.send(0)?;
        }
        let acknowledgement = self.lane.receive(0, self.deadline)?;
        self.post_receive(acknowledgement, 0)
    }

    fn receive_window(&mut self) -> Result {
        for _ in 0..self.batch.shape.messages {
            self.receive(0)?;
        }
        // "Everything so far has arrived."
        let acknowledgement = self.idle.pop().unwrap_or_else(nothing);
        self.lane.post_send(0, acknowledgement, &mut self.idle, self.deadline)
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
        for descriptor in self.idle {
            self.memory.give_back(descriptor);
        }
        Ok(self.rested)
    }
}

fn nothing() -> Descriptor {
    Descriptor::new(Vec::<Region>::new())
}
