//! Datagrams between the maker of a segment and a member that asks for it, encoded by postcard, and decoded as if the other
//! side were hostile.
//!
//! ```text
//! asker                              maker
//!   Meet(version, nonce, claim) ->
//!                                 <- Prove(nonce, proof)
//!   Ask(proof, shape) ->
//!                                 <- Given + descriptor, once it is offered    or    Refused(why)    or    Busy: later
//! ```

use std::fmt;

use crate::auth::{Claim, Nonce, Proof};
use serde::{Deserialize, Serialize};

/// Version of the datagrams and of a segment's contents.
pub(crate) const VERSION: u32 = 2;
/// Longest datagram, in bytes: a request whose members are as many ranks of one host as a job may have.
pub(crate) const MAX_DATAGRAM: usize = 32 << 10;
/// Longest text, in bytes.
const MAX_TEXT: usize = 512;

/// The use of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Data that all members access element by element.
    Elements,
    /// Data that only the holder of the lock accesses.
    Locked,
    /// A semaphore; the segment's length is the initial number of permits.
    Semaphore,
}

/// Description of a segment: as its maker made it, or as a member wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Name of the segment.
    pub name: String,
    /// Index of the segment among those of the same name, from 0.
    pub round: u64,
    /// The use of the segment.
    pub purpose: Purpose,
    /// The element type's name, as the compiler spells it.
    pub kind: String,
    /// Bytes of one element.
    pub size: u32,
    /// Number of elements.
    pub len: u64,
    /// The ranks that share the segment, in their order.
    pub members: Vec<u32>,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.purpose {
            Purpose::Elements => write!(f, "a segment of {} elements of {}", self.len, self.kind)?,
            Purpose::Locked => write!(f, "a locked segment of {} elements of {}", self.len, self.kind)?,
            Purpose::Semaphore => write!(f, "a semaphore of {} permits", self.len)?,
        }
        let ranks: Vec<_> = self.members.iter().map(u32::to_string).collect();
        write!(f, " among ranks {}", ranks.join(", "))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Datagram {
    Meet { version: u32, nonce: Nonce, claim: [u8; Claim::LEN] },
    Prove { nonce: Nonce, proof: Proof },
    Ask { proof: Proof, shape: Shape },
    Given,
    Refused { why: String },
    Busy,
}

impl Datagram {
    /// A refusal, cut to [`MAX_TEXT`] bytes.
    pub fn refused(why: &str) -> Datagram {
        let end = (0..=MAX_TEXT.min(why.len())).rev().find(|&at| why.is_char_boundary(at)).unwrap_or(0);
        Datagram::Refused { why: why[..end].to_owned() }
    }

    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("numbers and texts can be written")
    }

    /// Decodes a datagram. `None`: it is none of this protocol.
    pub fn decode(bytes: &[u8]) -> Option<Datagram> {
        let (datagram, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(datagram)
    }
}
