//! InfiniBand, RoCE and iWARP: a NIC whose VIs are queue pairs, through `libibverbs`.
//!
//! The library is found when the program runs ([`ffi`](self): `libibverbs.so.1`, or the file that `DECK_VERBS_LIBRARY` names). A
//! build needs nothing of it. Without it, or without a device with an active port, [`open`] says
//! [`Unavailable`](udeck_via::Error::Unavailable) and why.
//!
//! | VIA | here |
//! |---|---|
//! | VI | a reliable-connection queue pair (RC), receive buffers out of a pool |
//! | completion queue | completion queues of the NIC, taken by whoever looks; a completion channel to sleep on |
//! | protection tag | a protection domain |
//! | window | a memory region with exactly its rights, made when a peer first asks for it |
//! | RDMA write, with immediate data; RDMA read; fence | the device's own |
//! | unreliable delivery | an unreliable-connection queue pair (UC) for messages and RDMA writes, beside a reliable one for the control frames and for reading what was offered; where the device makes none, RC |
//! | reliable reception | receipts, given by the program that receives; behind a write a frame asks for one |
//!
//! **Messages.** Up to 48 bytes travel in a frame and are copied out of it; up to about 4,000 in a frame, gathered by the device from where they lie, and
//! copied once at the receiver; longer ones stay where they lie and are *offered*: the receiver's engine reads them by RDMA
//! into a block of its own, which the program is lent. No software copies those. Of an unreliable VI what may be lost is the
//! offer, not the bytes; that the network loses something it notices, and counts it
//! ([`udeck_via::Nic::messages_dropped`]; `connection::unreliable`).
//!
//! **Connections** are agreed on over TCP at the NIC's address (`udeck_session::admission`: both sides prove who they are). That
//! socket stays open as the connection's *out-of-band connection*: by its end a process that was killed is noticed at once, and it carries
//! what a queue pair in error cannot say any more. A host that is cut off is noticed by the device (its retries are exhausted)
//! and by keep-alive probes of the out-of-band connection.
//!
//! The queue pairs are joined by what both sides have told there, or through rdma_cm, which iWARP needs (`connect_method`).
//!
//! **Who does the work.** The thread that polls takes completions of all links; it parks beside the completion channel. While
//! nobody looks, the NIC's one helper thread does it.
//!
//! **Memory.** Whoever looks copies a frame out of the buffer that it came to, so buffers are needed only from its arrival to that
//! look. Connections share them, up to `DECK_VERBS_RECEIVES` for a NIC: what finds none is sent again by the sender's device,
//! until somebody has looked; no program is waited for. On devices without shared receive queues each connection has its own.
//!
//! **Trust.** The device keeps peers to their tags and rights. A peer that was let in reads the outbox as processes of one
//! host do; it can write nothing but windows. What it says is decoded as if it were hostile.
//!
//! | file | what it is |
//! |---|---|
//! | `ffi` | the library: its structures, its numbers, how it is loaded |
//! | `hca` | which device, port and address; the library's objects |
//! | `options`, `settings` | how a NIC is opened; `DECK_VERBS_…` |
//! | `device`, `core` | the NIC; what its objects share |
//! | `incoming`, `qp_address` | a request; what both sides tell of their queue pairs |
//! | `connect_method`, `cm` | how queue pairs are joined: by what was told, or through rdma_cm |
//! | `connection`, `wire` | the protocol over a queue pair, without a device; its frames |
//! | `recv_buffers` | receive buffers: the pool of a domain (a shared receive queue), or a connection's own |
//! | `queue`, `domain`, `windows` | queue pairs; protection domains; windows |
//! | `completions` | completion queues |
//! | `link`, `oob`, `endpoint` | a connection, its queue pair and its socket behind one lock; the VI layer's side |
//! | `completion_queue`, `waiter` | the program's completion queues |
//! | `helper` | the thread that works while nobody looks |
//! | `describe` | what is chosen, in words |
//! | `memory` | bodies of received messages |

#![allow(unsafe_code, reason = "it calls the C library libibverbs, and implements the transport contract")]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod cm;
mod completion_queue;
mod completions;
mod connect_method;
mod connection;
mod core;
mod describe;
mod device;
mod domain;
mod endpoint;
mod ffi;
mod hca;
mod helper;
mod incoming;
mod link;
mod locks;
mod memory;
mod oob;
mod options;
mod qp_address;
mod queue;
mod recv_buffers;
mod settings;
#[cfg(test)]
mod tests;
mod waiter;
mod windows;
mod wire;

pub use describe::describe;
pub use options::{Options, Source};
pub use settings::{Connect, Settings};
pub use udeck_session::Memory;
use udeck_via::{Nic, Result};

/// Opens a verbs NIC of this process, `verbs0`.
///
/// # Errors
/// [`udeck_via::Error::Unavailable`] when this host has no library, no device or no active port;
/// [`udeck_via::Error::InvalidParameter`] when `bind` is no interface's address or a setting names what does not exist; the
/// operating system's.
pub fn open(options: Options) -> Result<Nic> {
    Ok(Nic::new(device::VerbsDevice::open(options)?))
}
