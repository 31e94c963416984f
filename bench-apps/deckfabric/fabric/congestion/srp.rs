//! Speculative reservation protocol, and its form for small messages: bounds of speculation.

use super::{OutOfRange, within};
use std::collections::VecDeque;

/// Parameters of SRP and SMSRP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// Cycles that a speculative packet may wait in the queues of all switches together; then it is dropped.
    pub patience: u32,
    /// Upper bound of the messages in flight from a sender to one receiver. Others wait at the sender, and reserve
    /// nothing: otherwise a sender that posts more than its receiver can take would fill the receiver's link with
    /// reservations.
    pub window: u32,
}

impl Default for Speculation {
    fn default() -> Self {
        Self { patience: 200, window: 8 }
    }
}

impl Speculation {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        within("the patience", self.patience, 1, 1 << 20)?;
        within("the window", self.window, 1, 1 << 20)
    }
}

/// Messages of a sender to one receiver.
#[derive(Debug, Default)]
pub(crate) struct Pair {
    /// Number of messages in flight.
    pub open: u32,
    /// Messages that follow.
    pub waiting: VecDeque<u32>,
}
