//! Admission: how two NICs of a job meet over TCP, whatever carries their messages afterwards. It has a listener, callers
//! that prove who they are, a request and its answer. The socket that is left belongs to the transport: TCP's stream lies in
//! it; a transport with a network of its own keeps it open as the out-of-band connection.
//!
//! # A guide for transports
//!
//! An [`Admission`] is what both sides of one NIC have in common: the keys, the [`Protocol`] that is to follow, the time
//! after which a silent host is dead. A NIC that calls one of another protocol, or version, is told so in plain words.
//!
//! **To be called**: [`Admission::listen`] gives a [`RequestListener`]. It is readable when it has something to do: watch it in an
//! epoll instance of your own (or by `poll`), call [`RequestListener::serve`] when it is named, and [`RequestListener::tick`] before each sleep,
//! which says how long the sleep may last. Neither waits. A request of a caller that knows the secret comes as a
//! [`PendingRequest`]. Find its listener ([`crate::Listeners`]), wrap it in your
//! [`Incoming`](udeck_via::transport::Incoming), and answer: [`PendingRequest::accept`], [`PendingRequest::reject`], ... Dropped, it is
//! rejected.
//!
//! **To call**: [`Admission::call`], on the thread that wants to connect; it waits until its deadline at most. Every refusal
//! is an error already.
//!
//! Beside the VI layer's [`Hello`] each side gives up to [`MAX_PARAMETERS`] bytes that only the transport understands.
//! **What is left** on both sides is an [`Admitted`]: the socket, the peer's address, its hello and parameters. The socket is
//! non-blocking and close-on-exec, sends small messages at once, and probes an idle peer's host. No byte behind the answer
//! was read. An acceptor is not told that its answer arrived: a caller that gave up resets the socket, and the next read of
//! the socket reports that.
//!
//! **Trust.** Strangers get five seconds and 56 bytes of memory, at most 256 at a time; they are told nothing that proves
//! anything (`handshake`). An attacker on the network in between may read and change everything that follows.
//!
//! | file | what it is |
//! |---|---|
//! | `wire`, `handshake` | the messages of the two sides, without sockets |
//! | `request_listener` | callers that have proved nothing yet |
//! | `pending` | a request that waits for its answer |
//! | `call` | the side that asks |
//! | `socket` | set-up of the sockets |

mod call;
pub mod handshake;
mod pending;
mod request_listener;
pub mod socket;
#[cfg(test)]
mod tests;
pub mod wire;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use udeck_via::auth::Keys;
use udeck_via::transport::Hello;
use udeck_via::{Error, Result};

pub use pending::PendingRequest;
pub use request_listener::RequestListener;
pub use socket::reset_when_closed;
pub use wire::{MAX_DISCRIMINATOR, MAX_PARAMETERS, MAX_PRIVATE, Protocol};

/// Settings of a NIC that its calls and its listener have in common.
#[derive(Clone)]
pub struct Admission {
    /// Keys by which this process proves that it is of the job, and which rank it is. Only peers that prove the same are let in.
    pub keys: Keys,
    /// The transport's protocol, which follows the admission.
    pub protocol: Protocol,
    /// Time after which a silent host is taken for dead while nothing is in flight; at least two seconds.
    pub detect: Duration,
    /// Bytes that a connector sends when it gives up after its request: the transport's words for an orderly end. The
    /// acceptor may have accepted already, and its connection then ends in order. Without these bytes it would seem that the
    /// connector has died.
    pub withdrawal: Vec<u8>,
}

/// A connection on which both sides have agreed.
#[derive(Debug)]
pub struct Admitted {
    /// The socket. The next byte in it is the transport's.
    pub socket: OwnedFd,
    /// Address of the other end.
    pub peer: SocketAddr,
    /// The hello of the peer's VI layer.
    pub theirs: Hello,
    /// The parameters of the peer's transport; not checked.
    pub parameters: Vec<u8>,
}

/// Draws a random number that nobody could foresee.
///
/// # Errors
/// [`Error::Os`]: the system has no random numbers.
pub fn nonce() -> Result<wire::Nonce> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|error| Error::os("drawing a nonce", io::Error::other(error)))?;
    Ok(nonce)
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Admission({:?})", self.protocol)
    }
}
