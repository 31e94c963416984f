//! UDP: a NIC whose VIs reach other hosts, all through one socket, encrypted and authenticated by QUIC.
//!
//! **One QUIC connection for each pair of NICs** (RFC 9000, by quinn-proto), a stream of it for each VI. What streams carry is
//! `udeck-session`'s. Loss, congestion, path MTU and encryption are QUIC's.
//!
//! **Who does the work.** The thread that polls a completion queue reads the socket itself, for all; it parks beside it.
//! While nobody looks, the NIC's one helper thread does it. Posts send by themselves. No call on the socket ever waits.
//!
//! **Unreliable VIs** send their messages in QUIC datagrams (RFC 9221), beside the stream, which keeps the rest: set-up,
//! credits, the end, what was lost. Such a message is never sent again; the receiver drops what is not whole, and counts it
//! ([`Dropped`]).
//!
//! **The end.** Streams end as `udeck-session` says. Whoever is silent for [`Options::detect`], although asked, is taken for
//! dead. A process that is stopped for so long cannot answer: unlike over TCP, nobody does it in its place. On this host, the
//! kernel is asked whether it is there.
//!
//! | file | what it is |
//! |---|---|
//! | `tls` | keys, and how QUIC is configured |
//! | `wire` | what is said on the control stream; pieces of unreliable messages |
//! | `core` | what the NIC's objects share: who reads the socket, its peers, its links |
//! | `peer` | a QUIC connection and its streams, with a guide of its own |
//! | `connect`, `incoming` | the two sides of a connection request |
//! | `unproven` | callers that have not proved who they are: how many are kept |
//! | `driver` | a VI's stream |
//! | `unreliable`, `pieces`, `ranges`, `dropped` | messages of unreliable VIs, beside the stream |
//! | `timers` | who wants to be called |
//! | `completion_queue`, `waiter`, `rest` | completion queues, and who sleeps beside the socket |
//! | `helper` | the thread that works while nobody looks |
//! | `options`, `device`, `socket` | the NIC, its socket |
//! | `neighbours` | whether a silent peer on this host is there |
//! | `icmp` | what the network says of datagrams that were sent |
//!
//! # Trust
//! Who calls shows that it receives where it says before anything is kept of it (Retry), and then has little time and room. Both sides prove who they are, over
//! this TLS session, before anything else of them is heard. From then on all is encrypted and authenticated (TLS 1.3). Who
//! controls the path can hold up and lose packets, and sees how many there are and how long. It can also end a connection: one ICMP message is
//! believed, that a peer's port is closed, where it quotes a connection id of what was sent there; and a rank of the job that sees
//! such an id can make a stateless reset.

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod completion_queue;
mod connect;
mod core;
mod device;
mod driver;
mod dropped;
#[cfg(test)]
mod fixture;
mod helper;
mod icmp;
mod incoming;
mod neighbours;
mod options;
mod peer;
mod pieces;
mod ranges;
#[cfg(test)]
mod refusal;
#[cfg(test)]
mod refusing;
mod rest;
mod socket;
#[cfg(test)]
mod tests;
mod timers;
mod tls;
mod unproven;
mod unreliable;
mod waiter;
mod wire;

use udeck_via::{Nic, Result};

pub use dropped::Dropped;
pub use options::Options;
pub use udeck_session::{Memory, Source};

/// Opens a UDP NIC of this process, `udp0`.
///
/// # Errors
/// [`udeck_via::Error::InvalidParameter`] when `bind` is no interface's address; the operating system's.
pub fn open(options: &Options) -> Result<Nic> {
    Ok(Nic::new(device::open(options)?))
}
