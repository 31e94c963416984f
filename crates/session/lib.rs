//! Connection engine of all network transports, and the parts that a NIC of such connections is made of.
//!
//! A transport moves bytes; this crate has the obligations of a VI's connection to its program and its peer. A transport
//! drives it in one of two ways:
//!
//! * [`framed`]: a [`Connection`] over one reliable, ordered byte stream each way (tcp, udp). It knows no sockets, clocks or
//!   threads. A [`Link`] puts it and the transport's [`Driver`] behind one lock.
//! * Work requests (verbs): the transport has queue pairs instead of streams, and makes its connection of the parts.
//!
//! Independent parts beside it: [`admission`], how two NICs meet over TCP; [`completion_queue`]; [`poll`], [`Listeners`],
//! [`address`]. A transport whose connections all are [`Connection`]s is a [`Network`], and its NIC a [`SessionDevice`].
//!
//! | file | what it is |
//! |---|---|
//! | `framed` | a connection over byte streams, and a guide for its drivers |
//! | `memory` | the arenas, places in them, bodies of received messages |
//! | `close`, `events`, `credits`, `unacked`, `recv_queue` | parts of every connection: how it is closed, news for its program, how far a sender may run ahead, unacknowledged sends, received messages |
//! | `arbiter`, `send_order`, `order_thread` | shares of service levels: whose turn it is to send, how much may be in the buffers below, and the thread that writes |
//! | `watching` | receivers of a connection's news |
//! | `address` | `ip:port`, the address of a NIC |
//! | `admission` | how two NICs of a job meet over TCP, with a guide of its own |
//! | `listeners` | listeners by discriminator |
//! | `completion_queue` | completion queues: announced news, and how their owners sleep |
//! | `poll` | epoll, and eventfds that end a sleep |
//! | `nap` | naps of a helper thread while the program polls by itself |

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

pub use close::{Close, Violation, cut, no_memory};
pub use credits::{Credits, SendWindow};
pub use events::Events;
pub use framed::{
    Connection, Content, Datagram, Direct, Driver, Landing, Link, Network, Phase, Piece, PieceMut, Pieces,
    Right, SessionDevice, SessionEndpoint, Settings, Side, Source, WindowAccess, WindowRange, Windows,
    attributes,
};
pub use listeners::{Listener, Listeners};
pub use memory::{Acknowledge, ForDevice, Memory, Store};
pub use order_thread::{Ordered, start_order_thread};
pub use recv_queue::{Item, PendingBody, RecvQueue, TakenBody, TakenMessage};
pub use send_order::{Outstanding, SendBuffer, SendOrder};
pub use udeck_qos::levels::{BadLevels, Levels};
use udeck_via::NicAttributes;
use udeck_via::transport::Inline;
pub use unacked::{Unacked, keep};
pub use watching::{Announce, Watch, Watching};

/// Bound of messages that were sent and not taken by the peer's program, each way; also of reads in flight.
pub const MESSAGES: u32 = 256;
/// Bytes of messages that may be in flight and not taken, each way; one message more, however long, may be sent on top. A
/// sender whose messages were all taken thus never waits, although it is not told of each. Posts beyond the bound wait at
/// their sender, in place. (The bound is large enough that a sender which is told of a quarter of it, when the receiver has
/// nothing else to do, is told in time.)
pub const BYTES: usize = 2 << 20;
/// The same bound as [`BYTES`], of messages that travel in datagrams: a socket without room drops a datagram.
pub const DATAGRAM_BYTES: usize = 256 << 10;
/// Bytes of all connections that may be in flight at a time where service levels have shares.
pub const LEVELS_IN_FLIGHT: usize = 256 << 10;
/// Bound of segments in one post.
pub const SEGMENTS: usize = 4;
/// Bound of windows that one NIC exposes at a time.
pub const WINDOWS: usize = 1 << 14;

/// Fills in the limits that follow from the way messages travel here. The transport fills in names, abilities, and the limits
/// of waiters and requests.
pub fn limit(attributes: &mut NicAttributes, max_transfer: usize) {
    attributes.max_descriptors_per_queue = MESSAGES as usize;
    attributes.max_segments = SEGMENTS;
    attributes.max_transfer = max_transfer;
    attributes.max_inline = Inline::CAPACITY;
    attributes.max_head = Inline::CAPACITY;
    attributes.max_windows = WINDOWS;
}
