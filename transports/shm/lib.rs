//! Transport over shared memory, between processes of one host.
//!
//! Each connection has one sealed *control* segment with a ring each way. Each process has one *outbox* (we write,
//! peers read: hand-off comes from here), one *landing* arena (peers RDMA-write) and one *board* (doorbells and
//! windows). A *peer socket* is the Unix socket between two processes over which segments and connection requests
//! travel. Its end, or the death of the process behind it, ends every connection made over it.
//!
//! | file | what it is |
//! |---|---|
//! | `device` | the NIC: opens peer sockets, listens, connects |
//! | `peer_socket`, `handshake`, `peer_socket_wire` | two processes meet, prove who they are, exchange segments |
//! | `connection`, `layout` | the shared memory of one connection, and who holds which lent buffer |
//! | `endpoint`, `cell` | the two work queues of a VI on it |
//! | `waiter` | completion queues: polls the busy rings, finds the others by their doorbell, sleeps |
//! | `board`, `arenas` | windows and doorbells; outbox and landing memory |
//! | `space` | bounds of the address space that peers' arenas take |
//! | `revoking` | windows that are revoked while a peer is inside |
//!
//! Threads: the reactor handles peer sockets; endpoints and waiters run on the program's threads. Processes share no
//! lock, so no holder can die with one: rings, doorbells and windows (`udeck-sys`) are lock-free.

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

/// Options of [`open`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Keys by which this process proves that it belongs to the job, and which rank it is. Only peers that can do
    /// the same are admitted.
    pub keys: Keys,
    /// Upper bound in bytes of the outbox, and of the landing arena. Both are reserved as address space and take
    /// memory from the kernel as needed.
    pub arena_limit: usize,
    /// Arenas that another device of this process uses, too. If given, `arena_limit` bounds only the length of a message.
    pub arenas: Option<Arenas>,
    /// Whether admitted peers are trusted not to write memory that they gave away (SAFETY.md). If not, there is no
    /// hand-off and no RDMA, and every message is copied before the program sees it.
    pub trusting: bool,
}

impl Options {
    /// Options with trust, and arenas of half of the machine's memory each, at most 4 GiB.
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
