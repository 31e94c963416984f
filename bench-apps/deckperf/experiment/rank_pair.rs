//! The mailboxes between the two ranks: one for the messages under test, one for orders and reports.

use std::time::Duration;

use udeck::{Mailbox, Postbox, Protocol, Received, World};

use crate::{
    experiment::off_cache::Rotation,
    failure::{PerfError, Result},
};

/// One rank's ends of the mailboxes. Each retrieve blocks until the message is there, and fails if the peer
/// is lost.
pub struct RankPair<'w> {
    world: &'w World,
    leads: bool,
    inbox: Mailbox<u8>,
    /// One postbox per protocol, each a connection of its own, so that none inherits another's credits or buffers.
    outlets: Vec<(Protocol, Postbox<u8>)>,
    words_in: Mailbox<u64>,
    words_out: Postbox<u64>,
    handicap: Option<f64>,
    rotation: Option<Rotation>,
}

impl<'w> RankPair<'w> {
    /// Opens the mailboxes. Both ranks call this with the same protocols; each waits until the other's mailboxes exist.
    pub fn open(world: &'w World, protocols: &[Protocol]) -> Result<Self> {
        match world.size() {
            2 => Self::in_pairs(world, protocols),
            size => Err(PerfError::WrongJobSize(size)),
        }
    }

    /// Opens the mailboxes of every two neighbours of a job: ranks 0 and 1, 2 and 3, and so on.
    pub fn in_pairs(world: &'w World, protocols: &[Protocol]) -> Result<Self> {
        let leads = world.rank().is_multiple_of(2);
        Self::between(world, world.rank() ^ 1, leads, "perf", protocols)
    }

    /// Opens the mailboxes between any two ranks, which pass the same name; one of the two leads.
    pub fn between(
        world: &'w World,
        peer: usize,
        leads: bool,
        name: &str,
        protocols: &[Protocol],
    ) -> Result<Self> {
        let me = world.rank();
        let inbox = world.mailbox(&format!("{name}.{me}"))?;
        let words_in = world.mailbox(&format!("{name}.words.{me}"))?;
        let mut outlets = Vec::with_capacity(protocols.len() + 1);
        let acknowledging = Some(&Protocol::Auto).filter(|auto| !protocols.contains(auto));
        for &protocol in protocols.iter().chain(acknowledging) {
            let outlet = world.postbox(&format!("{name}.{peer}"))?;
            outlet.set_protocol(protocol)?;
            outlets.push((protocol, outlet));
        }
        let words_out = world.postbox(&format!("{name}.words.{peer}"))?;
        // Both ranks send before they receive, so this post may not wait for the peer, whatever the program's default
        // protocol is.
        words_out.set_protocol(Protocol::Auto)?;
        Ok(Self { world, leads, inbox, outlets, words_in, words_out, handicap: None, rotation: None })
    }

    /// Makes this rank, if it leads, stand still for `share` of each turn from now on.
    pub fn set_handicap(&mut self, share: Option<f64>) {
        self.handicap = share.filter(|_| self.leads());
    }

    /// The share from [`set_handicap`](Self::set_handicap).
    pub fn handicap(&self) -> Option<f64> {
        self.handicap
    }

    /// Makes messages use the buffers of `rotation` in turn from now on.
    pub fn set_rotation(&mut self, rotation: Option<Rotation>) {
        self.rotation = rotation;
    }

    /// The value from [`set_rotation`](Self::set_rotation).
    #[inline]
    pub fn rotation(&self) -> Option<&Rotation> {
        self.rotation.as_ref()
    }

    /// Whether this rank leads: the leader gives orders, and the other rank follows. Rank 0 leads rank 1.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// The world of the pair.
    pub fn world(&self) -> &'w World {
        self.world
    }

    /// The postbox whose messages travel by `protocol`.
    pub fn outlet(&self, protocol: Protocol) -> Result<&Postbox<u8>> {
        let found = self.outlets.iter().find(|(known, _)| *known == protocol);
        found
            .map(|(_, outlet)| outlet)
            .ok_or_else(|| PerfError::BadOrder(format!("{protocol} is not among the protocols of this run")))
    }

    /// Mailbox of the messages under test. Callers pass the length of each message to [`RankPair::check_length`]. A method that
    /// returned the message in another result would move it again, which no user's loop does.
    pub fn inbox(&self) -> &Mailbox<u8> {
        &self.inbox
    }

    /// Checks that a message has the expected length.
    #[inline]
    pub fn check_length(&self, protocol: Protocol, wanted: usize, got: usize) -> Result {
        if got == wanted { Ok(()) } else { Err(PerfError::WrongLength { protocol, wanted, got }) }
    }

    /// Posts an empty message, which means "everything so far has arrived".
    pub fn acknowledge(&self) -> Result {
        Ok(self.outlet(Protocol::Auto)?.post(&[][..])?)
    }

    /// Waits for the peer's [`acknowledge`](Self::acknowledge).
    pub fn await_acknowledgement(&self) -> Result {
        let message = self.inbox.retrieve()?;
        self.check_length(Protocol::Auto, 0, message.len())
    }

    /// Makes the leader wait until the other rank calls this, too: the clock of a batch starts when both are prepared.
    pub fn meet(&self) -> Result {
        if self.leads { self.receive_words().map(drop) } else { self.send_words(&[]) }
    }

    /// Sends an order or a report to the peer.
    pub fn send_words(&self, words: &[u64]) -> Result {
        let mut message = self.world.buf(words.len())?;
        message.copy_from_slice(words);
        Ok(self.words_out.post(message)?)
    }

    /// Sends many words, each as a message of its own.
    pub fn send_each_word(&self, words: &[u64]) -> Result {
        self.words_out.post_each(words).map_err(|failed| failed.error.into())
    }

    /// Receives `count` words, each a message of its own, and returns their sum.
    pub fn receive_each_word(&self, count: usize) -> Result<u64> {
        let (mut sum, mut left) = (0_u64, count);
        while left > 0 {
            // The first word is awaited, and the words that have arrived behind it are drained.
            sum = sum.wrapping_add(self.words_in.retrieve()?.iter().sum());
            left -= 1 + self.words_in.drain(left - 1, |word| sum = sum.wrapping_add(word.iter().sum()))?;
        }
        Ok(sum)
    }

    /// Waits for an order or a report of the peer.
    pub fn receive_words(&self) -> Result<Received<u64>> {
        Ok(self.words_in.retrieve()?)
    }

    /// Waits for a report of the peer that has so many words.
    pub fn receive_report<const WORDS: usize>(&self) -> Result<[u64; WORDS]> {
        report(&self.receive_words()?)
    }

    /// Waits for an order or a report of the peer, at most for `limit`.
    pub fn receive_words_timeout(&self, limit: Duration) -> Result<Received<u64>> {
        Ok(self.words_in.retrieve_timeout(limit)?)
    }

    /// Returns an order or a report of the peer, if one has arrived.
    pub fn try_receive_words(&self) -> Result<Option<Received<u64>>> {
        Ok(self.words_in.try_retrieve()?)
    }
}

/// The words of a report, which must have this length.
pub fn report<const WORDS: usize>(words: &[u64]) -> Result<[u64; WORDS]> {
    words.try_into().map_err(|_| PerfError::BadReport(words.len()))
}
