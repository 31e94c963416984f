//! Transport over TCP: a NIC whose VIs reach other hosts.
//!
//! **One TCP connection for each VI.** A VI's stream then waits for no other VI: a message that finds no memory, or
//! a slow receiver, holds up its own VI only. The kernel itself finds the socket with news, reads go straight into
//! the posted buffer, and a connection's own socket reports how the connection ends. The price for each VI is a
//! descriptor, about 4 KiB of the kernel's memory at each end, and a set-up of two round trips. Nothing goes back on
//! a mailbox's connections, so no answer carries TCP's acknowledgements: `deferred_ack` keeps the program from
//! waiting for them.
//!
//! **Who does the work.** The thread that polls a completion queue reads its sockets itself: the one that was busy
//! last by a plain `recv`, the others as epoll names them. It parks in epoll. Spinning never involves a second
//! thread. While no thread polls, the NIC's one helper thread does the work: it sleeps until something comes for
//! such a queue. Posts write to the socket themselves. Data that the kernel does not take, or that the peer has no
//! room for, are written when there is room, by any thread that polls this completion queue or another
//! (`send_blocked`). No call on a socket ever waits.
//!
//! **Trust.** Both sides of every connection prove their identity before anything else is read, and strangers get
//! five seconds and very little memory ([`udeck_session::admission`]). `udeck-session` also checks the frames that
//! follow. TCP does not protect against somebody on the network in between, who may read and change the data.
//!
//! **The end.** An End frame goes before the FIN, so that an orderly end can be told from a death. When both sides have
//! sent theirs, the socket is reset instead of closed: there is nothing left to protect, and no TIME_WAIT stays. A process
//! that is killed is noticed at once, by its kernel's FIN or reset; a host that is cut off, within [`Options::detect`], by
//! keep-alive probes while idle and by missing acknowledgements otherwise (`liveness`). A process that is stopped is not dead:
//! its kernel answers.
//!
//! | file | what it is |
//! |---|---|
//! | `options` | how a NIC is opened |
//! | `device` | the NIC: windows, listeners, requests |
//! | `core` | shared state of the NIC's objects: its links, its completion queues |
//! | `incoming` | connection requests that wait for an answer |
//! | `deferred_ack` | short messages are acknowledged after the program has answered them |
//! | `driver` | moves a link's two streams over its socket |
//! | `send_blocked` | links with posted data that wait for their socket |
//! | `completion_queue`, `waiter` | completion queues |
//! | `helper` | the thread that works while no other thread polls |
//! | `socket` | sockets, and the pollers that watch them |
//! | `sys`, `liveness` | system calls on raw memory; whether the peer's host answers |

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod completion_queue;
mod core;
mod deferred_ack;
mod device;
mod driver;
mod helper;
mod incoming;
mod liveness;
mod options;
mod send_blocked;
mod socket;
mod sys;
mod waiter;

#[cfg(test)]
mod tests;

pub use options::Options;
pub use udeck_session::{Levels, Memory, Source};
use udeck_via::{Nic, Result};

/// Opens a TCP NIC of this process, `tcp0`.
///
/// # Errors
/// [`udeck_via::Error::InvalidParameter`] when `bind` is no interface's address; the operating system's.
pub fn open(options: Options) -> Result<Nic> {
    Ok(Nic::new(device::open(&options)?))
}
