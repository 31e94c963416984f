//! A piece of an unreliable message.
//!
//! ```text
//!       0         1         2         3         4         5         6         7
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!    0 | 1       | 2       | 0       | 0       | checksum                              |
//!    8 | connection                                                                    |
//!   16 | message number: one more for each message of the connection                   |
//!   24 | offset in the message                 | length of the whole message           |
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!   32 | bytes of the message                                                          |
//! ```

use super::{FRONT, Kind, Malformed, Opened, Reader, front};

/// Bytes of a piece before the message's.
pub const PIECE_HEADER: usize = FRONT + 16;
const _: () = assert!(PIECE_HEADER == 32);

/// A piece that was received, or that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The number that the receiver gave the connection.
    pub connection: u64,
    /// Which message.
    pub message: u64,
    /// Where in the message.
    pub offset: u32,
    /// The message's length.
    pub total: u32,
    /// The bytes: within the message, and some, unless the message has none.
    pub payload: &'a [u8],
}

/// The header of a piece, by value.
pub type PieceHeader = [u8; PIECE_HEADER];

impl<'a> Piece<'a> {
    /// Decodes what [`super::open`] has checked.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(opened: &Opened<'a>) -> Result<Self, Malformed> {
        if opened.kind != Kind::Piece || opened.flags != 0 || opened.ranges != 0 {
            return Err(Malformed::Protocol("not a piece"));
        }
        let mut reader = Reader(opened.rest);
        let (message, offset, total) = (reader.number()?, reader.u32()?, reader.u32()?);
        let payload = reader.0;
        if u64::from(offset) + payload.len() as u64 > u64::from(total) {
            return Err(Malformed::Protocol("a piece that reaches beyond its message"));
        }
        if payload.is_empty() && total > 0 {
            return Err(Malformed::Protocol("a piece of nothing"));
        }
        Ok(Piece { connection: opened.connection, message, offset, total, payload })
    }

    /// Its header, closed over `payload` (in the place of its own), which follows it in the datagram.
    pub fn header<'b>(&self, payload: impl IntoIterator<Item = &'b [u8]>) -> PieceHeader {
        let mut header = [0; PIECE_HEADER];
        header[..FRONT].copy_from_slice(&front(Kind::Piece, 0, 0, self.connection));
        header[16..24].copy_from_slice(&self.message.to_le_bytes());
        header[24..28].copy_from_slice(&self.offset.to_le_bytes());
        header[28..32].copy_from_slice(&self.total.to_le_bytes());
        super::seal(&mut header, payload);
        header
    }
}
