//! News of a connection for its program.

use udeck_via::transport::{Owner, Refused};

/// News that a program waits for. It is gathered under the connection's lock, and announced without it.
#[derive(Debug, Default)]
pub struct Events {
    /// There may be room to send again, or a post has completed.
    pub send: bool,
    /// Something arrived, or the connection ended.
    pub receive: bool,
    /// The connection ended by this error.
    pub lost: Option<String>,
    /// The connection has ended. Unlike an arrival, this is announced whatever lies in the receive queue.
    end: bool,
    /// Memory that was kept for callers that are gone. It is dropped without the lock, because its drop may run any code.
    owners: Vec<Owner>,
}

impl Events {
    /// Whether there is something to announce or to drop: mostly there is not.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.send || self.receive || self.end || self.lost.is_some() || self.has_owners()
    }

    /// Whether there is something to be dropped.
    #[inline]
    pub fn has_owners(&self) -> bool {
        !self.owners.is_empty()
    }

    /// Takes all news. `arrivals`: whether something lies in the receive queue; arrivals that were taken meanwhile are no news.
    pub fn take(&mut self, arrivals: bool) -> Self {
        let mut events = std::mem::take(self);
        events.receive = events.receive && arrivals || std::mem::take(&mut events.end);
        events
    }

    /// Takes the arrival news, if it is the only news: the caller sees the arrival by itself. Returns whether something arrived.
    #[inline]
    pub fn take_arrivals(&mut self) -> bool {
        let alone = !self.send && !self.end && self.lost.is_none() && !self.has_owners();
        alone && std::mem::take(&mut self.receive)
    }

    /// Notes for both queues that the connection has ended.
    pub fn notify_end(&mut self) {
        (self.send, self.end) = (true, true);
    }

    /// Notes the end again. It was announced while an arrival lay before it, which is taken by now: a program that takes one
    /// message per announcement is told of the end, too.
    #[inline]
    pub fn notify_end_after_arrival(&mut self) {
        self.end = true;
    }

    /// Notes all news again for a new receiver of news.
    pub fn renotify(&mut self, end: Option<Refused>) {
        self.notify_end();
        if let Some(Refused::Lost(why)) = end {
            self.lost = Some(why);
        }
    }

    /// Keeps `owner` until the lock is released; its drop may run any code.
    pub fn defer_drop(&mut self, owner: Owner) {
        self.owners.push(owner);
    }
}
