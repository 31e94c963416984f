//! Completion queues as everybody but their owner sees them: where connections announce news, and how the owner is woken.
//!
//! A completion queue has a place for each work queue on it ([`Slot`]), and a list of places that were announced. Whoever takes in
//! what a network has brought announces what came of it, so who polls looks at the list first. What an owner that sleeps
//! sleeps beside (its sockets, say) is the transport's ([`Backend`]).
//!
//! # No wake-up is lost
//! How the owner lies down and is roused is [`Parker`]'s, where the orderings are argued and proven: either the owner sees the
//! news, or it is woken. What has come and was taken in by nobody wakes it, too: the owner sleeps beside it
//! ([`Sleep::Parked`]), or the transport's helper watches it from before the owner's last look on ([`Sleep::Armed`]).

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

/// What has news for work queues: a VI's connection.
pub trait HasArrivals: Send + Sync + 'static {
    /// Whether something lies there for the program to receive. What it says may be over already.
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
    /// What a work queue's place keeps for the transport.
    type SlotData: Send;

    /// Sleeps until `bell` is rung, or something comes that nobody has taken in; at most `limit`. May return early.
    fn sleep(&self, bell: &Bell, limit: Duration);

    /// A work queue's program has left its place. Called without any lock of the completion queue's.
    fn vacated(&self, queue: Queue, link: Arc<Self::Link>, data: Self::SlotData);
}

/// What a completion queue's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// The owner is awake, or nobody waits.
    Awake = AWAKE as isize,
    /// Somebody sleeps on the word itself.
    Armed = ARMED as isize,
    /// The owner sleeps in its [`Backend`].
    Parked = 2,
}

/// See the module.
pub struct CompletionQueue<Q: Backend> {
    /// The transport's part.
    pub backend: Q,
    number: u64,
    this: Weak<Self>,
    /// Made with the first sleep.
    bell: OnceLock<Bell>,
    /// Its news are what stands on the ready list.
    parker: Parker,
    /// Grows with each look of the owner's: what the owner does a helper need not do.
    looks: AtomicU64,
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
            looks: AtomicU64::new(0),
            ready_list: Mutex::default(),
        })
    }

    /// The owner looks: how often it has, this time too. (It alone writes this.)
    #[inline]
    pub fn note_look(&self) -> u64 {
        let looks = self.looks.load(Ordering::Relaxed).wrapping_add(1);
        self.looks.store(looks, Ordering::Relaxed);
        self.parker.note_look();
        looks
    }

    /// How often the owner has looked.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
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

    /// As [`CompletionQueue::next`], with its connection and its place here.
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

    /// The queue at this place has news.
    pub fn announce(&self, index: u32) {
        let mut ready_list = self.ready_list.lock();
        if !ready_list.announce(index) {
            return;
        }
        self.parker.set_news(true);
        drop(ready_list);
        self.rouse();
    }

    /// Sets the word. `false`: there is news, and it is taken back.
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
            // Without descriptors there is nothing to be woken by: not for long.
            std::thread::sleep(limit.min(Duration::from_millis(1)));
            return self.get_up();
        };
        // Who woke it before the bell hung has changed the word.
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

    /// Wakes who sleeps.
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
