//! Transport over InfiniBand, RoCE and iWARP: a NIC whose VIs are queue pairs, through `libibverbs`.
//!
//! The library is loaded when the program runs ([`ffi`](self): `libibverbs.so.1`, or the file that
//! `DECK_VERBS_LIBRARY` names). A build needs nothing of it. Without it, or without a device with an active port,
//! [`open`] returns [`Unavailable`](udeck_via::Error::Unavailable) and the reason.
//!
//! | VIA | here |
//! |---|---|
//! | VI | a reliable-connection queue pair (RC), receive buffers out of a pool |
//! | completion queue | completion queues of the NIC, polled by any thread; a completion channel to sleep on |
//! | protection tag | a protection domain |
//! | window | a memory region with exactly its rights, made when a peer first asks for it |
//! | RDMA write, with immediate data; RDMA read; fence | the device's own |
//! | unreliable delivery | an unreliable-connection queue pair (UC) for messages and RDMA writes, beside a reliable one for the control frames and for reading offers; RC where the device makes no UC |
//! | reliable reception | receipts, given by the program that receives; behind a write a frame asks for one |
//!
//! **Messages.** Up to 48 bytes travel in a frame and are copied out of it. Up to about 4,000 bytes travel in a
//! frame, too: the device gathers them from where they lie, and they are copied once at the receiver. Longer
//! messages stay where they lie and are *offered*: the receiver's engine reads them by RDMA into a block of its own,
//! which is lent to the program. No software copies those. For an unreliable VI the offer may be lost, but not the
//! bytes. A loss in the network is noticed and counted ([`udeck_via::Nic::messages_dropped`];
//! `connection::unreliable`).
//!
//! **Connections** are agreed on over TCP at the NIC's address (`udeck_session::admission`: both sides prove their
//! identity). That socket stays open as the connection's *out-of-band connection*. By its end a killed process is
//! noticed at once, and it carries the reports that a queue pair in error can no longer send. A host that is cut off
//! is noticed by the device (its retries are exhausted) and by keep-alive probes of the out-of-band connection.
//!
//! The queue pairs are joined by parameters that both sides exchange there, or through rdma_cm, which iWARP needs
//! (`connect_method`).
//!
//! **Who does the work.** The thread that polls takes completions of all links; it parks beside the completion
//! channel. While no thread polls, the NIC's one helper thread does it.
//!
//! **Memory.** The polling thread copies a frame out of its receive buffer, so a buffer is in use only from the
//! frame's arrival to that poll. Connections share the buffers, up to `DECK_VERBS_RECEIVES` for a NIC. The sender's
//! device sends a frame again that finds no buffer, until some thread has polled; no program is waited for. On
//! devices without shared receive queues each connection has its own buffers.
//!
//! **Trust.** The device keeps peers to their tags and rights. An admitted peer can read the outbox, as processes of
//! one host can; it can write only windows. Its frames are decoded as if it were hostile.
//!
//! | file | what it is |
//! |---|---|
//! | `ffi` | the library: its structures, its numbers, how it is loaded |
//! | `hca` | choice of device, port and address; the library's objects |
//! | `options`, `settings` | options of a NIC; `DECK_VERBS_…` |
//! | `device`, `core` | the NIC; shared state of its objects |
//! | `incoming`, `qp_address` | a connection request; the addresses of queue pairs that both sides exchange |
//! | `connect_method`, `cm` | how queue pairs are joined: by exchanged parameters, or through rdma_cm |
//! | `connection`, `wire` | the protocol over a queue pair, without a device; its frames |
//! | `recv_buffers` | receive buffers: the pool of a domain (a shared receive queue), or a connection's own |
//! | `queue`, `domain`, `windows` | queue pairs; protection domains; windows |
//! | `completions` | completion queues |
//! | `link`, `oob`, `endpoint` | a connection, its queue pair and its socket behind one lock; the VI layer's side |
//! | `completion_queue`, `waiter` | the program's completion queues |
//! | `helper` | the thread that works while no other thread polls |
//! | `describe` | the chosen device, as text |
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
