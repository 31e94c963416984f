//! Promises that VIA and uDAPL make in the same words: one text, run over either interface.
//!
//! An interface is an [`Interface`], with [`End`]s of connections. [`Via`] is here; uDAPL's is in `tests/over_dat`, because this
//! package's library knows no interface above VIs. Promises that differ between them (states, refusals, immediate data, forbidden
//! RDMA) have separate texts in each.

mod ends;
mod fence;
mod integrity;
mod order;
mod read;
mod transfer;
mod via;
mod write;

use std::ops::Range;

use udeck_via::{Caps, Deadline};

use crate::Fabric;
use crate::kit::{assert_bytes, soon};

pub use ends::Ends;
pub use fence::Fence;
pub use integrity::Integrity;
pub use order::{Completion, Late, Order, receives_first, reported_in_order};
pub use read::Read;
pub use transfer::{Transfer, all_sizes};
pub use via::Via;
pub use write::Write;

/// A line of a topic's table: a text of this folder for the interface `I`, and the abilities that it needs; without them it is
/// skipped.
macro_rules! shared_case {
    ($topic:expr, $name:ident, $needs:expr) => {
        $crate::Case { topic: $topic, name: stringify!($name), needs: $needs, run: $name::<I> }
    };
}
use shared_case;

/// An interface under test.
pub trait Interface: 'static {
    /// One end of this interface's connections.
    type End: End;
    /// Abilities of a NIC without which the interface has no RDMA write.
    const WRITE: &'static [Caps];
    /// Abilities of a NIC without which the interface has no RDMA read.
    const READ: &'static [Caps];
    /// Abilities of a NIC without which the interface lacks RDMA write or read.
    const BOTH: &'static [Caps];

    /// Two connected ends, on NICs of their own.
    fn pair(fabric: &dyn Fabric) -> (Self::End, Self::End);

    /// Two connected ends, on NICs of their own. Each allows the other to access its memory, as far as the NICs
    /// can.
    fn reaching(fabric: &dyn Fabric) -> (Self::End, Self::End);
}

/// How a post ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostStatus {
    /// The request was carried out.
    Done,
    /// The connection ended before the request.
    Flushed,
    /// The request failed in another way.
    Failed,
}

/// A finished post.
#[derive(Debug)]
pub struct FinishedPost {
    /// How the post ended.
    pub status: PostStatus,
    /// Number of bytes that were moved.
    pub length: usize,
    /// The memory of the post, whole, which has come back.
    pub parts: Vec<Vec<u8>>,
}

impl FinishedPost {
    /// The bytes that the post moved.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.parts.concat();
        bytes.truncate(self.length);
        bytes
    }
}

/// The peer's access to a [`Place`].
#[derive(Clone, Copy, Debug)]
pub enum Access {
    /// The peer reads it.
    Read,
    /// The peer writes it.
    Write,
    /// The peer reads and writes it.
    Both,
}

/// Memory that the peer can access until it is dropped.
pub trait Place: Send {
    /// The name by which the peer accesses the memory.
    type At: Copy + Send;

    /// The memory's name for the peer.
    fn at(&self) -> Self::At;
    /// The name of a part of the memory.
    fn part(at: Self::At, part: Range<usize>) -> Self::At;
    /// The bytes in the memory.
    fn bytes(&self) -> Vec<u8>;
    /// Writes all of the memory.
    fn fill(&mut self, bytes: &[u8]);
}

/// One end of a connection. Posts panic when they are refused.
pub trait End: Send {
    /// Memory of this end that the peer can access.
    type Place: Place;

    /// Largest number of pieces in a post.
    fn max_segments(&self) -> usize;
    /// Posts a receive into zeroed pieces of these lengths.
    fn post_receive(&mut self, rooms: &[usize]);
    /// Posts a send of these pieces. A fenced one waits for earlier reads.
    fn post_send_of(&mut self, parts: &[&[u8]], fenced: bool);
    /// Posts an RDMA write of these pieces.
    fn post_write(&mut self, parts: &[&[u8]], to: <Self::Place as Place>::At, fenced: bool);
    /// Posts an RDMA read into pieces of these lengths, which hold 0xcc.
    fn post_read(&mut self, rooms: &[usize], from: <Self::Place as Place>::At, fenced: bool);
    /// Waits for the next finished request. `None`: the deadline came first.
    fn request_by(&mut self, deadline: Deadline) -> Option<FinishedPost>;
    /// Waits for the next finished receive. `None`: the deadline came first.
    fn receive_by(&mut self, deadline: Deadline) -> Option<FinishedPost>;
    /// Makes memory that holds these bytes, for the peer.
    fn place(&self, bytes: &[u8], access: Access) -> Self::Place;
    /// Allocates `len` bytes of the memory that posts use, overwrites them, and frees them.
    fn scribble(&self, len: usize);
    /// Ends the connection: posted requests are sent first.
    fn disconnect(&mut self);
    /// Whether the connection is alive.
    fn is_connected(&self) -> bool;

    /// Posts a send of one piece.
    fn post_send(&mut self, bytes: &[u8]) {
        self.post_send_of(&[bytes], false);
    }

    /// Waits for a request, and asserts that it is done.
    fn sent(&mut self) -> FinishedPost {
        let finished = self.request_by(soon()).expect("a request is over");
        assert_eq!(finished.status, PostStatus::Done);
        finished
    }

    /// Waits for a receive, asserts that it is done, and returns the message.
    fn received(&mut self) -> Vec<u8> {
        let finished = self.receive_by(soon()).expect("a receive is over");
        assert_eq!(finished.status, PostStatus::Done);
        finished.bytes()
    }

    /// Asserts that no further request or receive is finished.
    fn assert_quiet(&mut self) {
        let now = Deadline::now();
        assert!(self.request_by(now).is_none() && self.receive_by(now).is_none(), "nothing else was posted");
    }
}

/// Checks that the connection works: `a` sends, `b` receives.
pub fn check<E: End>(a: &mut E, b: &mut E) {
    let bytes = crate::kit::pattern(77, 1000);
    b.post_receive(&[bytes.len()]);
    a.post_send(&bytes);
    assert_bytes(&b.received(), &bytes);
    a.sent();
}

/// Waits until everything that `a` has posted is in place at `b`, which must have no receive posted.
pub fn drain<E: End>(a: &mut E, b: &mut E) {
    b.post_receive(&[0]);
    a.post_send(b"");
    assert!(b.received().is_empty());
    a.sent();
}
