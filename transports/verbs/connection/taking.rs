//! What the program takes, and the credits that follow from that.

use udeck_via::Reliability;
use udeck_via::transport::{Fate, Inline, Refused};

use super::{Connection, MESSAGES};
use crate::memory::Store;
use crate::wire::{Note, Part};

/// Something that arrived and was not taken, in order.
pub(super) enum Item {
    Short {
        immediate: Option<u32>,
        bytes: Inline,
    },
    Body {
        immediate: Option<u32>,
        head: Inline,
        store: Store,
        receipt: Option<u32>,
    },
    /// In its sender's memory as yet. (Boxed, so that the others are moved by a few registers.)
    Offer(Box<Offer>),
    Written {
        immediate: u32,
        len: usize,
        receipt: Option<u32>,
    },
    /// What nobody is told of. The receipt is given when everything before it was taken.
    Silent(u32),
}

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

/// Something that was taken.
pub struct Taken {
    pub immediate: Option<u32>,
    pub what: What,
    /// The message's number, if its sender waits for a receipt.
    pub receipt: Option<u32>,
}

/// What it is.
pub enum What {
    Inline(Inline),
    Body(Inline, Store),
    Written(usize),
}

/// How much the peer may send, and what it knows of that.
#[derive(Default)]
pub(super) struct Credits {
    pub taken: u32,
    /// What the peer was told of `taken`.
    told: u32,
    /// The peer wants to know when more is taken.
    pub hungry: bool,
    /// The peer asked.
    pub asked: bool,
}

impl Credits {
    /// What goes into the header of a frame that leaves now.
    #[inline]
    pub fn tell(&mut self) -> u32 {
        if self.told != self.taken {
            (self.told, self.hungry) = (self.taken, false);
        }
        self.taken
    }

    #[inline]
    fn is_due(&self) -> bool {
        let untold = self.taken.wrapping_sub(self.told);
        // A quarter: so who posts little at a time is not held up by the last that was told being on its way still.
        self.asked || untold >= MESSAGES / 4 || (self.hungry && untold > 0)
    }
}

impl Item {
    /// Its sender is told otherwise.
    pub fn forget_receipt(&mut self) {
        match self {
            Item::Body { receipt, .. } | Item::Written { receipt, .. } => *receipt = None,
            Item::Offer(offer) => offer.receipt = false,
            Item::Short { .. } | Item::Silent(_) => {}
        }
    }

    /// What it takes here.
    pub fn bytes(&self) -> usize {
        match self {
            Item::Short { bytes, .. } => bytes.bytes().len(),
            Item::Body { head, store, .. } => head.bytes().len() + store.len(),
            Item::Offer(offer) => offer.len,
            Item::Written { .. } | Item::Silent(_) => 0,
        }
    }
}

impl Connection {
    /// The next arrival if it is a short message, to be looked at; its immediate data. What most are, by the shortest way.
    #[inline]
    pub fn take_short(&mut self, look: impl FnOnce(&Inline)) -> Option<Option<u32>> {
        let Some(Item::Short { immediate, bytes }) = self.inbox.front() else { return None };
        look(bytes);
        let immediate = *immediate;
        // (There is nothing in it to be dropped, which the compiler does not know.)
        std::mem::forget(self.inbox.pop_front());
        self.count_taken();
        self.skip_silent();
        Some(immediate)
    }

    /// The next arrival, or how it is over.
    pub fn take(&mut self) -> Result<Option<Taken>, Refused> {
        // What is offered is on its way, as long as there is one.
        if matches!(self.inbox.front(), Some(Item::Offer(_))) && !self.dead {
            return Ok(None);
        }
        let item = loop {
            match self.inbox.pop_front() {
                Some(Item::Offer(_)) => {
                    self.offers = self.offers.saturating_sub(1);
                    self.is_gone(0, true);
                }
                Some(item) => break item,
                None => return self.end().map_or(Ok(None), Err),
            }
        };
        self.count_taken();
        let taken = match item {
            Item::Short { immediate, bytes } => Taken { immediate, what: What::Inline(bytes), receipt: None },
            Item::Body { immediate, head, store, receipt } => {
                Taken { immediate, what: What::Body(head, store), receipt }
            }
            Item::Written { immediate, len, receipt } => {
                Taken { immediate: Some(immediate), what: What::Written(len), receipt }
            }
            Item::Offer(_) | Item::Silent(_) => unreachable!("none lies in front"),
        };
        self.owed += u32::from(taken.receipt.is_some());
        self.skip_silent();
        Ok(Some(taken))
    }

    /// What lay in front was taken.
    #[inline]
    fn count_taken(&mut self) {
        match self.apart {
            Some(_) => self.is_gone(0, true),
            None => self.credits.taken = self.credits.taken.wrapping_add(1),
        }
    }

    /// Whether something lies there for the program.
    #[inline]
    pub fn has_arrivals(&self) -> bool {
        match self.inbox.front() {
            None => false,
            Some(Item::Offer(_)) => {
                self.dead && self.inbox.iter().any(|item| !matches!(item, Item::Offer(_)))
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
        self.inbox.push_back(item);
        self.news.receive = true;
        self.skip_silent();
    }

    #[inline]
    pub(super) fn skip_silent(&mut self) {
        if matches!(self.inbox.front(), Some(Item::Silent(_))) {
            self.skip_all_silent();
        }
    }

    fn skip_all_silent(&mut self) {
        while let Some(Item::Silent(number)) = self.inbox.front() {
            if self.level == Reliability::Reception {
                self.notes.push(Note::Receipt(*number, Fate::Arrived));
            }
            self.inbox.pop_front();
            self.credits.taken = self.credits.taken.wrapping_add(1);
        }
    }

    /// Whether the peer should be told without another frame to tell it in.
    #[inline]
    pub(super) fn credit_is_due(&self) -> bool {
        self.credits.is_due() || self.heard.wrapping_sub(self.told_heard) >= 4
    }

    /// Sends a frame at once, as a sign that this side is there.
    pub fn greet(&mut self) {
        self.credits.asked = true;
    }

    /// Gives the receipt for a message that was taken.
    pub fn acknowledge(&mut self, number: u32, fate: Fate) {
        if self.owed == 0 {
            return; // the connection is lost: nobody waits any more
        }
        self.owed -= 1;
        self.notes.push(Note::Receipt(number, fate));
    }
}
