//! Wire format of the connection handshake: the connection request and its answer carry [`Greeting`], a refusal carries private data.
//! `udeck-rdma` has the frames of a connection.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use udeck_directory::address::{HOST, Host};

/// Most bytes of private data of a connection request or its answer.
pub const MAX_PRIVATE: usize = 256;

/// The greeting of one side when a connection is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Address of the sender's host.
    pub host: Host,
    /// Number of the sender's end of the connection.
    pub port: u64,
    /// The program's private data.
    pub private_data: Vec<u8>,
}

const GREETING: &[u8; 8] = b"uDAPL 2\n";

/// A process, identified by its own word. Two processes that give the same wait for each other's events a little longer than they need
/// to, and nothing else follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    host: Host,
    number: u32,
}

impl Process {
    /// The process that has this end of a connection. Its number is the port's upper half.
    pub fn of(host: &Host, port: u64) -> Process {
        Process { host: *host, number: (port >> 32) as u32 }
    }
}

/// Makes a number for an end of a connection of this process. The upper half is random: containers that share an address have process ids in
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

    /// `None`: the bytes are no greeting.
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

/// Prefix of a program's refusal. The private data follow in its text, of which a transport may keep only the first 512 bytes: six bits in each
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

/// Decodes the private data of a refusal. `None`: no uDAPL program has refused, but the transport or another kind of program.
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
        }
    }
}
