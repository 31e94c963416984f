//! Expected bodies: a place for the body of the next message, before anything is known of the message.
//!
//! The length of a long message is known when its header has been read, and with the header most of the message: the part
//! that came in the driver's scratch is copied to its store. But messages often have the length of their predecessors. So
//! after two that are alike, the next read puts the presumed body of a third into a store of that length, and the header
//! before it into the scratch. If the header says otherwise, the bytes are parsed where they lie, as if the store were the
//! scratch. More is copied then than a scratch holds, so one message alone predicts nothing.
//!
//! The store is taken for one read, and freed if nothing came: a silent connection holds no memory for it.

use super::Connection;
use super::pieces::{Direct, Expected, Shape};
use crate::framed::wire::HEADER;
use crate::memory::Store;

/// Only bodies longer than this are expected: shorter ones are copied as quickly as memory is found for them, and a driver
/// may want to read them otherwise.
const ABOVE: usize = 16 << 10;
/// Longest body that is expected. Of longer ones most bytes are received in place anyway.
const MOST: usize = 1 << 20;

impl Connection {
    /// Notes the shape of a message that came. (`body`: 0 for a short one.)
    pub(super) fn note_shape(&mut self, head: u8, body: usize) {
        let shape = Shape { head, body };
        let is_alike = self.incoming.last_shape.replace(shape) == Some(shape);
        self.incoming.shape = (is_alike && (ABOVE + 1..=MOST).contains(&body)).then_some(shape);
    }

    /// Whether [`Connection::direct`] may have a place for the next bytes although no frame has begun.
    #[inline]
    pub fn expects_body(&self) -> bool {
        self.incoming.shape.is_some()
    }

    /// Adds a place for a message like the last two, if the next byte is a header's.
    pub(super) fn expect(&mut self, direct: &mut Direct) {
        let is_at_header = self.is_between_frames() && self.incoming.partial.is_empty();
        let Some(shape) = self.incoming.shape.filter(|_| is_at_header && !self.close.closed) else { return };
        // Arena memory only, because it is used again.
        if let Some(store) = Store::in_arena(&self.memory, shape.body) {
            direct.expect(HEADER + usize::from(shape.head), Expected { shape, store });
        }
    }

    /// Handles a read into such a place: `filled` bytes lie in it, and `scratch` has the bytes before and behind them.
    pub(super) fn on_expected(&mut self, before: usize, expected: Expected, filled: usize, scratch: &[u8]) {
        let (first, behind) = scratch.split_at(before.min(scratch.len()));
        // Only the first header can be the expected one: a frame that begins behind another has its body elsewhere.
        let (header, head) = first.split_at(HEADER.min(first.len()));
        self.incoming.expected = Some(expected);
        self.on_receive_beside(header);
        let unused = self.incoming.expected.take();
        self.on_receive_beside(head);
        match unused {
            // The message was the expected one, and has its store.
            None => {
                if let Err(violation) = self.advance(filled) {
                    self.break_protocol(&violation);
                }
            }
            Some(Expected { shape, store }) => {
                self.incoming.shape = None;
                // Other frames come between such messages, so two more have to come first.
                self.incoming.last_shape.take_if(|last| *last == shape);
                if filled > 0 {
                    self.on_receive_beside(&store.bytes()[..filled]);
                }
            }
        }
        self.on_receive_beside(behind);
    }

    /// The store for a message of this shape, whose header has been read: the expected one, if the shape is right.
    pub(super) fn store_for(&mut self, head: u8, body: usize) -> Option<Store> {
        let is_this = |expected: &mut Expected| expected.shape == Shape { head, body };
        match self.incoming.expected.take_if(is_this) {
            Some(expected) => Some(expected.store),
            None => Store::new(&self.memory, body),
        }
    }
}
