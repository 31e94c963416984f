//! A received message without its type: the receiving engine passes it to `Mailbox`, which knows the type.

use udeck_via::mem::SharedBytes;
use udeck_via::transport::Inline;
use udeck_via::{Block, LentSlice, Settled};

use crate::wire::HEAD_BYTES;

/// Place of a received message.
#[derive(Debug)]
pub(crate) enum Stored {
    /// In the parcel itself, behind its head.
    Inline(Inline),
    /// In the sender's memory, in one piece.
    Lent(LentSlice),
    /// In this rank's memory, copied.
    Owned(Block),
    /// In this rank's memory, with other readers.
    Shared(SharedBytes),
    /// In this rank's memory, written by the sender.
    Settled(Settled),
}

/// Length in bytes of a message that does not fit into the program's buffer, and the rank that posted it.
pub(crate) type TooLong = (usize, u32);

/// An arrived message of any type.
#[derive(Debug)]
pub(crate) struct Parcel {
    /// The rank that posted this message.
    pub rank: u32,
    pub postbox: u32,
    pub tag: u32,
    /// Sequence number of the message in its postbox, modulo 2³².
    pub number: u32,
    pub stored: Stored,
}

impl Parcel {
    /// An empty parcel: a place that an arriving message fills, so that it is not moved about.
    pub const NONE: Parcel =
        Parcel { rank: 0, postbox: 0, tag: 0, number: 0, stored: Stored::Inline(Inline::EMPTY) };

    /// Returns the place for a short message's bytes. Drops whatever else was here.
    #[inline]
    pub fn inline_mut(&mut self) -> &mut Inline {
        if !matches!(self.stored, Stored::Inline(_)) {
            self.stored = Stored::Inline(Inline::EMPTY);
        }
        match &mut self.stored {
            Stored::Inline(inline) => inline,
            _ => unreachable!("just stored"),
        }
    }

    /// Stores the parcel, if there is one. Returns whether there was.
    pub fn fill(&mut self, found: Option<Parcel>) -> bool {
        let Some(parcel) = found else { return false };
        *self = parcel;
        true
    }

    /// Where the message lies, in the trace's words.
    pub fn place_in_words(&self) -> &'static str {
        match self.stored {
            Stored::Inline(_) => "inline",
            Stored::Lent(_) => "in the sender's memory, or its transport's",
            Stored::Owned(_) => "copied",
            Stored::Shared(_) => "shared",
            Stored::Settled(_) => "written by the sender",
        }
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.stored {
            Stored::Inline(inline) => &inline.bytes()[HEAD_BYTES..],
            Stored::Lent(lent) => lent,
            _ => self.bytes_elsewhere(),
        }
    }

    /// Whether elements of that alignment can be read where the message lies.
    #[inline]
    pub fn is_aligned(&self, align: usize) -> bool {
        match self.stored {
            // An inline message will be moved, so only its type's alignment counts.
            Stored::Inline(_) => align <= align_of::<u64>(),
            _ => self.bytes().as_ptr().addr().is_multiple_of(align),
        }
    }

    #[inline(never)]
    fn bytes_elsewhere(&self) -> &[u8] {
        match &self.stored {
            Stored::Inline(_) | Stored::Lent(_) => &[],
            Stored::Owned(block) => block.bytes(),
            Stored::Shared(bytes) => bytes.bytes(),
            Stored::Settled(settled) => settled,
        }
    }
}
