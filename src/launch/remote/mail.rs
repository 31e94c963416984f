//! What other threads of the root have for the nodes, and the bell that wakes the thread which sends it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
};

use rustix::event::{EventfdFlags, eventfd};
use udeck_boot::serve::Outlet;

use crate::link::wire::Sink;

#[derive(Debug)]
pub(crate) enum Mail {
    /// From the name service to a rank.
    Boot { rank: u32, bytes: Vec<u8> },
    /// It has dealt with so much of what that rank said.
    BootHeard { rank: u32, bytes: usize },
    /// It has nothing more to say to that rank.
    BootEnd { rank: u32 },
    /// So much of a node's output has been written.
    Written { node: usize, sink: Sink, bytes: usize },
    /// It cannot be written any more.
    Unread { sink: Sink },
}

/// Where mail is put. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Mailbox {
    mail: Sender<Mail>,
    bell: Arc<OwnedFd>,
}

/// Where it is taken.
pub(crate) struct Collector {
    mail: Receiver<Mail>,
    bell: Arc<OwnedFd>,
}

pub(crate) fn mailbox() -> io::Result<(Mailbox, Collector)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = mpsc::channel();
    Ok((Mailbox { mail: sender, bell: Arc::clone(&bell) }, Collector { mail: receiver, bell }))
}

impl Mailbox {
    pub(crate) fn post(&self, mail: Mail) {
        // Nobody sends any more: nobody is left to send to.
        let _ = self.mail.send(mail);
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }
}

impl Collector {
    /// Readable when there is mail.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    pub(crate) fn take(&self) -> Vec<Mail> {
        // Reset first, so that what comes in between rings again.
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        self.mail.try_iter().collect()
    }
}

impl Outlet for Mailbox {
    fn send(&mut self, rank: u32, bytes: Vec<u8>) {
        self.post(Mail::Boot { rank, bytes });
    }

    fn heard(&mut self, rank: u32, bytes: usize) {
        self.post(Mail::BootHeard { rank, bytes });
    }

    fn close(&mut self, rank: u32) {
        self.post(Mail::BootEnd { rank });
    }
}
