//! What a postbox and a mailbox say to each other. Everything decoded here comes from a peer and is checked.
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
//! Fragment   part: 0     lent: the next piece of the message that AskCopy announced
//! Ready      part: handle  (mailbox to postbox) where to write; for AskCopy, how many fragments may come
//! More       part: 0     (mailbox to postbox) one fragment was read, one more may come
//! Refused    part: 0     (mailbox to postbox) text
//! ```
//! The end of an RDMA write is announced by its immediate data alone.

/// Bytes of a head.
pub(crate) const HEAD_BYTES: usize = 8;

/// What kind of message.
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
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Eager,
        Kind::HandOff,
        Kind::AskWrite,
        Kind::AskCopy,
        Kind::Fragment,
        Kind::Ready,
        Kind::Refused,
        Kind::More,
    ];
}

/// The head of a message.
#[inline]
pub(crate) fn head(kind: Kind, part: u32) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[0] = kind as u8;
    head[4..].copy_from_slice(&part.to_le_bytes());
    head
}

/// A message that no peer of ours sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Reads a head: kind, part, and what follows.
#[inline]
pub(crate) fn decode(bytes: &[u8]) -> Result<(Kind, u32, &[u8]), Malformed> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(Malformed)?;
    let kind = *Kind::ALL.get(usize::from(head[0]).wrapping_sub(1)).ok_or(Malformed)?;
    let part = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    Ok((kind, part, rest))
}

/// The length that an announcement carries.
pub(crate) fn decode_length(rest: &[u8]) -> Result<usize, Malformed> {
    let bytes: [u8; 8] = rest.try_into().map_err(|_| Malformed)?;
    usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| Malformed)
}

/// Who makes a connection: rank, and the number of its postbox.
pub(crate) fn introduce(rank: u32, postbox: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&rank.to_le_bytes());
    bytes[4..].copy_from_slice(&postbox.to_le_bytes());
    bytes
}

/// Reads [`introduce`].
pub(crate) fn introduced(bytes: &[u8]) -> Result<(u32, u32), Malformed> {
    let bytes: [u8; 8] = bytes.try_into().map_err(|_| Malformed)?;
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok((word(0), word(4)))
}

/// What a mailbox says of itself in the name service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Advert {
    /// The owner's NIC.
    pub address: Vec<u8>,
    /// What it carries.
    pub kind: String,
    /// Bytes of an element.
    pub size: u32,
}

impl Advert {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.size.to_le_bytes().to_vec();
        out.extend((self.address.len() as u16).to_le_bytes());
        out.extend(&self.address);
        out.extend(self.kind.as_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (size, rest) = bytes.split_first_chunk::<4>().ok_or(Malformed)?;
        let (len, rest) = rest.split_first_chunk::<2>().ok_or(Malformed)?;
        let (address, kind) = rest.split_at_checked(u16::from_le_bytes(*len).into()).ok_or(Malformed)?;
        let kind = std::str::from_utf8(kind).map_err(|_| Malformed)?.to_owned();
        Ok(Advert { address: address.to_vec(), kind, size: u32::from_le_bytes(*size) })
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
        fn prop_adverts_round_trip(address in prop::collection::vec(any::<u8>(), 0..100), kind in ".{0,50}", size: u32) {
            let advert = Advert { address, kind, size };
            prop_assert_eq!(Advert::decode(&advert.encode()), Ok(advert));
        }

        #[test]
        fn prop_any_advert_decodes_or_fails(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(advert) = Advert::decode(&bytes) {
                prop_assert_eq!(advert.encode(), bytes);
            }
        }

        #[test]
        fn prop_any_head_decodes_or_fails(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Ok((kind, part, rest)) = decode(&bytes) {
                prop_assert_eq!(rest.len(), bytes.len() - HEAD_BYTES);
                prop_assert_eq!((head(kind, part)[0], &head(kind, part)[4..]), (bytes[0], &bytes[4..8]));
            }
            prop_assert_eq!(introduced(&bytes).is_ok(), bytes.len() == 8);
        }
    }
}
