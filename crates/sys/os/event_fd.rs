//! An eventfd: a descriptor by which one thread wakes another that sleeps in `poll` or epoll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::above_stdio;

/// A descriptor that is readable from a [`signal`](EventFd::signal) until the next [`reset`](EventFd::reset). Signals before
/// a reset count as one.
///
/// Reset before you look for the announced news: a signal that comes in between makes it readable again.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Makes the eventfd, unreadable.
    ///
    /// # Errors
    /// Errors of the kernel: no descriptors are left.
    pub fn new() -> io::Result<Self> {
        above_stdio(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)).map(EventFd)
    }

    /// Makes it readable. Never blocks.
    pub fn signal(&self) {
        // The write fails only after 2^64 - 2 signals without a reset, and the descriptor is readable then.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable again. Returns whether it was readable.
    pub fn reset(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_count_as_one_until_the_reset() {
        let event = EventFd::new().unwrap();
        assert!(!event.reset());
        event.signal();
        event.signal();
        assert!(event.reset() && !event.reset());
    }
}
