//! Completion queues as everybody but their owner sees them: where connections announce news, and how the owner is woken.
//!
//! A station has a place for each work queue on it ([`Seat`]), and a list of places that were announced. Whoever takes in
//! what a network has brought announces what came of it, so who polls looks at the list first. What an owner that sleeps
//! sleeps beside (its sockets, say) is the transport's ([`Quarters`]).
//!
//! # No wake-up is lost
//! How the owner lies down and is roused is [`Doze`]'s, where the orderings are argued and proven: either the owner sees the
//! news, or it is woken. What has come and was taken in by nobody wakes it, too: the owner sleeps beside it
//! ([`Sleep::Parked`]), or the transport's helper watches it from before the owner's last look on ([`Sleep::Armed`]).

mod desk;
mod table;

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use udeck_sys::atomic::{AtomicU32, AtomicU64, Ordering};
use udeck_sys::doze::{AWAKE, Doze};
use udeck_sys::wake_sleepers;
use udeck_via::transport::{ARMED, Notifier, Queue, Ready};

use crate::link::{Driver, Link};
use crate::poll::Bell;
use desk::Desk;

pub use desk::{QUEUES, Seat, Seats};
pub use table::{STATIONS, Stations};

/// What has news for work queues: a VI's connection.
pub trait Line: Send + Sync + 'static {
    /// Whether something lies there for the program to receive. What it says may be over already.
    fn has_arrivals(&self) -> bool;
}

impl<D: Driver> Line for Link<D> {
    fn has_arrivals(&self) -> bool {
        Link::has_arrivals(self)
    }
}

/// A transport's part of a station.
pub trait Quarters: Send + Sync + Sized + 'static {
    /// A VI's connection.
    type Line: Line;
    /// What a work queue's place keeps for the transport.
    type Tenant: Send;

    /// Sleeps until `bell` is rung, or something comes that nobody has taken in; at most `limit`. May return early.
    fn sleep(&self, bell: &Bell, limit: Duration);

    /// A work queue's program has left its place. Called without any lock of the station's.
    fn vacated(&self, queue: Queue, line: Arc<Self::Line>, tenant: Self::Tenant);
}

/// What a station's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// The owner is awake, or nobody waits.
    Awake = AWAKE as isize,
    /// Somebody sleeps on the word itself.
    Armed = ARMED as isize,
    /// The owner sleeps in its [`Quarters`].
    Parked = 2,
}

/// See the module.
pub struct Station<Q: Quarters> {
    /// The transport's part.
    pub quarters: Q,
    number: u64,
    this: Weak<Self>,
    /// Made with the first sleep.
    bell: OnceLock<Bell>,
    /// Its news are what stands on the desk.
    doze: Doze,
    /// Grows with each look of the owner's: what the owner does a helper need not do.
    looks: AtomicU64,
    desk: Mutex<Desk<Q>>,
}

impl<Q: Quarters> Station<Q> {
    fn new(number: u64, quarters: Q) -> Arc<Self> {
        Arc::new_cyclic(|this| Station {
            quarters,
            number,
            this: this.clone(),
            bell: OnceLock::new(),
            doze: Doze::default(),
            looks: AtomicU64::new(0),
            desk: Mutex::default(),
        })
    }

    /// The owner looks. (It alone writes this.)
    #[inline]
    pub fn note_look(&self) {
        self.looks.store(self.looks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.doze.note_look();
    }

    /// How often the owner has looked.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// How its owner sleeps at the moment.
    pub fn sleeps(&self) -> Sleep {
        match self.doze.sleeps() {
            ARMED => Sleep::Armed,
            2 => Sleep::Parked,
            _ => Sleep::Awake,
        }
    }

    /// Whether something was announced that is not known to be stale.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.doze.has_news()
    }

    /// The next queue in turn that has something, and its connection.
    pub fn next(&self) -> Option<(Ready, Arc<Q::Line>)> {
        if !self.has_news() {
            return None;
        }
        let mut desk = self.desk.lock();
        let next = desk.next();
        if next.is_none() {
            self.doze.set_news(false);
        }
        next
    }

    fn announce(&self, slot: u32) {
        let mut desk = self.desk.lock();
        if !desk.announce(slot) {
            return;
        }
        self.doze.set_news(true);
        drop(desk);
        self.rouse();
    }

    /// Sets the word. `false`: there is news, and it is taken back.
    pub fn lie_down(&self, how: Sleep) -> bool {
        self.doze.lie_down(how as u32)
    }

    /// Takes the word back.
    pub fn get_up(&self) {
        self.doze.get_up();
    }

    /// Sleeps in the quarters, after [`Station::lie_down`]; at most `limit`. May return early.
    pub fn park(&self, limit: Duration) {
        let Ok(bell) = self.bell() else {
            // Without descriptors there is nothing to be woken by: not for long.
            std::thread::sleep(limit.min(Duration::from_millis(1)));
            return self.get_up();
        };
        // Who woke it before the bell hung has changed the word.
        if self.doze.still_lies(Sleep::Parked as u32) {
            self.quarters.sleep(bell, limit);
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
        match self.doze.rouse() {
            AWAKE => {}
            ARMED => wake_sleepers(self.doze.word()),
            _ => self.bell.get().into_iter().for_each(Bell::ring),
        }
    }
}

impl<Q: Quarters> Notifier for Station<Q> {
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn wake(&self) {
        self.doze.wake();
        self.rouse();
    }

    fn sleep_word(&self) -> Option<&AtomicU32> {
        Some(self.doze.word())
    }
}

impl<Q: Quarters> fmt::Debug for Station<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "station {}", self.number)
    }
}

#[cfg(test)]
mod tests;
