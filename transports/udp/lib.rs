//! UDP: a NIC whose VIs reach other hosts, all through one socket.
//!
//! **A stream of our own for each VI.** The parts without I/O turn datagrams, which networks lose, double, reorder, spoil
//! and hold up, into what a Virtual Interface promises: [`flow`] into reliable streams, [`pieces`] into messages that arrive
//! whole or not at all. They have no socket, clock, thread or lock: `(now, input) -> actions`. What streams carry is
//! `udeck-session`'s; bytes are sent, and sent again, from where they lie, by way of the buffer that is given to the kernel.
//!
//! **Who does the work.** The thread that polls a completion queue reads the socket itself, for all; it parks beside it.
//! While nobody looks, the NIC's one helper thread does it. Posts send by themselves. No call on the socket ever waits.
//!
//! **Unreliable VIs** send their messages in datagrams of their own, beside the stream, which keeps the rest: set-up, credits,
//! the end, whether the peer is there. Such a message is never sent again; the receiver drops what is not whole, and counts it
//! ([`Dropped`]). Pieces are acknowledged with the stream's packets, for the sender's speed only (RFC 9221); that a message
//! will not come is told by the stream.
//!
//! **The end.** Streams end as `udeck-session` says; then the connection is closed, and who has not heard that is told when it
//! goes on. Whoever is silent for [`Options::detect`], although asked, is taken for dead. A process that is stopped for so
//! long cannot answer: unlike over TCP, nobody does it in its place. On this host, the kernel is asked whether it is there.
//!
//! | file | what it is |
//! |---|---|
//! | `wire` | every datagram's first 16 bytes, the checksum, and what follows for each kind |
//! | `flow` | a reliable, ordered stream of bytes |
//! | `pieces` | messages in datagrams, each whole and at most once or not at all |
//! | `greeting` | proofs of who one is, cookies against forged addresses |
//! | `calls`, `door`, `incoming` | the two sides of a connection request |
//! | `asked`, `shares` | requests that may come again; who has most of what is scarce |
//! | `versions` | callers that speak another version |
//! | `core` | what the NIC's objects share: who reads the socket, its links |
//! | `driver` | a link's two streams in datagrams |
//! | `unreliable` | messages of unreliable VIs, beside the stream |
//! | `timers`, `strays`, `tombs` | who wants to be called; what waits for its link; connections that are over |
//! | `completion_queue`, `waiter`, `rest` | completion queues, and who sleeps beside the socket |
//! | `helper` | the thread that works while nobody looks |
//! | `device`, `socket` | the NIC, its socket |
//! | `neighbours` | whether a silent peer on this host is there |
//! | `icmp` | what the network says of datagrams that were sent |
//!
//! # Trust
//! Who calls proves who it is, and that it is where it says, before anything is kept of it; so does who answers. From
//! then on a datagram finds its connection by 64 random bits that only the two ends know, and carries a CRC-32C over all of
//! it. That keeps out what strangers send and what links spoil. It does not keep out who reads the network. ICMP messages
//! are believed only where they quote those bits: that a peer's port is closed, and how long a datagram its path carries.

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod asked;
mod calls;
mod completion_queue;
mod core;
mod device;
mod door;
mod driver;
#[cfg(test)]
mod fixture;
pub mod flow;
mod greeting;
mod helper;
#[cfg(test)]
mod hostile;
mod icmp;
mod incoming;
mod neighbours;
pub mod pieces;
#[cfg(test)]
mod refusing;
mod rest;
mod shares;
mod socket;
mod strays;
mod timers;
mod tombs;
mod unreliable;
mod versions;
mod waiter;
pub mod wire;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

pub use udeck_session::{Memory, Source};
use udeck_via::auth::Keys;
use udeck_via::{Nic, Result};
pub use unreliable::Dropped;

/// How to open the device.
#[derive(Debug, Clone)]
pub struct Options {
    /// What this process proves by that it is of the job, and which of its ranks: only who does is let in.
    pub keys: Keys,
    /// Where messages are sent from, and where peers write.
    pub memory: Source,
    /// The address of its socket, which peers are given: of one interface, never of all. Port 0: a free one.
    pub bind: SocketAddr,
    /// How long a peer may be silent before it is taken for dead.
    pub detect: Duration,
    /// Longest datagram to try, as UDP payload in bytes; what the path does not carry is found out.
    pub max_datagram: usize,
    /// Counts what is dropped of unreliable messages.
    pub dropped: Arc<Dropped>,
}

impl Options {
    /// Within this host, with memory of its own (1 GiB of address space each way); a silent peer is dead after ten seconds;
    /// datagrams as long as jumbo frames carry.
    pub fn new(keys: impl Into<Keys>) -> Self {
        Options {
            keys: keys.into(),
            memory: Source::Fresh(1 << 30),
            bind: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            detect: Duration::from_secs(10),
            max_datagram: 8952,
            dropped: Arc::default(),
        }
    }
}

/// Opens a UDP NIC of this process, `udp0`.
///
/// # Errors
/// [`udeck_via::Error::InvalidParameter`] when `bind` is no interface's address; the operating system's.
pub fn open(options: &Options) -> Result<Nic> {
    Ok(Nic::new(device::open(options)?))
}
