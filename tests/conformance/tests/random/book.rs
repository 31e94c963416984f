//! The oracle: the posts of each VI, the messages of each connection, and the allowed completions.

use std::collections::VecDeque;

use udeck_conformance::kit::assert_bytes;
use udeck_via::{Completion, Reliability, Status};

use crate::image::{contents, image, payload, regions, tag, untag};

/// A connection, on which each side sends one way.
pub struct Connection {
    pub level: Reliability,
    /// VIs at its ends, until they disconnect. A requester that gave up was never an end.
    pub ends: [Option<usize>; 2],
    pub directions: [Direction; 2],
}

/// Messages of one side that consume receives, in the order of its posts.
#[derive(Default)]
pub struct Direction {
    pub sent: Vec<Sent>,
    /// Number of messages that have arrived; if the order is kept, these are the first ones.
    pub arrived: usize,
    /// Whether a message found too short a descriptor, which ends a reliable connection.
    broken: bool,
}

/// A message.
pub struct Sent {
    pub tag: u32,
    pub len: usize,
    pub immediate: bool,
    /// Whether it was an RDMA write: its bytes are in the window, not in the descriptor.
    pub written: bool,
    /// Step of its post.
    pub posted: u64,
    /// Status of its arrival: the message is in the receiver's descriptor, whole or as far as it fitted.
    pub arrived: Option<Status>,
}

impl Connection {
    pub fn new(level: Reliability, ends: [Option<usize>; 2]) -> Self {
        Connection { level, ends, directions: Default::default() }
    }

    /// Tag of the next message of `side` on connection `number`.
    pub fn next_tag(&self, number: usize, side: usize) -> u32 {
        tag(number, side, self.directions[side].sent.len())
    }
}

impl Direction {
    /// Finds the message that arrived by its immediate data, and checks number and order. Returns it, with what its
    /// receiver must see.
    pub fn arrives(&mut self, level: Reliability, immediate: Option<u32>) -> &mut Sent {
        let at = if level == Reliability::Unreliable {
            untag(immediate.expect("unreliable messages carry their tag")).2
        } else {
            self.arrived
        };
        let place = self.sent.len();
        let Some(sent) = self.sent.get_mut(at) else {
            panic!("message {at} came, and only {place} were sent")
        };
        assert!(sent.arrived.is_none(), "message {at} came twice");
        assert!(!self.broken, "message {at} came after one that broke the connection");
        let expected = sent.immediate.then_some(sent.tag);
        assert_eq!(immediate, expected, "message {at} is next in order, and this is its immediate data");
        self.arrived += 1;
        sent
    }

    /// Records how the arrival of the message was reported.
    pub fn reported(&mut self, tag: u32, status: Status, level: Reliability) {
        self.sent[untag(tag).2].arrived = Some(status);
        self.broken |= status != Status::Done && level != Reliability::Unreliable;
    }
}

/// Posts of a VI that were not reported yet, oldest first.
#[derive(Default)]
pub struct Book {
    pub sends: VecDeque<PostedSend>,
    pub receives: VecDeque<PostedReceive>,
    /// Number of ends of connections. Posts before the last one are finished.
    batch: u64,
    /// Batch of a flushed receive: all receives behind it are flushed, too.
    flushed: Option<u64>,
    /// Batch of a failed send, and its status: all sends behind it fail, too.
    failed: Option<(u64, Status)>,
    /// Batch whose connection was lost, without an orderly end.
    lost: Option<u64>,
}

pub struct PostedReceive {
    pub id: u32,
    pub batch: u64,
    segments: Vec<usize>,
}

pub struct PostedSend {
    pub kind: Kind,
    pub id: u32,
    batch: u64,
    segments: Vec<usize>,
    /// Contents of the segments: of a read, nothing yet.
    content: Vec<u8>,
}

/// Request of a send descriptor.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A message, or a write with immediate data: message `at` of this connection and side.
    Message { connection: usize, side: usize, at: usize },
    /// A write of which its receiver is not notified.
    Write,
    /// A write or read that the peer does not allow.
    Forbidden,
    /// A read of bytes of a VI's window, in its given incarnation, at this step.
    Read { owner: usize, incarnation: u64, offset: usize, step: u64 },
}

impl PostedReceive {
    /// Number of bytes that it can take.
    pub fn room(&self) -> usize {
        self.segments.iter().sum()
    }
}

impl Book {
    pub fn posted_send(&mut self, kind: Kind, id: u32, segments: &[usize], content: Vec<u8>) {
        let (batch, segments) = (self.batch, segments.to_vec());
        self.sends.push_back(PostedSend { kind, id, batch, segments, content });
    }

    pub fn posted_receive(&mut self, id: u32, segments: &[usize]) {
        let (batch, segments) = (self.batch, segments.to_vec());
        self.receives.push_back(PostedReceive { id, batch, segments });
    }

    /// Batch of the current posts.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// Ends the batch: the connection ended or was given up, and with it all posts.
    pub fn ends(&mut self) {
        self.batch += 1;
    }

    /// Ends the batch because the connection was lost: no program ended it, and no message lacked a place.
    pub fn is_lost(&mut self) {
        self.lost = Some(self.batch);
        self.ends();
    }

    /// Checks a reported receive: it must be the oldest, may have this status, and its memory must fit it.
    /// `arrived` is the message that was expected.
    pub fn received(&mut self, completion: Completion, arrived: Option<&Sent>) {
        let posted = self.receives.pop_front().expect("a receive was reported that nobody has posted");
        let found = regions(completion.descriptor.expect("posted with a descriptor"));
        let Some(sent) = arrived else {
            assert_eq!(completion.status, Status::Flushed, "nothing came for this receive");
            assert!(posted.batch < self.batch, "flushed while its connection stands");
            assert_eq!((completion.length, completion.immediate), (0, None));
            // A flushed receive must be untouched.
            assert_bytes(&found, &image(posted.id, &posted.segments, &[]));
            self.flushed = Some(posted.batch);
            return;
        };
        assert_ne!(self.flushed, Some(posted.batch), "a message was reported behind a flushed receive");
        let room = posted.room();
        let fits = if sent.written { 0 } else { sent.len.min(room) };
        let (length, status) = match sent.written {
            true => (sent.len, Status::Done),
            false => (fits, if sent.len > room { Status::LengthError } else { Status::Done }),
        };
        assert_eq!(
            (completion.status, completion.length),
            (status, length),
            "{} bytes into {room}",
            sent.len
        );
        // The receive must hold the message, and nothing else.
        assert_bytes(&found, &image(posted.id, &posted.segments, &payload(sent.tag, sent.len)[..fits]));
    }

    /// Checks a reported send: it must be the oldest, may have this status, and its memory must be unchanged.
    /// Returns the post, and the contents of its segments.
    pub fn sent(&mut self, completion: Completion, level: Reliability) -> (PostedSend, Vec<u8>) {
        let posted = self.sends.pop_front().expect("a send was reported that nobody has posted");
        let descriptor = completion.descriptor.expect("posted with a descriptor");
        let lies_there = contents(&descriptor);
        // A failed read may have read nevertheless. The memory of all other posts is unchanged.
        let content = if matches!(posted.kind, Kind::Read { .. }) { &lies_there } else { &posted.content };
        assert_bytes(&regions(descriptor), &image(posted.id, &posted.segments, content));
        let all = posted.segments.iter().sum();
        let length = if completion.status == Status::Done { all } else { 0 };
        assert_eq!(completion.length, length, "of a send that ended as {:?}", completion.status);
        let failed = self.failed.filter(|(batch, _)| *batch == posted.batch).map(|(_, status)| status);
        match completion.status {
            // Below reliable reception, a send that left before the error was noticed is done: no more is
            // promised.
            Status::Done => assert!(
                failed.is_none() || level != Reliability::Reception,
                "a send was done behind one that ended as {failed:?}"
            ),
            status => {
                assert!(posted.batch < self.batch, "{status:?} while the connection stands");
                assert!(failed.is_none() || status == Status::Flushed, "{status:?} behind {failed:?}");
                if failed.is_none() && status == Status::Flushed {
                    let lost = self.lost == Some(posted.batch);
                    assert!(!lost, "the oldest send under way when the connection was lost was flushed");
                }
                self.failed.replace((posted.batch, failed.unwrap_or(status)));
            }
        }
        (posted, lies_there)
    }
}
