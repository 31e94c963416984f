//! Orders of rank 0 to rank 1: nine words, checked when they are read.

use super::contender::{DETECTIONS, TRAFFICS, TRANSFERS, Traffic, ViSetup};
use crate::{
    experiment::{rounds::Shape, sizes::MAX_SIZE},
    failure::{PerfError, Result},
};

/// The next work of both ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ViOrder {
    /// Round trips: each takes two messages.
    PingPong(ViBatch),
    /// Windows of messages from rank 0 to rank 1, each answered by one empty message.
    Stream(ViBatch),
    /// End of the run.
    Stop,
}

/// Messages that are timed together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ViBatch {
    /// Setup of the VIs.
    pub way: ViSetup,
    /// VIs on which the messages travel.
    pub traffic: Traffic,
    /// Bytes per message.
    pub size: usize,
    /// Numbers of iterations and messages.
    pub shape: Shape,
}

/// Length of an encoded [`ViOrder`].
const WORDS: usize = 9;

const STOP: u64 = 0;
const PING_PONG: u64 = 1;
const STREAM: u64 = 2;

impl ViOrder {
    /// Encodes the order as `[kind, transfer, detection, vis, traffic, size, warm-up, iterations, messages]`.
    pub fn encode(&self) -> [u64; WORDS] {
        let (kind, batch) = match self {
            ViOrder::Stop => return [STOP; WORDS],
            ViOrder::PingPong(batch) => (PING_PONG, batch),
            ViOrder::Stream(batch) => (STREAM, batch),
        };
        let ViBatch { way, traffic, size, shape } = batch;
        let transfer = TRANSFERS.iter().position(|&known| known == way.transfer).expect("listed");
        let detection = DETECTIONS.iter().position(|&known| known == way.detection).expect("listed");
        let traffic = TRAFFICS.iter().position(|known| known == traffic).expect("listed");
        let [transfer, detection, vis, traffic, size] =
            [transfer, detection, way.vis, traffic, *size].map(|number| number as u64);
        [kind, transfer, detection, vis, traffic, size, shape.warm_up, shape.iterations, shape.messages]
    }

    /// Decodes and checks an order of rank 0.
    pub fn decode(words: &[u64]) -> Result<Self> {
        let bad = |what: &str| PerfError::BadOrder(format!("{what} in {words:?}"));
        let &[kind, transfer, detection, vis, traffic, size, warm_up, iterations, messages] = words else {
            return Err(bad("not nine words"));
        };
        let number = |word: u64| usize::try_from(word).unwrap_or(usize::MAX);
        let transfer = TRANSFERS.get(number(transfer)).ok_or_else(|| bad("no such transfer"))?;
        let detection = DETECTIONS.get(number(detection)).ok_or_else(|| bad("no such look"))?;
        let traffic = *TRAFFICS.get(number(traffic)).ok_or_else(|| bad("no such traffic"))?;
        if number(size) > MAX_SIZE {
            return Err(bad("message too large"));
        }
        let way = ViSetup { transfer: *transfer, detection: *detection, vis: number(vis) };
        let shape = Shape { warm_up, iterations, messages };
        let batch = ViBatch { way, traffic, size: number(size), shape };
        match kind {
            STOP => Ok(ViOrder::Stop),
            PING_PONG => Ok(ViOrder::PingPong(batch)),
            STREAM => Ok(ViOrder::Stream(batch)),
            _ => Err(bad("no such kind")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_journey() {
        for transfer in TRANSFERS {
            for (detection, traffic) in
                DETECTIONS.into_iter().flat_map(|detection| TRAFFICS.map(|traffic| (detection, traffic)))
            {
                let way = ViSetup { transfer, detection, vis: 40 };
                let shape = Shape { warm_up: 3, iterations: 1000, messages: 64 };
                let batch = ViBatch { way, traffic, size: 4099, shape };
                for order in [ViOrder::PingPong(batch), ViOrder::Stream(batch), ViOrder::Stop] {
                    assert_eq!(ViOrder::decode(&order.encode()).expect("decodes"), order);
                }
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for (words, part) in [
            (&[][..], "not nine words"),
            (&[1; 8], "not nine words"),
            (&[9, 0, 0, 1, 0, 8, 0, 1, 1], "no such kind"),
            (&[1, 9, 0, 1, 0, 8, 0, 1, 1], "no such transfer"),
            (&[1, 0, 9, 1, 0, 8, 0, 1, 1], "no such look"),
            (&[1, 0, 0, 1, 9, 8, 0, 1, 1], "no such traffic"),
            (&[1, 0, 0, 1, 0, u64::MAX, 0, 1, 1], "message too large"),
        ] {
            let error = ViOrder::decode(words).expect_err("nonsense").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
