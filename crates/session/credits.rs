//! Credits: how far a sender may run ahead of the program that receives its messages.
//!
//! The receiver counts the messages that its program has taken, and puts the count into the header of every frame. While no
//! frame leaves, it sends the count alone in three cases: the sender has asked, the sender waits for room, or a part of all
//! credits is not advertised.

use udeck_sys::position::Position;

/// The sender's side: messages that were posted, and how many of these the peer's program has taken.
#[derive(Debug)]
pub struct SendWindow {
    sent: Position,
    taken: Position,
    /// Whether the peer was asked how many messages it has taken, and has not answered.
    asked: bool,
    /// Whether the peer was asked to report when its program takes a message.
    credit_requested: bool,
}

impl SendWindow {
    /// A window after `sent` posted messages, of which `taken` were taken.
    pub const fn at(sent: Position, taken: Position) -> Self {
        SendWindow { sent, taken, asked: false, credit_requested: false }
    }

    /// Sequence number of the next message.
    #[inline]
    pub fn sent(&self) -> Position {
        self.sent
    }

    /// Sequence number of the first message that is not known to be taken.
    #[inline]
    pub fn taken(&self) -> Position {
        self.taken
    }

    /// Counts a posted message.
    #[inline]
    pub fn push(&mut self) {
        self.sent = self.sent.plus(1);
    }

    /// Messages that are not known to be taken.
    #[inline]
    pub fn untaken(&self) -> u32 {
        self.sent.since(self.taken).map_or(0, |untaken| untaken as u32)
    }

    /// Handles the peer's count of taken messages, `narrow` (modulo 2^32), while `untaken` messages were not taken. Returns
    /// how many more were taken than was known.
    ///
    /// # Errors
    /// In words: the peer counts more messages than there are.
    pub fn on_taken(&mut self, narrow: u32, untaken: u32) -> Result<u32, String> {
        let more = narrow.wrapping_sub(self.taken.narrow());
        if more > untaken {
            return Err(format!("{more} messages were taken of the {untaken} that it had not taken"));
        }
        if more > 0 {
            self.advance(more);
        }
        Ok(more)
    }

    /// Counts `more` messages as taken.
    pub fn advance(&mut self, more: u32) {
        (self.taken, self.credit_requested) = (self.taken.plus(u64::from(more)), false);
    }

    /// Notes that the peer is to be asked how many messages it has taken. Returns whether the question is new.
    pub fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// Notes that the peer has answered.
    pub fn on_answer(&mut self) {
        self.asked = false;
    }

    /// Notes that the peer is to be asked to report when its program takes a message. Returns whether the question is new.
    pub fn request_credit(&mut self) -> bool {
        !std::mem::replace(&mut self.credit_requested, true)
    }
}

impl Default for SendWindow {
    fn default() -> Self {
        Self::at(Position::START, Position::START)
    }
}

/// The receiver's side: messages that its program has taken, and how many of these the peer knows of. Counts are modulo 2^32,
/// as on the wire.
#[derive(Debug, Default)]
pub struct Credits {
    /// Messages that the program has taken.
    pub taken: u32,
    /// The value of `taken` that the peer was told last.
    advertised: u32,
    /// Whether the peer waits for room, and wants to know when more is taken.
    pub credit_requested: bool,
    /// Whether the peer has asked for the count.
    pub asked: bool,
}

impl Credits {
    /// Counts another taken message.
    #[inline]
    pub fn count(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Taken messages that the peer was not told of.
    #[inline]
    pub fn unadvertised(&self) -> u32 {
        self.taken.wrapping_sub(self.advertised)
    }

    /// Returns the count for the header of a frame that leaves now.
    #[inline]
    pub fn advertise(&mut self) -> u32 {
        if self.advertised != self.taken {
            (self.advertised, self.credit_requested) = (self.taken, false);
        }
        self.taken
    }

    /// Whether the peer should be told without another frame to carry the count: it wants to know, or at least `at` messages
    /// are unadvertised. `at` is a part of all credits, so that a sender of few messages at a time is not held up while the
    /// last count is still in flight.
    #[inline]
    pub fn is_due(&self, at: u32) -> bool {
        let unadvertised = self.unadvertised();
        self.asked || unadvertised >= at || (self.credit_requested && unadvertised > 0)
    }

    /// Handles the peer's question. `when_taken`: it waits for room, and wants to be told when something is taken; otherwise it
    /// wants the count now.
    pub fn on_ask(&mut self, when_taken: bool) {
        self.asked |= !when_taken;
        self.credit_requested |= when_taken;
    }

    /// Acts as if `messages` more had been taken and advertised.
    #[cfg(test)]
    pub fn advance_for_test(&mut self, messages: u32) {
        (self.taken, self.advertised) =
            (self.taken.wrapping_add(messages), self.advertised.wrapping_add(messages));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_was_sent_cannot_be_taken() {
        let start = Position::START.plus((1 << 32) - 1);
        let mut window = SendWindow::at(start, start);
        (0..3).for_each(|_| window.push());
        assert_eq!(window.on_taken(start.plus(2).narrow(), window.untaken()), Ok(2));
        assert_eq!((window.untaken(), window.taken()), (1, start.plus(2)));
        let words = window.on_taken(start.plus(4).narrow(), window.untaken()).unwrap_err();
        assert_eq!(words, "2 messages were taken of the 1 that it had not taken");
        assert_eq!(window.taken(), start.plus(2));
    }

    #[test]
    fn who_waits_for_room_is_told_of_the_first() {
        let mut credits = Credits::default();
        credits.count();
        assert!(!credits.is_due(16));
        credits.on_ask(true);
        assert!(credits.is_due(16));
        assert_eq!((credits.advertise(), credits.unadvertised()), (1, 0));
        (0..15).for_each(|_| credits.count());
        assert!(!credits.is_due(16), "the question was answered");
        credits.count();
        assert!(credits.is_due(16), "a quarter is not advertised");
    }
}
