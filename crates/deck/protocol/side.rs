//! What a protocol works on: the two sides of a postbox's connection, without the queues of either engine.
//!
//! The engines (`send`, `recv`) decide when a step is taken and in which order; a protocol's file says what the step is,
//! on both sides. So neither knows the other's rules.

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

/// Why most messages are refused: no waiting would help. Has to fit into a refusal.
const NO_MEMORY: &str = "larger than its arena (DECK_ARENA)";
const _: () = assert!(NO_MEMORY.len() <= Inline::CAPACITY - HEAD_BYTES);

/// The postbox's side.
pub(crate) struct SendSide {
    /// The control VI: everything but the data of `handshake`.
    pub vi: Vi,
    pub world: Arc<WorldState>,
    pub counters: Arc<Counters>,
}

impl SendSide {
    /// The tag of the postbox's VIs, and of external memory.
    pub fn ptag(&self) -> Ptag {
        self.vi.attributes().ptag
    }

    /// A copy of a piece of the message, in memory of the library's.
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
    /// Whose postbox it is.
    pub rank: u32,
    /// The number that its rank gives the postbox.
    pub postbox: u32,
    /// What has come from it.
    pub arrivals: Arc<Arrivals>,
}

impl RecvSide {
    #[inline]
    pub fn parcel(&self, tag: u32, stored: Stored) -> Parcel {
        let mut parcel = Parcel { rank: self.rank, postbox: self.postbox, tag, number: 0, stored };
        parcel.number = self.arrivals.take(parcel.bytes().len());
        parcel
    }

    /// A postbox announces fewer messages than a ring has cells, so there is room; one that does not read its answers
    /// is no postbox. One that has ended cannot be told, and need not: what it sent before is still in the ring, and behind
    /// that its end, for what it was.
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

    /// Tells the postbox why a message that it announced cannot come. `pair`: a handshake's.
    pub fn refuse(&mut self, kind: Kind, pair: u32, error: &ViaError) -> Result<RendezvousStatus, Malformed> {
        let why = match error {
            ViaError::NoMemory { .. } => NO_MEMORY.into(),
            error => error.to_string(),
        };
        let why = &why.as_bytes()[..why.len().min(Inline::CAPACITY - HEAD_BYTES)];
        // Its postbox counts it as posted, but for a handshake's.
        if kind != Kind::Request {
            self.arrivals.refuse();
        }
        self.answer(Some(pair), Kind::Refused, kind as u32, why)?;
        Ok(RendezvousStatus::Answered)
    }
}

/// What became of an announcement that a mailbox tried to serve, or of the message that it announced.
pub(crate) enum RendezvousStatus {
    /// The message is here.
    Received(Parcel),
    /// There is nothing more to do; an announcement that nobody stands behind any more is dropped.
    Answered,
    /// The message is being read.
    InProgress,
    /// There is no memory for it at the moment, or somebody may be writing there.
    Deferred,
    /// The sender was told that there is no room for so many bytes.
    TooLong(usize),
    /// The connection has ended before the message could be had.
    ConnectionEnded(ViaError),
}

/// A block for a message of `len` bytes; `None`: not now.
pub(crate) fn block_for(len: usize, world: &WorldState) -> Result<Option<Block>, ViaError> {
    match world.allocate(len, Fill::Keep) {
        Ok(block) => Ok(Some(block)),
        Err(error) if may_come(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether what is short now may be there later.
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
