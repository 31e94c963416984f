//! Transport over UDP: a NIC that reaches other hosts through one UDP socket. QUIC encrypts and authenticates everything.
//!
//! **Connections.** Two NICs share one QUIC connection (RFC 9000, by quinn-proto). Each VI has a stream of this
//! connection. `udeck-session` defines what the stream carries. QUIC does loss recovery, congestion control, path
//! MTU discovery and encryption.
//!
//! **Threads.** The thread that polls a completion queue reads the socket, for all connections, and sleeps beside the socket. The
//! NIC's one helper thread does the same while no other thread polls. Posts transmit on the calling thread. No call on the
//! socket blocks.
//!
//! **Unreliable VIs** send their messages in QUIC datagrams (RFC 9221). Their stream carries the rest: connection
//! set-up, credits, the end, and reports of lost messages. Such a message is never retransmitted. The receiver drops
//! and counts incomplete messages ([`Dropped`]).
//!
//! **End of a connection.** Streams end as `udeck-session` defines. A peer that answers nothing for
//! [`Options::detect`] is lost. A stopped process cannot answer: over TCP its kernel acknowledges in its place, over
//! UDP nothing does. If the peer is on this host, the kernel says whether its process and its socket still exist
//! (`liveness`).
//!
//! | file | what it is |
//! |---|---|
//! | `tls` | keys, and the configuration of QUIC |
//! | `wire` | messages of the control stream; fragments of unreliable messages |
//! | `core` | shared state of the NIC's objects: socket, endpoint, peers, links |
//! | `peer` | a QUIC connection and its streams; it has its own table of files |
//! | `peer_table` | the NIC's QUIC connections, and the choice among them |
//! | `connect`, `incoming` | the two sides of a connection request |
//! | `unauthenticated` | bounds for unauthenticated callers |
//! | `driver` | moves a VI's frames through its stream |
//! | `unreliable`, `reassembly`, `range_set`, `dropped` | messages of unreliable VIs, in datagrams |
//! | `buffer_pool` | memory for long runs of bytes that QUIC holds |
//! | `send_meter` | bytes that QUIC has in flight and unsent, where service levels have shares |
//! | `timers` | the timer queue of the NIC |
//! | `completion_queue`, `waiter`, `socket_wait` | completion queues, and how threads sleep beside the socket |
//! | `helper` | the NIC's helper thread |
//! | `options`, `device`, `socket` | the NIC, and its socket |
//! | `liveness` | whether a silent peer of this host still exists |
//! | `icmp` | ICMP port unreachable messages for datagrams that were sent |
//!
//! # Trust
//! A caller proves its address by a Retry before the NIC keeps any state for it. Until it has authenticated itself,
//! it has little time and memory. Both sides authenticate over this TLS session before anything else of them is
//! read. From then on everything is encrypted and authenticated (TLS 1.3). An attacker on the path can delay and
//! drop packets, and sees their number and length. It can also end a connection: the NIC believes an ICMP port
//! unreachable message that quotes a connection id which was sent there. A rank of the job that sees a connection id
//! can make a stateless reset.

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod buffer_pool;
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
mod liveness;
mod options;
mod path_mtu;
mod peer;
mod peer_table;
mod range_set;
mod reassembly;
mod send_meter;
mod socket;
#[cfg(test)]
mod socket_fault;
mod socket_wait;
#[cfg(test)]
mod tests;
mod timers;
mod tls;
mod unauthenticated;
mod unreliable;
mod waiter;
mod wire;

use std::net::Ipv4Addr;

use udeck_via::{Error, Nic, Result};

pub use dropped::Dropped;
pub use options::Options;
pub use path_mtu::needed as least_mtu;
pub use udeck_session::{Levels, Memory, Source};

/// Opens a UDP NIC of this process, `udp0`.
///
/// # Errors
/// [`udeck_via::Error::InvalidParameter`] when `bind` is no interface's address; the operating system's.
pub fn open(options: &Options) -> Result<Nic> {
    Ok(Nic::new(device::open(options)?))
}

/// Offloads of the kernel, and instructions of the processor, that this transport uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// Generic segmentation offload: one system call sends a batch of datagrams. A network device may still refuse
    /// it; then each datagram has a call of its own.
    pub gso: bool,
    /// Generic receive offload: the kernel joins datagrams of one sender into a longer message.
    pub gro: bool,
    /// Instructions for AES. Without them connections are encrypted by ChaCha20-Poly1305.
    pub aes: bool,
}

/// Finds the offloads of the kernel, by a socket, and of the processor.
///
/// # Errors
/// The operating system's: no socket can be opened.
pub fn offloads() -> Result<Offloads> {
    let (socket, _) = socket::Socket::bind((Ipv4Addr::LOCALHOST, 0).into())
        .map_err(|error| Error::os("opening a socket at 127.0.0.1", error))?;
    let (gso, gro) = socket.offloads();
    Ok(Offloads { gso, gro, aes: tls::has_aes() })
}
