//! A piece of an unreliable message.
//!
//! ```text
//!       0         1         2         3         4         5         6         7
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!    0 | version | 2       | flags   | ranges  | checksum                              |
//!    8 | connection                                                                    |
//!   16 | packet number: as a packet's, and never a packet's                            |
//!   24 | message number: one more for each message of the connection                   |
//!   32 | offset in the message                 | length of the whole message           |
//!   40 | immediate data                        | bytes of header (WRITE: handle)       |
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!   48 | WRITE: offset of the whole message in the window                              |
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!      | acknowledgements, as in a packet (where `ranges` is not zero)                 |
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!      | bytes of the message                                                          |
//! ```
//! Every piece says all of its message, because any may be the first that comes.

use std::ops::RangeInclusive;

use udeck_session::Content;
use udeck_via::transport::Inline;

use super::packet::AckSpace;
use super::{AckRanges, Acks, FRONT, Kind, MAX_RANGES, Malformed, Opened, Reader, front};

/// Bytes of a message's piece before the message's, without acknowledgements; 8 more for a write's.
pub const PIECE_HEADER: usize = FRONT + 32;
/// Longest header.
pub const MAX_PIECE_HEADER: usize = PIECE_HEADER + 8 + 16 + 8 * (MAX_RANGES - 1);
const _: () = assert!(PIECE_HEADER == 48 && MAX_PIECE_HEADER == 320);

const IMMEDIATE: u8 = 1;
const LENT: u8 = 1 << 1;
const WRITE: u8 = 1 << 2;
const LAST: u8 = 1 << 3;

/// A piece that was received, or that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The number that the receiver gave the connection.
    pub connection: u64,
    /// Its packet number.
    pub number: u64,
    /// Which message.
    pub message: u64,
    /// Where in the message.
    pub offset: u32,
    /// The message's length.
    pub total: u32,
    /// What the message is.
    pub content: Content,
    /// Nothing follows it for now, as in [`super::Flags::last`].
    pub last: bool,
    /// What it acknowledges.
    pub acks: Option<Acks<'a>>,
    /// The bytes: within the message, and some, unless the message has none.
    pub payload: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Decodes what [`super::open`] has checked.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(opened: &Opened<'a>) -> Result<Self, Malformed> {
        if opened.kind != Kind::Piece || opened.flags > IMMEDIATE | LENT | WRITE | LAST {
            return Err(Malformed::Protocol("not a piece"));
        }
        let mut reader = Reader(opened.rest);
        let (number, message) = (reader.number()?, reader.number()?);
        let (offset, total) = (reader.u32()?, reader.u32()?);
        let content = content(&mut reader, opened.flags, total)?;
        let acks = match opened.ranges {
            0 => None,
            ranges => Some(Acks::decode(&mut reader, ranges)?),
        };
        let payload = reader.0;
        if u64::from(offset) + payload.len() as u64 > u64::from(total) {
            return Err(Malformed::Protocol("a piece that reaches beyond its message"));
        }
        if payload.is_empty() && total > 0 {
            return Err(Malformed::Protocol("a piece of nothing"));
        }
        let (connection, last) = (opened.connection, opened.flags & LAST != 0);
        Ok(Piece { connection, number, message, offset, total, content, last, acks, payload })
    }

    /// Whether it is a message by itself.
    pub fn is_whole(&self) -> bool {
        self.payload.len() == self.total as usize
    }
}

fn content(reader: &mut Reader<'_>, flags: u8, total: u32) -> Result<Content, Malformed> {
    let (number, word) = (reader.u32()?, reader.u32()?);
    let immediate = (flags & IMMEDIATE != 0).then_some(number);
    if immediate.is_none() && number != 0 {
        return Err(Malformed::Protocol("immediate data that it does not have"));
    }
    let lent = flags & LENT != 0;
    if flags & WRITE != 0 {
        let offset = reader.u64()?;
        let beyond = offset.checked_add(total.into()).is_none();
        if lent || beyond {
            return Err(Malformed::Protocol("a write that nobody makes"));
        }
        return Ok(Content::Write { immediate, handle: word, offset });
    }
    let fits = if lent { word <= total } else { word == total };
    if word as usize > Inline::CAPACITY || !fits {
        return Err(Malformed::Protocol("a message's header that does not fit"));
    }
    Ok(Content::Message { immediate, lent, head: word as u8 })
}

/// The header of a piece, by value.
#[derive(Clone, Copy)]
pub struct PieceHeader {
    bytes: [u8; MAX_PIECE_HEADER],
    len: u16,
}

impl PieceHeader {
    /// Bytes of a header without acknowledgements.
    pub fn len_of(content: &Content) -> usize {
        PIECE_HEADER + if matches!(content, Content::Write { .. }) { 8 } else { 0 }
    }

    /// A header as `piece` says, whose payload is not looked at, and `acks` in the place of its own. The checksum is not in
    /// it yet.
    pub fn new(
        piece: &Piece<'_>,
        acks: Option<AckRanges<impl Iterator<Item = RangeInclusive<u64>>>>,
    ) -> Self {
        let (mut flags, immediate, word, at) = match piece.content {
            Content::Message { immediate, lent, head } => {
                (if lent { LENT } else { 0 }, immediate, u32::from(head), None)
            }
            Content::Write { immediate, handle, offset } => (WRITE, immediate, handle, Some(offset)),
        };
        flags |= if immediate.is_some() { IMMEDIATE } else { 0 } | if piece.last { LAST } else { 0 };
        let mut space = AckSpace { bytes: [0; MAX_PIECE_HEADER], len: FRONT as u16 };
        space.put(&piece.number.to_le_bytes());
        space.put(&piece.message.to_le_bytes());
        space.put(&piece.offset.to_le_bytes());
        space.put(&piece.total.to_le_bytes());
        space.put(&immediate.unwrap_or(0).to_le_bytes());
        space.put(&word.to_le_bytes());
        at.into_iter().for_each(|at: u64| space.put(&at.to_le_bytes()));
        let ranges = acks.map_or(0, |acks| space.put_acks(acks));
        let AckSpace { mut bytes, len } = space;
        bytes[..FRONT].copy_from_slice(&front(Kind::Piece, flags, ranges, piece.connection));
        PieceHeader { bytes, len }
    }

    /// The bytes of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Closes it over the payload that will follow it: see [`super::seal`].
    pub fn seal<'a>(&mut self, payload: impl IntoIterator<Item = &'a [u8]>) {
        super::seal(&mut self.bytes[..usize::from(self.len)], payload);
    }
}

impl std::fmt::Debug for PieceHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", self.bytes())
    }
}
