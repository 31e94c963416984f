//! The mailboxes between the two ranks: one for the messages under test, one for what the ranks tell each
//! other.

use std::time::Duration;

use udeck::{Mailbox, Postbox, Protocol, Received, World};

use crate::{
    failure::{Failure, Result},
    off_cache::Rotation,
};

/// One rank's ends. Whatever it retrieves blocks until the message is there or the peer is lost, and then
/// fails.
pub struct RankPair<'w> {
    world: &'w World,
    leads: bool,
    inbox: Mailbox<u8>,
    /// A postbox per protocol, each a connection of its own: none inherits another's credits or buffers.
    outlets: Vec<(Protocol, Postbox<u8>)>,
    words_in: Mailbox<u64>,
    words_out: Postbox<u64>,
    handicap: Option<f64>,
    rotation: Option<Rotation>,
}

impl<'w> RankPair<'w> {
    /// Both ranks call this with the same protocols; each waits until the other's mailboxes exist.
    pub fn open(world: &'w World, protocols: &[Protocol]) -> Result<Self> {
        match world.size() {
            2 => Self::in_pairs(world, protocols),
            size => Err(Failure::WrongJobSize(size)),
        }
    }

    /// The same for every two neighbours of a job: ranks 0 and 1, 2 and 3, and so on.
    pub fn in_pairs(world: &'w World, protocols: &[Protocol]) -> Result<Self> {
        let leads = world.rank().is_multiple_of(2);
        Self::between(world, world.rank() ^ 1, leads, "perf", protocols)
    }

    /// The same for any two ranks, which give the same name; of the two, one leads.
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
        // Both ranks tell before they hear: whatever the program's default is, this may not wait for the peer.
        words_out.set_protocol(Protocol::Auto)?;
        Ok(Self { world, leads, inbox, outlets, words_in, words_out, handicap: None, rotation: None })
    }

    /// From now on this rank stands still for `share` of each turn, if it leads.
    pub fn set_handicap(&mut self, share: Option<f64>) {
        self.handicap = share.filter(|_| self.leads());
    }

    /// What [`set_handicap`](Self::set_handicap) said.
    pub fn handicap(&self) -> Option<f64> {
        self.handicap
    }

    /// From now on messages lie in other memory than the last ones.
    pub fn set_rotation(&mut self, rotation: Option<Rotation>) {
        self.rotation = rotation;
    }

    /// What [`set_rotation`](Self::set_rotation) said.
    #[inline]
    pub fn rotation(&self) -> Option<&Rotation> {
        self.rotation.as_ref()
    }

    /// One says what happens, the other follows: rank 0 leads rank 1.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// The world that the pair lies in.
    pub fn world(&self) -> &'w World {
        self.world
    }

    /// The postbox whose messages travel by `protocol`.
    pub fn outlet(&self, protocol: Protocol) -> Result<&Postbox<u8>> {
        let found = self.outlets.iter().find(|(known, _)| *known == protocol);
        found
            .map(|(_, outlet)| outlet)
            .ok_or_else(|| Failure::BadOrder(format!("{protocol} is not among the protocols of this run")))
    }

    /// Where the messages under test come. Whoever retrieves one has [`RankPair::check_length`] check it: if it were handed on
    /// inside another result, it would be moved again, which no user's loop does.
    pub fn inbox(&self) -> &Mailbox<u8> {
        &self.inbox
    }

    /// That a message is as long as it has to be.
    #[inline]
    pub fn check_length(&self, protocol: Protocol, wanted: usize, got: usize) -> Result {
        if got == wanted { Ok(()) } else { Err(Failure::WrongLength { protocol, wanted, got }) }
    }

    /// An empty message: "everything so far has arrived".
    pub fn acknowledge(&self) -> Result {
        Ok(self.outlet(Protocol::Auto)?.post(&[][..])?)
    }

    /// Waits for the peer's [`acknowledge`](Self::acknowledge).
    pub fn await_acknowledgement(&self) -> Result {
        let message = self.inbox.retrieve()?;
        self.check_length(Protocol::Auto, 0, message.len())
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

    /// Receives as many words, each a message of its own, and gives their sum.
    pub fn receive_each_word(&self, count: usize) -> Result<u64> {
        let (mut sum, mut left) = (0_u64, count);
        while left > 0 {
            // Waits for the first, and reads with it what has come behind.
            sum = sum.wrapping_add(self.words_in.retrieve()?.iter().sum());
            left -= 1 + self.words_in.drain(left - 1, |word| sum = sum.wrapping_add(word.iter().sum()))?;
        }
        Ok(sum)
    }

    /// Waits for an order or a report of the peer.
    pub fn receive_words(&self) -> Result<Received<u64>> {
        Ok(self.words_in.retrieve()?)
    }

    /// As [`RankPair::receive_words`], for at most `limit`.
    pub fn receive_words_timeout(&self, limit: Duration) -> Result<Received<u64>> {
        Ok(self.words_in.retrieve_timeout(limit)?)
    }

    /// An order or a report of the peer, if one is there.
    pub fn try_receive_words(&self) -> Result<Option<Received<u64>>> {
        Ok(self.words_in.try_retrieve()?)
    }
}
