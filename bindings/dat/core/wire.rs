//! Wire format of the connection handshake: the connection request and its answer carry [`Greeting`], a refusal the program's private data.
//! `udeck-rdma` has the frames of a connection.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use udeck::names::address::{HOST, Host};
use udeck::via::{RejectKind, Rejection};

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

const GREETING: &[u8; 8] = b"uDAPL 3\n";

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

/// Private data of a program's refusal. `None`: no uDAPL program has refused, but the transport or another kind of program.
pub fn refused(rejection: Rejection) -> Option<Vec<u8>> {
    let is_programs = rejection.kind == RejectKind::Program && rejection.data.len() <= MAX_PRIVATE;
    is_programs.then_some(rejection.data)
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

    #[test]
    fn only_a_program_refuses_with_private_data() {
        let most = Rejection::with_data([0xff; MAX_PRIVATE]);
        assert_eq!(refused(most), Some(vec![0xff; MAX_PRIVATE]));
        assert_eq!(refused(Rejection::with_data([0; MAX_PRIVATE + 1])), None, "too much");
        assert_eq!(refused(Rejection::new(RejectKind::Refused, "no")), None, "words");
        assert_eq!(refused(RejectKind::Unanswered.into()), None);
    }

    proptest! {
        #[test]
        fn what_is_said_is_heard(host: [u8; 16], port: u64, private_data in prop::collection::vec(any::<u8>(), 0..=MAX_PRIVATE)) {
            let greeting = Greeting { host, port, private_data };
            prop_assert_eq!(Greeting::decode(&greeting.encode()), Some(greeting));
        }

        #[test]
        fn any_bytes_are_read_within_their_bounds(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Greeting::decode(&bytes);
        }
    }
}
