//! `hand-off`: the receiver gets the sender's buffer itself. Nothing is announced and nothing is copied,
//! whatever the size.
//!
//! Without hand-off in the transport (over a network), the same step sends the message from where it lies,
//! and the receiver reads the transport's own copy of it.

use udeck_via::{Block, Error as ViaError, LentSlice};

use super::message_block::MessageBlock;
use super::side::{RecvSide, SendSide};
use crate::parcel::{Parcel, Stored};
use crate::wire::{self, Kind};

/// Lends the message to the mailbox (the poster's side). The message comes back if it was not sent.
pub(crate) fn send(side: &mut SendSide, block: MessageBlock) -> Result<(), (ViaError, MessageBlock)> {
    block.lend(&mut side.vi, Kind::HandOff)
}

/// Lends a message that has no other owner, like most long messages. Otherwise like [`send`].
#[inline]
pub(crate) fn send_own(side: &mut SendSide, block: Block) -> Result<(), Block> {
    let tag = Some(block.notes()[0]);
    let handed_off = side.vi.hand_off(tag, &wire::head(Kind::HandOff, 0), block);
    handed_off.map_err(|(_, block)| block)
}

/// Makes a parcel of the message, where it lies (the mailbox's side). (`recv::poll` takes most of them by a
/// shorter way.)
pub(crate) fn receive(side: &RecvSide, lent: LentSlice, tag: u32) -> Parcel {
    side.parcel(tag, Stored::Lent(lent))
}
