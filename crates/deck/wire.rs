//! Wire format between a postbox and a mailbox. Everything decoded here comes from a peer and is checked.
//!
//! ```text
//! every message           immediate data: the tag
//! head   0      1      2             4             8
//!        | kind | 0    | 0           | part        |  then, inline, the payload or the fields below
//!
//! Eager      part: 0     the payload (inline), or lent: copy it and give it back
//! HandOff    part: 0     lent: read it where it lies
//! AskWrite   part: 0     u64 length                            -> Ready or Refused
//! AskCopy    part: 0     u64 length                            -> Ready or Refused
//! AskRead    part: handle  u64 length: read it there           -> Fin or Refused
//! Request    part: pair    immediate data: the length          -> Ack, Nack or Refused (the handshake's REQST)
//! Fragment   part: 0     lent: the next piece of the message that AskCopy announced
//! Ready      part: handle  (mailbox to postbox) where to write; for AskCopy, how many fragments may come
//! More       part: 0     (mailbox to postbox) one fragment was read, one more may come
//! Refused    part: the kind of announcement that it answers (mailbox to postbox) text; immediate data: the pair
//! Fin        part: 0     (mailbox to postbox) the oldest message of AskRead was read
//! Ack        part: pair  (mailbox to postbox) a descriptor is posted on the data VI: send the message there
//! Nack       part: pair  (mailbox to postbox) the message is too large; immediate data: bytes of room
//! Reserve    part: 0     u64 bytes of short messages that wait (incast control) -> Grant
//! Grant      part: bytes that may come (mailbox to postbox); immediate data: the delay in microseconds
//! ```
//! Under incast control `Ready` has immediate data: the delay in microseconds after which the message may
//! come.
//!
//! The end of an RDMA write is announced by its immediate data alone. The same holds for a message on a data
//! VI (the tag).

use udeck_via::transport::Inline;

/// Longest message that a [`Kind::Request`] can name.
pub(crate) const MAX_REQUEST: usize = u32::MAX as usize;
/// Messages of one postbox that may be announced and have not arrived: the bound of what a mailbox is asked
/// for at a time.
pub(crate) const MAX_ANNOUNCED: usize = 16;

/// Length of a head in bytes.
pub(crate) const HEAD_BYTES: usize = 8;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Eager = 1,
    HandOff = 2,
    AskWrite = 3,
    AskCopy = 4,
    Fragment = 5,
    Ready = 6,
    Refused = 7,
    More = 8,
    AskRead = 9,
    Fin = 10,
    Request = 11,
    Ack = 12,
    Nack = 13,
    Reserve = 14,
    Grant = 15,
}

impl Kind {
    const ALL: [Kind; 15] = [
        Kind::Eager,
        Kind::HandOff,
        Kind::AskWrite,
        Kind::AskCopy,
        Kind::Fragment,
        Kind::Ready,
        Kind::Refused,
        Kind::More,
        Kind::AskRead,
        Kind::Fin,
        Kind::Request,
        Kind::Ack,
        Kind::Nack,
        Kind::Reserve,
        Kind::Grant,
    ];
}

/// Encodes the head of a message.
#[inline]
pub(crate) fn head(kind: Kind, part: u32) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[0] = kind as u8;
    head[4..].copy_from_slice(&part.to_le_bytes());
    head
}

/// A message that no correct peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Decodes a head: kind, part, and the bytes behind it.
#[inline]
pub(crate) fn decode(bytes: &[u8]) -> Result<(Kind, u32, &[u8]), Malformed> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(Malformed)?;
    let kind = *Kind::ALL.get(usize::from(head[0]).wrapping_sub(1)).ok_or(Malformed)?;
    let part = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    Ok((kind, part, rest))
}

/// Length in bytes behind the head of a short message, the most frequent kind; `None` for other kinds.
#[inline]
pub(crate) fn short_len(message: &Inline) -> Option<usize> {
    let is_short = message.first() == Kind::Eager as u8;
    message.len().checked_sub(HEAD_BYTES).filter(|_| is_short)
}

/// Whether this is the head of a handed-off message, which is read where it lies.
#[inline]
pub(crate) fn is_hand_off(head: &Inline) -> bool {
    head.first() == Kind::HandOff as u8 && head.len() >= HEAD_BYTES
}

/// Decodes the length that an announcement carries.
pub(crate) fn decode_length(rest: &[u8]) -> Result<usize, Malformed> {
    let bytes: [u8; 8] = rest.try_into().map_err(|_| Malformed)?;
    usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| Malformed)
}

/// Role of a connection: one of a postbox's two VIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The control VI, which a postbox has from the start: it carries everything except the data of
    /// `handshake`.
    Control,
    /// The data VI of the postbox's pair with this number, counted from 1: a postbox that gave a handshake up
    /// makes another pair.
    Data(u32),
}

/// Private data by which a postbox introduces its connection. (The connection itself has proved the rank.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    /// Number of the postbox at its rank.
    pub postbox: u32,
    pub role: Role,
}

impl Introduction {
    /// Encodes the postbox and the pair (0: control).
    pub fn encode(self) -> [u8; 8] {
        let pair = match self.role {
            Role::Control => 0,
            Role::Data(pair) => pair,
        };
        let mut bytes = [0; 8];
        for (place, word) in bytes.chunks_exact_mut(4).zip([self.postbox, pair]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: [u8; 8] = bytes.try_into().map_err(|_| Malformed)?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let role = match word(4) {
            0 => Role::Control,
            pair => Role::Data(pair),
        };
        Ok(Introduction { postbox: word(0), role })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prop_heads_round_trip(part: u32, which in 0..Kind::ALL.len(), rest: [u8; 8]) {
            let bytes = [head(Kind::ALL[which], part), rest].concat();
            prop_assert_eq!(decode(&bytes), Ok((Kind::ALL[which], part, &rest[..])));
            prop_assert_eq!(decode_length(&rest), Ok(u64::from_le_bytes(rest) as usize));
        }

        #[test]
        fn prop_any_head_decodes_or_fails(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Ok((kind, part, rest)) = decode(&bytes) {
                prop_assert_eq!(rest.len(), bytes.len() - HEAD_BYTES);
                prop_assert_eq!((head(kind, part)[0], &head(kind, part)[4..]), (bytes[0], &bytes[4..8]));
            }
            match Introduction::decode(&bytes) {
                Ok(introduction) => prop_assert_eq!(&introduction.encode()[..], &bytes[..]),
                Err(Malformed) => prop_assert_ne!(bytes.len(), 8),
            }
        }

        /// Checks that the quick decoders agree with `decode`, also when bytes of another message lie behind
        /// the message.
        #[test]
        fn prop_quick_looks_agree(mut words: [u64; 6], kind in 0..4u8, len in 0..=Inline::CAPACITY) {
            words[0] = u64::from_ne_bytes([kind, 0, 0, 0, 0, 0, 0, 0]);
            let message = Inline::new(words, len);
            let decoded = decode(message.bytes()).ok();
            let short = decoded.filter(|(kind, ..)| *kind == Kind::Eager).map(|(_, _, rest)| rest.len());
            prop_assert_eq!(short_len(&message), short);
            prop_assert_eq!(is_hand_off(&message), decoded.is_some_and(|(kind, ..)| kind == Kind::HandOff));
        }

        #[test]
        fn prop_introductions_round_trip(postbox: u32, pair: u32) {
            let role = if pair == 0 { Role::Control } else { Role::Data(pair) };
            let introduction = Introduction { postbox, role };
            prop_assert_eq!(Introduction::decode(&introduction.encode()), Ok(introduction));
        }
    }
}
