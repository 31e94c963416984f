//! The timed loops, which both ranks run in step, and rank 0's orders to rank 1.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use udeck::Protocol;

use crate::{
    experiment::{plan::PROTOCOLS, rank_pair::RankPair, sizes::MAX_SIZE},
    failure::{PerfError, Result},
};

/// Role of rank 0, whose time is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedSide {
    /// Rank 0 posts, computes, and waits for the word that the message has been read.
    Sender,
    /// Rank 0 says that it is ready, computes, and retrieves.
    Receiver,
}

impl TimedSide {
    /// Name in the output.
    pub fn name(self) -> &'static str {
        match self {
            TimedSide::Sender => "sender",
            TimedSide::Receiver => "receiver",
        }
    }
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

/// Messages that are timed together, each by itself: the time between them does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlapBatch {
    /// Role of rank 0, which computes.
    pub side: TimedSide,
    /// Protocol of the messages.
    pub protocol: Protocol,
    /// Bytes per message.
    pub size: usize,
    /// Number of messages.
    pub iterations: u64,
    /// Computation of rank 0 with each message.
    pub work: Work,
}

/// Order of rank 0 to rank 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlapOrder {
    /// Play the other side of a batch. The order does not say how much rank 0 computes.
    Take {
        /// The role of rank 0.
        side: TimedSide,
        /// Protocol of the messages.
        protocol: Protocol,
        /// Bytes per message.
        size: usize,
        /// Number of messages.
        iterations: u64,
    },
    /// End of the run.
    Stop,
}

const STOP: u64 = 0;
const RANK_0_SENDS: u64 = 1;
const RANK_0_RECEIVES: u64 = 2;

impl OverlapOrder {
    /// Encodes the order as `[kind, protocol, size, iterations]`.
    pub fn encode(&self) -> Result<[u64; 4]> {
        let &OverlapOrder::Take { side, protocol, size, iterations } = self else { return Ok([STOP; 4]) };
        let number = PROTOCOLS
            .iter()
            .position(|&known| known == protocol)
            .ok_or_else(|| PerfError::BadOrder(format!("protocol {protocol} has no number")))?;
        let kind = match side {
            TimedSide::Sender => RANK_0_SENDS,
            TimedSide::Receiver => RANK_0_RECEIVES,
        };
        Ok([kind, number as u64, size as u64, iterations])
    }

    /// Decodes and checks an order of rank 0.
    pub fn decode(words: &[u64]) -> Result<Self> {
        let bad = |what: &str| PerfError::BadOrder(format!("{what} in {words:?}"));
        let &[kind, protocol, size, iterations] = words else { return Err(bad("not four words")) };
        let side = match kind {
            STOP => return Ok(OverlapOrder::Stop),
            RANK_0_SENDS => TimedSide::Sender,
            RANK_0_RECEIVES => TimedSide::Receiver,
            _ => return Err(bad("no such kind")),
        };
        let known = usize::try_from(protocol).ok().and_then(|index| PROTOCOLS.get(index));
        let protocol = *known.ok_or_else(|| bad("no such protocol"))?;
        let size = usize::try_from(size).ok().filter(|&size| size <= MAX_SIZE);
        let size = size.ok_or_else(|| bad("message too large"))?;
        Ok(OverlapOrder::Take { side, protocol, size, iterations })
    }
}

/// Runs rank 0's side of a batch, and returns the time of its messages and of the computation.
pub fn conduct(pair: &RankPair<'_>, batch: OverlapBatch) -> Result<Duration> {
    let OverlapBatch { side, protocol, size, iterations, .. } = batch;
    pair.send_words(&OverlapOrder::Take { side, protocol, size, iterations }.encode()?)?;
    let mut lasted = Duration::ZERO;
    for _ in 0..iterations {
        lasted += match side {
            TimedSide::Sender => send(pair, &batch)?,
            TimedSide::Receiver => receive(pair, &batch)?,
        };
    }
    Ok(lasted)
}

fn send(pair: &RankPair<'_>, batch: &OverlapBatch) -> Result<Duration> {
    let outlet = pair.outlet(batch.protocol)?;
    pair.await_acknowledgement()?; // rank 1 retrieves next
    let message = pair.world().buf_reused::<u8>(batch.size)?;
    let started = Instant::now();
    outlet.post(message)?;
    batch.work.perform();
    pair.await_acknowledgement()?; // rank 1 has the message
    Ok(started.elapsed())
}

fn receive(pair: &RankPair<'_>, batch: &OverlapBatch) -> Result<Duration> {
    let started = Instant::now();
    pair.acknowledge()?;
    batch.work.perform();
    let message = pair.inbox().retrieve()?;
    pair.check_length(batch.protocol, batch.size, message.len())?;
    let lasted = started.elapsed();
    drop(message);
    Ok(lasted)
}

/// Follows orders as rank 1 until there are no more. Rank 1 never computes.
pub fn follow(pair: &RankPair<'_>) -> Result {
    loop {
        let OverlapOrder::Take { side, protocol, size, iterations } =
            OverlapOrder::decode(&pair.receive_words()?)?
        else {
            return Ok(());
        };
        for _ in 0..iterations {
            match side {
                TimedSide::Sender => {
                    pair.acknowledge()?;
                    pair.check_length(protocol, size, pair.inbox().retrieve()?.len())?;
                    pair.acknowledge()?;
                }
                TimedSide::Receiver => {
                    let message = pair.world().buf_reused::<u8>(size)?;
                    pair.await_acknowledgement()?;
                    pair.outlet(protocol)?.post(message)?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_journey() {
        for side in [TimedSide::Sender, TimedSide::Receiver] {
            for protocol in PROTOCOLS {
                let order = OverlapOrder::Take { side, protocol, size: 4099, iterations: 7 };
                assert_eq!(OverlapOrder::decode(&order.encode().expect("encodes")).expect("decodes"), order);
            }
        }
        assert_eq!(
            OverlapOrder::decode(&OverlapOrder::Stop.encode().expect("encodes")).expect("decodes"),
            OverlapOrder::Stop
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for (words, part) in [
            (&[][..], "not four words"),
            (&[3, 0, 8, 1], "no such kind"),
            (&[1, 99, 8, 1], "no such protocol"),
            (&[2, 0, u64::MAX, 1], "message too large"),
        ] {
            let error = OverlapOrder::decode(words).expect_err("nonsense").to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn work_is_asked_for_by_time() {
        let per_1000 = Duration::from_micros(2);
        assert_eq!(Work::lasting(Duration::from_micros(10), per_1000), Work(5000));
        assert_eq!(Work::lasting(Duration::ZERO, per_1000), Work(1), "never none");
    }
}
