//! Datagrams. Everything decoded here comes from a network and is checked.
//!
//! ```text
//!       0         1         2         3         4         5         6         7
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!    0 | version | kind    | flags   | ranges  | CRC-32C of the datagram, this as zero |
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!    8 | connection: the number that its receiver gave it; 0 if it gave none           |
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!   16 | by kind: wire/packet.rs, wire/piece.rs, wire/greeting.rs                      |
//! ```
//! The front is the same in all versions, and so are Meet and Prove: that is how two that differ find out (`versions.rs`).
//!
//! Numbers are little-endian. `flags` and `ranges` belong to the kind, and are zero where it does not use them.

pub mod greeting;
mod packet;
mod piece;

pub use packet::{AckRanges, Acks, Close, Flags, HEADER, MAX_HEADER, MAX_RANGES, Packet, PacketHeader};
pub use piece::{MAX_PIECE_HEADER, PIECE_HEADER, Piece, PieceHeader};

/// Version of all datagrams.
pub const VERSION: u8 = 3;
/// Bytes that all kinds begin with.
pub const FRONT: usize = 16;
/// Packet numbers, stream offsets and message numbers are smaller. At a packet every nanosecond it lasts for 146 years.
pub const NUMBERS: u64 = 1 << 62;

/// What a datagram is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A [`Packet`] of a reliable stream.
    Packet = 1,
    /// A [`Piece`] of an unreliable message.
    Piece = 2,
    /// [`greeting::Meet`].
    Meet = 3,
    /// [`greeting::Prove`].
    Prove = 4,
    /// [`greeting::Ask`].
    Ask = 5,
    /// [`greeting::Answer`].
    Answer = 6,
    /// [`greeting::Withdraw`].
    Withdraw = 7,
}

/// Not a datagram of ours, or not as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Too short for what it says it is.
    #[error("a datagram that is too short")]
    Short,
    /// Another version, or no datagram of ours at all.
    #[error("a datagram of version {0}, not {VERSION}")]
    Version(u8),
    /// The checksum does not match.
    #[error("a datagram that was spoilt on its way")]
    Checksum,
    /// A kind, flag or number that nobody who keeps to the protocol sends.
    #[error("a datagram that breaks the protocol: {0}")]
    Protocol(&'static str),
}

/// Which connection a datagram says it is for, before anything else of it is looked at.
pub fn connection(datagram: &[u8]) -> Option<u64> {
    let (front, _) = datagram.split_first_chunk::<FRONT>()?;
    (front[0] == VERSION).then(|| word(front, 8))
}

/// A datagram whose front and checksum are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened<'a> {
    /// What it is.
    pub kind: Kind,
    /// [`connection`].
    pub connection: u64,
    flags: u8,
    ranges: u8,
    rest: &'a [u8],
}

/// Checks a datagram's front and sum.
///
/// # Errors
/// [`Malformed`].
pub fn open(datagram: &[u8]) -> Result<Opened<'_>, Malformed> {
    match version(datagram) {
        None => Err(Malformed::Short),
        Some(VERSION) => open_any(datagram),
        Some(other) => Err(Malformed::Version(other)),
    }
}

/// The version that a datagram says it is of: the first byte, in all versions.
pub fn version(datagram: &[u8]) -> Option<u8> {
    datagram.first_chunk::<FRONT>().map(|front| front[0])
}

/// As [`open`], of whatever version it is: the front and the sum are the same in all of them.
///
/// # Errors
/// [`Malformed`].
pub fn open_any(datagram: &[u8]) -> Result<Opened<'_>, Malformed> {
    let (front, rest) = datagram.split_first_chunk::<FRONT>().ok_or(Malformed::Short)?;
    let mut blank = *front;
    blank[4..8].fill(0);
    let sum = crc32c::crc32c_append(crc32c::crc32c(&blank), rest);
    if front[4..8] != sum.to_le_bytes() {
        return Err(Malformed::Checksum);
    }
    let kind = match front[1] {
        1 => Kind::Packet,
        2 => Kind::Piece,
        3 => Kind::Meet,
        4 => Kind::Prove,
        5 => Kind::Ask,
        6 => Kind::Answer,
        7 => Kind::Withdraw,
        _ => return Err(Malformed::Protocol("a kind that is not known")),
    };
    Ok(Opened { kind, connection: word(front, 8), flags: front[2], ranges: front[3], rest })
}

/// Writes the checksum into a header (of any kind), which `payload` follows in the datagram, piece after piece.
///
/// # Panics
/// When `header` is shorter than [`FRONT`].
pub fn seal<'a>(header: &mut [u8], payload: impl IntoIterator<Item = &'a [u8]>) {
    header[4..8].fill(0);
    let sum = payload.into_iter().fold(crc32c::crc32c(header), crc32c::crc32c_append);
    header[4..8].copy_from_slice(&sum.to_le_bytes());
}

fn front(kind: Kind, flags: u8, ranges: u8, connection: u64) -> [u8; FRONT] {
    let mut front = [0; FRONT];
    front[..4].copy_from_slice(&[VERSION, kind as u8, flags, ranges]);
    front[8..].copy_from_slice(&connection.to_le_bytes());
    front
}

fn word(bytes: &[u8; FRONT], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Takes numbers off the front of what follows.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number below [`NUMBERS`].
    fn number(&mut self) -> Result<u64, Malformed> {
        let number = self.u64()?;
        if number < NUMBERS { Ok(number) } else { Err(Malformed::Protocol("a number beyond all bounds")) }
    }
}

#[cfg(test)]
mod tests;
