//! The one connection engine of all network transports, and what a NIC of its connections is made of.
//!
//! A transport moves bytes; what a VI's connection owes its program and its peer is in here. There are two ways to drive it:
//!
//! * [`framed`]: a [`Connection`] over one reliable, ordered byte stream each way (tcp, udp). It knows no sockets, clocks or
//!   threads. A [`Link`] puts it and the transport's [`Driver`] behind one lock.
//! * Work requests (verbs): the transport has queue pairs instead of streams, and makes its connection of the parts.
//!
//! Around that, each for itself: [`admission`], how two NICs meet over TCP; [`completion_queue`]; [`poll`], [`Listeners`],
//! [`address`]. A transport whose connections all are [`Connection`]s is a [`Network`], and its NIC a [`SessionDevice`].
//!
//! | file | what it is |
//! |---|---|
//! | `framed` | a connection over byte streams, and a guide for its drivers |
//! | `memory` | the arenas, places in them, bodies of received messages |
//! | `close`, `events`, `credits`, `unacked`, `recv_queue` | what every connection has: how it is closed, what its program is told, how far senders may go ahead, sends without an end yet, what was received |
//! | `arbiter`, `send_order`, `order_thread` | where service levels have shares: whose turn it is to send, how much may be below, and who writes then |
//! | `watching` | who is told what happens on a connection |
//! | `address` | `ip:port`, as NICs are told apart |
//! | `admission` | how two NICs of a job meet over TCP, with a guide of its own |
//! | `listeners` | who listens at which discriminator |
//! | `completion_queue` | completion queues: what was announced, and how their owners sleep |
//! | `poll` | epoll, and bells beside it |

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

pub mod address;
pub mod admission;
mod arbiter;
mod close;
pub mod completion_queue;
mod credits;
mod events;
pub mod framed;
mod listeners;
mod memory;
pub mod nap;
mod order_thread;
pub mod poll;
mod recv_queue;
mod send_order;
mod unacked;
mod watching;

pub use close::{Close, Violation, cut};
pub use credits::{Credits, SendWindow};
pub use events::Events;
pub use framed::{
    Connection, Content, Datagram, Direct, Driver, Inside, Landing, Link, Network, Phase, Piece, PieceMut,
    Pieces, Right, SessionDevice, SessionEndpoint, Settings, Side, Source, Spot, Windows, attributes,
};
pub use listeners::{Listener, Listeners};
pub use memory::{Acknowledge, ForDevice, Memory, Store};
pub use order_thread::{Ordered, start_order_thread};
pub use recv_queue::{Item, PendingBody, RecvQueue, Taken, TakenBody};
pub use send_order::{Outstanding, SendBuffer, SendOrder};
pub use udeck_qos::levels::{BadLevels, Levels};
use udeck_via::NicAttributes;
use udeck_via::transport::Inline;
pub use unacked::{Unacked, keep};
pub use watching::{Announce, Watch, Watching};

/// Messages that may be sent and not taken by the peer's program, each way; also reads that may be under way.
pub const MESSAGES: u32 = 256;
/// Bytes of messages that may be under way and not taken, each way, and one message more, however long: so a sender whose
/// messages were all taken never waits, although it is not told of each. What is posted beyond that waits at its sender,
/// where it lies. (So many that who is told of a quarter of them when the receiver has nothing else to do is told in time.)
pub const BYTES: usize = 2 << 20;
/// As [`BYTES`], of messages that travel in datagrams: what a socket has no room for is lost.
pub const DATAGRAM_BYTES: usize = 256 << 10;
/// Bytes that may be in flight at a time where service levels have shares, of all connections.
pub const LEVELS_IN_FLIGHT: usize = 256 << 10;
/// Segments in one post.
pub const SEGMENTS: usize = 4;
/// Windows that may be exposed at a time, by one NIC.
pub const WINDOWS: usize = 1 << 14;

/// Fills in the limits that follow from the way messages travel here. Names, abilities and what has to do with waiters
/// and requests are the transport's.
pub fn limit(attributes: &mut NicAttributes, max_transfer: usize) {
    attributes.max_descriptors_per_queue = MESSAGES as usize;
    attributes.max_segments = SEGMENTS;
    attributes.max_transfer = max_transfer;
    attributes.max_inline = Inline::CAPACITY;
    attributes.max_head = Inline::CAPACITY;
    attributes.max_windows = WINDOWS;
}
