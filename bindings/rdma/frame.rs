//! Frames: the wire format between the two ends of a connection. Each frame is one message of the virtual interface below.
//!
//! ```text
//!   head             0 kind   1 flags   2..4 zero   4..8 word
//!   flags            1 INVALIDATES (SEND): the word is a key of the receiver's, which ends
//!                    2 IMMEDIATE (SEND, WRITE): the word is the program's immediate data
//!   body             by kind:
//!     SEND           the program's bytes
//!     WRITE          0..8 address   8..12 key   12..16 zero   16.. the bytes
//!     READ           0..8 address   8..12 key   12..16 zero   16..24 number of bytes
//!     DATA           answers the oldest READ: 0..8 0, or 1: refused   8.. the bytes
//!     TAKEN          0..4 number of SENDs and WRITEs that were taken since the last one (VIPL's reliable reception)
//!     BROKEN         0..4 reason: the sender has met an error, and the connection ends
//! ```
//!
//! Numbers are little-endian. A body that is too short, another kind or another flag breaks the connection; bytes behind the named ones
//! are not read.

/// A message of the program's.
pub const SEND: u8 = 1;
/// A write of the receiver's memory.
pub const WRITE: u8 = 2;
/// A read of the receiver's memory.
pub const READ: u8 = 3;
/// The answer to the oldest read.
pub const DATA: u8 = 4;
/// A number of messages that were taken.
pub const TAKEN: u8 = 5;
/// The end of the connection, by an error.
pub const BROKEN: u8 = 6;

/// The word of a SEND is a key of the receiver's, which ends.
pub const INVALIDATES: u8 = 1;
/// The word of a SEND or WRITE is immediate data.
pub const IMMEDIATE: u8 = 2;

/// Bytes of a head.
pub const HEAD: usize = 8;
/// Bytes before the data of a WRITE.
pub const WRITE_HEAD: usize = 16;
/// Bytes before the data of a DATA.
pub const DATA_HEAD: usize = 8;
/// Bytes of a READ.
pub const READ_REQUEST: usize = 24;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// One of the kinds.
    pub kind: u8,
    /// A flag, or 0.
    pub flags: u8,
    /// Key or immediate data, as the flag says; 0 without a flag.
    pub word: u32,
}

impl Head {
    /// A head without flags.
    #[inline]
    pub fn plain(kind: u8) -> Head {
        Head { kind, flags: 0, word: 0 }
    }

    /// A head with these immediate data.
    #[inline]
    pub fn with_immediate(kind: u8, immediate: Option<u32>) -> Head {
        match immediate {
            None => Head::plain(kind),
            Some(word) => Head { kind, flags: IMMEDIATE, word },
        }
    }

    /// The immediate data, if the frame has some.
    #[inline]
    pub fn immediate(self) -> Option<u32> {
        (self.flags == IMMEDIATE).then_some(self.word)
    }

    /// Encodes the head.
    #[inline]
    pub fn bytes(self) -> [u8; HEAD] {
        let word = self.word.to_le_bytes();
        [self.kind, self.flags, 0, 0, word[0], word[1], word[2], word[3]]
    }

    /// Decodes a head; `face` is the flag that the face knows. `None`: the bytes do not begin with a head.
    #[inline]
    pub fn read(bytes: &[u8], face: u8) -> Option<Head> {
        let head: &[u8; HEAD] = bytes.first_chunk()?;
        let [kind, rest @ ..] = head;
        if *rest == [0; HEAD - 1] { Some(Head::plain(*kind)) } else { Head::read_flagged(*head, face) }
    }

    #[cold]
    fn read_flagged(head: [u8; HEAD], face: u8) -> Option<Head> {
        let [kind, flags, 0, 0, word @ ..] = head else { return None };
        let may = matches!((kind, flags), (SEND, INVALIDATES) | (SEND | WRITE, IMMEDIATE)) && flags == face;
        may.then(|| Head { kind, flags, word: u32::from_le_bytes(word) })
    }
}

/// Why a side ends the connection by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// No operation of the peer's is at fault.
    Own = 0,
    /// A message came, and no receive was posted.
    NoReceive = 1,
    /// A message came that its receive could not take, or bytes that are no frame.
    BadReceive = 2,
    /// An operation names memory that the peer may not touch so.
    BadKey = 3,
}

impl Reason {
    /// The body of a BROKEN.
    pub fn bytes(self) -> [u8; 4] {
        (self as u32).to_le_bytes()
    }

    /// Reads the body of a BROKEN.
    pub fn read(body: &[u8]) -> Option<Reason> {
        let known = [Reason::Own, Reason::NoReceive, Reason::BadReceive, Reason::BadKey];
        let number = word(body)?;
        known.into_iter().find(|reason| *reason as u32 == number)
    }
}

/// Returns the bytes before the data of a WRITE.
pub fn write_head(address: u64, key: u32) -> [u8; WRITE_HEAD] {
    let mut bytes = [0; WRITE_HEAD];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&key.to_le_bytes());
    bytes
}

/// The body of a READ.
pub fn read_request(address: u64, key: u32, len: usize) -> [u8; READ_REQUEST] {
    let mut bytes = [0; READ_REQUEST];
    bytes[..WRITE_HEAD].copy_from_slice(&write_head(address, key));
    bytes[WRITE_HEAD..].copy_from_slice(&(len as u64).to_le_bytes());
    bytes
}

/// Decodes the address and the key that a WRITE or READ names.
pub fn read_place(body: &[u8]) -> Option<(u64, u32)> {
    // The upper half is zero.
    Some((number(body, 0)?, u32::try_from(number(body, 8)?).ok()?))
}

/// Decodes a WRITE: address, key, and data.
pub fn read_write(body: &[u8]) -> Option<(u64, u32, &[u8])> {
    let (address, key) = read_place(body)?;
    Some((address, key, body.get(WRITE_HEAD..)?))
}

/// Decodes a READ: address, key, and length.
pub fn read_read(body: &[u8]) -> Option<(u64, u32, u64)> {
    let (address, key) = read_place(body)?;
    Some((address, key, number(body, WRITE_HEAD)?))
}

/// Decodes a DATA; `Some(None)`: the read is refused.
pub fn read_data(body: &[u8]) -> Option<Option<&[u8]>> {
    match number(body, 0)? {
        0 => Some(body.get(DATA_HEAD..)),
        1 => Some(None),
        _ => None,
    }
}

/// Returns the bytes before the data of a DATA; they are the whole body if the read is refused.
pub fn data_head(is_refused: bool) -> [u8; DATA_HEAD] {
    u64::from(is_refused).to_le_bytes()
}

/// The number at the beginning of a TAKEN.
pub fn word(body: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(*body.first_chunk()?))
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_head_has_known_flags_only() {
        for (kind, flags, face, is_known) in [
            (SEND, 0, INVALIDATES, true),
            (SEND, INVALIDATES, INVALIDATES, true),
            (SEND, INVALIDATES, IMMEDIATE, false),
            (SEND, IMMEDIATE, INVALIDATES, false),
            (SEND, IMMEDIATE, IMMEDIATE, true),
            (WRITE, IMMEDIATE, IMMEDIATE, true),
            (WRITE, INVALIDATES, INVALIDATES, false),
            (READ, IMMEDIATE, IMMEDIATE, false),
            (SEND, INVALIDATES | IMMEDIATE, INVALIDATES | IMMEDIATE, false),
            (SEND, 4, 4, false),
        ] {
            let head = [kind, flags, 0, 0, 0, 0, 0, 0];
            assert_eq!(Head::read(&head, face).is_some(), is_known, "{head:?} for {face}");
        }
        assert_eq!(Head::read(&[SEND, 0, 0, 0, 7, 0, 0, 0], IMMEDIATE), None, "a word without a flag");
        assert_eq!(Head::read(&[SEND, IMMEDIATE, 1, 0, 7, 0, 0, 0], IMMEDIATE), None, "what shall be zero");
        let mut place = write_head(7, 8);
        place[15] = 1;
        assert_eq!(read_place(&place), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_within_their_bounds(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            for face in [0, INVALIDATES, IMMEDIATE] {
                prop_assert!(Head::read(&bytes, face).is_none_or(|head| head.bytes() == bytes[..HEAD]));
            }
            prop_assert!(read_place(&bytes).is_none_or(|(at, key)| write_head(at, key) == bytes[..WRITE_HEAD]));
            prop_assert!(read_write(&bytes).is_none_or(|(.., data)| data.len() == bytes.len() - WRITE_HEAD));
            prop_assert_eq!(read_read(&bytes).is_some(), read_place(&bytes).is_some() && bytes.len() >= READ_REQUEST);
            prop_assert!(read_data(&bytes).is_none_or(|data| data.is_none_or(|data| data.len() == bytes.len() - DATA_HEAD)));
            prop_assert_eq!(word(&bytes).is_some(), bytes.len() >= 4);
        }

        #[test]
        fn frames_are_read_as_written(kind: u8, word: u32, address: u64, key: u32, len: usize) {
            prop_assert_eq!(Head::read(&Head::plain(kind).bytes(), 0), Some(Head::plain(kind)));
            let invalidates = Head { kind: SEND, flags: INVALIDATES, word };
            prop_assert_eq!(Head::read(&invalidates.bytes(), INVALIDATES), Some(invalidates));
            for immediate in [None, Some(word)] {
                let head = Head::with_immediate(WRITE, immediate);
                prop_assert_eq!(Head::read(&head.bytes(), IMMEDIATE).map(Head::immediate), Some(immediate));
            }
            let request = read_request(address, key, len);
            prop_assert_eq!(read_read(&request), Some((address, key, len as u64)));
            for is_refused in [true, false] {
                let head = data_head(is_refused);
                prop_assert_eq!(read_data(&head), Some((!is_refused).then_some(&[][..])));
            }
        }

        #[test]
        fn a_reason_is_one_of_four(number in 0..8_u32) {
            let read = Reason::read(&number.to_le_bytes());
            prop_assert_eq!(read.map(|reason| reason as u32), (number < 4).then_some(number));
        }
    }
}
