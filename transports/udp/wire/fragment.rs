//! Fragments of unreliable messages: a fragment is a QUIC datagram (RFC 9221).
//!
//! ```text
//!       0         1         2         3         4         5         6         7
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!    0 | stream of the VI                                                              |
//!    8 | message number: one more for each message of the connection                   |
//!   16 | offset in the message                 | length of the whole message           |
//!   24 | immediate data                        | bytes of header (WRITE: handle)       |
//!   32 | flags   | bytes of the message; before them, WRITE: offset in the window (8)  |
//! ```
//! Every fragment describes its whole message, because any fragment may be the first that comes.

use udeck_session::Content;
use udeck_via::transport::Inline;

/// Bytes before the message's; a write has 8 more.
const HEADER: usize = 33;

const IMMEDIATE: u8 = 1;
const LENT: u8 = 1 << 1;
const WRITE: u8 = 1 << 2;

/// A fragment that was received, or is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Number of the VI's stream.
    pub stream: u64,
    /// Number of the message.
    pub message: u64,
    /// Offset in the message, in bytes.
    pub offset: u32,
    /// Length of the message in bytes.
    pub total: u32,
    /// Kind of the message, and its header.
    pub content: Content,
    /// Bytes of the fragment. They lie within the message, and are empty only if the message is.
    pub payload: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// Returns the stream that a datagram is for.
    pub fn stream_of(datagram: &[u8]) -> Option<u64> {
        datagram.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Decodes a fragment. Returns `None` if the bytes are none.
    pub fn decode(datagram: &'a [u8]) -> Option<Self> {
        let (header, mut rest) = datagram.split_first_chunk::<HEADER>()?;
        let u64_at = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let u32_at = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let (offset, total, flags) = (u32_at(16), u32_at(20), header[32]);
        let content = content(flags, total, u32_at(24), u32_at(28), &mut rest)?;
        let payload = rest;
        let reaches = u64::from(offset) + payload.len() as u64;
        let is_whole_or_some = !payload.is_empty() || total == 0;
        (reaches <= u64::from(total) && is_whole_or_some).then_some(Fragment {
            stream: u64_at(0),
            message: u64_at(8),
            offset,
            total,
            content,
            payload,
        })
    }

    /// Whether the fragment is a message by itself.
    pub fn is_whole(&self) -> bool {
        self.payload.len() == self.total as usize
    }

    /// Bytes of the header of a fragment of such a message.
    pub fn header_len(content: &Content) -> usize {
        HEADER + if matches!(content, Content::Write { .. }) { 8 } else { 0 }
    }

    /// Appends the fragment's header, without the payload.
    pub fn put_header(&self, out: &mut Vec<u8>) {
        let (mut flags, immediate, word, at) = match self.content {
            Content::Message { immediate, lent, head } => {
                (if lent { LENT } else { 0 }, immediate, u32::from(head), None)
            }
            Content::Write { immediate, handle, offset } => (WRITE, immediate, handle, Some(offset)),
        };
        flags |= if immediate.is_some() { IMMEDIATE } else { 0 };
        out.extend(self.stream.to_le_bytes());
        out.extend(self.message.to_le_bytes());
        out.extend(self.offset.to_le_bytes());
        out.extend(self.total.to_le_bytes());
        out.extend(immediate.unwrap_or(0).to_le_bytes());
        out.extend(word.to_le_bytes());
        out.push(flags);
        out.extend(at.into_iter().flat_map(u64::to_le_bytes));
    }
}

fn content(flags: u8, total: u32, number: u32, word: u32, rest: &mut &[u8]) -> Option<Content> {
    if flags > IMMEDIATE | LENT | WRITE {
        return None;
    }
    let immediate = (flags & IMMEDIATE != 0).then_some(number);
    if immediate.is_none() && number != 0 {
        return None;
    }
    let lent = flags & LENT != 0;
    if flags & WRITE != 0 {
        let (offset, behind) = rest.split_first_chunk()?;
        *rest = behind;
        let offset = u64::from_le_bytes(*offset);
        offset.checked_add(total.into())?;
        return (!lent).then_some(Content::Write { immediate, handle: word, offset });
    }
    let fits = if lent { word <= total } else { word == total };
    (fits && word as usize <= Inline::CAPACITY).then_some(Content::Message {
        immediate,
        lent,
        head: word as u8,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(fragment: &Fragment<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        fragment.put_header(&mut out);
        assert_eq!(out.len(), Fragment::header_len(&fragment.content));
        out.extend(fragment.payload);
        out
    }

    #[test]
    fn pieces_come_back() {
        let message = Content::Message { immediate: Some(7), lent: true, head: 3 };
        let write = Content::Write { immediate: None, handle: 9, offset: 1 << 40 };
        for content in [message, write] {
            let fragment = Fragment {
                stream: 4,
                message: 1 << 33,
                offset: 10,
                total: 20,
                content,
                payload: b"0123456789",
            };
            assert_eq!(Fragment::decode(&bytes(&fragment)), Some(fragment));
            let beyond = Fragment { offset: 11, ..fragment };
            assert_eq!(Fragment::decode(&bytes(&beyond)), None);
            assert_eq!(Fragment::decode(&bytes(&Fragment { payload: b"", ..fragment })), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_piece_or_not(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Some(fragment) = Fragment::decode(&bytes) {
                prop_assert!(fragment.offset as usize + fragment.payload.len() <= fragment.total as usize);
            }
        }
    }
}
