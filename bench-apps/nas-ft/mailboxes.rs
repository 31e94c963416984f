//! The solver's exchange over mailboxes, and the small messages around it.
//!
//! An exchange order says from whom the next block comes, a mailbox gives what came first: so there is one
//! mailbox for every ordered pair of ranks, named by it, and a rank owns those that end at it. The messages
//! of one postbox keep their order, which lets a checksum follow the blocks of its time step through the same
//! mailbox.
//!
//! A block is written into message memory, posted (it moves: nothing is copied), and read where it arrived.

use crate::solver::Exchange;
use num_complex::Complex64;
use std::collections::BTreeMap;
use udeck::exchange::{Action, Step};
use udeck::{Buf, Mailbox, Postbox, Protocol, Received, World};

/// This rank's connections with all others.
pub struct Peers<'w> {
    world: &'w World,
    steps: Vec<Step>,
    links: BTreeMap<usize, PeerMailboxes>,
    /// Bytes that this rank posted in `swap_blocks`.
    swapped: u64,
}

/// Both directions between this rank and a peer.
struct PeerMailboxes {
    inbox: Mailbox<Complex64>,
    outbox: Postbox<Complex64>,
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error(transparent)]
    Messaging(#[from] udeck::Error),
    #[error("rank {from} sent {found} points where {expected} were due: do all ranks run the same class?")]
    Length { from: usize, expected: usize, found: usize },
}

impl<'w> Peers<'w> {
    /// Makes the mailboxes and waits for those of the others. Blocks are exchanged in the order of `steps`, which
    /// all ranks have from the same rule.
    pub fn connect(world: &'w World, steps: Vec<Step>, protocol: Protocol) -> udeck::Result<Self> {
        let me = world.rank();
        let others = || (0..world.size()).filter(|peer| *peer != me);
        // All mailboxes first: everybody waits for the others' in the second half only.
        let inboxes = others()
            .map(|peer| world.mailbox(&pair(peer, me)))
            .collect::<udeck::Result<Vec<Mailbox<Complex64>>>>()?;
        let mut links = BTreeMap::new();
        for (peer, inbox) in others().zip(inboxes) {
            let outbox = world.postbox(&pair(me, peer))?;
            outbox.set_protocol(protocol)?;
            links.insert(peer, PeerMailboxes { inbox, outbox });
        }
        Ok(Self { world, steps, links, swapped: 0 })
    }

    /// The sum of all ranks' parts, at rank 0; `None` at the others. Parts are added in the order of ranks,
    /// so that the same run gives the same bits.
    pub fn sum(&self, part: Complex64) -> Result<Option<Complex64>, ExchangeError> {
        if self.world.rank() != 0 {
            let mut message = self.world.buf(1)?;
            message[0] = part;
            self.post(0, message)?;
            return Ok(None);
        }
        let mut sum = part;
        for &peer in self.links.keys() {
            sum += self.retrieve(peer, 1)?[0];
        }
        Ok(Some(sum))
    }

    /// Payload bytes of all `swap_blocks` so far as the library counted them, summed over all ranks, at rank
    /// 0; `None` at the others. To be called once, by all.
    pub fn total_swapped_bytes(&self) -> udeck::Result<Option<u64>> {
        const NAME: &str = "ft.swapped";
        if self.world.rank() == 0 {
            let counts = self.world.mailbox::<u64>(NAME)?;
            let mut total = self.swapped;
            for count in counts.iter().take(self.links.len()) {
                total += count?.iter().sum::<u64>();
            }
            return Ok(Some(total));
        }
        let mut message = self.world.buf(1)?;
        message[0] = self.swapped;
        let counts = self.world.postbox::<u64>(NAME)?;
        counts.post(message)?;
        counts.flush()?;
        Ok(None)
    }

    fn post(&self, peer: usize, block: Buf<Complex64>) -> udeck::Result {
        Ok(self.links[&peer].outbox.post(block)?)
    }

    fn retrieve(&self, peer: usize, expected: usize) -> Result<Received<Complex64>, ExchangeError> {
        let block = self.links[&peer].inbox.retrieve()?;
        match block.len() {
            found if found == expected => Ok(block),
            found => Err(ExchangeError::Length { from: peer, expected, found }),
        }
    }
}

impl Exchange for Peers<'_> {
    type Error = ExchangeError;

    fn swap_blocks(
        &mut self,
        len: impl Fn(usize, usize) -> usize,
        mut pack: impl FnMut(usize, &mut [Complex64]),
        mut unpack: impl FnMut(usize, &[Complex64]),
    ) -> Result<(), ExchangeError> {
        let me = self.world.rank();
        let before = self.world.stats().bytes_posted;
        let mut packed = |peer| -> udeck::Result<Buf<Complex64>> {
            let mut block = self.world.buf_reused(len(me, peer))?;
            pack(peer, &mut block);
            Ok(block)
        };
        for &Step { peer, action } in &self.steps {
            match action {
                Action::Post => self.post(peer, packed(peer)?)?,
                Action::Retrieve => unpack(peer, &self.retrieve(peer, len(peer, me))?),
                Action::PostThenRetrieve => {
                    self.post(peer, packed(peer)?)?;
                    unpack(peer, &self.retrieve(peer, len(peer, me))?);
                }
                // The same order of calls as the action says, but packing before it waits, and unpacking when
                // the peer has its block: so both work at the same time.
                Action::RetrieveThenPost => {
                    let block = packed(peer)?;
                    let arrived = self.retrieve(peer, len(peer, me))?;
                    self.post(peer, block)?;
                    unpack(peer, &arrived);
                }
            }
        }
        self.swapped += self.world.stats().bytes_posted - before;
        Ok(())
    }
}

/// The mailbox in which `to` finds what `from` sends.
fn pair(from: usize, to: usize) -> String {
    format!("ft.{from}.to.{to}")
}
