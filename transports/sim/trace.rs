//! What happened on a fabric, in order.

use std::time::Duration;

/// Something that happened, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Virtual time since the fabric was made.
    pub at: Duration,
    /// The NICs of the link, by the order in which they were opened.
    pub link: (usize, usize),
    /// What.
    pub what: Happening,
}

/// What may happen. Frames are counted per link, as in [`crate::When::Frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// A message of so many bytes, or the question or the answer of an RDMA read, was sent as this frame.
    Posted {
        /// Which frame.
        frame: u64,
        /// How long.
        bytes: usize,
    },
    /// The receipt for a message was sent, and travels as this frame.
    Acknowledged(u64),
    /// A frame arrived, whole.
    Arrived(u64),
    /// A frame vanished.
    Lost(u64),
    /// A bit of a frame flipped on its way.
    Corrupted(u64),
    /// A frame arrived whose checksum is wrong.
    Detected(u64),
    /// A frame will arrive twice.
    Duplicated(u64),
    /// A frame came that had come before.
    Discarded(u64),
    /// A frame will come late.
    HeldBack(u64),
    /// A frame was at the end of its way, where the link is stalled.
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
