//! How long a call may wait, and how often it polls meanwhile for what sends no notification.

use std::time::Duration;

use udeck_via::{Deadline, Error as ViaError};

/// Memory may come free where a waiting call does not hear of it: so often it looks.
pub(crate) const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// How long a post may wait.
#[derive(Clone, Copy, Debug)]
pub enum WaitPolicy {
    /// Not at all: it fails instead.
    None,
    /// Not at all: a message for which there is no room waits in the queue.
    Queue,
    /// The world's deadline. The clock is read only when there is something to wait for.
    Usual,
    Until(Deadline),
}

impl WaitPolicy {
    /// The end of a wait that begins now; `None`: there is to be none.
    pub fn until(self, usual: Duration) -> Option<Deadline> {
        match self {
            WaitPolicy::None | WaitPolicy::Queue => None,
            WaitPolicy::Usual => Some(Deadline::after(usual)),
            WaitPolicy::Until(deadline) => Some(deadline),
        }
    }
}

/// When a wait because of `error` looks again, news or not.
pub(crate) fn look_again(error: &ViaError, deadline: Deadline) -> Deadline {
    match error {
        ViaError::NoMemory { .. } => deadline.min(Deadline::after(MEMORY_PAUSE)),
        _ => deadline,
    }
}
