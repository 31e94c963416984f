//! Orders of rank 0 to rank 1: seven words, checked when they are read.

use udeck::Protocol;

use crate::{
    experiment::{
        plan::{PROTOCOLS, Payload},
        sizes::MAX_SIZE,
    },
    failure::{PerfError, Result},
};

/// The next work of both ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    /// Round trips: each takes two messages.
    PingPong(Batch),
    /// Windows of messages from rank 0 to rank 1, each answered by one empty message.
    Stream {
        /// The batch; an iteration is a window.
        batch: Batch,
        /// Messages in a window.
        window: u64,
    },
    /// Windows of messages both ways at once. A rank goes on to its next window when it has posted and retrieved one.
    StreamBoth {
        /// The batch; an iteration is a window.
        batch: Batch,
        /// Messages that each rank sends in a window.
        window: u64,
    },
    /// `batch.iterations` messages each way, every byte checked.
    Verify(Batch),
    /// The end of the run.
    Stop,
}

/// Messages that are timed, or checked, together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// Protocol of the messages.
    pub protocol: Protocol,
    /// Whether both sides go through the data.
    pub payload: Payload,
    /// Bytes per message.
    pub size: usize,
    /// Iterations before the clock starts.
    pub warm_up: u64,
    /// Iterations under the clock.
    pub iterations: u64,
}

/// Length of an encoded [`Order`].
pub const WORDS: usize = 7;

const STOP: u64 = 0;
const PING_PONG: u64 = 1;
const STREAM: u64 = 2;
const VERIFY: u64 = 3;
const STREAM_BOTH: u64 = 4;

impl Order {
    /// Encodes the order as `[kind, protocol, payload, size, warm-up, iterations, window]`.
    pub fn encode(&self) -> Result<[u64; WORDS]> {
        let (kind, batch, window) = match self {
            Order::Stop => return Ok([STOP; WORDS]),
            Order::PingPong(batch) => (PING_PONG, batch, 0),
            Order::Stream { batch, window } => (STREAM, batch, *window),
            Order::StreamBoth { batch, window } => (STREAM_BOTH, batch, *window),
            Order::Verify(batch) => (VERIFY, batch, 0),
        };
        let protocol = PROTOCOLS
            .iter()
            .position(|&known| known == batch.protocol)
            .ok_or_else(|| PerfError::BadOrder(format!("protocol {} has no number", batch.protocol)))?;
        let payload = u64::from(batch.payload == Payload::WrittenRead);
        Ok([kind, protocol as u64, payload, batch.size as u64, batch.warm_up, batch.iterations, window])
    }

    /// Decodes and checks an order of rank 0.
    pub fn decode(words: &[u64]) -> Result<Self> {
        let bad = |what: &str| PerfError::BadOrder(format!("{what} in {words:?}"));
        let &[kind, protocol, payload, size, warm_up, iterations, window] = words else {
            return Err(bad("not seven words"));
        };
        let batch = Batch {
            protocol: *usize::try_from(protocol)
                .ok()
                .and_then(|index| PROTOCOLS.get(index))
                .ok_or_else(|| bad("no such protocol"))?,
            payload: if payload == 0 { Payload::Untouched } else { Payload::WrittenRead },
            size: usize::try_from(size)
                .ok()
                .filter(|&size| size <= MAX_SIZE)
                .ok_or_else(|| bad("message too large"))?,
            warm_up,
            iterations,
        };
        match kind {
            STOP => Ok(Order::Stop),
            PING_PONG => Ok(Order::PingPong(batch)),
            STREAM => Ok(Order::Stream { batch, window }),
            STREAM_BOTH => Ok(Order::StreamBoth { batch, window }),
            VERIFY => Ok(Order::Verify(batch)),
            _ => Err(bad("no such kind")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_journey() {
        for protocol in PROTOCOLS {
            for payload in [Payload::Untouched, Payload::WrittenRead] {
                let batch = Batch { protocol, payload, size: 4099, warm_up: 3, iterations: 1000 };
                for order in [
                    Order::PingPong(batch),
                    Order::Stream { batch, window: 64 },
                    Order::StreamBoth { batch, window: 64 },
                    Order::Verify(batch),
                    Order::Stop,
                ] {
                    let words = order.encode().expect("encodes");
                    assert_eq!(Order::decode(&words).expect("decodes"), order);
                }
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for (words, part) in [
            (&[][..], "not seven words"),
            (&[1; 6], "not seven words"),
            (&[9, 0, 0, 8, 0, 1, 0], "no such kind"),
            (&[1, 99, 0, 8, 0, 1, 0], "no such protocol"),
            (&[1, 0, 0, u64::MAX, 0, 1, 0], "message too large"),
        ] {
            let error = Order::decode(words).expect_err("nonsense").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
