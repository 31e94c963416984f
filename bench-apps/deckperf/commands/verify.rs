//! `deckperf verify`: messages whose every byte is checked, without timing.

use udeck_cli::progress;

use crate::{
    experiment::{
        exchange::{Tally, exchange},
        plan::{Batch, Checks, Payload},
        rank_pair::RankPair,
    },
    failure::{PerfError, Result},
};

/// Plays one rank's part: every protocol carries every size, both ways. The inner result is rank 0's: the closing
/// sentence, or an error if bytes were wrong.
pub fn play(pair: &RankPair<'_>, checks: &Checks) -> Result<Result<String>> {
    let of = |&size: &usize| checks.protocols.iter().map(move |&protocol| (size, protocol));
    let tally = check_all(pair, checks.sizes.iter().flat_map(of), |(size, protocol)| {
        let (payload, iterations) = (Payload::WrittenRead, messages_each_way(size));
        exchange(pair, &Batch { protocol, payload, size, warm_up: 0, iterations })
    })?;
    let how = format!("{} sizes over {} protocols", checks.sizes.len(), checks.protocols.len());
    Ok(verdict(tally, "messages", &how))
}

/// Checks one cell after the other, in step with the other rank. Rank 0 gets the counts of both.
pub fn check_all<C>(
    pair: &RankPair<'_>,
    cells: impl Iterator<Item = C> + Clone,
    mut check: impl FnMut(C) -> Result<Tally>,
) -> Result<Option<Tally>> {
    let bar = progress::bar(cells.clone().count() as u64, "verifying");
    let mut total = Tally::default();
    for cell in cells {
        total.add(&check(cell)?);
        if pair.leads() {
            bar.inc(1);
        }
    }
    if !pair.leads() {
        let Tally { messages, bytes, mismatches } = total;
        pair.send_words(&[messages, bytes, mismatches])?;
        return Ok(None);
    }
    bar.finish_and_clear();
    let [messages, bytes, mismatches] = pair.receive_report()?;
    total.add(&Tally { messages, bytes, mismatches });
    Ok(Some(total))
}

/// The closing sentence of a run, or its failure; nothing without a tally.
pub fn verdict(tally: Option<Tally>, what: &str, how: &str) -> Result<String> {
    match tally {
        None => Ok(String::new()),
        Some(Tally { mismatches, .. }) if mismatches > 0 => Err(PerfError::Mismatch(mismatches)),
        Some(Tally { messages, bytes, .. }) => Ok(format!(
            "verified {messages} {what}, {bytes} bytes: every byte arrived as it was posted ({how}, both ways)\n"
        )),
    }
}

/// Number of messages in each direction: enough to wrap round small rings, few enough that large sizes do not take minutes.
pub fn messages_each_way(size: usize) -> u64 {
    ((4 << 20) / size.max(1) as u64).clamp(2, 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_counts_or_fails() {
        let mut tally = Tally { messages: 12, bytes: 96, mismatches: 0 };
        assert_eq!(
            verdict(Some(tally), "messages", "3 sizes over 2 protocols").expect("nothing is wrong"),
            "verified 12 messages, 96 bytes: every byte arrived as it was posted \
             (3 sizes over 2 protocols, both ways)\n"
        );
        assert_eq!(verdict(None, "messages", "").expect("nothing is wrong"), "");
        tally.add(&Tally { messages: 1, bytes: 8, mismatches: 1 });
        assert!(matches!(verdict(Some(tally), "messages", ""), Err(PerfError::Mismatch(1))));
    }

    #[test]
    fn large_sizes_get_fewer_messages() {
        assert_eq!([0, 8, 1 << 20, 4 << 20, 64 << 20].map(messages_each_way), [64, 64, 4, 2, 2]);
    }
}
