//! Receive queue: messages that arrived and were not taken, and the forms in which the program gets them.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use udeck_via::mem::Lent;
use udeck_via::transport::{Arrival, Body, Inline, Landed};

use crate::memory::{Acknowledge, Store, receipt};

/// Arrivals that were not taken, in order. `P`: messages whose bytes are still to be fetched from their sender.
pub struct RecvQueue<P>(VecDeque<Item<P>>);

/// An arrival that was not taken.
pub enum Item<P> {
    /// A short message.
    Inline {
        /// Immediate data.
        immediate: Option<u32>,
        /// The message's bytes.
        bytes: Inline,
    },
    /// A message in our memory.
    Body {
        /// Immediate data.
        immediate: Option<u32>,
        /// The message's header.
        head: Inline,
        /// The bytes behind the header.
        store: Store,
        /// Number of its first bytes that lie in the place the program polled with.
        landed: usize,
        /// The message's number, if its sender waits for a receipt.
        receipt: Option<u32>,
    },
    /// The immediate data of an RDMA write.
    Written {
        /// The data.
        immediate: u32,
        /// Bytes of the write.
        len: usize,
        /// Number of the write, if its sender waits for a receipt.
        receipt: Option<u32>,
    },
    /// An arrival that the program is not told of: a write without immediate data, or a message that was dropped.
    Silent,
    /// A message that is still to be fetched.
    Pending(P),
}

/// A message that is still to be fetched. [`Infallible`]: where the stream brings everything.
pub trait PendingBody {
    /// Bytes of the message.
    fn bytes(&self) -> usize;
    /// Forgets the receipt, because the sender is told otherwise.
    fn forget_receipt(&mut self);
}

impl PendingBody for Infallible {
    fn bytes(&self) -> usize {
        match *self {}
    }

    fn forget_receipt(&mut self) {
        match *self {}
    }
}

impl<P: PendingBody> Item<P> {
    /// Length in bytes, with the header.
    #[inline]
    pub fn bytes(&self) -> usize {
        match self {
            Item::Inline { bytes, .. } => bytes.len(),
            Item::Body { head, store, .. } => head.len() + store.len(),
            Item::Pending(pending) => pending.bytes(),
            Item::Written { .. } | Item::Silent => 0,
        }
    }

    fn forget_receipt(&mut self) {
        match self {
            Item::Body { receipt, .. } | Item::Written { receipt, .. } => *receipt = None,
            Item::Pending(pending) => pending.forget_receipt(),
            Item::Inline { .. } | Item::Silent => {}
        }
    }

    /// The arrival in the form in which it is taken. `None`: the program does not get it, or not yet.
    #[inline]
    pub fn into_taken(self) -> Option<TakenMessage> {
        match self {
            Item::Inline { immediate, bytes } => {
                Some(TakenMessage { immediate, body: TakenBody::Inline(bytes), receipt: None })
            }
            Item::Body { immediate, head, store, landed, receipt } => {
                Some(TakenMessage { immediate, body: TakenBody::Body(head, store, landed), receipt })
            }
            Item::Written { immediate, len, receipt } => {
                Some(TakenMessage { immediate: Some(immediate), body: TakenBody::Written(len), receipt })
            }
            Item::Silent | Item::Pending(_) => None,
        }
    }
}

impl<P: PendingBody> RecvQueue<P> {
    /// Takes a short message, if it is the first arrival, and passes it to `read`. Returns its immediate data. This is the
    /// shortest path, for most messages.
    #[inline]
    pub fn take_inline(&mut self, read: impl FnOnce(&Inline)) -> Option<Option<u32>> {
        let Some(Item::Inline { immediate, bytes }) = self.0.front() else { return None };
        read(bytes);
        let immediate = *immediate;
        // (The item has nothing to drop, which the compiler does not know.)
        std::mem::forget(self.0.pop_front());
        Some(immediate)
    }

    /// Removes the first arrival, if the program is not told of it.
    #[inline]
    pub fn pop_silent(&mut self) -> bool {
        let is_silent = matches!(self.0.front(), Some(Item::Silent));
        if is_silent {
            self.0.pop_front();
        }
        is_silent
    }

    /// Forgets all receipts for arrivals that were not taken; the arrivals can still be read.
    pub fn forget_receipts(&mut self) {
        self.0.iter_mut().for_each(Item::forget_receipt);
    }
}

impl<P> Default for RecvQueue<P> {
    fn default() -> Self {
        RecvQueue(VecDeque::new())
    }
}

impl<P> Deref for RecvQueue<P> {
    type Target = VecDeque<Item<P>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<P> DerefMut for RecvQueue<P> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

/// A message that was taken.
pub struct TakenMessage {
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The message's bytes.
    pub body: TakenBody,
    /// The message's number, if its sender waits for a receipt.
    pub receipt: Option<u32>,
}

/// Place of a taken message's bytes.
pub enum TakenBody {
    /// A short message.
    Inline(Inline),
    /// A header, a body, and the number of the body's first bytes that lie in the place the program polled with.
    Body(Inline, Store, usize),
    /// The length in bytes of an RDMA write, whose immediate data were taken.
    Written(usize),
}

impl TakenMessage {
    /// Copies the message to the place that a program has posted for it, if it is short, or came without a header and fits.
    /// Returns the payload bytes that were copied, without those of short messages. `None`: the program gets it
    /// [otherwise](TakenMessage::into_arrival).
    pub fn land(&self, to: &mut [u8]) -> Option<(Landed, usize)> {
        let immediate = self.immediate;
        match &self.body {
            TakenBody::Inline(bytes) => {
                let len = bytes.len();
                let fitting = len.min(to.len());
                to[..fitting].copy_from_slice(&bytes.bytes()[..fitting]);
                Some((Landed::Copied { immediate, len }, 0))
            }
            TakenBody::Body(head, store, landed)
                if head.is_empty() && is_posted_for(store.len(), to.len()) =>
            {
                let len = store.len();
                store.copy_part(*landed, &mut to[*landed..len]);
                Some((Landed::Copied { immediate, len }, len - landed))
            }
            _ => None,
        }
    }

    /// The message in the program's form. Call it without a lock of the connection held: a [`Lent`] that is dropped takes it.
    /// `kept` gets the receipt of an arrival that is no lent message.
    pub fn into_arrival(
        self,
        whom: impl FnOnce() -> Arc<dyn Acknowledge>,
        kept: &mut Option<Lent>,
    ) -> Arrival {
        let TakenMessage { immediate, body, receipt: number } = self;
        let body = match body {
            TakenBody::Inline(bytes) => Body::Inline(bytes),
            TakenBody::Body(head, store, _) => {
                Body::Lent(head, store.lend(number.map(|number| (whom(), number))))
            }
            TakenBody::Written(len) => {
                *kept = number.map(|number| receipt(whom(), number));
                Body::Written(len)
            }
        };
        Arrival { immediate, body }
    }
}

/// Whether a message of `len` bytes without a header is put into a place of `room` bytes. A short one might be for a program
/// that receives lent, and has a place for short messages only.
pub fn is_posted_for(len: usize, room: usize) -> bool {
    len > Inline::CAPACITY && len <= room
}
