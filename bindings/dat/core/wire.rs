//! What the two ends of a connection say to each other: one message of the virtual interface below for each frame.
//!
//! ```text
//!   head             0 kind   1 flags   2..4 zero   4..8 word: the RMR context that SEND invalidates
//!   body             by kind:
//!     SEND           the program's bytes
//!     WRITE          0..8 address   8..12 RMR context   12..16 zero   16.. the bytes
//!     READ           0..8 address   8..12 RMR context   12..16 zero   16..24 how many bytes
//!     DATA           answers the oldest READ: 0..4 1: refused   4..8 zero   8.. the bytes
//!     BROKEN         0..4 why: the status that the sender's oldest request may end by; the connection ends
//! ```
//!
//! The connection request and its answer carry [`Greeting`]. Numbers are little-endian. Anything else breaks the connection.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use udeck_directory::address::{HOST, Host};

pub const SEND: u8 = 1;
pub const WRITE: u8 = 2;
pub const READ: u8 = 3;
pub const DATA: u8 = 4;
pub const BROKEN: u8 = 5;

/// Private data of a connection request or its answer.
pub const MAX_PRIVATE: usize = 256;

/// A SEND invalidates the RMR of the word.
pub const INVALIDATES: u8 = 1;

/// Bytes of a head.
pub const HEAD: usize = 8;
/// What stands before the data of a write, and of an answer to a read.
pub const WRITE_HEAD: usize = 16;
pub const DATA_HEAD: usize = 8;

/// A frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub kind: u8,
    pub flags: u8,
    pub word: u32,
}

impl Head {
    #[inline]
    pub fn plain(kind: u8) -> Head {
        Head { kind, flags: 0, word: 0 }
    }

    #[inline]
    pub fn bytes(self) -> [u8; HEAD] {
        let word = self.word.to_le_bytes();
        [self.kind, self.flags, 0, 0, word[0], word[1], word[2], word[3]]
    }

    /// `None`: that is no head.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Head> {
        let head: &[u8; HEAD] = bytes.first_chunk()?;
        let [kind, rest @ ..] = head;
        if *rest == [0; HEAD - 1] { Some(Head::plain(*kind)) } else { Head::read_flags(*head) }
    }

    /// One that is not plain: there is only one kind.
    #[cold]
    fn read_flags(head: [u8; HEAD]) -> Option<Head> {
        match head {
            [SEND, INVALIDATES, 0, 0, word @ ..] => {
                Some(Head { kind: SEND, flags: INVALIDATES, word: u32::from_le_bytes(word) })
            }
            _ => None,
        }
    }
}

pub fn write_head(address: u64, context: u32) -> [u8; WRITE_HEAD] {
    let mut bytes = [0; WRITE_HEAD];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&context.to_le_bytes());
    bytes
}

/// A place in the memory of who reads this: address and RMR context.
pub fn read_place(bytes: &[u8]) -> Option<(u64, u32)> {
    // The upper half is zero.
    Some((number(bytes, 0)?, u32::try_from(number(bytes, 8)?).ok()?))
}

pub fn read_request(address: u64, context: u32, len: usize) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..WRITE_HEAD].copy_from_slice(&write_head(address, context));
    bytes[16..].copy_from_slice(&(len as u64).to_le_bytes());
    bytes
}

pub fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.first_chunk()?))
}

/// Whether an answer to a read refuses it.
pub fn answer(bytes: &[u8]) -> Option<bool> {
    match number(bytes, 0)? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// What each side says of itself when a connection is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Where it is.
    pub host: Host,
    /// Of its end of the connection.
    pub port: u64,
    /// The program's.
    pub private_data: Vec<u8>,
}

const GREETING: &[u8; 8] = b"uDAPL 1\n";

/// A process, as it says itself which one it is. Two that say the same wait for each other's events a little longer than they need
/// to, and nothing else follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    host: Host,
    number: u32,
}

impl Process {
    /// The one with this end of a connection. Its number is the port's upper half.
    pub fn of(host: &Host, port: u64) -> Process {
        Process { host: *host, number: (port >> 32) as u32 }
    }
}

/// A number for an end of a connection of this process. The upper half is random: containers that share an address have process ids in
/// common.
pub fn port(number: u64) -> u64 {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    *PROCESS << 32 | number & 0xffff_ffff
}

impl Greeting {
    pub fn encode(&self) -> Vec<u8> {
        [&GREETING[..], &self.host, &self.port.to_le_bytes(), &self.private_data].concat()
    }

    pub fn process(&self) -> Process {
        Process::of(&self.host, self.port)
    }

    /// `None`: that is no greeting.
    pub fn decode(bytes: &[u8]) -> Option<Greeting> {
        let rest = bytes.strip_prefix(GREETING)?;
        let (host, rest) = rest.split_first_chunk::<HOST>()?;
        let (port, private_data) = rest.split_first_chunk::<8>()?;
        if private_data.len() > MAX_PRIVATE {
            return None;
        }
        Some(Greeting { host: *host, port: u64::from_le_bytes(*port), private_data: private_data.to_vec() })
    }
}

/// Private data of a refusal travel in its words, of which a transport may leave no more than the first 512 bytes: six bits in each
/// character, from `0` to `o`.
const REFUSED: &str = "uDAPL ";
const FIRST_DIGIT: u8 = b'0';

pub fn refusal(private_data: &[u8]) -> String {
    let mut words = String::from(REFUSED);
    for part in private_data.chunks(3) {
        let bits =
            part.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        words.extend(
            (0..=part.len()).map(|at| char::from(FIRST_DIGIT + (bits >> (18 - 6 * at) & 0x3f) as u8)),
        );
    }
    words
}

/// The private data; `None`: nobody's program refused, but the transport, or what is no uDAPL program.
pub fn refused(words: &str) -> Option<Vec<u8>> {
    let digits = words.strip_prefix(REFUSED)?.as_bytes();
    let mut private_data = Vec::new();
    for part in digits.chunks(4) {
        let mut bits = 0_u32;
        for digit in part {
            let value = digit.checked_sub(FIRST_DIGIT).filter(|value| *value < 64)?;
            bits = bits << 6 | u32::from(value);
        }
        let bytes = (bits << (6 * (4 - part.len()))).to_be_bytes();
        private_data.extend(&bytes[1..part.len()]);
    }
    (private_data.len() <= MAX_PRIVATE && digits.len() % 4 != 1).then_some(private_data)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_no_head_has_is_none() {
        let plain = Head::plain(SEND).bytes();
        for at in 1..HEAD {
            let mut head = plain;
            head[at] = 1;
            let is_one = Head::read(&head).is_some();
            assert_eq!(is_one, at == 1, "byte {at}: only the first flag of a SEND is known");
            head[0] = WRITE;
            assert_eq!(Head::read(&head), None, "byte {at} of a WRITE");
        }
        assert_eq!(Head::read(&[SEND, 2, 0, 0, 0, 0, 0, 0]), None, "an unknown flag");
        assert_eq!(Head::read(&[SEND, INVALIDATES | 2, 0, 0, 7, 0, 0, 0]), None, "and a known one with it");
        assert_eq!(Head::read(&[SEND, INVALIDATES, 1, 0, 7, 0, 0, 0]), None, "what shall be zero");
        let mut place = write_head(7, 8);
        place[15] = 1;
        assert_eq!(read_place(&place), None);
    }

    /// Two processes with one address may have one process id, each in a namespace of its own.
    #[test]
    fn a_process_is_not_told_by_its_id() {
        let process = |number| Process::of(&[0; HOST], port(number));
        assert_eq!(process(1), process(2));
        assert_ne!(process(1).number, std::process::id());
    }

    proptest! {
        #[test]
        fn what_is_said_is_heard(host: [u8; 16], port: u64, private_data in prop::collection::vec(any::<u8>(), 0..=MAX_PRIVATE)) {
            let words = refusal(&private_data);
            prop_assert!(words.len() <= 512);
            prop_assert_eq!(refused(&words), Some(private_data.clone()));
            let greeting = Greeting { host, port, private_data };
            prop_assert_eq!(Greeting::decode(&greeting.encode()), Some(greeting));
        }

        #[test]
        fn any_bytes_are_read_within_their_bounds(bytes in prop::collection::vec(any::<u8>(), 0..64), words: String) {
            let _ = Greeting::decode(&bytes);
            let _ = refused(&words);
            prop_assert!(Head::read(&bytes).is_none_or(|head| head.bytes() == bytes[..HEAD]));
            prop_assert!(read_place(&bytes).is_none_or(|(at, context)| write_head(at, context) == bytes[..WRITE_HEAD]));
            prop_assert_eq!(word(&bytes).is_some(), bytes.len() >= 4);
        }

        #[test]
        fn a_head_and_a_place_are_read_as_written(kind: u8, word: u32, address: u64, context: u32, len: usize) {
            let invalidates = Head { kind: SEND, flags: INVALIDATES, word };
            for head in [Head::plain(kind), invalidates] {
                prop_assert_eq!(Head::read(&head.bytes()), Some(head));
            }
            let bytes = read_request(address, context, len);
            prop_assert_eq!(read_place(&bytes), Some((address, context)));
            prop_assert_eq!(number(&bytes, 16), Some(len as u64));
        }
    }
}
