//! Owner's side of a completion queue: takes announced queues, reads the sockets, sleeps.

use std::sync::Arc;
use std::time::Duration;

use udeck_session::completion_queue::Sleep;
use udeck_session::poll::Found;
use udeck_sys::doorbell::MAX_SLEEP;
use udeck_via::Result;
use udeck_via::transport::{Armed, Notifier, Queue, Ready, Waiter};

use crate::completion_queue::{CompletionQueue, Sockets, serve_link};
use crate::core::{Core, TcpLink};

/// While queues are announced, sockets are read in one of this many polls: arrivals in the sockets must be found in
/// bounded time, but announced queues were there before.
const BURST: u64 = 16;

/// Owner's side of a completion queue.
pub struct TcpWaiter {
    core: Arc<Core>,
    cq: Arc<CompletionQueue>,
    hot: Option<Hot>,
    /// [`Sockets::vacated`] when `hot` was last polled.
    vacated: u32,
    found: Found,
}

/// The hot link: the last one on which something came, because a thread that waits for an answer waits for it there.
/// Its receive queue is at this completion queue.
struct Hot {
    link: Arc<TcpLink>,
    /// The link's receive queue, and its place at this completion queue.
    ready: Ready,
    place: u32,
    /// This thread took in messages, and announced them to nobody.
    unlisted: bool,
}

impl TcpWaiter {
    /// # Errors
    /// [`udeck_via::Error::Full`] when the NIC has no completion queue left.
    pub fn open(core: &Arc<Core>) -> Result<Self> {
        let cq = core.completion_queues.open(|number| Sockets::new(core, number))?;
        Ok(TcpWaiter { core: core.clone(), cq, hot: None, vacated: 0, found: Found::default() })
    }

    /// Returns a queue with news. Announced queues take turns, the hot link's among them. While there are none, the
    /// hot link need not be listed.
    #[inline]
    fn take(&mut self) -> Option<Ready> {
        if self.cq.has_news() {
            return self.take_announced();
        }
        let hot = self.hot.as_mut().filter(|hot| hot.unlisted)?;
        hot.unlisted = hot.link.has_arrivals();
        hot.unlisted.then_some(hot.ready)
    }

    fn take_announced(&mut self) -> Option<Ready> {
        self.announce_hot();
        let (ready, link, place) = self.cq.next_with_link()?;
        let is_hot = self.hot.as_ref().is_some_and(|hot| Arc::ptr_eq(&hot.link, &link));
        if ready.queue == Queue::Receive && !is_hot && link.has_arrivals() {
            self.hot = Some(Hot { link, ready, place, unlisted: false });
        }
        Some(ready)
    }

    /// Announces messages that only this thread knows of, unless the program has taken them. It is called when other
    /// queues have news, too, or when a thread sleeps or is about to.
    fn announce_hot(&mut self) {
        if let Some(Hot { link, place, unlisted, .. }) = &mut self.hot
            && std::mem::take(unlisted)
            && link.has_arrivals()
        {
            self.cq.announce(*place);
        }
    }

    /// Reads the hot link's socket. Returns its queue if it has messages and no other queue has news.
    #[inline]
    fn poll_hot(&mut self) -> Option<Ready> {
        let vacated = self.cq.backend.vacated();
        if vacated != self.vacated {
            // The hot link may be the one that left.
            self.vacated = vacated;
            self.forget_hot();
        }
        let hot = self.hot.as_mut()?;
        let ready = hot.ready;
        let (is_there, arrived) =
            hot.link.try_with_owner(|connection, driver| driver.serve_hot(connection))?;
        hot.unlisted |= arrived;
        if !is_there {
            self.forget_hot();
        } else if self.cq.sleeps() != Sleep::Awake {
            // The owner has armed the queue, and polls nevertheless: the sleeper in its place is woken by any news.
            self.announce_hot();
        }
        (arrived && !self.cq.has_news()).then_some(ready)
    }

    /// Forgets the hot link.
    #[cold]
    fn forget_hot(&mut self) {
        self.announce_hot();
        self.hot = None;
    }

    /// Reads all readable sockets.
    fn look_at_all(&mut self) {
        self.cq.backend.serve(&mut self.found, Duration::ZERO);
    }

    /// Serves a send-blocked link: a thread that waits here may wait for the answer to a message that has not left yet.
    #[cold]
    fn look_at_send_blocked(&mut self, number: u64) {
        if let Some(link) = self.core.link(number) {
            serve_link(&link);
        }
    }
}

impl Waiter for TcpWaiter {
    /// Polls. At least one of two fruitless polls asks epoll for all sockets, unless the hot link's receive queue is
    /// the only one here. (A send queue's socket is watched at the completion queue of its receive queue, too.)
    fn poll(&mut self) -> Option<Ready> {
        let looks = self.cq.note_look();
        let in_burst = !looks.is_multiple_of(BURST);
        let any = self.cq.has_news() || self.hot.as_ref().is_some_and(|hot| hot.unlisted);
        if in_burst
            && any
            && let Some(ready) = self.take()
        {
            return Some(ready);
        }
        let hot = self.poll_hot();
        if in_burst && hot.is_some() {
            return hot;
        }
        let in_turn = self.hot.is_none() || looks.is_multiple_of(2) && self.cq.backend.count() > 1;
        if in_turn && !(in_burst && self.cq.has_news()) {
            self.look_at_all();
        }
        let found = self.take();
        if found.is_none()
            && let Some(number) = self.core.send_blocked.next()
        {
            self.look_at_send_blocked(number);
        }
        found
    }

    fn park(&mut self, limit: Duration) {
        self.announce_hot();
        if self.cq.lie_down(Sleep::Parked) {
            self.cq.park(limit.min(MAX_SLEEP));
            self.look_at_all();
        }
    }

    fn arm(&mut self) -> Armed {
        self.announce_hot();
        if !self.cq.lie_down(Sleep::Armed) {
            return Armed::News;
        }
        // The helper watches from here on. It is also told of earlier arrivals, but this thread is awake and reads them.
        self.look_at_all();
        self.cq.backend.arm_helper(self.cq.poll_count());
        if self.cq.has_news() {
            self.cq.get_up();
            return Armed::News;
        }
        Armed::Yes
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.cq.clone()
    }
}

impl std::fmt::Debug for TcpWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpWaiter({:?})", self.cq)
    }
}
