//! Promises that VIA and uDAPL make in the same words: one text, asked of either interface.
//!
//! An interface is an [`Interface`], with [`End`]s of connections. [`Via`] is here; uDAPL's is in `tests/over_dat`, because this package's library
//! knows no interface above VIs. What one of them says differently (states, refusals, immediate data, RDMA that is not allowed) has
//! texts of its own in each.

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

/// A line of a topic's table: a text of this folder, asked of the interface `I`, and the abilities without which that skips it.
macro_rules! shared_case {
    ($topic:expr, $name:ident, $needs:expr) => {
        $crate::Case { topic: $topic, name: stringify!($name), needs: $needs, run: $name::<I> }
    };
}
use shared_case;

/// An interface under test.
pub trait Interface: 'static {
    /// Of its connections.
    type End: End;
    /// Abilities of a NIC without which it has no RDMA write.
    const WRITE: &'static [Caps];
    /// And without which it has no RDMA read.
    const READ: &'static [Caps];
    /// And without which it lacks one of them.
    const BOTH: &'static [Caps];

    /// Two connected ends, on NICs of their own.
    fn pair(fabric: &dyn Fabric) -> (Self::End, Self::End);

    /// The same, and each lets the other reach its memory, as far as the NICs can.
    fn reaching(fabric: &dyn Fabric) -> (Self::End, Self::End);
}

/// How a post ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Done.
    Done,
    /// The connection ended before.
    Flushed,
    /// Otherwise.
    Failed,
}

/// A post that is over.
#[derive(Debug)]
pub struct Over {
    /// How.
    pub how: How,
    /// Bytes that were moved.
    pub length: usize,
    /// Its memory, whole, which has come back.
    pub parts: Vec<Vec<u8>>,
}

impl Over {
    /// The bytes that it moved.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.parts.concat();
        bytes.truncate(self.length);
        bytes
    }
}

/// Who may do what with a [`Place`].
#[derive(Clone, Copy, Debug)]
pub enum Access {
    /// The peer reads it.
    Read,
    /// The peer writes it.
    Write,
    /// Both.
    Both,
}

/// Memory that the peer reaches, until it is dropped.
pub trait Place: Send {
    /// What the peer names it by.
    type At: Copy + Send;

    /// Where it is.
    fn at(&self) -> Self::At;
    /// A part of that.
    fn part(at: Self::At, part: Range<usize>) -> Self::At;
    /// Its bytes.
    fn bytes(&self) -> Vec<u8>;
    /// Writes all of it.
    fn fill(&mut self, bytes: &[u8]);
}

/// One end of a connection. Posts panic when they are refused.
pub trait End: Send {
    /// Memory of its that the peer reaches.
    type Place: Place;

    /// Pieces that a post may have, at most.
    fn max_segments(&self) -> usize;
    /// Posts a receive into zeroed pieces of these lengths.
    fn post_receive(&mut self, rooms: &[usize]);
    /// Posts a send of these pieces, behind earlier reads if it is fenced.
    fn post_send_of(&mut self, parts: &[&[u8]], fenced: bool);
    /// Posts an RDMA write of these pieces.
    fn post_write(&mut self, parts: &[&[u8]], to: <Self::Place as Place>::At, fenced: bool);
    /// Posts an RDMA read into pieces of these lengths, which hold 0xcc.
    fn post_read(&mut self, rooms: &[usize], from: <Self::Place as Place>::At, fenced: bool);
    /// The next request that is over. `None`: there was none until then.
    fn request_by(&mut self, deadline: Deadline) -> Option<Over>;
    /// The next receive that is over.
    fn receive_by(&mut self, deadline: Deadline) -> Option<Over>;
    /// Memory that holds these bytes, for the peer.
    fn place(&self, bytes: &[u8], access: Access) -> Self::Place;
    /// Takes so much memory as posts do, writes all over it, and gives it back.
    fn scribble(&self, len: usize);
    /// Ends the connection: what was posted is sent first.
    fn disconnect(&mut self);
    /// Whether it stands.
    fn is_connected(&self) -> bool;

    /// Posts a send of one piece.
    fn post_send(&mut self, bytes: &[u8]) {
        self.post_send_of(&[bytes], false);
    }

    /// Waits for a request, and expects it to be done.
    fn sent(&mut self) -> Over {
        let over = self.request_by(soon()).expect("a request is over");
        assert_eq!(over.how, How::Done);
        over
    }

    /// Waits for a receive, and expects it to be done: the message.
    fn received(&mut self) -> Vec<u8> {
        let over = self.receive_by(soon()).expect("a receive is over");
        assert_eq!(over.how, How::Done);
        over.bytes()
    }

    /// Nothing is over that nobody has asked for.
    fn assert_quiet(&mut self) {
        let now = Deadline::now();
        assert!(self.request_by(now).is_none() && self.receive_by(now).is_none(), "nothing else was posted");
    }
}

/// `a` sends, `b` receives: the connection works.
pub fn check<E: End>(a: &mut E, b: &mut E) {
    let bytes = crate::kit::pattern(77, 1000);
    b.post_receive(&[bytes.len()]);
    a.post_send(&bytes);
    assert_bytes(&b.received(), &bytes);
    a.sent();
}

/// Returns when what `a` has posted before is in place at `b`, which has no receive posted.
pub fn settle<E: End>(a: &mut E, b: &mut E) {
    b.post_receive(&[0]);
    a.post_send(b"");
    assert!(b.received().is_empty());
    a.sent();
}
