//! `deckperf verify --layer dat`: checks every byte of messages, RDMA writes and RDMA reads, without timing.

use udeck::via::Deadline;

use super::{
    contender::TRANSFERS,
    ends::{DatEnds, LANES, work_of},
    lane::{DatPost, Work},
};
use crate::{
    commands::{
        verify::{check_all, messages_each_way, verdict},
        vi::Transfer,
    },
    experiment::{
        exchange::{Tally, first_difference, mix, write},
        plan::Checks,
        rank_pair::RankPair,
        turn::Lane,
    },
    failure::Result,
    named::Named,
};

/// Plays one rank's part: first rank 0's data go, then rank 1's. The inner result is rank 0's: the closing sentence, or
/// an error if bytes were wrong.
pub fn verify(pair: &RankPair<'_>, checks: &Checks) -> Result<Result<String>> {
    let largest = checks.sizes.last().copied().unwrap_or(0);
    let mut ends = DatEnds::open(pair, &TRANSFERS, LANES, largest, 64)?;
    let cells = checks.sizes.iter().flat_map(|&size| TRANSFERS.map(|transfer| (size, transfer)));
    let tally = check_all(pair, cells, |(size, transfer)| {
        let mut total = Tally::default();
        for source in 0..2 {
            for number in 0..messages_each_way(size) {
                total.add(&Round { transfer, size, source, number }.play(pair, &mut ends)?);
            }
        }
        Ok(total)
    })?;
    let how = format!("{} sizes by send/receive, RDMA write and RDMA read", checks.sizes.len());
    Ok(verdict(tally, "transfers of uDAPL", &how))
}

/// One transfer of data, from one rank to the other.
struct Round {
    transfer: Transfer,
    size: usize,
    /// Rank whose data go.
    source: usize,
    number: u64,
}

impl Round {
    /// Seed of the data: differs between any two transfers of a run, so that none passes for another.
    fn seed(&self) -> u64 {
        let transfer = TRANSFERS.iter().position(|&known| known == self.transfer).unwrap_or(TRANSFERS.len());
        let place = (self.source as u64) << 62 | (transfer as u64) << 56;
        mix(place | (self.size as u64) << 24 | self.number)
    }

    fn play(&self, pair: &RankPair<'_>, ends: &mut DatEnds) -> Result<Tally> {
        let is_source = pair.world().rank() == self.source;
        match (self.transfer, is_source) {
            (Transfer::RdmaRead, true) => self.expose(pair, ends),
            (Transfer::RdmaRead, false) => self.read(pair, ends),
            (_, true) => self.send(pair, ends),
            (_, false) => self.receive(pair, ends),
        }
    }

    /// Sends or writes the data.
    fn send(&self, pair: &RankPair<'_>, ends: &mut DatEnds) -> Result<Tally> {
        let deadline = Deadline::after(pair.world().config().deadline);
        pair.receive_words()?; // a receive is posted, and nothing is left of the last round
        let (lane, memory) = ends.of(self.transfer, self.size)?;
        let mut lmr = memory.take(self.size)?;
        write(&mut lmr[..self.size], self.seed());
        let mut idle = Vec::new();
        lane.post_send(0, DatPost { lmr, work: work_of(self.transfer) }, &mut idle, deadline)?;
        lane.settle(&mut idle, deadline)?;
        idle.into_iter().for_each(|post| memory.give_back(post));
        Ok(Tally::default())
    }

    /// Receives sent or written data, and checks them.
    fn receive(&self, pair: &RankPair<'_>, ends: &mut DatEnds) -> Result<Tally> {
        let deadline = Deadline::after(pair.world().config().deadline);
        // The memory is cleared, so that data of the last round do not pass for new ones.
        ends.mine.write(0, &vec![0; self.size])?;
        let arrives = if self.transfer == Transfer::Send { self.size } else { 0 };
        let (lane, memory) = ends.of(self.transfer, self.size)?;
        let mut lmr = memory.take(arrives)?;
        lmr.fill(0);
        lane.post_receive(0, DatPost { lmr, work: Work::Send })?;
        pair.send_words(&[])?;
        let came = lane.receive(arrives, deadline)?;
        let tally = if self.transfer == Transfer::Send {
            self.check(&came.lmr[..self.size])
        } else {
            let mut written = vec![0; self.size];
            ends.mine.read(0, &mut written)?;
            self.check(&written)
        };
        ends.memory().give_back(came);
        Ok(tally)
    }

    /// Provides the data for the peer's read, until the read is done.
    fn expose(&self, pair: &RankPair<'_>, ends: &mut DatEnds) -> Result<Tally> {
        let mut data = vec![0; self.size];
        write(&mut data, self.seed());
        ends.mine.write(0, &data)?;
        ends.of(self.transfer, self.size)?; // in step with the peer
        pair.send_words(&[])?;
        // This rank sleeps here; the library serves the peer's reads.
        pair.receive_words()?;
        Ok(Tally::default())
    }

    /// Reads the peer's data, and checks them.
    fn read(&self, pair: &RankPair<'_>, ends: &mut DatEnds) -> Result<Tally> {
        let deadline = Deadline::after(pair.world().config().deadline);
        pair.receive_words()?;
        let (lane, memory) = ends.of(self.transfer, self.size)?;
        let mut lmr = memory.take(self.size)?;
        lmr.fill(0);
        let mut idle = Vec::new();
        lane.post_send(0, DatPost { lmr, work: Work::Read }, &mut idle, deadline)?;
        let read = lane.reclaim(&mut idle, deadline)?;
        let tally = self.check(&read.lmr[..self.size]);
        memory.give_back(read);
        pair.send_words(&[])?;
        Ok(tally)
    }

    fn check(&self, data: &[u8]) -> Tally {
        let fault = first_difference(data, self.seed());
        if let Some(fault) = &fault {
            let Round { transfer, size, source, number } = self;
            eprintln!("{}, {size} bytes: number {number} from rank {source} {fault}", transfer.name());
        }
        Tally { messages: 1, bytes: data.len() as u64, mismatches: u64::from(fault.is_some()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_passes_for_something_else() {
        let round = |transfer, size, source, number| Round { transfer, size, source, number }.seed();
        let original = round(Transfer::Send, 64, 0, 1);
        for other in [
            round(Transfer::RdmaWrite, 64, 0, 1),
            round(Transfer::Send, 65, 0, 1),
            round(Transfer::Send, 64, 1, 1),
            round(Transfer::Send, 64, 0, 0),
        ] {
            assert_ne!(original, other);
        }
    }

    #[test]
    fn a_wrong_byte_is_counted() {
        let round = Round { transfer: Transfer::RdmaRead, size: 61, source: 1, number: 3 };
        let mut data = vec![0; 61];
        write(&mut data, round.seed());
        assert_eq!(round.check(&data), Tally { messages: 1, bytes: 61, mismatches: 0 });
        data[60] ^= 1;
        assert_eq!(round.check(&data).mismatches, 1);
    }
}
