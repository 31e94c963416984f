//! What the program takes, and the credits that follow from that.

use udeck_session::{PendingBody, Store, Taken};
use udeck_via::transport::{Inline, Refused, TransferStatus};

use super::{Connection, MESSAGES};
use crate::wire::{Note, Part};

/// (Boxed, so that the others are moved by a few registers.)
pub(super) type Item = udeck_session::Item<Box<Offer>>;

/// A message that is in its sender's memory as yet.
pub(super) struct Offer {
    pub immediate: Option<u32>,
    pub head: Inline,
    pub len: usize,
    pub parts: Vec<Part>,
    pub number: u32,
    pub receipt: bool,
    pub progress: Progress,
}

pub(super) enum Progress {
    Waits,
    Reading(Store),
}

const _: () = assert!(size_of::<Item>() <= 128);

impl PendingBody for Box<Offer> {
    fn bytes(&self) -> usize {
        self.len
    }

    fn forget_receipt(&mut self) {
        self.receipt = false;
    }
}

impl Connection {
    /// The next arrival if it is a short message, to be looked at; its immediate data. What most are, by the shortest way.
    #[inline]
    pub fn take_short(&mut self, look: impl FnOnce(&Inline)) -> Option<Option<u32>> {
        let immediate = self.recv_queue.take_inline(look)?;
        self.count_taken();
        self.skip_silent();
        self.tell_end_behind();
        Some(immediate)
    }

    /// The end may have been told while this lay before it: who takes one message at each telling is told of it, too.
    #[inline]
    fn tell_end_behind(&mut self) {
        if self.recv_queue.is_empty() && self.close.is_ended() {
            self.events.tell_end_behind();
        }
    }

    /// The next arrival, or how it is over.
    pub fn take(&mut self) -> Result<Option<Taken>, Refused> {
        // What is offered is on its way, as long as there is one.
        if matches!(self.recv_queue.front(), Some(Item::Pending(_))) && !self.close.dead {
            return Ok(None);
        }
        let item = loop {
            match self.recv_queue.pop_front() {
                Some(Item::Pending(_)) => {
                    self.offers = self.offers.saturating_sub(1);
                    self.is_gone(0, true);
                }
                Some(item) => break item,
                None => return self.end().map_or(Ok(None), Err),
            }
        };
        self.count_taken();
        let taken = item.into_taken().expect("what the program is not told of never lies in front");
        self.owed += u32::from(taken.receipt.is_some());
        self.skip_silent();
        self.tell_end_behind();
        Ok(Some(taken))
    }

    /// What lay in front was taken.
    #[inline]
    fn count_taken(&mut self) {
        match self.unreliable {
            Some(_) => self.is_gone(0, true),
            None => self.credits.count(),
        }
    }

    /// Whether something lies there for the program.
    #[inline]
    pub fn has_arrivals(&self) -> bool {
        match self.recv_queue.front() {
            None => false,
            Some(Item::Pending(_)) => {
                self.close.dead && self.recv_queue.iter().any(|item| !matches!(item, Item::Pending(_)))
            }
            Some(_) => true,
        }
    }

    /// Payload was copied for the program.
    pub fn count_copied(&self, bytes: usize) {
        self.memory.count_copied(bytes);
    }

    /// Something arrived.
    pub(super) fn deliver(&mut self, item: Item) {
        self.recv_queue.push_back(item);
        self.events.receive = true;
        self.skip_silent();
    }

    #[inline]
    pub(super) fn skip_silent(&mut self) {
        while self.recv_queue.pop_silent() {
            self.credits.count();
        }
    }

    /// Whether the peer should be told without another frame to tell it in.
    #[inline]
    pub(super) fn credit_is_due(&self) -> bool {
        self.credits.is_due(MESSAGES / 4) || self.control_received.wrapping_sub(self.control_ack_sent) >= 4
    }

    /// Sends a frame at once, as a sign that this side is there.
    pub fn greet(&mut self) {
        self.credits.asked = true;
    }

    /// Gives the receipt for a message that was taken.
    pub fn acknowledge(&mut self, number: u32, status: TransferStatus) {
        if self.owed == 0 {
            return; // the connection is lost: nobody waits any more
        }
        self.owed -= 1;
        self.notes.push(Note::Receipt(number, status));
    }
}
