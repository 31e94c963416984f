//! Sockets, and who watches them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use udeck_session::poll::{EventFlags, Poller};
use udeck_session::{Outstanding, SendBuffer};

use crate::sys;

/// What a socket is watched for while nothing of ours waits for room in it.
pub const INCOMING: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// A connected socket, and the pollers that watch it. The pollers change from thread to thread; the socket stays open,
/// and its number its own, as long as somebody may still take it out of a poller.
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
    /// Nothing more comes of it, and nobody shall watch it.
    over: bool,
}

impl Socket {
    /// Pollers will name it `token`.
    pub fn new(fd: OwnedFd, token: u64) -> Self {
        Socket { fd, token, watch: Mutex::new(Watch { by: Vec::new(), events: INCOMING, over: false }) }
    }

    /// # Errors
    /// The kernel's.
    pub fn watch_by(&self, poller: &Arc<Poller>) -> io::Result<()> {
        let mut watch = self.watch.lock();
        if watch.over || watch.by.iter().any(|by| Arc::ptr_eq(by, poller)) {
            return Ok(());
        }
        poller.add(&self.fd, self.token, watch.events)?;
        watch.by.push(poller.clone());
        Ok(())
    }

    /// By this poller, and by no other any more.
    ///
    /// # Errors
    /// The kernel's: then it stays as it was.
    pub fn hand_to(&self, poller: &Arc<Poller>) -> io::Result<()> {
        self.watch_by(poller)?;
        let mut watch = self.watch.lock();
        let (kept, others) =
            std::mem::take(&mut watch.by).into_iter().partition(|by| Arc::ptr_eq(by, poller));
        watch.by = kept;
        others.iter().for_each(|other| other.remove(&self.fd));
        Ok(())
    }

    /// What it is watched for.
    pub fn want(&self, events: EventFlags) {
        let mut watch = self.watch.lock();
        if watch.events != events {
            watch.events = events;
            watch.by.iter().for_each(|poller| poller.set(&self.fd, self.token, events));
        }
    }

    /// By nobody any more.
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
