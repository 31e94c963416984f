//! Orders of rank 0 to rank 1: eight words, checked when they are read.

use super::contender::{APIS, Api, TRANSFERS};
use crate::{
    commands::vi::Transfer,
    experiment::{rounds::Shape, sizes::MAX_SIZE, turn::Pattern},
    failure::{PerfError, Result},
};

/// The next work of both ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DatOrder {
    /// Time a batch.
    Time(DatBatch),
    /// End of the run.
    Stop,
}

/// Batch that is timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DatBatch {
    /// Layer that moves the data.
    pub api: Api,
    /// Transfer that moves the data.
    pub transfer: Transfer,
    /// Roles of the two ranks in an iteration.
    pub pattern: Pattern,
    /// Bytes per message.
    pub size: usize,
    /// Numbers of iterations and messages.
    pub shape: Shape,
}

/// All patterns; the index travels in an order.
const PATTERNS: [Pattern; 4] = [Pattern::PingPong, Pattern::Stream, Pattern::Read, Pattern::ReadStream];

/// Length of an encoded [`DatOrder`].
const WORDS: usize = 8;

const STOP: u64 = 0;
const TIME: u64 = 1;

fn place<T: PartialEq>(known: &[T], wanted: &T) -> u64 {
    known.iter().position(|one| one == wanted).expect("listed") as u64
}

impl DatOrder {
    /// Encodes the order as `[kind, api, transfer, pattern, size, warm-up, iterations, messages]`.
    pub fn encode(&self) -> [u64; WORDS] {
        let DatOrder::Time(DatBatch { api, transfer, pattern, size, shape }) = self else {
            return [STOP; WORDS];
        };
        let Shape { warm_up, iterations, messages } = *shape;
        let [api, transfer, pattern] =
            [place(&APIS, api), place(&TRANSFERS, transfer), place(&PATTERNS, pattern)];
        [TIME, api, transfer, pattern, *size as u64, warm_up, iterations, messages]
    }

    /// Decodes and checks an order of rank 0.
    pub fn decode(words: &[u64]) -> Result<Self> {
        let bad = |what: &str| PerfError::BadOrder(format!("{what} in {words:?}"));
        let &[kind, api, transfer, pattern, size, warm_up, iterations, messages] = words else {
            return Err(bad("not eight words"));
        };
        let number = |word: u64| usize::try_from(word).unwrap_or(usize::MAX);
        let api = *APIS.get(number(api)).ok_or_else(|| bad("no such level"))?;
        let transfer = *TRANSFERS.get(number(transfer)).ok_or_else(|| bad("no such transfer"))?;
        let pattern = *PATTERNS.get(number(pattern)).ok_or_else(|| bad("no such pattern"))?;
        if number(size) > MAX_SIZE {
            return Err(bad("message too large"));
        }
        let shape = Shape { warm_up, iterations, messages };
        match kind {
            STOP => Ok(DatOrder::Stop),
            TIME => Ok(DatOrder::Time(DatBatch { api, transfer, pattern, size: number(size), shape })),
            _ => Err(bad("no such kind")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_journey() {
        for (api, transfer) in APIS.into_iter().flat_map(|api| TRANSFERS.map(|one| (api, one))) {
            for pattern in PATTERNS {
                let shape = Shape { warm_up: 3, iterations: 1000, messages: 64 };
                let batch = DatBatch { api, transfer, pattern, size: 4099, shape };
                for order in [DatOrder::Time(batch), DatOrder::Stop] {
                    assert_eq!(DatOrder::decode(&order.encode()).expect("decodes"), order);
                }
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for (words, part) in [
            (&[][..], "not eight words"),
            (&[9, 0, 0, 0, 8, 0, 1, 1], "no such kind"),
            (&[1, 9, 0, 0, 8, 0, 1, 1], "no such level"),
            (&[1, 0, 9, 0, 8, 0, 1, 1], "no such transfer"),
            (&[1, 0, 0, 9, 8, 0, 1, 1], "no such pattern"),
            (&[1, 0, 0, 0, u64::MAX, 0, 1, 1], "message too large"),
        ] {
            let error = DatOrder::decode(words).expect_err("nonsense").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
