//! How two NICs of a job meet over TCP, whatever carries their messages then: a listener, callers who prove who
//! they are, a request and its answer. The socket that is left belongs to the transport: TCP's stream lies in it; a
//! transport with a network of its own keeps it open, as the connection's out-of-band connection.
//!
//! # A guide for transports
//!
//! An [`Admission`] is what one NIC's two sides have in common: the keys, the [`Protocol`] that is to follow, how soon a
//! silent host is dead. A NIC that calls one of another protocol, or version, is told so in plain words.
//!
//! **To be called**: [`Admission::listen`] gives a [`RequestListener`]. It is readable when it has something to do: watch it in an
//! epoll instance of your own (or by `poll`), call [`RequestListener::serve`] when it is named, and [`RequestListener::tick`] before each sleep,
//! which says how long the sleep may last. Neither waits. What is asked for comes as a [`PendingRequest`]: a request of somebody
//! who knows the secret. Find its listener ([`crate::Listeners`]), wrap it in your
//! [`Incoming`](udeck_via::transport::Incoming), and answer: [`PendingRequest::accept`], [`PendingRequest::reject`], ... Dropped, it is
//! rejected.
//!
//! **To call**: [`Admission::call`], on the thread of whoever wants to connect; it waits until its deadline at most. Every
//! refusal is an error already.
//!
//! Beside the VI layer's [`Hello`] each side gives up to [`MAX_PARAMETERS`] bytes that only the transport understands.
//! **What is left** on both sides is an [`Admitted`]: the socket, who is at its other end, its hello and parameters. The
//! socket is non-blocking and close-on-exec, sends small messages at once, and probes an idle peer's host. Nothing beyond
//! the answer was read. An acceptor is not told that its answer arrived: a caller that gave up resets the socket, which is
//! seen by reading it.
//!
//! **Trust.** Strangers get five seconds and 56 bytes of memory, at most 256 at a time; they are told nothing that proves
//! anything (`handshake`). Whoever is on the network in between may read and change what follows.
//!
//! | file | what it is |
//! |---|---|
//! | `wire`, `handshake` | what the two sides say, without sockets |
//! | `request_listener` | who has called and proved nothing yet |
//! | `pending` | a request that waits for its answer |
//! | `call` | the side that asks |
//! | `socket` | how the sockets are set up |

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

/// What a NIC's calls and callers have in common.
#[derive(Clone)]
pub struct Admission {
    /// What this process proves by that it is of the job, and which of its ranks: only who does is let in.
    pub keys: Keys,
    /// What follows.
    pub protocol: Protocol,
    /// How long a peer's host may be silent before it is taken for dead, while nothing is under way; from two seconds on.
    pub detect: Duration,
    /// What a connector says that gives up after it has asked: the transport's words for an end in order. The acceptor may
    /// have accepted already, and its connection then ends in order. Without these words it would seem that the connector
    /// has died.
    pub withdrawal: Vec<u8>,
}

/// Two sides that have agreed: what is left of their meeting.
#[derive(Debug)]
pub struct Admitted {
    /// The next byte in it is the transport's.
    pub socket: OwnedFd,
    /// Where its other end is.
    pub peer: SocketAddr,
    /// What the peer's VI layer said.
    pub theirs: Hello,
    /// What the peer's transport said; not checked.
    pub parameters: Vec<u8>,
}

/// A number that nobody could foresee.
///
/// # Errors
/// The system has none.
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
