//! What was taken of a receive queue, and how the program gets it.

use std::sync::Arc;

use udeck_via::mem::Lent;
use udeck_via::transport::{Arrival, Body, Inline};

use crate::memory::{Acknowledge, Store, receipt};

/// A message that was taken.
pub struct Taken {
    /// Immediate data.
    pub immediate: Option<u32>,
    /// Its bytes.
    pub body: TakenBody,
    /// The message's number, if its sender waits for a receipt.
    pub receipt: Option<u32>,
}

/// Where the bytes of a taken message are.
pub enum TakenBody {
    /// A short message.
    Inline(Inline),
    /// A header, and a body of which so many of the first bytes lie in the place that the program looked for it with.
    Body(Inline, Store, usize),
    /// The immediate data of an RDMA write of so many bytes.
    Written(usize),
}

impl Taken {
    /// As the program gets it, on a connection without a lock held: a [`Lent`] that is dropped takes it. `kept` has the
    /// receipt for what is no lent message.
    pub fn into_arrival(
        self,
        whom: impl FnOnce() -> Arc<dyn Acknowledge>,
        kept: &mut Option<Lent>,
    ) -> Arrival {
        let Taken { immediate, body, receipt: number } = self;
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

/// Whether a message of `len` bytes without a header is put into a place of `room` bytes. One that is short might be for
/// a program that receives lent, and has a place for short messages only.
pub fn is_posted_for(len: usize, room: usize) -> bool {
    len > Inline::CAPACITY && len <= room
}
