//! Epoll, level-triggered: a descriptor is reported as long as it is ready. Also an eventfd ([`Bell`]) that ends a sleep.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use udeck_sys::{EventFd, above_stdio};

/// Upper bound of descriptors that one poll reports; the next poll begins with others.
const BATCH: usize = 64;

/// An epoll instance.
#[derive(Debug)]
pub struct Poller(OwnedFd);

/// Tokens of the ready descriptors. The caller keeps it from poll to poll, so that a poll allocates nothing.
#[derive(Default)]
pub struct Found(Vec<u64>);

impl Found {
    /// Tokens of the ready descriptors, as given to [`Poller::add`].
    pub fn tokens(&self) -> impl Iterator<Item = u64> {
        self.0.iter().copied()
    }

    /// Whether more descriptors may be ready.
    pub fn is_full(&self) -> bool {
        self.0.len() == BATCH
    }
}

impl Poller {
    /// Makes an epoll instance.
    ///
    /// # Errors
    /// Errors of the kernel: no descriptors left.
    pub fn new() -> io::Result<Self> {
        above_stdio(epoll::create(epoll::CreateFlags::CLOEXEC)).map(Poller)
    }

    /// Watches a descriptor for `events`; polls report it by `token`.
    ///
    /// # Errors
    /// Errors of the kernel: no memory, or too many watched descriptors.
    pub fn add(&self, fd: impl AsFd, token: u64, events: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, epoll::EventData::new_u64(token), events)?)
    }

    /// Changes the events that a descriptor is watched for. The next poll reports events that are there already.
    pub fn set(&self, fd: impl AsFd, token: u64, events: EventFlags) {
        // The call fails only for descriptors that are not watched (any more): no event of these is wanted.
        let _ = epoll::modify(&self.0, fd, epoll::EventData::new_u64(token), events);
    }

    /// Stops watching a descriptor.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Polls; sleeps for at most `limit` if nothing is ready. May return early.
    pub fn poll(&self, found: &mut Found, limit: Duration) {
        found.0.clear();
        let millis = limit.as_nanos().div_ceil(1_000_000);
        let seconds = (millis / 1000).min(i32::MAX as u128 / 1000) as i64;
        let limit = Timespec { tv_sec: seconds, tv_nsec: (millis % 1000 * 1_000_000) as _ };
        let mut events = [const { MaybeUninit::uninit() }; BATCH];
        // An interrupted wait has found nothing.
        if let Ok((events, _)) = epoll::wait(&self.0, &mut events, Some(&limit)) {
            found.0.extend(events.iter().map(|event| event.data.u64()));
        }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An eventfd that ends another thread's sleep beside a descriptor.
#[derive(Debug)]
pub struct Bell(EventFd);

impl Bell {
    /// Makes the eventfd.
    ///
    /// # Errors
    /// Errors of the kernel: no descriptors left.
    pub fn new() -> io::Result<Self> {
        EventFd::new().map(Bell)
    }

    /// Ends the sleep beside it: the present one, or the next.
    pub fn ring(&self) {
        self.0.signal();
    }

    /// Clears the signal.
    pub fn reset(&self) {
        self.0.reset();
    }

    /// Sleeps until the bell is rung or the descriptor `beside` is readable, at most `limit`. May return early. Returns
    /// whether that descriptor reports an error.
    ///
    /// A bell is no part of a poller: other threads poll there, and would take the signal away from the sleeper.
    pub fn sleep(&self, beside: Option<&impl AsFd>, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).ok();
        let bell = PollFd::new(&self.0, PollFlags::IN);
        let (rung, trouble) = match beside {
            Some(beside) => {
                let mut fds = [bell, PollFd::new(beside, PollFlags::IN)];
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
            self.reset();
        }
        trouble
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
