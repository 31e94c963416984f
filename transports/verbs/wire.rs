//! Frames: the contents of a SEND. They are decoded as if the peer were hostile.
//!
//! ```text
//! byte 0      1       2      4       8       12          16     20     24       32    40     + head   + len
//!      +------+-------+------+-------+-------+-----------+------+------+--------+-----+------+--------+
//!      | kind | flags | head | taken | ack   | immediate | word | 0    | offset | len | head | rest   |
//!      +------+-------+------+-------+-------+-----------+------+------+--------+-----+------+--------+
//! ```
//! Integers are little-endian; a field that its kind does not use is 0. Every frame carries two counts: how many of
//! the receiver's messages the sender's program has `taken`, and how many of its control frames the sender's engine
//! has received (`ack`), both modulo 2³² since the connection was made. So a lost frame takes no credit with it.
//!
//! | kind | flags | head | immediate | word | offset | len | rest |
//! |---|---|---|---|---|---|---|---|
//! | 1 short | immediate | | immediate data | | | bytes | the message |
//! | 2 body | immediate, receipt | bytes of header | immediate data | | | bytes | the bytes behind the header |
//! | 3 offer | immediate, receipt | bytes of header | immediate data | parts | | bytes in all parts | their places: [`RemotePiece`]s |
//! | 4 flush | | | | | | | |
//! | 5 notes | | | | notes | | | [`Note`]s |
//! | 6 credit | | | | | | | |
//! | 7 ask | when taken | | | | | | |
//! | 8 end | broken | | | | | bytes | words |
//! | 9 where | write or read | | | handle | | | |
//! | 10 here | known | | remote key | handle | address | bytes | |
//! | 11 written | | | immediate data | | | bytes | |
//! | 12 wrote | | | immediate data | pieces | | bytes | |
//! | 13 left | | | | number | | | |
//!
//! Kinds 1 to 4 and 11, and RDMA writes with immediate data, are numbered together from 0 in the order of the queue
//! pair, which both sides count; the others are control frames. Where the network has no immediate data (iWARP), a
//! frame *written* behind a plain RDMA write stands for it: the write's data are in place when the frame arrives
//! (RFC 5040, 5.5). An offered message stays in its sender's memory: the receiver reads it by RDMA, and then sends a
//! note of that.
//!
//! Messages of an unreliable VI travel on a queue pair that may lose them (`connection::unreliable`): only kinds 1,
//! 2, 3 and 12 go there. The two sides cannot count messages that may be lost. So each such frame carries its number
//! in the place of `taken`, and an offer carries in the place of `ack` the key by which notes name it. An RDMA write
//! with immediate data is numbered, too, piece by piece, each by its immediate data; the program's immediate data
//! come in *wrote*, behind its pieces. `taken` then counts numbers that are over, in a row. *left* says that all
//! messages before this number have left.

pub use udeck_session::Violation;
use udeck_via::transport::{Inline, TransferStatus};

/// Version of the formats behind the admission.
pub const VERSION: u16 = 2;
/// Bytes of a frame's header, before its head.
pub const HEADER: usize = 40;
/// Bytes of a receive buffer. No frame is longer.
pub const BLOCK: usize = 4096;
/// Upper bound of a message's header in bytes.
pub const MAX_HEAD: usize = Inline::CAPACITY;
/// Upper bound of the body in a frame, in bytes.
pub const EAGER: usize = BLOCK - HEADER - MAX_HEAD;
/// Upper bound of an offer's parts.
pub const PARTS: usize = EAGER / RemotePiece::LEN;
/// Upper bound of the notes in a frame.
pub const NOTES: usize = EAGER / Note::LEN;
/// Upper bound of an end's text in bytes.
pub const MAX_WORDS: usize = 512;

/// Upper bound of an RDMA write in bytes.
const MAX_WRITTEN: usize = 1 << 40;

const IMMEDIATE: u8 = 1;
const RECEIPT: u8 = 1 << 1;
const WHEN_TAKEN: u8 = 1 << 2;
const BROKEN: u8 = 1 << 3;
const KNOWN: u8 = 1 << 4;
const WRITE: u8 = 1 << 5;

const _: () = assert!(HEADER == 1 + 1 + 2 + 5 * 4 + 2 * 8 && MAX_WORDS <= EAGER && PARTS > 100);

/// Fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub taken: u32,
    pub control_ack: u32,
    pub frame: Frame,
}

/// Kind of a frame, with its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Message that is copied out at once.
    Short { immediate: Option<u32>, len: usize },
    /// Message with its body behind it.
    Body { immediate: Option<u32>, receipt: bool, head: usize, len: usize },
    /// Message that lies in its sender's memory.
    Offer { immediate: Option<u32>, receipt: bool, head: usize, parts: usize, len: u64 },
    /// Asks for a receipt once the data of the write before it are in place.
    Flush,
    /// Reports that `len` bytes were written before, with immediate data.
    Written { immediate: u32, len: usize },
    /// Reports what became of messages.
    Notes { count: usize },
    /// Reports only what was taken and received.
    Credit,
    /// Asks for a credit: at once, or (`when_taken`) as soon as a message was taken.
    Ask { when_taken: bool },
    /// End of the connection: the sender's program is gone.
    End { broken: bool, len: usize },
    /// Asks for the place of a window, for writing or reading.
    Where { handle: u32, write: bool },
    /// Answers with a window's place, or that the asking side may not access it.
    Here { handle: u32, place: Option<RemoteKey> },
    /// Reports that the last `pieces` pieces were all of an RDMA write.
    Wrote { immediate: u32, pieces: u32, len: u64 },
    /// Reports that all messages before this number have left.
    Left { upto: u32 },
}

/// Place of a window, as its owner's device names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteKey {
    pub address: u64,
    pub rkey: u32,
    pub len: u64,
}

/// Piece of a message in its sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePiece {
    pub address: u64,
    pub rkey: u32,
    pub len: u32,
}

/// Report on a numbered frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// An offer was read, or will not be: its memory is free.
    Read(u32),
    /// Receipt for a message or a flush.
    Receipt(u32, TransferStatus),
}

/// Fields of a header in their wire order.
#[derive(Clone, Copy, Default)]
struct Fields {
    kind: u8,
    flags: u8,
    head: u16,
    taken: u32,
    control_ack: u32,
    immediate: u32,
    word: u32,
    zero: u32,
    offset: u64,
    len: u64,
}

impl Frame {
    /// Whether the frame is a numbered one.
    pub fn is_numbered(&self) -> bool {
        matches!(
            self,
            Frame::Short { .. }
                | Frame::Body { .. }
                | Frame::Offer { .. }
                | Frame::Flush
                | Frame::Written { .. }
                | Frame::Wrote { .. }
        )
    }

    /// Number of bytes behind the header.
    pub fn rest(&self) -> usize {
        match *self {
            Frame::Short { len, .. } | Frame::End { len, .. } => len,
            Frame::Body { head, len, .. } => head + len,
            Frame::Offer { head, parts, .. } => head + parts * RemotePiece::LEN,
            Frame::Notes { count } => count * Note::LEN,
            Frame::Written { .. } => 0,
            Frame::Flush | Frame::Credit | Frame::Ask { .. } | Frame::Where { .. } | Frame::Here { .. } => 0,
            Frame::Wrote { .. } | Frame::Left { .. } => 0,
        }
    }
}

impl Header {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER] {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let mut fields = Fields { taken: self.taken, control_ack: self.control_ack, ..Fields::default() };
        let to = &mut fields;
        match self.frame {
            Frame::Short { immediate, len } => {
                (to.kind, to.flags) = (1, flag(immediate.is_some(), IMMEDIATE));
                (to.immediate, to.len) = (immediate.unwrap_or(0), len as u64);
            }
            Frame::Body { immediate, receipt, head, len } => {
                (to.kind, to.flags) = (2, flag(immediate.is_some(), IMMEDIATE) | flag(receipt, RECEIPT));
                (to.head, to.immediate, to.len) = (head as u16, immediate.unwrap_or(0), len as u64);
            }
            Frame::Offer { immediate, receipt, head, parts, len } => {
                (to.kind, to.flags) = (3, flag(immediate.is_some(), IMMEDIATE) | flag(receipt, RECEIPT));
                (to.head, to.immediate, to.len) = (head as u16, immediate.unwrap_or(0), len);
                to.word = parts as u32;
            }
            Frame::Flush => to.kind = 4,
            Frame::Notes { count } => (to.kind, to.word) = (5, count as u32),
            Frame::Credit => to.kind = 6,
            Frame::Ask { when_taken } => (to.kind, to.flags) = (7, flag(when_taken, WHEN_TAKEN)),
            Frame::End { broken, len } => {
                (to.kind, to.flags, to.len) = (8, flag(broken, BROKEN), len as u64);
            }
            Frame::Where { handle, write } => {
                (to.kind, to.flags, to.word) = (9, flag(write, WRITE), handle);
            }
            Frame::Written { immediate, len } => {
                (to.kind, to.immediate, to.len) = (11, immediate, len as u64);
            }
            Frame::Here { handle, place } => {
                (to.kind, to.flags, to.word) = (10, flag(place.is_some(), KNOWN), handle);
                if let Some(RemoteKey { address, rkey, len }) = place {
                    (to.offset, to.immediate, to.len) = (address, rkey, len);
                }
            }
            Frame::Wrote { immediate, pieces, len } => {
                (to.kind, to.immediate, to.word, to.len) = (12, immediate, pieces, len);
            }
            Frame::Left { upto } => (to.kind, to.word) = (13, upto),
        }
        fields.lay_out()
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// When no correct peer sends these bytes.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, Violation> {
        let fields = Fields::pick_up(bytes);
        match fields.short() {
            Some(short) => Ok(short),
            None => Self::decode_any(&fields, bytes),
        }
    }

    fn decode_any(fields: &Fields, bytes: &[u8; HEADER]) -> Result<Self, Violation> {
        let Fields { kind, flags, word, .. } = *fields;
        let immediate = (flags & IMMEDIATE != 0).then_some(fields.immediate);
        let receipt = flags & RECEIPT != 0;
        let head = bounded(fields.head.into(), MAX_HEAD, "a header")?;
        let len = |most: usize, what: &str| bounded(fields.len, most, what);
        let frame = match kind {
            1 => Frame::Short { immediate, len: len(MAX_HEAD, "a short message")? },
            2 => Frame::Body { immediate, receipt, head, len: len(EAGER, "a body")? },
            3 => {
                let parts = bounded(word.into(), PARTS, "the number of parts")?;
                Frame::Offer { immediate, receipt, head, parts, len: fields.len }
            }
            4 => Frame::Flush,
            5 => Frame::Notes { count: bounded(word.into(), NOTES, "the number of notes")? },
            6 => Frame::Credit,
            7 => Frame::Ask { when_taken: flags & WHEN_TAKEN != 0 },
            8 => Frame::End { broken: flags & BROKEN != 0, len: len(MAX_WORDS, "words about an end")? },
            9 => Frame::Where { handle: word, write: flags & WRITE != 0 },
            10 => {
                let place = RemoteKey { address: fields.offset, rkey: fields.immediate, len: fields.len };
                Frame::Here { handle: word, place: (flags & KNOWN != 0).then_some(place) }
            }
            11 => Frame::Written { immediate: fields.immediate, len: len(MAX_WRITTEN, "a write")? },
            12 => Frame::Wrote { immediate: fields.immediate, pieces: word, len: fields.len },
            13 => Frame::Left { upto: word },
            kind => return Err(Violation(format!("a frame of kind {kind}"))),
        };
        let header = Header { taken: fields.taken, control_ack: fields.control_ack, frame };
        // A field that the kind does not use must be 0, so that each frame has one encoding.
        if header.encode() != *bytes {
            return Err(Violation(format!("a frame of kind {kind} with fields that it does not have")));
        }
        Ok(header)
    }
}

fn bounded(value: u64, most: usize, what: &str) -> Result<usize, Violation> {
    usize::try_from(value)
        .ok()
        .filter(|value| *value <= most)
        .ok_or_else(|| Violation(format!("{what} of {value}, at most {most}")))
}

impl RemotePiece {
    /// Bytes of an encoded part.
    pub const LEN: usize = 16;

    pub fn encode(&self) -> [u8; RemotePiece::LEN] {
        let mut bytes = [0; RemotePiece::LEN];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[12..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; RemotePiece::LEN]) -> Self {
        let mut reader = Reader(bytes);
        RemotePiece { address: reader.long(), rkey: reader.word(), len: reader.word() }
    }
}

impl Note {
    /// Bytes of an encoded note.
    pub const LEN: usize = 8;

    pub fn encode(&self) -> [u8; Note::LEN] {
        let (number, code) = match *self {
            Note::Read(number) => (number, 0u32),
            Note::Receipt(number, TransferStatus::Refused) => (number, 2),
            Note::Receipt(number, TransferStatus::Unread) => (number, 3),
            Note::Receipt(number, _) => (number, 1),
        };
        let mut bytes = [0; Note::LEN];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes[4..].copy_from_slice(&code.to_le_bytes());
        bytes
    }

    /// # Errors
    /// An unknown code.
    pub fn decode(bytes: &[u8; Note::LEN]) -> Result<Self, Violation> {
        let mut reader = Reader(bytes);
        let (number, code) = (reader.word(), reader.word());
        match code {
            0 => Ok(Note::Read(number)),
            1 => Ok(Note::Receipt(number, TransferStatus::Arrived)),
            2 => Ok(Note::Receipt(number, TransferStatus::Refused)),
            3 => Ok(Note::Receipt(number, TransferStatus::Unread)),
            code => Err(Violation(format!("a note of code {code}"))),
        }
    }
}

impl Fields {
    fn lay_out(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.kind;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.head.to_le_bytes());
        let words = [self.taken, self.control_ack, self.immediate, self.word, self.zero];
        for (at, word) in words.into_iter().enumerate() {
            bytes[4 + 4 * at..8 + 4 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes[24..32].copy_from_slice(&self.offset.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Decodes a header of the most frequent kind on a fast path; `None` for others and for invalid ones.
    #[inline]
    fn short(&self) -> Option<Header> {
        let Fields { kind, flags, head, taken, control_ack, immediate, word, zero, offset, len } = *self;
        let has_immediate = flags == IMMEDIATE;
        let unused = u64::from(head) | u64::from(word | zero) | offset;
        let is_sound = kind == 1
            && (has_immediate || (flags == 0 && immediate == 0))
            && unused == 0
            && len <= MAX_HEAD as u64;
        let frame = Frame::Short { immediate: has_immediate.then_some(immediate), len: len as usize };
        is_sound.then_some(Header { taken, control_ack, frame })
    }

    #[inline]
    fn pick_up(bytes: &[u8; HEADER]) -> Self {
        let [kind, flags, low, high, ..] = *bytes;
        let mut reader = Reader(&bytes[4..]);
        Fields {
            kind,
            flags,
            head: u16::from_le_bytes([low, high]),
            taken: reader.word(),
            control_ack: reader.word(),
            immediate: reader.word(),
            word: reader.word(),
            zero: reader.word(),
            offset: reader.long(),
            len: reader.long(),
        }
    }
}

/// Reads integers off bytes of a known length; returns zeros behind their end.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let Some((first, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *first
    }
    fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }
    fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> impl Strategy<Value = Frame> {
        let any_frame = (any::<Option<u32>>(), any::<bool>(), 0..=MAX_HEAD, any::<u32>(), any::<u64>());
        (1..=13u8, any_frame).prop_map(|(kind, (immediate, flag, head, word, long))| {
            let place = RemoteKey { address: long, rkey: immediate.unwrap_or(1), len: long / 3 };
            match kind {
                1 => Frame::Short { immediate, len: head },
                2 => Frame::Body { immediate, receipt: flag, head, len: word as usize % (EAGER + 1) },
                3 => {
                    let parts = word as usize % (PARTS + 1);
                    Frame::Offer { immediate, receipt: flag, head, parts, len: long }
                }
                4 => Frame::Flush,
                5 => Frame::Notes { count: word as usize % (NOTES + 1) },
                6 => Frame::Credit,
                7 => Frame::Ask { when_taken: flag },
                8 => Frame::End { broken: flag, len: word as usize % (MAX_WORDS + 1) },
                9 => Frame::Where { handle: word, write: flag },
                10 => Frame::Here { handle: word, place: flag.then_some(place) },
                11 => Frame::Written { immediate: word, len: long as usize % (MAX_WRITTEN + 1) },
                12 => Frame::Wrote { immediate: immediate.unwrap_or(1), pieces: word, len: long },
                _ => Frame::Left { upto: word },
            }
        })
    }

    proptest! {
        #[test]
        fn prop_what_is_encoded_is_decoded(taken: u32, control_ack: u32, frame in frame()) {
            let header = Header { taken, control_ack, frame };
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
            prop_assert!(HEADER + frame.rest() <= BLOCK);
        }

        #[test]
        fn prop_there_is_one_way_to_say_each_thing(bytes: [u8; HEADER], kind in 0..15u8, frame in frame(), at in 0..HEADER) {
            let mut bytes = bytes;
            bytes[0] = kind;
            let mut nearly = Header { taken: 1, control_ack: 2, frame }.encode();
            nearly[at] = bytes[1];
            for bytes in [bytes, nearly] {
                if let Ok(header) = Header::decode(&bytes) {
                    prop_assert_eq!(header.encode(), bytes);
                    prop_assert!(HEADER + header.frame.rest() <= BLOCK);
                }
            }
        }

        #[test]
        fn prop_parts_and_notes_round_trip(part: (u64, u32, u32), number: u32, code in 0..5u32) {
            let part = RemotePiece { address: part.0, rkey: part.1, len: part.2 };
            prop_assert_eq!(RemotePiece::decode(&part.encode()), part);
            let mut bytes = [0; Note::LEN];
            bytes[..4].copy_from_slice(&number.to_le_bytes());
            bytes[4] = code as u8;
            match Note::decode(&bytes) {
                Ok(note) => prop_assert_eq!(note.encode(), bytes),
                Err(_) => prop_assert_eq!(code, 4),
            }
        }
    }

    #[test]
    fn the_words_name_what_is_wrong() {
        let words = |change: fn(&mut [u8; HEADER])| {
            let mut bytes = Header { taken: 0, control_ack: 0, frame: Frame::Credit }.encode();
            change(&mut bytes);
            Header::decode(&bytes).unwrap_err().to_string()
        };
        assert_eq!(words(|bytes| bytes[0] = 77), "a frame of kind 77");
        assert_eq!(words(|bytes| bytes[16] = 1), "a frame of kind 6 with fields that it does not have");
        assert_eq!(
            words(|bytes| (bytes[0], bytes[33]) = (2, 255)),
            format!("a body of {}, at most {EAGER}", 255 << 8)
        );
        assert_eq!(words(|bytes| bytes[2] = 49), "a header of 49, at most 48");
    }
}
