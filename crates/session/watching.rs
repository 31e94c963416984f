//! Who is told what happens on a connection.

use std::sync::Arc;

use udeck_via::transport::{Queue, Reporter};

use crate::Events;

/// A work queue's place at a waiter.
pub trait Announce: Send + Sync {
    /// The queue has news. Called without the link's lock, from any thread; must not block.
    fn announce(&self);
}

/// Whom a link reports to.
pub struct Watch {
    /// Who learns that there is room to send again, or that something that was posted is over.
    pub send: Arc<dyn Announce>,
    /// Who learns that something arrived, or that the connection ended.
    pub receive: Arc<dyn Announce>,
    /// Who learns that the connection was lost.
    pub reporter: Arc<Reporter>,
}

/// Who is there to be told: as [`Watch`], until the queues are given back.
#[derive(Default)]
pub struct Watching {
    pub(crate) send: Option<Arc<dyn Announce>>,
    pub(crate) receive: Option<Arc<dyn Announce>>,
    pub(crate) reporter: Option<Arc<Reporter>>,
}

impl Watching {
    /// This queue reports to nobody any more. What it reported to is to be dropped without the link's lock.
    pub fn detach(&mut self, queue: Queue) -> Option<Arc<dyn Announce>> {
        match queue {
            Queue::Send => self.send.take(),
            Queue::Receive => self.receive.take(),
        }
    }

    /// Who learns that something arrived: what there mostly is to tell.
    #[inline]
    pub fn receiver(&self) -> Option<Arc<dyn Announce>> {
        self.receive.clone()
    }

    /// Reports a loss, with the link's lock held: before the program can find it by looking, which would tell it less. Returns
    /// the queues whose news is to be announced without the lock.
    #[inline]
    pub fn report(&self, events: &Events) -> [Option<Arc<dyn Announce>>; 2] {
        if let (Some(why), Some(reporter)) = (&events.lost, &self.reporter) {
            reporter.lost(why);
        }
        // Not cloned and dropped again: mostly one of them has no news.
        let send = if events.send { self.send.clone() } else { None };
        let receive = if events.receive { self.receive.clone() } else { None };
        [send, receive]
    }
}

impl From<Watch> for Watching {
    fn from(Watch { send, receive, reporter }: Watch) -> Self {
        Watching { send: Some(send), receive: Some(receive), reporter: Some(reporter) }
    }
}
