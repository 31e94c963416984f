//! A VI's connection over two streams of frames, without sockets, clocks or threads.
//!
//! The program's side posts and takes; the stream side is what a driver moves. Memory that was posted is never copied: a
//! frame refers to it until the driver says that it is released.

use udeck_via::transport::Hello;

/// Which end asked for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This one.
    Asked,
    /// The other one.
    Accepted,
}

/// What a connection is made of.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// Where messages are sent from, and received bodies lie.
    pub memory: &'a Memory,
    /// What peers may reach.
    pub windows: &'a Arc<Windows>,
    /// What this side said of itself.
    pub ours: &'a Hello,
    /// What the other side said of itself.
    pub theirs: &'a Hello,
    /// Which end this is.
    pub side: Side,
    /// The longest message, write or read, in bytes: [`udeck_via::NicAttributes::max_transfer`]. The peer's may differ.
    pub max_transfer: usize,
}

/// How far a connection is; for its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It stands, or one side has closed and the other has yet to, or somebody still waits for a receipt.
    Open,
    /// The peer broke the protocol: send what is queued as far as the stream takes it without waiting (words for the
    /// peer), then call [`Connection::lost`] and close the stream.
    Broken,
    /// Both sides have ended it and nothing is under way: close the stream and forget the link. `abruptly`: the peer
    /// has everything and waits for nothing, so the stream may be reset (SO_LINGER 0: no TIME_WAIT); otherwise an
    /// ordinary close, which the peer's reset ends.
    Over {
        /// Whether the stream may be reset.
        abruptly: bool,
    },
}

/// A piece of memory to send, laid out as C's `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// First byte. A peer or the program may be writing there if it lies in a window: for system calls, not for slices.
    pub at: *const u8,
    /// Bytes; not 0.
    pub len: usize,
    connection: PhantomData<&'a Connection>,
}

/// Pieces that [`Connection::gather`] found. Lies on the stack.
pub struct Pieces<'a>(SmallVec<[Piece<'a>; Pieces::MOST]>);

impl<'a> Pieces<'a> {
    /// Most pieces that are gathered at a time.
    pub const MOST: usize = 64;

    /// None yet.
    pub fn new() -> Self;
    /// The pieces, one after another.
    pub fn as_slice(&self) -> &[Piece<'a>];
    /// Bytes of all together.
    pub fn bytes(&self) -> usize;
    /// Copies them, one after another, to the front of `to`, for drivers that make packets; the bytes copied.
    pub fn copy_to(&self, to: &mut [u8]) -> usize;
}

/// A piece of memory to receive into, laid out as C's `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PieceMut {
    /// First byte. For system calls, not for slices.
    pub at: *mut u8,
    /// Bytes; not 0.
    pub len: usize,
}

/// Where the next bytes of the incoming stream want to lie: up to [`Direct::MOST`] pieces, maybe none. Use it under the
/// same lock for one non-blocking read, then give it to [`Connection::came`].
pub struct Direct { .. }

impl Direct {
    /// Most pieces.
    pub const MOST: usize = 4;
    /// The pieces, one after another.
    pub fn pieces(&self) -> &[PieceMut];
    /// Bytes of all together.
    pub fn len(&self) -> usize;
    /// Whether there is no such place: the next byte is a header's, or nobody wants it.
    pub fn is_empty(&self) -> bool;
}

/// What has happened that a program waits for.
#[derive(Debug, Default)]
pub struct News {
    /// There is room again, or something that was posted is over.
    pub send: bool,
    /// Something arrived, or the connection ended.
    pub receive: bool,
    /// The connection ended by an error.
    pub lost: Option<String>,
}

/// Stream side.
impl Connection {
    /// A connection on which nothing was sent yet.
    pub fn new(settings: Settings<'_>) -> Self;

    /// Bytes of the outgoing stream so far, sent or not.
    pub fn queued(&self) -> u64;
    /// What lies before this offset is not there any more.
    pub fn released_to(&self) -> u64;
    /// Appends pieces that hold the stream from offset `from`, at most `limit` bytes and as many pieces as there is room
    /// for. Returns their bytes: 0 when `from` is at [`Connection::queued`].
    ///
    /// # Panics
    /// Outside of `released_to() ..= queued()`.
    pub fn gather<'a>(&'a self, from: u64, limit: usize, pieces: &mut Pieces<'a>) -> usize;
    /// What lies before `upto` will not be gathered again, and nobody reads it: memory is given back, and whoever waits
    /// is told. (Idempotent; beyond `queued()` is a driver's mistake and panics.)
    pub fn released(&mut self, upto: u64);
    /// Where the frame ends that the byte at `from` belongs to; `None` at the end of the stream.
    pub fn frame_end(&self, from: u64) -> Option<u64>;

    /// Where the next bytes want to lie.
    pub fn direct(&mut self) -> Direct;
    /// `filled` bytes lie in `direct`'s pieces, and behind these, in the stream, come `scratch`. If `filled` is less than
    /// all pieces hold, `scratch` is usually empty, but it need not be: what is missing is then copied from there.
    ///
    /// After a violation ([`Phase::Broken`]) and a loss everything is thrown away.
    pub fn came(&mut self, direct: Direct, filled: usize, scratch: &[u8]);
    /// On an unreliable connection over datagrams: so many messages (or RDMA writes) of the peer's were lost by the
    /// network; they count as taken.
    pub fn missed(&mut self, messages: u32);
    /// The stream broke, or the peer is dead: everything under way is lost, nothing is gathered any more. `why` is for
    /// the program. After the peer's End this is an orderly end that nobody waits for any longer. May be repeated.
    pub fn lost(&mut self, why: &str);
    /// The peer's direction of the stream ended.
    pub fn hung_up(&mut self);
    /// How far it is.
    pub fn phase(&self) -> Phase;
    /// Whether the program has closed it or its port is gone: a driver that opens no more connections then may give up
    /// waiting for the peer after a time of its own (by [`Connection::lost`]).
    pub fn is_closed(&self) -> bool;
}
