//! Completion queues as seen by other threads than their owner: where connections announce news, and how the owner is woken.
//!
//! A completion queue has a place for each work queue on it ([`Slot`]), and a list of places that were announced. The thread
//! that takes in what a network has brought announces the queues that have news, so the poller looks at the list first. The
//! transport's [`Backend`] decides what a sleeping owner sleeps beside (its sockets, for example).
//!
//! # No wake-up is lost
//! [`Parker`] parks and wakes the owner; the orderings are argued and proven there: either the owner sees the news, or it is
//! woken. Bytes that have come and that no thread has taken in wake it, too: the owner sleeps beside their source
//! ([`Sleep::Parked`]), or the transport's helper watches it from before the owner's last poll on ([`Sleep::Armed`]).

mod ready_list;
mod table;

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use udeck_sys::atomic::{AtomicU32, AtomicU64, Ordering};
use udeck_sys::parker::{AWAKE, Parker};
use udeck_sys::wake_sleepers;
use udeck_via::transport::{ARMED, Notifier, Queue, Ready};

use crate::framed::link::{Driver, Link};
use crate::poll::Bell;
use ready_list::ReadyList;

pub use ready_list::{QUEUES, Slot, Slots};
pub use table::{CompletionQueues, MAX_COMPLETION_QUEUES};

/// A source of news for work queues: a VI's connection.
pub trait HasArrivals: Send + Sync + 'static {
    /// Whether something is there for the program to receive. The answer may be outdated already.
    fn has_arrivals(&self) -> bool;
}

impl<D: Driver> HasArrivals for Link<D> {
    fn has_arrivals(&self) -> bool {
        Link::has_arrivals(self)
    }
}

/// A transport's part of a completion queue.
pub trait Backend: Send + Sync + Sized + 'static {
    /// A VI's connection.
    type Link: HasArrivals;
    /// The transport's data of a work queue's place.
    type SlotData: Send;

    /// Sleeps until `bell` is rung, or until something comes that no thread has taken in; at most `limit`. May return early.
    fn sleep(&self, bell: &Bell, limit: Duration);

    /// Called when a work queue's program has left its place, without any lock of the completion queue.
    fn vacated(&self, queue: Queue, link: Arc<Self::Link>, data: Self::SlotData);
}

/// State of a completion queue's sleep word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// The owner is awake, or nobody waits.
    Awake = AWAKE as isize,
    /// A thread sleeps on the word itself.
    Armed = ARMED as isize,
    /// The owner sleeps in its [`Backend`].
    Parked = 2,
}

/// A completion queue of a network transport.
pub struct CompletionQueue<Q: Backend> {
    /// The transport's part.
    pub backend: Q,
    number: u64,
    this: Weak<Self>,
    /// The bell that ends the owner's sleep in the backend. Made with the first sleep.
    bell: OnceLock<Bell>,
    /// Parks the owner. Its news flag is set while the ready list may have an entry.
    parker: Parker,
    /// Polls of the owner so far. A helper need not do work that the owner does.
    polls: AtomicU64,
    ready_list: Mutex<ReadyList<Q>>,
}

impl<Q: Backend> CompletionQueue<Q> {
    fn new(number: u64, backend: Q) -> Arc<Self> {
        Arc::new_cyclic(|this| CompletionQueue {
            backend,
            number,
            this: this.clone(),
            bell: OnceLock::new(),
            parker: Parker::default(),
            polls: AtomicU64::new(0),
            ready_list: Mutex::default(),
        })
    }

    /// Counts a poll of the owner. Returns the count, this poll included. (Only the owner writes it.)
    #[inline]
    pub fn note_look(&self) -> u64 {
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        self.parker.note_look();
        polls
    }

    /// Polls of the owner so far.
    pub fn poll_count(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// How its owner sleeps at the moment.
    pub fn sleeps(&self) -> Sleep {
        match self.parker.state() {
            ARMED => Sleep::Armed,
            2 => Sleep::Parked,
            _ => Sleep::Awake,
        }
    }

    /// Whether something was announced that is not known to be stale.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.parker.has_news()
    }

    /// The next queue in turn that has something.
    #[inline]
    pub fn next(&self) -> Option<Ready> {
        self.next_by(ReadyList::next)
    }

    /// The same as [`CompletionQueue::next`], with the connection and its place here.
    pub fn next_with_link(&self) -> Option<(Ready, Arc<Q::Link>, u32)> {
        self.next_by(ReadyList::next_with_link)
    }

    #[inline]
    fn next_by<T>(&self, next: impl FnOnce(&mut ReadyList<Q>) -> Option<T>) -> Option<T> {
        if !self.has_news() {
            return None;
        }
        let mut ready_list = self.ready_list.lock();
        let next = next(&mut ready_list);
        if next.is_none() {
            self.parker.set_news(false);
        }
        next
    }

    /// Announces that the queue at this place has news.
    pub fn announce(&self, index: u32) {
        let mut ready_list = self.ready_list.lock();
        if !ready_list.announce(index) {
            return;
        }
        self.parker.set_news(true);
        drop(ready_list);
        self.rouse();
    }

    /// Sets the word to `how`. Returns `false` when there is news; the word is then taken back.
    pub fn lie_down(&self, how: Sleep) -> bool {
        self.parker.park(how as u32)
    }

    /// Takes the word back.
    pub fn get_up(&self) {
        self.parker.unpark();
    }

    /// Sleeps in the backend, after [`CompletionQueue::lie_down`]; at most `limit`. May return early.
    pub fn park(&self, limit: Duration) {
        let Ok(bell) = self.bell() else {
            // Without descriptors no thread can end this sleep, so it is short.
            std::thread::sleep(limit.min(Duration::from_millis(1)));
            return self.get_up();
        };
        // A waker that came before the bell existed has changed the word.
        if self.parker.is_still_parked(Sleep::Parked as u32) {
            self.backend.sleep(bell, limit);
        }
        self.get_up();
    }

    fn bell(&self) -> io::Result<&Bell> {
        if self.bell.get().is_none() {
            let _ = self.bell.set(Bell::new()?);
        }
        Ok(self.bell.get().expect("just set"))
    }

    /// Wakes the owner, if it sleeps.
    fn rouse(&self) {
        match self.parker.wake() {
            AWAKE => {}
            ARMED => wake_sleepers(self.parker.word()),
            _ => self.bell.get().into_iter().for_each(Bell::ring),
        }
    }
}

impl<Q: Backend> Notifier for CompletionQueue<Q> {
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn wake(&self) {
        self.parker.set_woken();
        self.rouse();
    }

    fn sleep_word(&self) -> Option<&AtomicU32> {
        Some(self.parker.word())
    }
}

impl<Q: Backend> fmt::Debug for CompletionQueue<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "completion queue {}", self.number)
    }
}

#[cfg(test)]
mod tests;
