//! Receivers of a connection's news.

use std::sync::Arc;

use udeck_via::transport::{Queue, Reporter};

use crate::Events;

/// A work queue's place at a waiter.
pub trait Announce: Send + Sync {
    /// Announces that the queue has news. Called without the link's lock, from any thread; must not block.
    fn announce(&self);
}

/// Receivers of a link's news.
pub struct Watch {
    /// Place of the send queue: it learns that there is room to send again, or that a post is over.
    pub send: Arc<dyn Announce>,
    /// Place of the receive queue: it learns that something arrived, or that the connection ended.
    pub receive: Arc<dyn Announce>,
    /// Reporter of the connection's loss.
    pub reporter: Arc<Reporter>,
}

/// Receivers of news that are still there: those of a [`Watch`], until the queues are given back.
#[derive(Default)]
pub struct Watching {
    pub(crate) send: Option<Arc<dyn Announce>>,
    pub(crate) receive: Option<Arc<dyn Announce>>,
    pub(crate) reporter: Option<Arc<Reporter>>,
}

impl Watching {
    /// Removes the queue's receiver of news. The caller drops it without the link's lock.
    pub fn detach(&mut self, queue: Queue) -> Option<Arc<dyn Announce>> {
        match queue {
            Queue::Send => self.send.take(),
            Queue::Receive => self.receive.take(),
        }
    }

    /// The receive queue's place: most news is an arrival.
    #[inline]
    pub fn receiver(&self) -> Option<Arc<dyn Announce>> {
        self.receive.clone()
    }

    /// Reports a loss, with the link's lock held: before the program can find it by polling, which would tell it less.
    /// Returns the queues' places whose news is to be announced without the lock.
    #[inline]
    pub fn report(&self, events: &Events) -> [Option<Arc<dyn Announce>>; 2] {
        if let (Some(why), Some(reporter)) = (&events.lost, &self.reporter) {
            reporter.lost(why);
        }
        // A place without news is not cloned: mostly one of the two has none.
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
