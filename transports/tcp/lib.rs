//! TCP: a NIC whose VIs reach other hosts.
//!
//! **One TCP connection for each VI.** A VI's stream then waits for nobody else's: a message that finds no memory, or a
//! slow receiver, holds up its own VI only. The kernel finds the socket with news by itself, reads go straight into the
//! posted buffer, and how a connection ends is told by its own socket. The price is a descriptor, about 4 KiB of the kernel's
//! memory at each end, and a set-up of two round trips for each. That nothing goes back on a mailbox's connections, and so
//! nothing carries TCP's acknowledgements, need not be waited for: `deferred_ack`.
//!
//! **Who does the work.** The thread that polls a completion queue reads its sockets itself: the one that was busy last by
//! a plain `recv`, the others as epoll names them; it parks in epoll. Spinning never involves a second thread. While nobody
//! looks, the NIC's one helper thread does it: it sleeps until something comes for a queue that nobody looks at.
//! Posts write to the socket themselves. What the kernel does not take, or the peer has no room for, is written when there
//! is room, by whoever looks, at this completion queue or at another (`send_blocked`). No call on a socket ever waits.
//!
//! **Trust.** Both sides of every connection prove who they are before anything else is read, and strangers get five
//! seconds and no memory to speak of ([`udeck_session::admission`]). What comes after is `udeck-session`'s to check, too. TCP protects against
//! nobody on the network in between: it may read and change what travels.
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
//! | `core` | what the NIC's objects share: its links, its completion queues |
//! | `incoming` | a request that waits for its answer |
//! | `deferred_ack` | short messages are acknowledged after they were answered |
//! | `driver` | a link's two streams on its socket |
//! | `send_blocked` | links that wait for their socket to say something |
//! | `completion_queue`, `waiter` | completion queues |
//! | `helper` | the thread that works while nobody looks |
//! | `socket` | sockets, and who watches them |
//! | `sys`, `liveness` | system calls on raw memory; whether the peer's host is there |

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
