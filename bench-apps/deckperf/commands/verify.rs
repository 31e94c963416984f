//! `deckperf verify`: messages whose every byte is checked, without timing.

use crate::{
    experiment::{
        conduct,
        exchange::Tally,
        order::{Batch, Order},
        plan::{Checks, Payload},
        rank_pair::RankPair,
    },
    failure::{PerfError, Result},
};

/// Runs rank 0's part of `deckperf verify`: every protocol carries every size, both ways.
pub fn run(pair: &RankPair<'_>, checks: &Checks, mut step: impl FnMut()) -> Result<Tally> {
    let mut total = Tally::default();
    for &size in &checks.sizes {
        for &protocol in &checks.protocols {
            let batch = Batch {
                protocol,
                payload: Payload::WrittenRead,
                size,
                warm_up: 0,
                iterations: messages_each_way(size),
            };
            let (_, tally) = conduct(pair, Order::Verify(batch))?;
            total.add(&tally);
            step();
        }
    }
    Ok(total)
}

/// The closing sentence of a run, or its failure.
pub fn verdict(tally: &Tally, checks: &Checks) -> Result<String> {
    if tally.mismatches > 0 {
        return Err(PerfError::Mismatch(tally.mismatches));
    }
    Ok(format!(
        "verified {} messages, {} bytes: every byte arrived as it was posted \
         ({} sizes over {} protocols, both ways)",
        tally.messages,
        tally.bytes,
        checks.sizes.len(),
        checks.protocols.len()
    ))
}

/// Number of messages in each direction: enough to wrap round small rings, few enough that large sizes do not take minutes.
pub fn messages_each_way(size: usize) -> u64 {
    ((4 << 20) / size.max(1) as u64).clamp(2, 64)
}

#[cfg(test)]
mod tests {
    use udeck::Protocol;

    use super::*;

    #[test]
    fn the_verdict_counts_or_fails() {
        let checks =
            Checks { protocols: vec![Protocol::Copy, Protocol::Eager], sizes: vec![7, 8, 9], pin: true };
        let mut tally = Tally { messages: 12, bytes: 96, mismatches: 0 };
        assert_eq!(
            verdict(&tally, &checks).expect("nothing is wrong"),
            "verified 12 messages, 96 bytes: every byte arrived as it was posted \
             (3 sizes over 2 protocols, both ways)"
        );
        tally.add(&Tally { messages: 1, bytes: 8, mismatches: 1 });
        assert!(matches!(verdict(&tally, &checks), Err(PerfError::Mismatch(1))));
    }

    #[test]
    fn large_sizes_get_fewer_messages() {
        assert_eq!([0, 8, 1 << 20, 4 << 20, 64 << 20].map(messages_each_way), [64, 64, 4, 2, 2]);
    }
}
