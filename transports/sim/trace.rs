//! Trace of a fabric: its events in order.

use std::time::Duration;

/// A recorded event, and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Virtual time since the fabric was made.
    pub at: Duration,
    /// The NICs of the link, by the order in which they were opened.
    pub link: (usize, usize),
    /// Kind of the event.
    pub what: Happening,
}

/// Kinds of events. Frames are counted per link, as in [`crate::When::Frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// A message of `bytes` bytes, or the question or the answer of an RDMA read, was sent as this frame.
    Posted {
        /// Number of the frame.
        frame: u64,
        /// Length of the message in bytes.
        bytes: usize,
    },
    /// The receipt for a message was sent as this frame.
    Acknowledged(u64),
    /// A frame arrived whole.
    Arrived(u64),
    /// A frame was lost.
    Lost(u64),
    /// A bit of a frame flipped in transit.
    Corrupted(u64),
    /// A frame arrived whose checksum is wrong.
    Detected(u64),
    /// A frame was duplicated: it will arrive twice.
    Duplicated(u64),
    /// A frame was dropped because it had arrived before.
    Discarded(u64),
    /// A frame was held back: it will come late.
    HeldBack(u64),
    /// A frame reached the end of a stalled link, and waits there.
    Stalled(u64),
    /// One end closed its connection.
    Closed,
    /// A connection broke.
    Broken,
    /// Two VIs were connected.
    Connected,
    /// A NIC died; it is both ends of `link`.
    Died,
}
