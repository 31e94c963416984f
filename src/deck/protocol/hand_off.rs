//! `hand-off`: the receiver gets the sender's very buffer. Nothing is announced and nothing is copied, whatever the size.
//!
//! Where the transport has no hand-off (over a network), the same step sends the message from where it lies, and the receiver
//! reads the transport's own copy of it.

use udeck_via::{Block, Error as ViaError, LentSlice};

use super::link::{RecvLink, SendLink};
use super::message_block::MessageBlock;
use crate::parcel::{Parcel, Stored};
use crate::wire::{self, Kind};

/// The poster's side: lends the message. It comes back if it was not sent.
pub(crate) fn send(link: &mut SendLink, block: MessageBlock) -> Result<(), (ViaError, MessageBlock)> {
    block.lend(&mut link.vi, Kind::HandOff)
}

/// As [`send`], for a message that nobody else has: what most long messages are.
#[inline]
pub(crate) fn send_own(link: &mut SendLink, block: Block) -> Result<(), Block> {
    let tag = Some(block.notes()[0]);
    let handed_off = link.vi.hand_off(tag, &wire::head(Kind::HandOff, 0), block);
    handed_off.map_err(|(_, block)| block)
}

/// The mailbox's side: the message, where it lies. (`recv::poll` takes most of them by a shorter way.)
pub(crate) fn receive(link: &RecvLink, lent: LentSlice, tag: u32) -> Parcel {
    link.parcel(tag, Stored::Lent(lent))
}
