//! What there is to tell the program of a connection.

use udeck_via::transport::{Owner, Refused};

/// What has happened that a program waits for: it is gathered under the connection's lock, and told without.
#[derive(Debug, Default)]
pub struct Events {
    /// There is room again, or something that was posted is over.
    pub send: bool,
    /// Something arrived, or the connection ended.
    pub receive: bool,
    /// The connection ended by an error.
    pub lost: Option<String>,
    /// The end, as different from an arrival, is told whatever lies in the receive queue.
    end: bool,
    /// What was kept for callers that are gone. Dropped without the lock: it may be anything.
    owners: Vec<Owner>,
}

impl Events {
    /// Whether there is something to tell or to drop: mostly there is not.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.send || self.receive || self.end || self.lost.is_some() || self.has_owners()
    }

    /// Whether there is something to be dropped.
    #[inline]
    pub fn has_owners(&self) -> bool {
        !self.owners.is_empty()
    }

    /// All of it. `arrivals`: whether something lies in the receive queue; what was taken meanwhile is no news.
    pub fn take(&mut self, arrivals: bool) -> Self {
        let mut events = std::mem::take(self);
        events.receive = events.receive && arrivals || std::mem::take(&mut events.end);
        events
    }

    /// Whether there is nothing to tell but that something arrived, which the one who asks sees by itself: then it is told.
    #[inline]
    pub fn take_arrivals(&mut self) -> bool {
        let alone = !self.send && !self.end && self.lost.is_none() && !self.has_owners();
        alone && std::mem::take(&mut self.receive)
    }

    /// The connection has ended, for both queues.
    pub fn tell_end(&mut self) {
        (self.send, self.end) = (true, true);
    }

    /// The end was told while an arrival lay before it, which was taken now: who takes one message at each telling is told
    /// of the end, too.
    #[inline]
    pub fn tell_end_behind(&mut self) {
        self.end = true;
    }

    /// There is somebody new to be told.
    pub fn tell_again(&mut self, end: Option<Refused>) {
        self.tell_end();
        if let Some(Refused::Lost(why)) = end {
            self.lost = Some(why);
        }
    }

    /// Keeps what nobody waits for until the lock is not held.
    pub fn bury(&mut self, owner: Owner) {
        self.owners.push(owner);
    }
}
