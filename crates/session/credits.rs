//! Credits: how far the sender of messages may be ahead of the program that receives them.
//!
//! The receiver counts what its program has taken, and tells the count in the header of every frame. When no frame goes its
//! way, it tells it by itself: if the sender has asked, if the sender waits for room, or if a part of all credits is not advertised.

use udeck_sys::position::Position;

/// The sender's side: messages that were posted, and how many of them the peer's program has taken.
#[derive(Debug)]
pub struct SendWindow {
    sent: Position,
    taken: Position,
    /// A question is out: what has it taken.
    asked: bool,
    /// The peer was asked to tell when it takes something.
    hungry: bool,
}

impl SendWindow {
    /// So many messages have been posted, and so many of them were taken.
    pub const fn at(sent: Position, taken: Position) -> Self {
        SendWindow { sent, taken, asked: false, hungry: false }
    }

    /// The next message's number.
    #[inline]
    pub fn sent(&self) -> Position {
        self.sent
    }

    /// The number of the first message that was not taken, as far as is known.
    #[inline]
    pub fn taken(&self) -> Position {
        self.taken
    }

    /// A message was posted.
    #[inline]
    pub fn push(&mut self) {
        self.sent = self.sent.plus(1);
    }

    /// Messages that were not taken.
    #[inline]
    pub fn untaken(&self) -> u32 {
        self.sent.since(self.taken).map_or(0, |untaken| untaken as u32)
    }

    /// The peer tells how many messages were taken, `narrow` on the wire, where `untaken` were not: how many more these are
    /// than was known.
    ///
    /// # Errors
    /// In words, what is wrong with that.
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

    /// So many more messages were taken.
    pub fn advance(&mut self, more: u32) {
        (self.taken, self.hungry) = (self.taken.plus(u64::from(more)), false);
    }

    /// The peer is to be asked what was taken. Whether that is a new question.
    pub fn ask(&mut self) -> bool {
        !std::mem::replace(&mut self.asked, true)
    }

    /// The peer has answered.
    pub fn on_answer(&mut self) {
        self.asked = false;
    }

    /// The peer is to be asked to tell when it takes something. Whether that is a new question.
    pub fn hunger(&mut self) -> bool {
        !std::mem::replace(&mut self.hungry, true)
    }
}

impl Default for SendWindow {
    fn default() -> Self {
        Self::at(Position::START, Position::START)
    }
}

/// The receiver's side: what its program has taken, and what the peer knows of that. Numbers are modulo 2^32, as they travel.
#[derive(Debug, Default)]
pub struct Credits {
    /// Messages that were taken.
    pub taken: u32,
    /// What the peer was told of that.
    advertised: u32,
    /// The peer wants to know when more is taken.
    pub hungry: bool,
    /// The peer asked.
    pub asked: bool,
}

impl Credits {
    /// Another message was taken.
    #[inline]
    pub fn count(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Messages that were taken, and of which the peer does not know it.
    #[inline]
    pub fn unadvertised(&self) -> u32 {
        self.taken.wrapping_sub(self.advertised)
    }

    /// What goes into the header of a frame that leaves now.
    #[inline]
    pub fn advertise(&mut self) -> u32 {
        if self.advertised != self.taken {
            (self.advertised, self.hungry) = (self.taken, false);
        }
        self.taken
    }

    /// Whether the peer should be told without another frame to tell it in: because it wants to know, or of so many messages.
    /// That is a part of those that it may send, so that who posts little at a time is not held up by the last that was told
    /// being on its way still.
    #[inline]
    pub fn is_due(&self, at: u32) -> bool {
        let unadvertised = self.unadvertised();
        self.asked || unadvertised >= at || (self.hungry && unadvertised > 0)
    }

    /// The peer asks: what has been taken, or, if it waits for room, to be told when something is.
    pub fn on_ask(&mut self, hungry: bool) {
        self.asked |= !hungry;
        self.hungry |= hungry;
    }

    /// As if so many more messages had been taken, and told of.
    #[cfg(test)]
    pub fn age(&mut self, messages: u32) {
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
