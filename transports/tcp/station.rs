//! Completion queues as everybody but their owner sees them: where links announce news, and how the owner is woken.
//!
//! A station has a place for each work queue on it, a list of places that were announced, and a poller that watches the
//! sockets of their links. Whoever reads a socket announces what came of it, so who polls looks at the list first.
//!
//! # No wake-up is lost
//! `SYNC POINT sleep`: the owner sets the word, fences SeqCst, and looks at the list; who announces adds to the list,
//! fences SeqCst, and looks at the word. Either the owner sees the news, or it is woken. What lies in a socket and was
//! read by nobody wakes it too: the owner sleeps in the poller itself ([`Sleep::Parked`]), or it has asked the helper to
//! watch the poller before it looked at it for the last time ([`Sleep::Armed`]).

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use udeck_sys::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use udeck_sys::wake_sleepers;
use udeck_via::transport::{ARMED, Notifier, Queue, Queues, Ready};
use udeck_via::{Error, Result};
use udeck_wired::Announce;
use udeck_wired::poll::{Bell, EventFlags, Found, Poller};

use crate::core::{Core, TcpLink, Token};
use crate::socket::Socket;

/// Work queues that one completion queue can watch.
pub const QUEUES: usize = 8192;

/// What the station's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// The owner is awake, or nobody waits.
    Awake = 0,
    /// Somebody sleeps on the word itself.
    Armed = ARMED as isize,
    /// The owner sleeps in the poller.
    Parked = 2,
}

/// See the module.
pub struct Station {
    core: Arc<Core>,
    number: u64,
    this: Weak<Station>,
    /// Made with the first place: many completion queues never have one.
    poller: OnceLock<Arc<Poller>>,
    /// Made with the first sleep.
    bell: OnceLock<Bell>,
    word: AtomicU32,
    /// Something was announced, and is not known to be stale. Set and cleared with the desk locked.
    news: AtomicBool,
    woken: AtomicBool,
    /// Grows with each look of the owner's: what the owner does the helper need not do.
    looks: AtomicU64,
    looks_when_asked: AtomicU64,
    /// Receive queues that have a place: so many sockets.
    sockets: AtomicU32,
    /// Grows when a receive queue's place is given back.
    vacated: AtomicU32,
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
    link: Arc<TcpLink>,
    /// Stands in `announced`.
    listed: bool,
    /// Was announced and not named since.
    fresh: bool,
    socket: Weak<Socket>,
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
        let number = core.fresh();
        let station = Arc::new_cyclic(|this| Station {
            core: core.clone(),
            number,
            this: this.clone(),
            poller: OnceLock::new(),
            bell: OnceLock::new(),
            word: AtomicU32::new(Sleep::Awake as u32),
            news: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            looks_when_asked: AtomicU64::new(0),
            sockets: AtomicU32::new(0),
            vacated: AtomicU32::new(0),
            desk: Mutex::default(),
        });
        core.add_station(number, &station.this)?;
        Ok(station)
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

    /// The poller of its sockets, made if need be and shown to the helper.
    fn poller(&self) -> io::Result<&Arc<Poller>> {
        if let Some(poller) = self.poller.get() {
            return Ok(poller);
        }
        let poller = Arc::new(Poller::new()?);
        // Of two threads that get here at once, one's is dropped.
        if self.poller.set(poller.clone()).is_ok() {
            let events = EventFlags::IN | EventFlags::ONESHOT;
            self.core.control.add(&*poller, Token::Station(self.number).encode(), events)?;
        }
        Ok(self.poller.get().expect("just set"))
    }

    /// The helper is told, once, when something lies in one of its sockets, or lies there already.
    pub fn ask_helper(&self) {
        self.looks_when_asked.store(self.looks(), Ordering::Relaxed);
        if let Some(poller) = self.poller.get() {
            let events = EventFlags::IN | EventFlags::ONESHOT;
            self.core.control.set(&**poller, Token::Station(self.number).encode(), events);
        }
    }

    /// Reads what has come on sockets that have something, as many as one look names; waits for up to `limit` until there
    /// is one. Returns whether there may be more.
    pub fn serve(&self, found: &mut Found, limit: Duration) -> bool {
        let Some(poller) = self.poller.get() else { return false };
        poller.look(found, limit);
        for token in found.tokens() {
            match Token::decode(token) {
                Token::Link(number) => {
                    if let Some(link) = self.core.link(number) {
                        serve_link(&link);
                    }
                }
                Token::Bell | Token::Door | Token::Station(_) => {}
            }
        }
        found.is_full()
    }

    /// The owner looks. (It alone writes this.)
    #[inline]
    pub fn note_look(&self) {
        self.looks.store(self.looks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if self.woken.load(Ordering::Relaxed) {
            // With the wake-up comes what was written before it.
            self.woken.swap(false, Ordering::Acquire);
        }
    }

    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// [`Station::looks`] when the helper was asked last.
    pub fn looks_when_asked(&self) -> u64 {
        self.looks_when_asked.load(Ordering::Relaxed)
    }

    pub fn sleeps(&self) -> Sleep {
        match self.word.load(Ordering::Relaxed) {
            ARMED => Sleep::Armed,
            2 => Sleep::Parked,
            _ => Sleep::Awake,
        }
    }

    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// How many sockets there are.
    pub fn sockets(&self) -> u32 {
        self.sockets.load(Ordering::Relaxed)
    }

    /// How many have left so far.
    pub fn vacated(&self) -> u32 {
        self.vacated.load(Ordering::Relaxed)
    }

    /// The next queue in turn that has something, and its link.
    pub fn next(&self) -> Option<(Ready, Arc<TcpLink>)> {
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
            let named = (place.ready, place.link.clone());
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

    /// Sleeps beside the poller, after [`Station::lie_down`]; reads what woke it.
    pub fn park(&self, found: &mut Found, limit: Duration) {
        let (Ok(bell), Ok(poller)) = (self.bell(), self.poller()) else {
            // Without descriptors there is nothing to be woken by: not for long.
            std::thread::sleep(limit.min(Duration::from_millis(1)));
            return self.get_up();
        };
        // Who woke it before the bell hung has changed the word.
        if self.word.load(Ordering::Relaxed) == Sleep::Parked as u32 {
            bell.sleep(poller, limit);
        }
        self.get_up();
        self.serve(found, Duration::ZERO);
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

/// Reads what a link's socket has, unless somebody is at it.
pub fn serve_link(link: &TcpLink) -> bool {
    link.try_with(|connection, driver| driver.serve(connection)).unwrap_or(true)
}

impl Seat {
    /// From now on, what is announced is of this link.
    ///
    /// # Errors
    /// The kernel's: its socket cannot be watched.
    pub fn occupy(&self, ready: Ready, link: &Arc<TcpLink>, socket: &Arc<Socket>) -> io::Result<()> {
        let poller = self.station.poller()?;
        let place =
            Place { ready, link: link.clone(), listed: false, fresh: false, socket: Arc::downgrade(socket) };
        self.station.sockets.fetch_add(u32::from(ready.queue == Queue::Receive), Ordering::Relaxed);
        self.station.desk.lock().places[self.slot as usize] = Some(place);
        socket.watch_by(poller)
    }
}

impl Announce for Seat {
    fn announce(&self) {
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
        let Some(place) = place else { return };
        drop(desk);
        if place.ready.queue == Queue::Send {
            return;
        }
        self.station.sockets.fetch_sub(1, Ordering::Relaxed);
        self.station.vacated.fetch_add(1, Ordering::Relaxed);
        // The program has left. What is still to be sent, and the peer's last words, are the helper's.
        if let Some(socket) = place.socket.upgrade() {
            // Otherwise it stays with this poller, which the helper serves as well.
            let _ = socket.hand_to(&self.station.core.control);
        }
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
        self.core.forget_station(self.number);
    }
}

impl fmt::Debug for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "station {}", self.number)
    }
}
