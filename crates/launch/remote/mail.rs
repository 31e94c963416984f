//! What other threads of the root have for the nodes. An eventfd wakes the thread that sends it.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
};

use udeck_boot::serve::Outlet;
use udeck_sys::EventFd;

use crate::control::wire::Sink;

#[derive(Debug)]
pub(crate) enum Mail {
    /// From the name service to a rank.
    Boot { rank: u32, bytes: Vec<u8> },
    /// It has dealt with so much of what that rank said.
    BootConsumed { rank: u32, bytes: usize },
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
    wakeup: Arc<EventFd>,
}

/// Where it is taken.
pub(crate) struct Collector {
    mail: Receiver<Mail>,
    wakeup: Arc<EventFd>,
}

pub(crate) fn mailbox() -> io::Result<(Mailbox, Collector)> {
    let wakeup = Arc::new(EventFd::new()?);
    let (sender, receiver) = mpsc::channel();
    Ok((Mailbox { mail: sender, wakeup: Arc::clone(&wakeup) }, Collector { mail: receiver, wakeup }))
}

impl Mailbox {
    pub(crate) fn post(&self, mail: Mail) {
        // Nobody sends any more: nobody is left to send to.
        let _ = self.mail.send(mail);
        self.wakeup.signal();
    }
}

impl Collector {
    /// Readable when there is mail.
    pub(crate) fn wakeup(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    pub(crate) fn take(&self) -> Vec<Mail> {
        // Reset first, so that what comes in between signals again.
        self.wakeup.reset();
        self.mail.try_iter().collect()
    }
}

impl Outlet for Mailbox {
    fn send(&mut self, rank: u32, bytes: Vec<u8>) {
        self.post(Mail::Boot { rank, bytes });
    }

    fn consumed(&mut self, rank: u32, bytes: usize) {
        self.post(Mail::BootConsumed { rank, bytes });
    }

    fn close(&mut self, rank: u32) {
        self.post(Mail::BootEnd { rank });
    }
}
