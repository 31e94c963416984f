//! Keys, tickets and proofs: how a process proves to another one which rank of the job it is.
//!
//! The job's secret is known to all ranks, so it proves only that a process belongs to the job. Which rank it is, it
//! proves by a key that the launcher makes for two ranks at a time:
//!
//! ```text
//! master (launcher)
//!   └─ host key      MAC(master, "udeck host", first rank of the host)       goes to the host's node by its agent's input
//!        ├─ control key      MAC(host key, "udeck trunk")         of the connection between launcher and node
//!        └─ rank key MAC(host key, "udeck rank", rank)                       goes to the rank with its welcome
//!             ├─ accept key  MAC(rank key, "udeck accept")
//!             │    └─ ticket of r for s   MAC(accept key of s, "udeck ticket", r)
//!             └─ seal        MAC(rank key, "udeck seal", s)      hides a ticket for s on its way to the rank
//! job key            MAC(secret, "udeck job")                    of connections on which no rank is claimed
//!   └─ reset key       MAC(job key, "udeck reset", address)          of QUIC's stateless resets from that address
//! ```
//!
//! Rank `r` gets its ticket for `s` from the launcher when it looks up a name of `s`; the launcher knows who asks by the
//! connection. `s` computes the same ticket from its own key and the number that `r` claims, so it asks nobody. In the
//! hand-shake each side proves, by a MAC over everything both have said, that it knows the ticket. So a rank can pose neither
//! as another caller nor as another callee.
//!
//! This crate has the keys, the proofs, and a stream for connections that are no VIs. The hand-shakes of VIs
//! belong to the transports (`udeck-session`'s admission, shm, udp).
//!
//! | file | what it is |
//! |---|---|
//! | here | keys, from the launcher's to a ticket |
//! | `keys` | the keys of a NIC and of a connection: [`Keys`], [`Pair`] |
//! | `stream` | proofs of both sides, then sealed frames: [`SecureStream`] |
//! | `deadline_stream` | one deadline for all reads and writes of a TCP stream: [`DeadlineStream`] |

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod deadline_stream;
mod keys;
mod stream;

use std::{fmt, io};

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

pub use deadline_stream::DeadlineStream;
pub use keys::{Claim, Keys, NoTicket, NotMe, Pair};
pub use stream::{Protocol, SecureStream, StreamError};

/// The bytes of a key or of a proof.
type Bytes = [u8; 32];
/// An HMAC-SHA-256 that shows knowledge of a key.
pub type Proof = Bytes;
/// A random number that nobody could foresee.
pub type Nonce = Bytes;

/// HMAC-SHA-256 over a label and parts. Each is preceded by its length, so two different lists of parts never give the same
/// bytes.
pub fn mac(key: &[u8; 32], label: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut hmac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in std::iter::once(label.as_bytes()).chain(parts.iter().copied()) {
        hmac.update(&(part.len() as u64).to_le_bytes());
        hmac.update(part);
    }
    hmac.finalize().into_bytes().into()
}

/// Compares two proofs in a time that does not depend on where they differ.
pub fn is_same(one: &Proof, other: &Proof) -> bool {
    use subtle::ConstantTimeEq;
    bool::from(one.ct_eq(other))
}

/// The launcher's own key. Only a job's launcher knows it, and all other keys follow from it.
#[derive(Clone, PartialEq, Eq)]
pub struct Master(Bytes);

impl Master {
    /// Draws a fresh master key.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn draw() -> io::Result<Master> {
        let mut master = [0; 32];
        getrandom::fill(&mut master)?;
        Ok(Master(master))
    }

    /// The key of the host whose ranks begin with `first`.
    pub fn host(&self, first: u32) -> HostKey {
        HostKey(mac(&self.0, "udeck host", &[&first.to_le_bytes()]))
    }
}

/// The key of a host's node. The keys of its own ranks follow from it, and no others.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostKey(Bytes);

impl HostKey {
    /// Any bytes are one.
    pub fn from_bytes(bytes: [u8; 32]) -> HostKey {
        HostKey(bytes)
    }

    /// The key of one of the host's ranks.
    pub fn rank(&self, rank: u32) -> RankKey {
        RankKey(mac(&self.0, "udeck rank", &[&rank.to_le_bytes()]))
    }

    /// The key of the connection between the launcher and the host's node. It follows from nothing that a rank is told.
    pub fn control_key(&self) -> ControlKey {
        ControlKey(mac(&self.0, "udeck trunk", &[]))
    }
}

/// The key that the launcher and one host's node share. No rank and no other node knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ControlKey(Bytes);

impl ControlKey {
    /// Any bytes are one.
    pub fn from_bytes(bytes: [u8; 32]) -> ControlKey {
        ControlKey(bytes)
    }

    /// The key's bytes, for a [`SecureStream`].
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// A rank's own key. Only the rank and the processes that started it know it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankKey(Bytes);

impl RankKey {
    /// A placeholder where the key must not be read.
    pub const BLANK: RankKey = RankKey([0; 32]);

    fn ticket_of(&self, caller: u32) -> Ticket {
        let accept = mac(&self.0, "udeck accept", &[]);
        Ticket(mac(&accept, "udeck ticket", &[&caller.to_le_bytes()]))
    }

    fn seal(&self, callee: u32, Ticket(bytes): Ticket) -> Bytes {
        let seal = mac(&self.0, "udeck seal", &[&callee.to_le_bytes()]);
        std::array::from_fn(|at| bytes[at] ^ seal[at])
    }
}

/// The key that two ranks share for connections that one of them asks the other for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ticket(Bytes);

/// A ticket on its way to its rank, which alone can open it, whatever connections it crosses.
///
/// One seal hides one ticket only, so an eavesdropper who sees both learns nothing of either.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedTicket(Bytes);

impl SealedTicket {
    /// The ticket of rank `caller.0` for rank `callee.0`, with the keys of both.
    pub fn new(caller: (u32, &RankKey), callee: (u32, &RankKey)) -> SealedTicket {
        SealedTicket(caller.1.seal(callee.0, callee.1.ticket_of(caller.0)))
    }

    fn open(&self, own: &RankKey, callee: u32) -> Ticket {
        Ticket(own.seal(callee, Ticket(self.0)))
    }
}

/// Implements `Debug` without the key: what is printed ends up in logs.
macro_rules! hidden {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    )*};
}

hidden!(Master, HostKey, ControlKey, RankKey, Ticket, SealedTicket);

#[cfg(test)]
mod tests;
