//! Wire format between the two ends of a connection. Numbers are little-endian.
//!
//! ```text
//!  packet    ┌─────────────┬───────────┬─────────┬─────────┐  one send, into one posted receive: up to 4 KiB
//!            │ credits: u8 │ slots: u8 │ entry   │ entry … │
//!            └─────────────┴───────────┴─────────┴─────────┘
//!  MESSAGE   ┌───┬──────────┬──────┐                          a body
//!            │ 0 │ len: u16 │ body │
//!            └───┴──────────┴──────┘
//!  BULK      ┌───┬──────────┬───────────┬───────────┬──────┐  a body of `len` bytes here or, if it is longer, of `rest` bytes by
//!            │ 1 │ len: u16 │ rest: u32 │ blob: u32 │ body │  RDMA, and behind it a BLOB of `blob` bytes by RDMA
//!            └───┴──────────┴───────────┴───────────┴──────┘
//!  PIECE     ┌───┬──────────┐                                 so many bytes of the last BULK are in the next slot of the
//!            │ 2 │ len: u32 │                                 receiver's landing memory
//!            └───┴──────────┘
//!  greeting  ┌─────────┬───────────┬──────────────────────┐  private data of a connection request, and of its answer
//!            │ version │ rank: u32 │ landing memory: 16 B │
//!            └─────────┴───────────┴──────────────────────┘
//! ```
//!
//! `credits` and `slots`: number of receives posted again, and of slots emptied, since the last packet that reported them.

use udeck_dat::RemoteMemory;

/// Length of a packet, in bytes.
pub const PACKET: usize = 4 << 10;
const HEADER: usize = 2;
const MESSAGE: u8 = 0;
const BULK: u8 = 1;
const PIECE: u8 = 2;
/// Longest body that fits into a packet, in bytes.
pub const MAX_INLINE: usize = PACKET - HEADER - BULK_HEAD;
const MESSAGE_HEAD: usize = 3;
const BULK_HEAD: usize = 11;
const PIECE_HEAD: usize = 5;
/// Identifies this protocol and its version.
const VERSION: [u8; 4] = *b"hdb1";
/// Length of a greeting, in bytes.
pub const GREETING: usize = 24;

/// A packet's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub credits: u8,
    pub slots: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    Message(&'a [u8]),
    Bulk { body: &'a [u8], rest: usize, blob: usize },
    Piece(usize),
}

/// Builds a packet from entries.
pub struct Writer<'a> {
    packet: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// Begins a packet. `packet` has [`PACKET`] bytes.
    pub fn new(packet: &'a mut [u8]) -> Self {
        Writer { packet, len: HEADER }
    }

    pub fn is_empty(&self) -> bool {
        self.len == HEADER
    }

    /// Whether there is room for a PIECE entry.
    pub fn has_room_for_piece(&self) -> bool {
        self.packet.len() - self.len >= PIECE_HEAD
    }

    /// Appends an entry. `false`: there is no room for it.
    pub fn put(&mut self, entry: Entry<'_>) -> bool {
        match entry {
            Entry::Message(body) => {
                let [low, high] = (body.len() as u16).to_le_bytes();
                self.append(&[MESSAGE, low, high], body)
            }
            Entry::Bulk { body, rest, blob } => {
                let mut head = [BULK; BULK_HEAD];
                head[1..3].copy_from_slice(&(body.len() as u16).to_le_bytes());
                head[3..7].copy_from_slice(&(rest as u32).to_le_bytes());
                head[7..].copy_from_slice(&(blob as u32).to_le_bytes());
                self.append(&head, body)
            }
            Entry::Piece(len) => {
                let mut head = [PIECE; PIECE_HEAD];
                head[1..].copy_from_slice(&(len as u32).to_le_bytes());
                self.append(&head, &[])
            }
        }
    }

    fn append(&mut self, head: &[u8], body: &[u8]) -> bool {
        let (at, end) = (self.len + head.len(), self.len + head.len() + body.len());
        if end > self.packet.len() {
            return false;
        }
        self.packet[self.len..at].copy_from_slice(head);
        self.packet[at..end].copy_from_slice(body);
        self.len = end;
        true
    }

    /// Completes the packet, and returns its length.
    pub fn finish(self, header: Header) -> usize {
        self.packet[..HEADER].copy_from_slice(&[header.credits, header.slots]);
        self.len
    }
}

/// Splits a packet into header and entries. `None`: it is no packet.
pub fn split(packet: &[u8]) -> Option<(Header, &[u8])> {
    let ([credits, slots], entries) = packet.split_first_chunk()?;
    Some((Header { credits: *credits, slots: *slots }, entries))
}

/// Takes the first entry. `None`: it is no entry.
pub fn next<'a>(entries: &mut &'a [u8]) -> Option<Entry<'a>> {
    let bytes = *entries;
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize);
    let short = || Some(usize::from(u16::from_le_bytes(*bytes.get(1..)?.first_chunk()?)));
    let (entry, len) = match *bytes.first()? {
        MESSAGE => {
            let end = MESSAGE_HEAD + short()?;
            (Entry::Message(bytes.get(MESSAGE_HEAD..end)?), end)
        }
        BULK => {
            let end = BULK_HEAD + short()?;
            (Entry::Bulk { body: bytes.get(BULK_HEAD..end)?, rest: word(3)?, blob: word(7)? }, end)
        }
        PIECE => (Entry::Piece(word(1)?), PIECE_HEAD),
        _ => return None,
    };
    *entries = bytes.get(len..)?;
    Some(entry)
}

/// Rank of the sender, and its landing memory, which the receiver writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    pub rank: usize,
    pub landing: RemoteMemory,
}

impl Greeting {
    pub fn encode(self) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[..4].copy_from_slice(&VERSION);
        bytes[4..8].copy_from_slice(&(self.rank as u32).to_le_bytes());
        bytes[8..].copy_from_slice(&self.landing.to_bytes());
        bytes
    }

    /// Decodes a greeting. `None`: it is no greeting, or one of another version.
    pub fn decode(bytes: &[u8]) -> Option<Greeting> {
        let bytes: &[u8; GREETING] = bytes.try_into().ok()?;
        let rank = u32::from_le_bytes(*bytes[4..].first_chunk()?) as usize;
        let landing = RemoteMemory::from_bytes(*bytes[8..].first_chunk()?);
        (bytes[..4] == VERSION).then_some(Greeting { rank, landing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For arbitrary bytes, every entry lies within them, and the decoding ends.
        #[test]
        fn prop_any_bytes_are_entries_or_are_refused(bytes in prop::collection::vec(prop_oneof![0..4_u8, any::<u8>()], 0..200)) {
            let mut left = &bytes[..];
            while !left.is_empty() {
                let before = left.len();
                let Some(entry) = next(&mut left) else { break };
                let body = match entry {
                    Entry::Message(body) | Entry::Bulk { body, .. } => body.len(),
                    Entry::Piece(_) => 0,
                };
                prop_assert!(before - left.len() >= body + MESSAGE_HEAD);
            }
        }
    }

    #[test]
    fn what_was_put_is_found_and_what_does_not_fit_is_not_put() {
        let long = [7; MAX_INLINE];
        let mut packet = [0; PACKET];
        let mut writer = Writer::new(&mut packet);
        let entries =
            [Entry::Message(b"one"), Entry::Piece(70_000), Entry::Bulk { body: b"", rest: 9, blob: 1 }];
        assert!(writer.is_empty() && entries.into_iter().all(|entry| writer.put(entry)));
        assert!(!writer.put(Entry::Message(&long)), "there is no room for it");
        let len = writer.finish(Header { credits: 3, slots: 1 });
        let (header, mut left) = split(&packet[..len]).expect("a packet");
        assert_eq!(header, Header { credits: 3, slots: 1 });
        let found: Vec<_> = std::iter::from_fn(|| next(&mut left)).collect();
        assert_eq!((found.as_slice(), left), (&entries[..], &[][..]));
        let mut whole = [0; PACKET];
        assert!(Writer::new(&mut whole).put(Entry::Bulk { body: &long, rest: 0, blob: 5 }), "alone it fits");
    }

    #[test]
    fn a_greeting_of_another_version_is_none() {
        let greeting = Greeting { rank: 3, landing: RemoteMemory { address: 1 << 40, len: 7, context: 9 } };
        let mut bytes = greeting.encode();
        assert_eq!(Greeting::decode(&bytes), Some(greeting));
        assert_eq!(Greeting::decode(&bytes[1..]), None);
        bytes[3] = b'2';
        assert_eq!(Greeting::decode(&bytes), None);
    }
}
