//! Mail of the root's other threads for the nodes. An eventfd wakes the thread that sends it.

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
    /// A piece of the name service's stream to a rank.
    Boot { rank: u32, bytes: Vec<u8> },
    /// The name service has dealt with `bytes` from this rank.
    BootConsumed { rank: u32, bytes: usize },
    /// The name service has closed this rank's connection.
    BootEnd { rank: u32 },
    /// `bytes` of a node's output have been written.
    Written { node: usize, sink: Sink, bytes: usize },
    /// The output cannot be written any more.
    Unread { sink: Sink },
}

/// The sending side of the mail. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Mailbox {
    mail: Sender<Mail>,
    wakeup: Arc<EventFd>,
}

/// The receiving side of the mail.
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
        // If the receiver is gone, so are the nodes.
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
        // Reset first: mail that comes in between signals again.
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
