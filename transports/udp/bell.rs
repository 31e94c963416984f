//! Ending another thread's sleep.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// A descriptor that ends another thread's sleep.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// # Errors
    /// The kernel's: no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Bell(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub fn ring(&self) {
        // It fails only if it was rung 2^64 - 2 times already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Sleeps until it is rung, or something can be read from `socket`, at most `limit`. May return early.
    /// Whether the socket has errors to tell.
    pub fn sleep(&self, socket: Option<&impl AsFd>, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).ok();
        let bell = PollFd::new(&self.0, PollFlags::IN);
        let (rung, trouble) = match socket {
            Some(socket) => {
                let mut fds = [bell, PollFd::new(socket, PollFlags::IN)];
                let _ = poll(&mut fds, limit.as_ref());
                (!fds[0].revents().is_empty(), fds[1].revents().contains(PollFlags::ERR))
            }
            None => {
                let mut fds = [bell];
                let _ = poll(&mut fds, limit.as_ref());
                (!fds[0].revents().is_empty(), false)
            }
        };
        if rung {
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
        trouble
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
