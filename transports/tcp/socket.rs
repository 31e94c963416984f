//! Sockets, and the pollers that watch them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use udeck_session::poll::{EventFlags, Poller};
use udeck_session::{Outstanding, SendBuffer};

use crate::sys;

/// Events for which a socket is watched while no data of ours wait for room in it.
pub const INCOMING: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// A connected socket, and the pollers that watch it. The pollers change from thread to thread. The socket stays
/// open, and its descriptor number stays its own, as long as some thread may still remove it from a poller.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    token: u64,
    watch: Mutex<Watch>,
}

#[derive(Debug)]
struct Watch {
    by: Vec<Arc<Poller>>,
    events: EventFlags,
    /// No more events are wanted, and no poller may be added.
    over: bool,
}

impl Socket {
    /// Wraps a socket. Pollers name it by `token`.
    pub fn new(fd: OwnedFd, token: u64) -> Self {
        Socket { fd, token, watch: Mutex::new(Watch { by: Vec::new(), events: INCOMING, over: false }) }
    }

    /// # Errors
    /// The kernel's error.
    pub fn watch_by(&self, poller: &Arc<Poller>) -> io::Result<()> {
        let mut watch = self.watch.lock();
        if watch.over || watch.by.iter().any(|by| Arc::ptr_eq(by, poller)) {
            return Ok(());
        }
        poller.add(&self.fd, self.token, watch.events)?;
        watch.by.push(poller.clone());
        Ok(())
    }

    /// Moves the socket to this poller, away from all others.
    ///
    /// # Errors
    /// The kernel's error: then the pollers are unchanged.
    pub fn hand_to(&self, poller: &Arc<Poller>) -> io::Result<()> {
        self.watch_by(poller)?;
        let mut watch = self.watch.lock();
        let (kept, others) =
            std::mem::take(&mut watch.by).into_iter().partition(|by| Arc::ptr_eq(by, poller));
        watch.by = kept;
        others.iter().for_each(|other| other.remove(&self.fd));
        Ok(())
    }

    /// Sets the events for which the socket is watched.
    pub fn want(&self, events: EventFlags) {
        let mut watch = self.watch.lock();
        if watch.events != events {
            watch.events = events;
            watch.by.iter().for_each(|poller| poller.set(&self.fd, self.token, events));
        }
    }

    /// Removes the socket from all pollers for good.
    pub fn unwatch(&self) {
        let mut watch = self.watch.lock();
        watch.over = true;
        std::mem::take(&mut watch.by).iter().for_each(|poller| poller.remove(&self.fd));
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl SendBuffer for Socket {
    fn outstanding(&self) -> Outstanding {
        sys::outstanding(self)
    }
}
