//! What network transports share: a VI's connection over one reliable, ordered byte stream each way, and what a NIC of
//! such connections is made of.
//!
//! A [`Connection`] knows no sockets, clocks or threads. One side of it is what the VI layer posts and takes
//! ([`WiredPort`]), the other is two streams of frames, which a *driver* moves: a TCP socket, or a byte stream of the
//! driver's own over datagrams. A [`Link`] puts both behind one lock.
//!
//! Around that, each for itself: [`admission`], how two NICs meet over TCP; [`station`], completion queues; [`poll`],
//! [`Listeners`], [`address`]. A transport whose network moves the data by itself takes these, and none of the frames. One
//! whose connections all are [`Connection`]s is a [`Network`], and its NIC a [`WiredDevice`].
//!
//! # A guide for drivers
//!
//! **Set-up.** When both sides have said [`Hello`](udeck_via::transport::Hello), make a [`Connection`] of the two
//! ([`Settings`]), a [`Link`] of it and the [`Driver`], and a [`WiredPort`] of that and a [`Watch`] (the program's two
//! queues at your waiters). Keep the `Arc<Link>` in a table of your own until [`Connection::phase`] says
//! [`Phase::Over`]: a link lives on after its VI has left.
//!
//! **Sending.** [`Driver::pump`] is called with the lock held whenever frames were queued. Bytes of the stream have
//! offsets from 0. [`Connection::gather`] gives pieces of memory, in place, from any offset in
//! [`Connection::released_to`] .. [`Connection::queued`]; [`Connection::released`] says that what lies before an offset
//! is not needed any more. TCP: gather from what was written, write, and release what the kernel took. A byte stream
//! over datagrams: gather again whenever something is to be sent again, and release what was acknowledged. The pieces
//! lie in the connection and in memory that it keeps, so nothing may change between gathering and writing: both happen
//! inside one [`Link::with`].
//!
//! **Receiving.** Inside [`Link::with`]: [`Connection::direct`] says where the next bytes of the stream want to lie; read
//! into those pieces and, behind them, into a scratch buffer; then [`Connection::came`] takes what lies in both. Small
//! frames are parsed out of the scratch, many per read. The [`Direct`] holds a peer's window open: one non-blocking
//! system call, never a wait. Without a direct place (or with a stream that comes in datagrams) give everything by
//! `came(connection.direct(), 0, bytes)`: it is copied into place. A scratch of 16 to 64 KiB is right: what of a large
//! body lies in it behind its header is copied.
//!
//! **The end.** The stream broke: [`Connection::lost`]. The peer's direction ended (EOF): [`Connection::hung_up`], which
//! tells an end in order from one that is none. Look at [`Connection::phase`] after each of these and after
//! [`Connection::came`] and [`Connection::released`], and whenever the program has worked (in [`Driver::pump`], which it
//! always reaches then: an end is a frame). *Broken*: pump once, then `lost`, then close. *Over*: close as it says, and
//! forget the link. A link whose program has closed it ([`Connection::is_closed`]) and whose peer says nothing more is
//! given up by `lost` after a time of the driver's own. Afterwards nothing is gathered, and what comes is thrown away.
//!
//! **News.** [`Link::with`] announces what there is to the [`Watch`] after it has unlocked. A receive queue is to be
//! named by the waiter as long as [`Link::has_arrivals`].
//!
//! **Unreliable VIs over datagrams** need no stream for their messages: after [`Connection::go_apart`], a message is
//! [`Connection::leaving`] until it has [`Connection::left`]; what comes is put into a [`Landing`], and each number is said
//! to have come or to be [`Connection::missed`], once. Everything else stays in the stream.
//!
//! | file | what it is |
//! |---|---|
//! | `wire` | frames as they lie in the stream, decoded as if the peer were hostile |
//! | `connection` | the two streams and what the program sees of them |
//! | `windows` | memory that peers reach by RDMA, and how it is taken back |
//! | `memory` | the arenas, places in them, bodies of received messages |
//! | `link` | a connection and its driver behind one lock, and who is told the news |
//! | `port` | the VI layer's side |
//! | `device` | a NIC of such connections |
//! | `address` | `ip:port`, as NICs are told apart |
//! | `admission` | how two NICs of a job meet over TCP, with a guide of its own |
//! | `listeners` | who listens at which discriminator |
//! | `station` | completion queues: what was announced, and how their owners sleep |
//! | `poll` | epoll, and bells beside it |

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

pub mod address;
pub mod admission;
mod connection;
mod device;
mod link;
mod listeners;
mod memory;
pub mod poll;
mod port;
pub mod station;
#[cfg(test)]
mod tests;
mod windows;
pub mod wire;

pub use connection::{
    Connection, Content, Direct, Landing, Leaving, News, Phase, Piece, PieceMut, Pieces, Settings, Side,
};
pub use device::{Network, Source, WiredDevice, attributes};
pub use link::{Announce, Driver, Link, Watch};
pub use listeners::{Listener, Listeners};
pub use memory::Memory;
pub use port::WiredPort;
use udeck_via::NicAttributes;
use udeck_via::transport::Inline;
pub use windows::{Inside, Right, Spot, Windows};

/// Messages that may be sent and not taken by the peer's program, each way; also reads that may be under way.
pub const MESSAGES: u32 = 256;
/// Bytes of messages that may be under way and not taken, each way, and one message more, however long: so a sender whose
/// messages were all taken never waits, although it is not told of each. What is posted beyond that waits at its sender,
/// where it lies.
pub const BYTES: usize = 256 << 10;
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
