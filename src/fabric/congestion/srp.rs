//! The speculative reservation protocol, and its form for small messages: how long speculative packets may wait.

use super::{OutOfRange, within};

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speculation {
    /// Cycles that a speculative packet waits in switches' queues, all together; then it is dropped.
    pub patience: u32,
}

impl Default for Speculation {
    fn default() -> Self {
        Self { patience: 200 }
    }
}

impl Speculation {
    pub(super) fn check(&self) -> Result<(), OutOfRange> {
        within("the patience", self.patience, 1, 1 << 20)
    }
}
