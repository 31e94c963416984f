//! One-sided operations as messages of a virtual interface: the common part of uDAPL's provider and `vipl.h`.
//!
//! The book has the engine's contract (`docs/internals/rdma-engine.md`). A face (uDAPL, VIPL) has the objects, states and codes of its
//! standard, and uses:
//!
//! | file | what it is |
//! |---|---|
//! | `face.rs` | what a face writes for itself: its types, its memory's rules, its completions |
//! | `queue_pair.rs` | an end point's posted operations: sent in order, fenced, completed in order |
//! | `queue_pair/matching.rs`, `held.rs` | arrivals, which find their receives; messages that wait for one |
//! | `held_bytes.rs` | the bound of such messages over a NIC |
//! | `queue_pair/flush.rs` | the end of a connection |
//! | `frame.rs` | the wire format between the two ends of a connection |
//! | `link.rs` | frames that go to the peer, and answers to the peer's reads |
//! | `memory.rs` | registered memory, by keys |
//! | `ring.rs` | the queue that receives go through |
//! | `progress.rs`, `bell.rs` | the threads that move the end points of a NIC on, and how threads wait together |

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod bell;
mod face;
pub mod frame;
mod held_bytes;
mod link;
pub mod memory;
mod progress;
mod queue_pair;
mod ring;

pub use bell::Bell;
pub use face::{End, Face, Outcome, Request};
pub use held_bytes::{HeldBytes, MAX_HELD_BYTES};
pub use link::INLINE;
pub use progress::{MAX_WAIT, MoveOn, Progress};
pub use queue_pair::QueuePair;
pub use ring::Ring;

/// Longest message of a program's, in bytes.
pub const MAX_TRANSFER: usize = 64 << 20;
/// Bytes reserved before a message's own: for a head, and for the address and key of a write.
const RESERVED: usize = 4096;

/// Longest message over this NIC, in bytes.
pub fn max_transfer(nic: &udeck_via::Nic) -> usize {
    nic.attributes().max_transfer.saturating_sub(RESERVED).min(MAX_TRANSFER)
}
