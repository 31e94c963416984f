//! Wire format of frames in a stream.
//!
//! ```text
//! byte 0      1       2      4       8           12     16       24    32     32 + head      + len
//!      +------+-------+------+-------+-----------+------+--------+-----+------+--------------+
//!      | kind | flags | head | taken | immediate | word | offset | len | head | body         |
//!      +------+-------+------+-------+-----------+------+--------+-----+------+--------------+
//! ```
//!
//! Integers are little-endian; a field that its kind does not use is 0. `taken` is in every frame: the number of the
//! receiver's messages (and RDMA writes) that the sender's program has taken since the connection was made, modulo 2³².
//!
//! | kind | flags | head | immediate | word | offset | body |
//! |---|---|---|---|---|---|---|
//! | 1 message | immediate, receipt, lent | bytes of header | immediate data | | | what lies behind the header |
//! | 2 write | immediate, receipt | | immediate data | handle | in the window | the data |
//! | 3 read | | | number | handle | in the window | (none; `len` is the length wanted) |
//! | 4 data | | status | number | | | the data, or nothing |
//! | 5 receipt | | status | | number | | |
//! | 6 credit | | | | | | |
//! | 7 ask | when taken | | | | | |
//! | 8 end | broken | | | | | words |
//! | 9 over | | | | | | |
//! | 10 recv closed | | | | | | |
//! | 11 forget | | | | | number | |
//!
//! Messages and writes are numbered together from 0 by their order in the stream, reads apart from them. After an end come
//! only receipts, credits and the over; after the over comes nothing.
//!
//! Everything is decoded as if the peer were hostile: lengths are checked before anything is allocated for them.
//! Changing any of this takes another [`VERSION`], which drivers exchange when they connect.

use udeck_via::transport::{Inline, TransferStatus};

pub use crate::close::Violation;

/// Version of this format.
pub const VERSION: u16 = 2;
/// Bytes of a frame before its head.
pub const HEADER: usize = 32;
/// Longest words of an end, in bytes.
pub const MAX_WORDS: usize = 512;

const IMMEDIATE: u8 = 1;
const RECEIPT: u8 = 1 << 1;
const LENT: u8 = 1 << 2;
const WHEN_TAKEN: u8 = 1 << 3;
const BROKEN: u8 = 1 << 4;

/// The only frame of a side that ends a connection before it has sent anything else.
pub fn withdrawal() -> Vec<u8> {
    Header { taken: 0, frame: Frame::End { broken: false, len: 0 } }.encode().to_vec()
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of messages that the sender's program has taken, modulo 2³².
    pub taken: u32,
    /// Kind of the frame, and its other fields.
    pub frame: Frame,
}

/// A frame's kind, with the fields of the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A message.
    Message {
        /// Immediate data.
        immediate: Option<u32>,
        /// Whether the sender waits for a receipt.
        receipt: bool,
        /// Whether it is delivered as [`udeck_via::transport::Body::Lent`].
        lent: bool,
        /// Bytes of the message's header.
        head: u8,
        /// Bytes behind the message's header.
        len: u64,
    },
    /// An RDMA write.
    Write {
        /// Immediate data.
        immediate: Option<u32>,
        /// Whether the sender waits for a receipt.
        receipt: bool,
        /// Handle of the window.
        handle: u32,
        /// Byte offset in the window.
        offset: u64,
        /// Bytes of data.
        len: u64,
    },
    /// An RDMA read.
    Read {
        /// The read's number.
        number: u32,
        /// Handle of the window.
        handle: u32,
        /// Byte offset in the window.
        offset: u64,
        /// Bytes to read.
        len: u64,
    },
    /// The answer to a read.
    Data {
        /// The read's number.
        number: u32,
        /// `Arrived` or `Protection`.
        status: TransferStatus,
        /// Bytes of data.
        len: u64,
    },
    /// The status of a message or write.
    Receipt {
        /// Its number.
        number: u32,
        /// `Arrived`, `Refused` or `Protection`.
        status: TransferStatus,
    },
    /// Carries only the count of taken messages.
    Credit,
    /// Asks for a credit: at once, or (`when_taken`) as soon as there is something new to tell.
    Ask {
        /// Whether the credit may wait until the count has grown.
        when_taken: bool,
    },
    /// Says that the sender's program takes nothing any more, while its end waits behind its posts.
    RecvClosed,
    /// Where messages travel outside the stream: gives up the messages with smaller numbers. Those that have not arrived
    /// never will.
    Forget {
        /// First number that is not given up.
        upto: u64,
    },
    /// Ends the sender's part: it sends no messages, writes, reads or data any more, and takes none.
    End {
        /// Whether the end is by an error, which the words name.
        broken: bool,
        /// Bytes of the words.
        len: u64,
    },
    /// Last frame of the sender.
    Over,
}

/// Fields in the order of the stream.
#[derive(Clone, Copy, Default)]
struct Fields {
    kind: u8,
    flags: u8,
    head: u16,
    taken: u32,
    immediate: u32,
    word: u32,
    offset: u64,
    len: u64,
}

impl Header {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER] {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let mut fields = Fields { taken: self.taken, ..Fields::default() };
        let fields = &mut fields;
        match self.frame {
            Frame::Message { immediate, receipt, lent, head, len } => {
                fields.kind = 1;
                fields.flags =
                    flag(immediate.is_some(), IMMEDIATE) | flag(receipt, RECEIPT) | flag(lent, LENT);
                (fields.head, fields.immediate, fields.len) = (head.into(), immediate.unwrap_or(0), len);
            }
            Frame::Write { immediate, receipt, handle, offset, len } => {
                fields.kind = 2;
                fields.flags = flag(immediate.is_some(), IMMEDIATE) | flag(receipt, RECEIPT);
                (fields.immediate, fields.word) = (immediate.unwrap_or(0), handle);
                (fields.offset, fields.len) = (offset, len);
            }
            Frame::Read { number, handle, offset, len } => {
                (fields.kind, fields.immediate, fields.word) = (3, number, handle);
                (fields.offset, fields.len) = (offset, len);
            }
            Frame::Data { number, status, len } => {
                (fields.kind, fields.head, fields.immediate, fields.len) = (4, code_of(status), number, len);
            }
            Frame::Receipt { number, status } => {
                (fields.kind, fields.head, fields.word) = (5, code_of(status), number);
            }
            Frame::Credit => fields.kind = 6,
            Frame::Ask { when_taken } => (fields.kind, fields.flags) = (7, flag(when_taken, WHEN_TAKEN)),
            Frame::End { broken, len } => {
                (fields.kind, fields.flags, fields.len) = (8, flag(broken, BROKEN), len);
            }
            Frame::Over => fields.kind = 9,
            Frame::RecvClosed => fields.kind = 10,
            Frame::Forget { upto } => (fields.kind, fields.offset) = (11, upto),
        }
        fields.lay_out()
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// [`Violation`]: no peer that keeps the rules sends these bytes.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, Violation> {
        let fields = Fields::pick_up(bytes);
        let immediate = (fields.flags & IMMEDIATE != 0).then_some(fields.immediate);
        let receipt = fields.flags & RECEIPT != 0;
        let Fields { head, len, offset, word, .. } = fields;
        let frame = match fields.kind {
            // Most frames take this path: the general check for unused fields would encode the header again.
            1 if usize::from(head) <= Inline::CAPACITY && fields.is_plain_message() => {
                let lent = fields.flags & LENT != 0;
                let frame = Frame::Message { immediate, receipt, lent, head: head as u8, len };
                return Ok(Header { taken: fields.taken, frame });
            }
            1 if usize::from(head) > Inline::CAPACITY => {
                let most = Inline::CAPACITY;
                return Err(Violation(format!("a message with a header of {head} bytes, at most {most}")));
            }
            1 => {
                let lent = fields.flags & LENT != 0;
                Frame::Message { immediate, receipt, lent, head: head as u8, len }
            }
            2 => Frame::Write { immediate, receipt, handle: word, offset, len },
            3 => Frame::Read { number: fields.immediate, handle: word, offset, len },
            4 => Frame::Data { number: fields.immediate, status: transfer_status_of(head)?, len },
            5 => Frame::Receipt { number: word, status: transfer_status_of(head)? },
            6 => Frame::Credit,
            7 => Frame::Ask { when_taken: fields.flags & WHEN_TAKEN != 0 },
            8 if len > MAX_WORDS as u64 => {
                return Err(Violation(format!("{len} bytes of words about an end, at most {MAX_WORDS}")));
            }
            8 => Frame::End { broken: fields.flags & BROKEN != 0, len },
            9 => Frame::Over,
            10 => Frame::RecvClosed,
            11 => Frame::Forget { upto: offset },
            kind => return Err(Violation(format!("a frame of kind {kind}"))),
        };
        let header = Header { taken: fields.taken, frame };
        // Fields that a kind does not use must be 0, so that each header has exactly one encoding.
        if header.encode() != *bytes {
            return Err(Violation(format!(
                "a frame of kind {} with fields that it does not have",
                fields.kind
            )));
        }
        Ok(header)
    }
}

/// Header of a message without a body and without a receipt, as most frames have.
pub(crate) struct Short {
    pub taken: u32,
    pub immediate: Option<u32>,
    /// Bytes of the message, behind the header.
    pub len: usize,
}

impl Short {
    /// Decodes the header. `None`: it is another frame, for [`Header::decode`].
    #[inline]
    pub fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let long = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (front, middle) = (long(0), long(8));
        let (kind, flags, len) = (front as u8, (front >> 8) as u8, (front >> 16) as u16);
        let has_immediate = flags == IMMEDIATE;
        let is_sound = kind == 1
            && (has_immediate || flags == 0 && middle as u32 == 0)
            && usize::from(len) <= Inline::CAPACITY
            && (middle >> 32) | long(16) | long(24) == 0;
        is_sound.then_some(Short {
            taken: (front >> 32) as u32,
            immediate: has_immediate.then_some(middle as u32),
            len: len.into(),
        })
    }
}

impl Fields {
    /// Whether the fields that a message does not use are 0.
    fn is_plain_message(&self) -> bool {
        let immediate = if self.flags & IMMEDIATE == 0 { self.immediate } else { 0 };
        self.flags & !(IMMEDIATE | RECEIPT | LENT) == 0 && self.offset == 0 && self.word | immediate == 0
    }

    fn lay_out(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.kind;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.head.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.taken.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.immediate.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.word.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    fn pick_up(bytes: &[u8; HEADER]) -> Self {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        Fields {
            kind: bytes[0],
            flags: bytes[1],
            head: half(2),
            taken: word(4),
            immediate: word(8),
            word: word(12),
            offset: long(16),
            len: long(24),
        }
    }
}

/// Writes `taken` into a header that was encoded before.
pub(crate) fn set_taken(header: &mut [u8], taken: u32) {
    header[4..8].copy_from_slice(&taken.to_le_bytes());
}

fn code_of(status: TransferStatus) -> u16 {
    match status {
        TransferStatus::Arrived => 0,
        TransferStatus::Refused => 1,
        TransferStatus::Protection => 2,
        // Each side finds these out by itself.
        TransferStatus::Unread | TransferStatus::Lost => unreachable!("no peer is told so"),
    }
}

fn transfer_status_of(code: u16) -> Result<TransferStatus, Violation> {
    match code {
        0 => Ok(TransferStatus::Arrived),
        1 => Ok(TransferStatus::Refused),
        2 => Ok(TransferStatus::Protection),
        code => Err(Violation(format!("a status of code {code}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status() -> impl Strategy<Value = TransferStatus> {
        prop_oneof![
            Just(TransferStatus::Arrived),
            Just(TransferStatus::Refused),
            Just(TransferStatus::Protection)
        ]
    }

    fn frame() -> impl Strategy<Value = Frame> {
        let message = (any::<Option<u32>>(), any::<bool>(), any::<bool>(), 0..=48u8, any::<u64>()).prop_map(
            |(immediate, receipt, lent, head, len)| Frame::Message { immediate, receipt, lent, head, len },
        );
        let write = (any::<Option<u32>>(), any::<bool>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
            |(immediate, receipt, handle, offset, len)| Frame::Write {
                immediate,
                receipt,
                handle,
                offset,
                len,
            },
        );
        let read = (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>())
            .prop_map(|(number, handle, offset, len)| Frame::Read { number, handle, offset, len });
        let data = (any::<u32>(), status(), any::<u64>()).prop_map(|(number, status, len)| Frame::Data {
            number,
            status,
            len,
        });
        let receipt = (any::<u32>(), status()).prop_map(|(number, status)| Frame::Receipt { number, status });
        let end = (any::<bool>(), 0..=MAX_WORDS as u64).prop_map(|(broken, len)| Frame::End { broken, len });
        let ask = any::<bool>().prop_map(|when_taken| Frame::Ask { when_taken });
        prop_oneof![
            message,
            write,
            read,
            data,
            receipt,
            end,
            ask,
            any::<u64>().prop_map(|upto| Frame::Forget { upto }),
            Just(Frame::Credit),
            Just(Frame::Over),
            Just(Frame::RecvClosed)
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(taken in any::<u32>(), frame in frame()) {
            let header = Header { taken, frame };
            let mut bytes = header.encode();
            prop_assert_eq!(Header::decode(&bytes).unwrap(), header);
            set_taken(&mut bytes, 7);
            prop_assert_eq!(Header::decode(&bytes).unwrap(), Header { taken: 7, frame });
        }

        #[test]
        fn there_is_one_way_to_say_each_thing(bytes in any::<[u8; HEADER]>(), kind in 0..13u8) {
            let mut bytes = bytes;
            bytes[0] = kind;
            if let Ok(header) = Header::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }

    /// One-bit changes of a valid header, which random bytes hardly ever come near.
    #[test]
    fn one_bit_more_in_a_message_says_something_else_or_nothing() {
        let frame = Frame::Message { immediate: None, receipt: false, lent: false, head: 0, len: 0 };
        let bytes = Header { taken: 0, frame }.encode();
        for bit in 0..8 * HEADER {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(header) = Header::decode(&bytes) {
                assert_eq!(header.encode(), bytes, "bit {bit}");
            }
        }
    }

    #[test]
    fn the_words_name_what_is_wrong() {
        let words = |change: fn(&mut [u8; HEADER])| {
            let mut bytes = Header { taken: 0, frame: Frame::Credit }.encode();
            change(&mut bytes);
            Header::decode(&bytes).unwrap_err().to_string()
        };
        assert_eq!(words(|bytes| bytes[0] = 77), "a frame of kind 77");
        assert_eq!(words(|bytes| bytes[12] = 1), "a frame of kind 6 with fields that it does not have");
        let head = words(|bytes| (bytes[0], bytes[2]) = (1, 49));
        assert_eq!(head, "a message with a header of 49 bytes, at most 48");
        assert_eq!(words(|bytes| (bytes[0], bytes[3]) = (5, 1)), "a status of code 256");
        let end = words(|bytes| (bytes[0], bytes[31]) = (8, 128));
        assert_eq!(end, format!("{} bytes of words about an end, at most 512", 1u64 << 63));
    }
}
