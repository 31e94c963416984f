//! A VI's connection over one reliable, ordered byte stream each way.
//!
//! A [`Connection`] has two sides: the VI layer's posts and arrivals ([`SessionEndpoint`]), and two streams of frames, which a
//! *driver* moves: a TCP socket, or a stream of a QUIC connection. A [`Link`] puts both behind one lock.
//!
//! # A guide for drivers
//!
//! **Set-up.** Both sides have said [`Hello`](udeck_via::transport::Hello).
//! 1. Make a [`Connection`] of the two hellos ([`Settings`]).
//! 2. Make a [`Link`] of the connection and the [`Driver`].
//! 3. Make a [`SessionEndpoint`] of the link and a [`Watch`](crate::Watch), which names the program's two queues at your waiters.
//!
//! Keep the `Arc<Link>` in a table of your own until [`Connection::phase`] says
//! [`Phase::Over`]: a link lives on after its VI has left.
//!
//! **Sending.** [`Driver::pump`] is called with the lock held whenever frames were queued. Bytes of the stream have
//! offsets from 0. [`Connection::gather`] gives pieces of memory, in place, from any offset in
//! [`Connection::released_to`] .. [`Connection::queued`]; [`Connection::released`] says that bytes before an offset
//! are not needed any more. TCP: gather from the first unwritten byte, write, and release the bytes that the kernel took. QUIC
//! keeps bytes that it may have to send again: gather, copy, give it the copy, and release at once. The pieces lie in the
//! connection and in memory that it keeps, so nothing may change between gathering and writing: do both inside one
//! [`Link::with`].
//!
//! **Receiving.** Inside [`Link::with`]: [`Connection::direct`] says where the next bytes of the stream want to lie; read
//! into those pieces and, behind them, into a scratch buffer; then pass both to [`Connection::on_receive`]. Small
//! frames are parsed out of the scratch, many per read. The [`Direct`] holds a peer's window open: one non-blocking
//! system call, never a wait. Without a direct place (or with a stream that comes in datagrams) give everything by
//! [`Connection::on_receive_beside`]: it is copied into place. A scratch of 16 to 64 KiB is right: the part of a large body
//! that lies in it behind the header is copied, unless the message is as long as the last two ([`Direct::before`]).
//!
//! **The end.** When the stream broke, call [`Connection::lost`]. When the peer's direction ended (EOF), call
//! [`Connection::hung_up`], which tells an orderly end from an abrupt one. Look at [`Connection::phase`] after each of
//! these and after [`Connection::on_receive`] and [`Connection::released`], and whenever the program has worked (in
//! [`Driver::pump`], which it always reaches then: an end is a frame). *Broken*: pump once, then `lost`, then close.
//! *Over*: close as it says, and forget the link. A link whose program has closed it ([`Connection::is_closed`]) and whose
//! peer says nothing more is given up by `lost` after a time of the driver's own. Afterwards nothing is gathered, and
//! arriving bytes are thrown away.
//!
//! **Polling.** A waiting thread calls [`Driver::poll`], a closing one [`Driver::drain_before_close`]: take in what has come, and
//! never wait. [`Driver::is_done`] says whether everything that was sent has left, and, where that can be known, whether the
//! peer has it.
//!
//! **Events.** [`Link::with`] announces news to the [`Watch`](crate::Watch) after it has unlocked. The waiter has to name a
//! receive queue as long as [`Link::has_arrivals`].
//!
//! **Unreliable VIs over datagrams** need no stream for their messages: after [`Connection::go_unreliable`], take them
//! by [`Connection::next_datagram`], and report those that have left by [`Connection::on_datagrams_sent`]. Put arriving messages
//! into a [`Landing`], and report each number once: as come, or by [`Connection::on_missed`]. Everything else stays in the
//! stream.
//!
//! | file | what it is |
//! |---|---|
//! | `wire` | frames as they lie in the stream, decoded as if the peer were hostile |
//! | `connection` | the two streams, and the program's view of them |
//! | `windows` | memory that peers reach by RDMA, and how it is taken back |
//! | `link` | a connection and its driver behind one lock |
//! | `endpoint` | the VI layer's side |
//! | `device` | a NIC of such connections |

pub(crate) mod connection;
mod device;
mod endpoint;
pub(crate) mod link;
#[cfg(test)]
mod tests;
pub(crate) mod windows;
pub mod wire;

pub use connection::{
    Connection, Content, Datagram, Direct, Landing, Phase, Piece, PieceMut, Pieces, Settings, Side,
};
pub use device::{Network, SessionDevice, Source, attributes};
pub use endpoint::SessionEndpoint;
pub use link::{Driver, Link};
pub use windows::{Right, WindowAccess, WindowRange, Windows};
