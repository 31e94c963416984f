//! The part of an end point that each face writes for itself: the types of its standard, its memory's rules, and its
//! completions.

use std::time::Instant;

use udeck_via::{Error, Nic};

use crate::frame::{Head, Reason};
use crate::held_bytes::HeldBytes;
use crate::memory::Segment;
use crate::ring::Ring;

/// An end point's surroundings, as its [`QueuePair`](crate::QueuePair) needs them.
///
/// The end point has both, side by side. Its lock is held during each call. No call waits.
pub trait Face {
    /// A posted operation. Once it is posted, the queue has it until [`Face::complete`].
    type Operation;
    /// A posted receive.
    type Receive: Default;

    /// The flag that the face knows: [`INVALIDATES`](crate::frame::INVALIDATES) or
    /// [`IMMEDIATE`](crate::frame::IMMEDIATE).
    const FLAG: u8;
    /// Most reads of the peer's that may be unanswered: as many as a queue of the standard holds.
    const MAX_POSTED: usize;
    /// Whether an error of the peer's ends the oldest operation under way, whatever its stage. Otherwise it ends only
    /// an operation that has been sent and that the error can be about.
    const BLAMES_ANY: bool;

    /// The NIC below.
    fn nic(&self) -> &Nic;
    /// Whether an error ends the connection.
    #[inline]
    fn is_reliable(&self) -> bool {
        true
    }
    /// Whether an operation completes only when the peer has taken it (VIPL's reliable reception).
    #[inline]
    fn is_acknowledged(&self) -> bool {
        false
    }

    /// Number of bytes that the operation sends or reads.
    fn len(operation: &Self::Operation) -> usize;
    /// Whether the operation waits for the reads before it.
    fn is_fenced(operation: &Self::Operation) -> bool;
    /// Begins an operation, again after each time that its frame has found no room. `None`: it is wrong itself.
    fn begin(&mut self, operation: &Self::Operation) -> Option<Request>;
    /// Copies the operation's bytes to `to`. `false`: it may not read them.
    fn gather(&self, operation: &Self::Operation, to: &mut [u8]) -> bool;
    /// Copies the answer to a read, which has the length that was asked for. `false`: it may not write there.
    fn scatter(&self, operation: &Self::Operation, data: &[u8]) -> bool;
    /// Completes an operation. Operations complete in the order of their posts.
    fn complete(&mut self, operation: Self::Operation, outcome: Outcome);

    // ---- receives ----

    /// Takes the oldest receive; a face with shared queues looks there instead.
    #[inline]
    fn next_receive(&mut self, own: &mut Ring<Self::Receive>) -> Option<Self::Receive> {
        own.pop_front()
    }
    /// Places a message, whose body comes in pieces, and completes its receive.
    ///
    /// # Errors
    /// The receive could not take the message, or its key may not end.
    fn receive(
        &mut self,
        receive: Self::Receive,
        head: Head,
        body: &[u8],
        rest: &[&[u8]],
    ) -> Result<(), Reason>;
    /// Completes a receive by a WRITE of `len` bytes with immediate data, if the face knows that flag.
    fn receive_immediate(&mut self, _receive: Self::Receive, _immediate: u32, _len: usize) {}
    /// Completes a receive, because the connection has ended.
    fn flush_receive(&mut self, receive: Self::Receive);
    /// Whether a message without a receive may wait for one. `since`: it has waited since then; `None`: it has just
    /// come.
    fn may_wait(&mut self, since: Option<Instant>) -> bool;
    /// The bytes of all waiting messages of the NIC: those of its [`Progress`](crate::Progress).
    fn held(&self) -> &HeldBytes;
    /// Whether one more arrival may be taken while `messages` wait. Otherwise it stays in the connection, until fewer
    /// wait. `is_under_way`: an operation has not completed, so an answer may come.
    fn may_hold_more(messages: usize, is_under_way: bool) -> bool;

    // ---- memory that the peer names ----

    /// Whether the peer may read these bytes, which may be more than any message has.
    fn may_read(&mut self, from: Segment) -> bool;
    /// Copies memory that the peer reads. `false`: it may not read it any more.
    fn read(&self, from: Segment, to: &mut [u8]) -> bool;
    /// Copies data of the peer's. `false`: it may not write there.
    fn write(&mut self, to: Segment, data: &[u8]) -> bool;
}

/// The frame that begins an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A SEND or WRITE: this head, and for a WRITE the address and the key.
    Data(Head, Option<(u64, u32)>),
    /// A READ of this address, by this key.
    Read(u64, u32),
    /// No frame: the operation is over.
    Nothing,
}

/// Outcome of an operation, which a face makes a code of its standard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The operation was carried out.
    Success,
    /// The connection ended before.
    Flushed,
    /// The operation is wrong itself, or names memory of this process that it may not touch.
    Local,
    /// The peer refused it, or ended the connection by this reason.
    Remote(Reason),
    /// The transport lost the connection.
    Lost,
}

/// The event that ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// An operation of this side has ended by [`Outcome::Local`].
    Local,
    /// The peer refused a read, which has ended.
    Refused,
    /// An arrival has found no place on this side.
    Arrival(Reason),
    /// The peer has said what is no frame, or not of this face.
    Nonsense,
    /// The peer says that it ends the connection.
    Broken(Reason),
    /// The connection below was closed.
    Closed,
    /// The transport lost the connection.
    Lost,
}

impl End {
    /// The outcome of the oldest operation under way.
    pub fn outcome(self) -> Outcome {
        match self {
            End::Broken(reason) if reason != Reason::Own => Outcome::Remote(reason),
            End::Lost => Outcome::Lost,
            _ => Outcome::Flushed,
        }
    }
}

impl From<&Error> for End {
    #[cold]
    fn from(error: &Error) -> End {
        if matches!(error, Error::Closed) { End::Closed } else { End::Lost }
    }
}
