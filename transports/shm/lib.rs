//! Shared memory between processes of one host.
//!
//! Per connection one sealed *control* segment with a ring each way; per process one *outbox* (we write, peers
//! read: hand-off comes from here), one *landing* (peers RDMA-write) and one *board* (doorbells and windows). A *peer socket*
//! is the Unix socket between two processes over which segments and connection requests travel; its end, or the
//! death of the process behind it, ends every connection made over it.
//!
//! | file | what it is |
//! |---|---|
//! | `device` | the NIC: opens peer sockets, listens, connects |
//! | `peer_socket`, `handshake`, `peer_socket_wire` | two processes meet, prove who they are, exchange segments |
//! | `connection`, `layout` | the shared memory of one connection, and who holds which lent buffer |
//! | `endpoint`, `cell` | the two work queues of a VI on it |
//! | `waiter` | completion queues: polls the busy rings, finds the others by their doorbell, sleeps |
//! | `board`, `arenas` | windows and doorbells; outbox and landing memory |
//! | `space` | how much address space the arenas of peers may take |
//! | `revoking` | windows that are taken back while a peer is inside |
//!
//! Threads: the reactor handles peer sockets; endpoints and waiters run on the program's threads. No shared lock has a holder
//! that can die: what processes share are rings, doorbells and windows (`udeck-sys`), all lock-free.

#![allow(unsafe_code, reason = "it implements the transport contract over memory that other processes write")]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod arenas;
mod board;
mod cell;
mod connection;
mod device;
mod endpoint;
mod handshake;
mod layout;
mod peer_socket;
mod peer_socket_wire;
mod revoking;
mod space;
mod waiter;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use udeck_sys::reactor::Reactor;
use udeck_via::auth::Keys;
use udeck_via::{Nic, Result};

pub use arenas::{Arenas, default_limit as default_arena_limit};

/// How to open the device.
#[derive(Debug, Clone)]
pub struct Options {
    /// What this process proves by that it is of the job, and which of its ranks: only who does is let in.
    pub keys: Keys,
    /// Most memory that messages of this process may take, and most that peers may write, in bytes each. Reserved
    /// as address space, taken from the kernel as needed.
    pub arena_limit: usize,
    /// Memory that another device of this process has too: then `arena_limit` says only how long a message may be.
    pub arenas: Option<Arenas>,
    /// Whether admitted peers are trusted not to write memory that they gave away (SAFETY.md). If not, there is no
    /// hand-off and no RDMA, and everything is copied before it is shown.
    pub trusting: bool,
}

impl Options {
    /// Trusting, with arenas of half of the machine's memory, at most 4 GiB each.
    pub fn new(keys: impl Into<Keys>) -> Self {
        Options { keys: keys.into(), arena_limit: arenas::default_limit(1), arenas: None, trusting: true }
    }
}

/// Opens the shared-memory NIC of this process. `reactor` runs its peer sockets.
///
/// # Errors
/// The operating system's: no descriptors, no address space, no memfd.
pub fn open(options: Options, reactor: Arc<Reactor>) -> Result<Nic> {
    Ok(Nic::new(device::ShmDevice::open(options, reactor)?))
}
