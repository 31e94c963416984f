//! Completion queues as everybody but their owner sees them: where links announce news, and how the owner is woken.
//!
//! A station has a place for each work queue on it, and a list of places that were announced. Completions are taken by whoever
//! looks, for all links of the NIC; what comes of them is announced here.
//!
//! # No wake-up is lost
//! `SYNC POINT sleep`: the owner sets the word, fences SeqCst, and looks at the list; who announces adds to the list, fences
//! SeqCst, and looks at the word. Either the owner sees the news, or it is woken. What completes and was taken by nobody wakes
//! it too: before it sleeps it asks the device to tell of the next completion, and then takes what has completed before.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use udeck_sys::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use udeck_sys::wake_sleepers;
use udeck_via::transport::{ARMED, Notifier, Queue, Queues, Ready};
use udeck_via::{Error, Result};
use udeck_wired::poll::Bell;

use crate::core::Core;
use crate::hca::objects::Channel;
use crate::link::VerbsLink;

/// Work queues that one completion queue can watch.
pub const QUEUES: usize = 8192;

/// What the station's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// The owner is awake, or nobody waits.
    Awake = 0,
    /// Somebody sleeps on the word itself.
    Armed = ARMED as isize,
    /// The owner sleeps beside the channel.
    Parked = 2,
}

/// See the module.
pub struct Station {
    core: Arc<Core>,
    this: Weak<Station>,
    /// Made with the first sleep.
    bell: OnceLock<Bell>,
    word: AtomicU32,
    /// Something was announced, and is not known to be stale. Set and cleared with the desk locked.
    news: AtomicBool,
    woken: AtomicBool,
    desk: Mutex<Desk>,
}

#[derive(Default)]
struct Desk {
    places: Vec<Option<Place>>,
    free: Vec<u32>,
    /// Places that may have something, next first; each at most once.
    announced: VecDeque<u32>,
}

struct Place {
    ready: Ready,
    link: Arc<VerbsLink>,
    /// Stands in `announced`.
    listed: bool,
    /// Was announced and not named since.
    fresh: bool,
}

/// A work queue's place; given back when dropped.
pub struct Seat {
    station: Arc<Station>,
    slot: u32,
}

/// Those of a VI's two queues.
pub struct Seats {
    pub send: Seat,
    pub receive: Seat,
}

impl Seats {
    /// Takes places for a connection that is to be made by the NIC of `core`.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] when a completion queue is of another NIC; [`Error::Full`].
    pub fn take(core: &Arc<Core>, queues: &Queues<'_>) -> Result<Self> {
        let take = |notifier: &Arc<dyn Notifier>| match notifier.clone().into_any().downcast::<Station>() {
            Ok(station) if Arc::ptr_eq(&station.core, core) => station.seat(),
            _ => Err(Error::InvalidParameter("the completion queue belongs to another NIC".into())),
        };
        Ok(Seats { send: take(queues.send)?, receive: take(queues.receive)? })
    }
}

impl Station {
    /// # Errors
    /// [`Error::Full`] when the NIC has no more.
    pub fn open(core: &Arc<Core>) -> Result<Arc<Self>> {
        core.count_station()?;
        Ok(Arc::new_cyclic(|this| Station {
            core: core.clone(),
            this: this.clone(),
            bell: OnceLock::new(),
            word: AtomicU32::new(Sleep::Awake as u32),
            news: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            desk: Mutex::default(),
        }))
    }

    fn seat(&self) -> Result<Seat> {
        let station =
            self.this.upgrade().ok_or_else(|| Error::Lost("the completion queue is gone".into()))?;
        let mut desk = self.desk.lock();
        let slot = match desk.free.pop() {
            Some(slot) => slot,
            None if desk.places.len() < QUEUES => {
                desk.places.push(None);
                desk.places.len() as u32 - 1
            }
            None => {
                let bound = format!("{QUEUES} work queues");
                return Err(Error::Full { what: "the completion queue", bound: bound.into() });
            }
        };
        Ok(Seat { station: station.clone(), slot })
    }

    /// The owner looks.
    #[inline]
    pub fn note_look(&self) {
        if self.woken.load(Ordering::Relaxed) {
            // With the wake-up comes what was written before it.
            self.woken.swap(false, Ordering::Acquire);
        }
    }

    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// The next queue in turn that has something.
    pub fn next(&self) -> Option<Ready> {
        let mut desk = self.desk.lock();
        let desk = &mut *desk;
        while let Some(slot) = desk.announced.pop_front() {
            let Some(place) = &mut desk.places[slot as usize] else { continue };
            let lies_there = place.ready.queue == Queue::Receive && place.link.has_arrivals();
            if !lies_there && !place.fresh {
                place.listed = false;
                continue;
            }
            place.fresh = false;
            let named = place.ready;
            // Named again until it is found empty.
            desk.announced.push_back(slot);
            return Some(named);
        }
        self.news.store(false, Ordering::Relaxed);
        None
    }

    fn announce(&self, slot: u32) {
        let mut desk = self.desk.lock();
        let Some(Some(place)) = desk.places.get_mut(slot as usize) else { return };
        place.fresh = true;
        if !std::mem::replace(&mut place.listed, true) {
            desk.announced.push_back(slot);
        }
        self.news.store(true, Ordering::Relaxed);
        drop(desk);
        self.rouse();
    }

    /// Sets the word. `false`: there is news, and it is taken back.
    pub fn lie_down(&self, how: Sleep) -> bool {
        self.word.store(how as u32, Ordering::Relaxed);
        // SYNC POINT sleep, the owner's half.
        fence(Ordering::SeqCst);
        if self.has_news() || self.woken.load(Ordering::Relaxed) {
            self.get_up();
            return false;
        }
        true
    }

    pub fn get_up(&self) {
        self.word.store(Sleep::Awake as u32, Ordering::Relaxed);
    }

    /// Sleeps beside the channel, after [`Station::lie_down`].
    pub fn park(&self, channel: &Channel, limit: Duration) {
        let Ok(bell) = self.bell() else {
            // Without descriptors there is nothing to be woken by: not for long.
            std::thread::sleep(limit.min(Duration::from_millis(1)));
            return self.get_up();
        };
        // Who woke it before the bell hung has changed the word.
        if self.word.load(Ordering::Relaxed) == Sleep::Parked as u32 {
            let (bell_fd, channel_fd) = (bell.as_fd(), channel.as_fd());
            let mut fds = [PollFd::new(&bell_fd, PollFlags::IN), PollFd::new(&channel_fd, PollFlags::IN)];
            let limit = Timespec::try_from(limit).ok();
            let _ = poll(&mut fds, limit.as_ref());
            if !fds[0].revents().is_empty() {
                bell.hush();
            }
        }
        self.get_up();
    }

    fn bell(&self) -> io::Result<&Bell> {
        if self.bell.get().is_none() {
            let _ = self.bell.set(Bell::new()?);
        }
        // SYNC POINT sleep: the bell hangs, and then the word is looked at once more.
        fence(Ordering::SeqCst);
        Ok(self.bell.get().expect("just set"))
    }

    /// Wakes who sleeps.
    fn rouse(&self) {
        // SYNC POINT sleep, the announcer's half.
        fence(Ordering::SeqCst);
        if self.word.load(Ordering::Relaxed) == Sleep::Awake as u32 {
            return;
        }
        match self.word.swap(Sleep::Awake as u32, Ordering::AcqRel) {
            ARMED => wake_sleepers(&self.word),
            0 => {}
            _ => self.bell.get().into_iter().for_each(Bell::ring),
        }
    }
}

impl Seat {
    /// From now on, what is announced is of this link.
    pub fn occupy(&self, ready: Ready, link: &Arc<VerbsLink>) {
        let place = Place { ready, link: link.clone(), listed: false, fresh: false };
        self.station.desk.lock().places[self.slot as usize] = Some(place);
    }

    /// The queue has news. Never waits.
    pub fn announce(&self) {
        self.station.announce(self.slot);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut desk = self.station.desk.lock();
        let place = desk.places[self.slot as usize].take();
        desk.free.push(self.slot);
        if place.as_ref().is_some_and(|place| place.listed) {
            desk.announced.retain(|slot| *slot != self.slot);
        }
        drop(desk);
        drop(place);
    }
}

impl Notifier for Station {
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        self.rouse();
    }

    fn sleep_word(&self) -> Option<&AtomicU32> {
        Some(&self.word)
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        self.core.forget_station();
    }
}

impl fmt::Debug for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Station({:?})", self.this.as_ptr())
    }
}
