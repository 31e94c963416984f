//! Receive queue of a connection: messages for the program, and the credits that follow when it takes them.

use udeck_session::{PendingBody, Store, TakenMessage};
use udeck_via::transport::{Inline, Refused, TransferStatus};

use super::{Connection, MESSAGES};
use crate::wire::{Note, RemotePiece};

/// Item of the receive queue. (The offer is boxed, so that the other kinds are moved by a few registers.)
pub(super) type Item = udeck_session::Item<Box<Offer>>;

/// A message that is still in its sender's memory.
pub(super) struct Offer {
    pub immediate: Option<u32>,
    pub head: Inline,
    pub len: usize,
    pub parts: Vec<RemotePiece>,
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
    /// Lets `look` read the next arrival if it is a short message, and removes it. Returns its immediate data. Most
    /// messages take this fast path.
    #[inline]
    pub fn take_short(&mut self, look: impl FnOnce(&Inline)) -> Option<Option<u32>> {
        let immediate = self.recv_queue.take_inline(look)?;
        self.count_taken();
        self.skip_silent();
        self.notify_end_after_arrival();
        Some(immediate)
    }

    /// Reports the end again if it was reported while this message lay before it: a program that takes one message
    /// at each report then learns of the end, too.
    #[inline]
    fn notify_end_after_arrival(&mut self) {
        if self.recv_queue.is_empty() && self.close.is_ended() {
            self.events.notify_end_after_arrival();
        }
    }

    /// Takes the next arrival, or returns how the connection is over.
    pub fn take(&mut self) -> Result<Option<TakenMessage>, Refused> {
        // The offer in front is being read, as long as the connection lives.
        if matches!(self.recv_queue.front(), Some(Item::Pending(_))) && !self.close.dead {
            return Ok(None);
        }
        let item = loop {
            match self.recv_queue.pop_front() {
                Some(Item::Pending(_)) => {
                    self.offers = self.offers.saturating_sub(1);
                    self.forget_number(0, true);
                }
                Some(item) => break item,
                None => return self.end().map_or(Ok(None), Err),
            }
        };
        self.count_taken();
        let taken = item.into_taken().expect("what the program is not told of never lies in front");
        self.owed += u32::from(taken.receipt.is_some());
        self.skip_silent();
        self.notify_end_after_arrival();
        Ok(Some(taken))
    }

    /// Counts a message that was taken from the front.
    #[inline]
    fn count_taken(&mut self) {
        match self.unreliable {
            Some(_) => self.forget_number(0, true),
            None => self.credits.count(),
        }
    }

    /// Whether the program has messages to receive.
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

    /// Counts bytes that were copied for the program.
    pub fn count_copied(&self, bytes: usize) {
        self.memory.count_copied(bytes);
    }

    /// Adds an arrival to the queue.
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

    /// Whether credits or acknowledgements are due although no other frame carries them.
    #[inline]
    pub(super) fn credit_is_due(&self) -> bool {
        self.credits.is_due(MESSAGES / 4) || self.control_received.wrapping_sub(self.control_ack_sent) >= 4
    }

    /// Sends a frame at once, to show that this side is there.
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
