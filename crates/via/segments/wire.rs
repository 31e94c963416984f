//! Datagrams between the maker of a segment and who asks for it, by postcard. Decoded as if the other side were hostile.
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

/// Of the datagrams, and of what lies in a segment.
pub(crate) const VERSION: u32 = 2;
/// Longest datagram: of members of a host with as many ranks as a job may have.
pub(crate) const MAX_DATAGRAM: usize = 32 << 10;
/// Longest text, in bytes.
const MAX_TEXT: usize = 512;

/// What a segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Data that all use by elements.
    Elements,
    /// Data of whoever has the lock.
    Locked,
    /// A semaphore; its length is how many permits it has at first.
    Semaphore,
}

/// What a segment is: as its maker made it, or as a member wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Its name.
    pub name: String,
    /// Which segment of that name: the first is 0.
    pub round: u64,
    /// What it is for.
    pub purpose: Purpose,
    /// The type of its elements, by the compiler's name.
    pub kind: String,
    /// Bytes of an element.
    pub size: u32,
    /// How many elements.
    pub len: u64,
    /// The ranks that share it, in their order.
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
    /// A refusal, cut to what fits.
    pub fn refused(why: &str) -> Datagram {
        let end = (0..=MAX_TEXT.min(why.len())).rev().find(|&at| why.is_char_boundary(at)).unwrap_or(0);
        Datagram::Refused { why: why[..end].to_owned() }
    }

    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("numbers and texts can be written")
    }

    /// `None`: it is none of ours.
    pub fn decode(bytes: &[u8]) -> Option<Datagram> {
        let (datagram, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(datagram)
    }
}
