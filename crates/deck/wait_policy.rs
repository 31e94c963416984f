//! How long a call may wait, and how often it polls meanwhile for events without a notification.

use std::time::Duration;

use udeck_via::{Deadline, Error as ViaError};

/// Poll interval for free memory, which sends no notification.
pub(crate) const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// How long a post may wait.
#[derive(Clone, Copy, Debug)]
pub enum WaitPolicy {
    /// No wait: the post fails instead.
    None,
    /// No wait: a message for which there is no room is queued.
    Queue,
    /// The world's deadline. The clock is read only when there is something to wait for.
    Usual,
    Until(Deadline),
}

impl WaitPolicy {
    /// Deadline of a wait that begins now; `None`: no wait.
    pub fn until(self, usual: Duration) -> Option<Deadline> {
        match self {
            WaitPolicy::None | WaitPolicy::Queue => None,
            WaitPolicy::Usual => Some(Deadline::after(usual)),
            WaitPolicy::Until(deadline) => Some(deadline),
        }
    }
}

/// Time at which a wait because of `error` polls again, with or without an event.
pub(crate) fn poll_deadline(error: &ViaError, deadline: Deadline) -> Deadline {
    match error {
        ViaError::NoMemory { .. } => deadline.min(Deadline::after(MEMORY_PAUSE)),
        _ => deadline,
    }
}
