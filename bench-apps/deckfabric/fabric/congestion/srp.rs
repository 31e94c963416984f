//! The speculative reservation protocol, and its form for small messages: how long speculative packets may wait.

use super::{OutOfRange, within};
use std::collections::VecDeque;

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// Cycles that a speculative packet waits in switches' queues, all together; then it is dropped.
    pub patience: u32,
    /// Messages of a sender to one receiver that are under way, at most. The others wait at the sender, and reserve nothing: otherwise
    /// a sender that posts more than its receiver can take fills the receiver's link with reservations.
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

/// A sender's messages to one receiver.
#[derive(Debug, Default)]
pub(crate) struct Pair {
    /// Under way.
    pub open: u32,
    /// They follow.
    pub waiting: VecDeque<u32>,
}
