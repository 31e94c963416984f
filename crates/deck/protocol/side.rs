//! The two sides of a postbox's connection, on which a protocol works, without the queues of either engine.
//!
//! The engines (`send`, `recv`) decide when a step is taken and in which order; a protocol's file says what
//! the step is, on both sides. Neither needs to know the other's rules.

use std::ops::Range;
use std::sync::Arc;

use udeck_via::mem::Fill;
use udeck_via::transport::Inline;
use udeck_via::{Block, Error as ViaError, Ptag, Vi};

use super::message_block::MessageBlock;
use crate::parcel::{Parcel, Stored};
use crate::stats::{Arrivals, Counters};
use crate::wire::{self, HEAD_BYTES, Kind, Malformed};
use crate::world_state::WorldState;

/// Reason of most refusals: waiting would not help. The text has to fit into a refusal.
const NO_MEMORY: &str = "larger than its arena (DECK_ARENA)";
const _: () = assert!(NO_MEMORY.len() <= Inline::CAPACITY - HEAD_BYTES);

/// The postbox's side.
pub(crate) struct SendSide {
    /// The control VI, which carries everything except the data of `handshake`.
    pub vi: Vi,
    pub world: Arc<WorldState>,
    pub counters: Arc<Counters>,
}

impl SendSide {
    /// The protection tag of the postbox's VIs, and of external memory.
    pub fn ptag(&self) -> Ptag {
        self.vi.attributes().ptag
    }

    /// Copies a piece of the message into the library's memory.
    pub fn bounce(&self, piece: &[u8]) -> Result<Block, ViaError> {
        let mut bounce = self.world.allocate(piece.len(), Fill::Keep)?;
        bounce.bytes_mut().copy_from_slice(piece);
        Ok(bounce)
    }

    /// Copies a piece of the message and lends the mailbox the copy.
    pub fn send_bounced(
        &mut self,
        message: &MessageBlock,
        piece: Range<usize>,
        kind: Kind,
    ) -> Result<(), ViaError> {
        let (copied, bounce) = (piece.len(), self.bounce(&message.bytes()[piece])?);
        self.vi.hand_off(Some(message.tag()), &wire::head(kind, 0), bounce).map_err(|(error, _)| error)?;
        self.counters.copied(copied);
        Ok(())
    }

    /// Announces a message: its length and its tag.
    pub fn announce(&mut self, message: &MessageBlock, kind: Kind, part: u32) -> Result<(), ViaError> {
        let len = (message.len() as u64).to_le_bytes();
        self.vi.send_inline(Some(message.tag()), &wire::head(kind, part), &len)
    }
}

/// The mailbox's side.
pub(crate) struct RecvSide {
    /// The control VI.
    pub vi: Vi,
    /// The rank that has the postbox.
    pub rank: u32,
    /// Number of the postbox at its rank.
    pub postbox: u32,
    /// Counters of the postbox's arrivals.
    pub arrivals: Arc<Arrivals>,
}

impl RecvSide {
    #[inline]
    pub fn parcel(&self, tag: u32, stored: Stored) -> Parcel {
        let mut parcel = Parcel { rank: self.rank, postbox: self.postbox, tag, number: 0, stored };
        parcel.number = self.arrivals.take(parcel.bytes().len());
        parcel
    }

    /// Answers the postbox. There is room: a postbox announces fewer messages than a ring has cells, and a
    /// peer that does not read its answers breaks the protocol. A postbox that has ended cannot be told, and
    /// need not be: what it sent before is still in the ring, and its end, with the reason, lies behind.
    pub fn answer(
        &mut self,
        immediate: Option<u32>,
        kind: Kind,
        part: u32,
        rest: &[u8],
    ) -> Result<(), Malformed> {
        match self.vi.send_inline(immediate, &wire::head(kind, part), rest) {
            Err(ViaError::Full { .. }) => Err(Malformed),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Tells the postbox why an announced message cannot come. `pair` is a handshake's pair number.
    pub fn refuse(&mut self, kind: Kind, pair: u32, error: &ViaError) -> Result<RendezvousStatus, Malformed> {
        let why = match error {
            ViaError::NoMemory { .. } => NO_MEMORY.into(),
            error => error.to_string(),
        };
        let why = &why.as_bytes()[..why.len().min(Inline::CAPACITY - HEAD_BYTES)];
        // The postbox counts the message as posted, except by `handshake`.
        if kind != Kind::Request {
            self.arrivals.refuse();
        }
        self.answer(Some(pair), Kind::Refused, kind as u32, why)?;
        Ok(RendezvousStatus::Answered)
    }
}

/// Result of an attempt to serve an announcement, or to receive its message.
pub(crate) enum RendezvousStatus {
    /// The message has arrived.
    Received(Parcel),
    /// There is nothing more to do. Also the result for an announcement that its postbox has given up.
    Answered,
    /// The message is being read.
    InProgress,
    /// There is no memory for the message at the moment, or a peer may be writing there.
    Deferred,
    /// The sender was told that its message, of this length in bytes, does not fit.
    TooLong(usize),
    /// The connection ended before the message arrived.
    ConnectionEnded(ViaError),
}

/// Allocates a block for a message of `len` bytes; `None`: there is no memory now.
pub(crate) fn block_for(len: usize, world: &WorldState) -> Result<Option<Block>, ViaError> {
    match world.allocate(len, Fill::Keep) {
        Ok(block) => Ok(Some(block)),
        Err(error) if may_come(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the missing resource may become free later.
pub(crate) fn may_come(error: &ViaError) -> bool {
    match error {
        ViaError::NoMemory { asked, limit, .. } => asked <= limit,
        ViaError::Full { .. } => true,
        _ => false,
    }
}

/// Whether waiting may help a post: the peer has to read, or to give buffers back.
pub(crate) fn is_busy(error: &ViaError) -> bool {
    matches!(error, ViaError::Full { .. } | ViaError::NoMemory { .. })
}
