//! Epoll, level-triggered: descriptors are named as long as something lies there. And what ends a sleep beside it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use udeck_sys::{EventFd, above_stdio};

/// Descriptors that one look names at most; the next look begins with others.
const BATCH: usize = 64;

/// An epoll instance.
#[derive(Debug)]
pub struct Poller(OwnedFd);

/// The names of descriptors that have something; kept by whoever looks, so that a look allocates nothing.
#[derive(Default)]
pub struct Found(Vec<u64>);

impl Found {
    /// As the descriptors were [added](Poller::add).
    pub fn tokens(&self) -> impl Iterator<Item = u64> {
        self.0.iter().copied()
    }

    /// Whether there may be more.
    pub fn is_full(&self) -> bool {
        self.0.len() == BATCH
    }
}

impl Poller {
    /// # Errors
    /// The kernel's: no descriptors left.
    pub fn new() -> io::Result<Self> {
        above_stdio(epoll::create(epoll::CreateFlags::CLOEXEC)).map(Poller)
    }

    /// # Errors
    /// The kernel's: no memory, or too many watched descriptors.
    pub fn add(&self, fd: impl AsFd, token: u64, events: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, epoll::EventData::new_u64(token), events)?)
    }

    /// Changes what a descriptor is watched for. What it has already is named by the next look.
    pub fn set(&self, fd: impl AsFd, token: u64, events: EventFlags) {
        // It fails only for descriptors that are not watched (any more), which have nothing to tell.
        let _ = epoll::modify(&self.0, fd, epoll::EventData::new_u64(token), events);
    }

    /// Watches a descriptor no more.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Looks; sleeps for `limit` if there is nothing. May return early.
    pub fn look(&self, found: &mut Found, limit: Duration) {
        found.0.clear();
        let millis = limit.as_nanos().div_ceil(1_000_000);
        let seconds = (millis / 1000).min(i32::MAX as u128 / 1000) as i64;
        let limit = Timespec { tv_sec: seconds, tv_nsec: (millis % 1000 * 1_000_000) as _ };
        let mut events = [const { MaybeUninit::uninit() }; BATCH];
        // Interrupted, it has found nothing.
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
    /// # Errors
    /// The kernel's: no descriptors left.
    pub fn new() -> io::Result<Self> {
        EventFd::new().map(Bell)
    }

    /// Ends the sleep beside it: that which lasts, or the next.
    pub fn ring(&self) {
        self.0.signal();
    }

    /// Takes back that it was rung.
    pub fn hush(&self) {
        self.0.reset();
    }

    /// Sleeps until it is rung, or something lies in the descriptor `beside` it, at most `limit`. May return early.
    /// Whether that descriptor has errors to tell.
    ///
    /// A bell is no part of a poller: others look at that too, and would take the ring away from the sleeper.
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
            self.hush();
        }
        trouble
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
