//! Messages between the mailboxes of two ranks: the timed loops, which both ranks run in step.

use std::time::{Duration, Instant};

use udeck::{Buf, Error, PostError, Postbox, Protocol};

use super::{
    Experiment, Timing,
    handicap::Handicap,
    payload,
    plan::{Batch, Payload, Test},
    rank_pair::RankPair,
    rounds::{Contender, Shape, Trial},
};
use crate::failure::{PerfError, Result};

/// Longest message, in bytes, that is posted from the program's own memory, as a program posts a value; it travels inside
/// its descriptor. A longer message lies in a buffer of the library's, which the program gives away.
const SHORT: usize = 40;

/// The experiment of `deckperf latency` and `deckperf bandwidth`.
pub struct Messages<'l, 'w>(pub &'l RankPair<'w>);

impl Experiment for Messages<'_, '_> {
    type Contender = Contender;

    fn perform(&mut self, trial: &Trial<Contender>) -> Result<Timing> {
        Ok(perform(self.0, trial)?.into())
    }
}

/// Runs one rank's side of a batch.
pub fn perform(pair: &RankPair<'_>, trial: &Trial<Contender>) -> Result<Duration> {
    let window = trial.shape.messages;
    match trial.contender.test {
        Test::Latency => ping_pong(pair, &batch_of(trial)),
        Test::Bandwidth => stream(pair, &batch_of(trial), window),
        Test::BiBandwidth => stream_both(pair, &batch_of(trial), window),
    }
}

/// The messages of a batch; an iteration is a round trip or a window.
pub fn batch_of(trial: &Trial<Contender>) -> Batch {
    let &Trial { contender: Contender { protocol, payload, .. }, size, shape } = trial;
    let Shape { warm_up, iterations, .. } = shape;
    Batch { protocol, payload, size, warm_up, iterations }
}

/// Ping-pong: a message there, a message back.
pub fn ping_pong(pair: &RankPair<'_>, batch: &Batch) -> Result<Duration> {
    let outlet = pair.outlet(batch.protocol)?;
    let leads = pair.leads();
    timed(pair, batch, |turn| {
        if leads {
            send(pair, outlet, batch, turn)?;
            receive(pair, batch, turn)
        } else {
            receive(pair, batch, turn)?;
            send(pair, outlet, batch, turn)
        }
    })
}

/// Runs rank 0's side of [`ping_pong`], and appends the time of each round trip to `each`: in nanoseconds, 4 s at most.
pub fn ping_pong_each(pair: &RankPair<'_>, batch: &Batch, each: &mut Vec<u32>) -> Result<Duration> {
    let outlet = pair.outlet(batch.protocol)?;
    let turns = (batch.warm_up + batch.iterations) as usize;
    each.reserve(turns);
    // One read of the clock for each round trip: the end of one is the beginning of the next.
    let mut last = Instant::now();
    let elapsed = timed(pair, batch, |turn| {
        send(pair, outlet, batch, turn)?;
        receive(pair, batch, turn)?;
        let now = Instant::now();
        let nanoseconds = now.duration_since(last).as_nanos();
        each.push(u32::try_from(nanoseconds).unwrap_or(u32::MAX));
        last = now;
        Ok(())
    })?;
    each.drain(..batch.warm_up as usize);
    Ok(elapsed)
}

/// Streams windows of messages from rank 0; each is acknowledged when its last message has been taken.
pub fn stream(pair: &RankPair<'_>, batch: &Batch, window: u64) -> Result<Duration> {
    let outlet = pair.outlet(batch.protocol)?;
    let leads = pair.leads();
    timed(pair, batch, |turn| {
        if leads {
            for slot in 0..window {
                send(pair, outlet, batch, turn * window + slot)?;
            }
            pair.await_acknowledgement()
        } else {
            for slot in 0..window {
                receive(pair, batch, turn * window + slot)?;
            }
            pair.acknowledge()
        }
    })
}

/// Streams windows of messages both ways at once. Where a post finds no room, this rank retrieves and so makes room for the
/// peer's messages: two ranks that only waited for room would wait for each other.
pub fn stream_both(pair: &RankPair<'_>, batch: &Batch, window: u64) -> Result<Duration> {
    let outlet = pair.outlet(batch.protocol)?;
    timed(pair, batch, |turn| {
        let first = turn * window;
        let mut retrieved = 0;
        for slot in 0..window {
            let mut next = Some(prepared(pair, batch, first + slot)?);
            while let Some(message) = next.take() {
                if retrieved == window {
                    outlet.post(message)?;
                    break;
                }
                match outlet.try_post(message) {
                    Ok(()) => {}
                    Err(PostError { error: Error::WouldBlock { .. }, message: Some(message) }) => {
                        next = Some(message);
                        receive(pair, batch, first + retrieved)?;
                        retrieved += 1;
                    }
                    Err(refused) => return Err(refused.into()),
                }
            }
        }
        (retrieved..window).try_for_each(|slot| receive(pair, batch, first + slot))
    })
}

/// Streams as [`stream`] does, but posts the words of each window by one call, and drains them.
pub fn stream_of_words(pair: &RankPair<'_>, batch: &Batch, window: usize) -> Result<Duration> {
    let leads = pair.leads();
    let mut words: Vec<u64> = (0..window as u64).collect();
    timed(pair, batch, |turn| {
        if leads {
            words[0] = turn;
            pair.send_each_word(&words)?;
            return pair.await_acknowledgement();
        }
        words[0] = turn;
        let (got, wanted) = (pair.receive_each_word(window)?, words.iter().sum());
        if got != wanted {
            return Err(PerfError::WrongSum { protocol: batch.protocol, size: batch.size, wanted, got });
        }
        pair.acknowledge()
    })
}

/// Time of the batch's turns, without the warm-up turns.
#[inline]
fn timed(pair: &RankPair<'_>, batch: &Batch, mut turn: impl FnMut(u64) -> Result) -> Result<Duration> {
    if let Some(rotation) = pair.rotation() {
        rotation.prepare(pair.world(), batch.size)?;
        // The other side may need longer to prepare, so the clock starts when both are ready.
        pair.meet()?;
    }
    let Batch { warm_up, iterations, .. } = *batch;
    let Some(share) = pair.handicap() else { return turns(warm_up, iterations, turn) };
    let mut handicap = Handicap::start(share, warm_up + iterations);
    turns(warm_up, iterations, |number| {
        turn(number)?;
        handicap.turn_is_over();
        Ok(())
    })
}

/// Time of `iterations` turns, which follow `warm_up` other ones.
#[inline]
pub fn turns(warm_up: u64, iterations: u64, mut turn: impl FnMut(u64) -> Result) -> Result<Duration> {
    let mut started = Instant::now();
    for number in 0..warm_up + iterations {
        if number == warm_up {
            started = Instant::now();
        }
        turn(number)?;
    }
    Ok(started.elapsed())
}

/// Posts message number `seed`.
#[inline]
pub fn send(pair: &RankPair<'_>, outlet: &Postbox<u8>, batch: &Batch, seed: u64) -> Result {
    if batch.size <= SHORT && matches!(batch.protocol, Protocol::Auto | Protocol::Eager) {
        let mut message = [0; SHORT];
        let message = &mut message[..batch.size];
        if batch.payload == Payload::WrittenRead {
            payload::write(message, seed);
        }
        return Ok(outlet.post(&*message)?);
    }
    Ok(outlet.post(prepared(pair, batch, seed)?)?)
}

/// Takes a message in memory of the library's; writes its data if the batch asks for it.
#[inline]
fn prepared(pair: &RankPair<'_>, batch: &Batch, seed: u64) -> Result<Buf<u8>> {
    let mut message = match pair.rotation() {
        None => pair.world().buf_reused::<u8>(batch.size)?,
        Some(rotation) => rotation.take(pair.world())?,
    };
    if batch.payload == Payload::WrittenRead {
        payload::write(&mut message, seed);
    }
    Ok(message)
}

#[inline]
fn receive(pair: &RankPair<'_>, batch: &Batch, seed: u64) -> Result {
    let message = pair.inbox().retrieve()?;
    check(pair, batch, &message, seed)?;
    if let Some(rotation) = pair.rotation() {
        rotation.keep(batch.protocol, message);
    }
    Ok(())
}

/// Checks that this is message number `seed`.
#[inline]
pub fn check(pair: &RankPair<'_>, batch: &Batch, message: &[u8], seed: u64) -> Result {
    pair.check_length(batch.protocol, batch.size, message.len())?;
    if batch.payload == Payload::WrittenRead {
        let (got, wanted) = (payload::sum(message), payload::expected_sum(batch.size, seed));
        if got != wanted {
            return Err(PerfError::WrongSum { protocol: batch.protocol, size: batch.size, wanted, got });
        }
    }
    Ok(())
}
