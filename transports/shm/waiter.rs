//! Completion queues of shared memory: poll the few busy rings, find the others by the bell, sleep on the bell.
//!
//! A ring is *hot* while its waiter polls it; posting to it is then one store. All others are *cold*: their
//! posters set a bit. At most [`HOT`] rings are hot; one that has been idle makes place for one that has news. To
//! sleep, the waiter makes all rings cold, looks at each once more, and parks at the bell.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use udeck_sys::bell::{BITS, Bell};
use udeck_sys::ring::{self, attend};
use udeck_via::transport::{Armed, Notifier, Queue, Ready, Waiter};
use udeck_via::{Error, Result};

use crate::board::Board;
use crate::connection::Connection;
use crate::link_wire::BellBit;

/// Rings polled at a time: their head lines stay in the first-level cache.
const HOT: usize = 8;
/// Messages taken from one ring before the others are looked at.
const BURST: u32 = 16;
/// Polls without a message after which a hot ring may be displaced.
const IDLE_POLLS: u64 = 1024;

/// Work queues of one completion queue. The last bit of a bell is no queue's.
pub const QUEUES: u32 = BITS - 1;
/// Rung to wake the waiter, news or not: so a wake-up that finds it awake waits for it as news would.
const WAKE: u32 = BITS - 1;

/// The side that connections attach to.
pub struct ShmNotifier {
    board: Arc<Board>,
    bell: u32,
    places: Mutex<Places>,
    /// Grows with `places` locked when a place is vacated: the waiter drops what it knew of it.
    vacated: AtomicU32,
}

#[derive(Default)]
struct Places {
    taken: Vec<Option<Place>>,
    free: Vec<u32>,
}

#[derive(Clone)]
struct Place {
    ready: Ready,
    connection: Arc<Connection>,
}

/// A connection's queue, attached to a waiter. Detached when dropped.
pub struct Attached {
    notifier: Arc<ShmNotifier>,
    bit: u32,
}

impl ShmNotifier {
    fn bell(&self) -> &Bell {
        self.board.view().bell(self.bell)
    }

    /// Whether the queue is of the NIC that shows `board`.
    pub fn is_on(&self, board: &Arc<Board>) -> bool {
        Arc::ptr_eq(&self.board, board)
    }

    /// Reserves a bit, so that peers can be told of it before the connection exists.
    pub fn reserve(self: &Arc<Self>) -> Result<Attached> {
        let mut places = self.places.lock();
        let bit = match places.free.pop() {
            Some(bit) => bit,
            None if places.taken.len() < QUEUES as usize => {
                places.taken.push(None);
                places.taken.len() as u32 - 1
            }
            None => {
                let bound = format!("{QUEUES} work queues");
                return Err(Error::Full { what: "the completion queue", bound: bound.into() });
            }
        };
        Ok(Attached { notifier: self.clone(), bit })
    }
}

impl Attached {
    /// Where peers announce news for this queue.
    pub fn bell_bit(&self) -> BellBit {
        BellBit { bell: self.notifier.bell, bit: self.bit }
    }

    /// From now on, news are of `connection`. Announces once, for what came before.
    pub fn occupy(&self, ready: Ready, connection: Arc<Connection>) {
        self.notifier.places.lock().taken[self.bit as usize] = Some(Place { ready, connection });
        self.announce();
    }

    /// News from within this process.
    pub fn announce(&self) {
        self.notifier.bell().ring(self.bit);
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut places = self.notifier.places.lock();
        let place = places.taken[self.bit as usize].take();
        places.free.push(self.bit);
        // Under the lock: whoever sees the bit's next connection knows that this one went.
        self.notifier.vacated.fetch_add(1, Ordering::Relaxed);
        drop(places);
        drop(place); // may end a connection: outside the lock
    }
}

impl Notifier for ShmNotifier {
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
    fn wake(&self) {
        self.bell().ring_own(WAKE);
    }
    fn sleep_word(&self) -> Option<&AtomicU32> {
        Some(self.bell().sleep_word())
    }
}

impl Drop for ShmNotifier {
    fn drop(&mut self) {
        self.board.give_bell(self.bell);
    }
}

impl std::fmt::Debug for ShmNotifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bell {}", self.bell)
    }
}

/// The side that polls.
pub struct ShmWaiter {
    notifier: Arc<ShmNotifier>,
    hot: Vec<HotRing>,
    /// Where the scan of `hot` starts (a place in it, or 0), and how often it found something there since the others
    /// were looked at.
    turn: usize,
    burst: u32,
    /// Cold rings and send queues with news.
    news: VecDeque<News>,
    /// By bit: whether it stands in `news`.
    listed: Vec<bool>,
    /// Bits of the bell, while it is looked at.
    rung: Vec<u32>,
    polls: u64,
    /// How often [`ShmWaiter::look_around`] was called.
    looks: u32,
    vacated_seen: u32,
}

struct HotRing {
    bit: u32,
    place: Place,
    last_served: u64,
}

struct News {
    bit: u32,
    place: Place,
    /// Named when its ring was empty: whoever looked has seen the connection's end, if that was the news.
    named: bool,
    served: u32,
}

impl ShmWaiter {
    pub fn new(board: &Arc<Board>) -> Result<Self> {
        let bell = board.take_bell()?;
        let notifier =
            ShmNotifier { board: board.clone(), bell, places: Mutex::default(), vacated: AtomicU32::new(0) };
        Ok(ShmWaiter {
            notifier: Arc::new(notifier),
            hot: Vec::with_capacity(HOT),
            turn: 0,
            burst: 0,
            news: VecDeque::new(),
            listed: Vec::new(),
            rung: Vec::new(),
            polls: 0,
            looks: 0,
            vacated_seen: 0,
        })
    }

    /// The ring that was busy last.
    #[inline]
    fn poll_turn(&mut self) -> Option<Ready> {
        let ring = self.hot.get_mut(self.turn)?;
        if !ring.place.connection.has_arrival() {
            return None;
        }
        ring.last_served = self.polls;
        self.burst += 1;
        Some(ring.place.ready)
    }

    /// Everything that may have news, turn about, so that neither kind starves the other.
    fn look_around(&mut self) -> Option<Ready> {
        self.looks = self.looks.wrapping_add(1);
        if self.has_vacated() || self.notifier.bell().has_news() {
            self.refresh();
        }
        if self.looks.is_multiple_of(2) {
            self.poll_hot().or_else(|| self.poll_news())
        } else {
            self.poll_news().or_else(|| self.poll_hot())
        }
    }

    /// The ring that was busy last, but not for ever; the others after it, or sometimes.
    fn poll_hot(&mut self) -> Option<Ready> {
        let may_stay = self.burst < BURST;
        if may_stay && let Some(ready) = self.poll_turn() {
            return Some(ready);
        }
        let sometimes = self.looks % 4 < 2;
        if may_stay && !sometimes {
            // The burst goes on: what was found before it came here counts, however the finds fall on the looks.
            return None;
        }
        self.burst = 0;
        self.poll_other_hot().or_else(|| self.poll_turn())
    }

    fn poll_other_hot(&mut self) -> Option<Ready> {
        let (before, rest) = self.hot.split_at(self.turn);
        let after = rest.iter().enumerate().skip(1).map(|(at, ring)| (self.turn + at, ring));
        let mut others = after.chain(before.iter().enumerate());
        let (at, _) = others.find(|(_, ring)| ring.place.connection.has_arrival())?;
        self.turn = at;
        self.poll_turn()
    }

    fn poll_news(&mut self) -> Option<Ready> {
        for _ in 0..self.news.len() {
            let news = self.news.front_mut()?;
            let has_arrival = news.place.ready.queue == Queue::Receive && news.place.connection.has_arrival();
            if news.named && !has_arrival {
                // Cold, and found empty: the next post rings again.
                let news = self.news.pop_front().expect("seen");
                self.listed[news.bit as usize] = false;
                continue;
            }
            news.named = !has_arrival;
            news.served += 1;
            let ready = news.place.ready;
            if news.served >= BURST {
                news.served = 0;
                self.news.rotate_left(1);
            }
            return Some(ready);
        }
        None
    }

    #[inline]
    fn has_vacated(&self) -> bool {
        self.notifier.vacated.load(Ordering::Relaxed) != self.vacated_seen
    }

    /// Looks at the bell and at vacated places.
    #[cold]
    fn refresh(&mut self) {
        let mut rung = std::mem::take(&mut self.rung);
        self.notifier.bell().drain(|bit| rung.push(bit));
        let notifier = self.notifier.clone();
        let places = notifier.places.lock();
        let vacated = notifier.vacated.load(Ordering::Relaxed);
        if vacated != self.vacated_seen {
            self.vacated_seen = vacated;
            self.drop_vacated(&places);
        }
        self.listed.resize(places.taken.len(), false);
        for bit in rung.drain(..) {
            if let Some(Some(place)) = places.taken.get(bit as usize) {
                self.admit(bit, place.clone());
            }
        }
        self.rung = rung;
    }

    fn drop_vacated(&mut self, places: &Places) {
        let stands = |bit: u32, place: &Place| {
            let now = places.taken.get(bit as usize).and_then(Option::as_ref);
            now.is_some_and(|now| Arc::ptr_eq(&now.connection, &place.connection))
        };
        self.hot.retain(|ring| stands(ring.bit, &ring.place));
        self.turn = 0;
        let listed = &mut self.listed;
        self.news.retain(|news| {
            let keep = stands(news.bit, &news.place);
            if !keep && let Some(listed) = listed.get_mut(news.bit as usize) {
                *listed = false;
            }
            keep
        });
    }

    /// A queue has news: polls its ring from now on, if there is place, and names it once in any case.
    fn admit(&mut self, bit: u32, place: Place) {
        if place.ready.queue == Queue::Receive && !self.hot.iter().any(|ring| ring.bit == bit) {
            if self.hot.len() == HOT {
                self.cool_one_idle();
            }
            if self.hot.len() < HOT {
                attend(&place.connection.incoming, ring::HOT);
                self.hot.push(HotRing { bit, place: place.clone(), last_served: self.polls });
            }
        }
        if let Some(news) = self.news.iter_mut().find(|news| self.listed[bit as usize] && news.bit == bit) {
            news.named = false;
        } else {
            self.listed[bit as usize] = true;
            self.news.push_back(News { bit, place, named: false, served: 0 });
        }
    }

    fn cool_one_idle(&mut self) {
        let idle = self.hot.iter().position(|ring| self.polls - ring.last_served > IDLE_POLLS);
        if let Some(at) = idle {
            let ring = self.hot.swap_remove(at);
            self.turn = 0;
            self.cool(ring);
        }
    }

    /// Stops polling a ring. A message that came before its poster could know stays in the news.
    fn cool(&mut self, ring: HotRing) {
        attend(&ring.place.connection.incoming, ring::COLD);
        if ring.place.connection.has_arrival() && !self.listed[ring.bit as usize] {
            self.listed[ring.bit as usize] = true;
            self.news.push_back(News { bit: ring.bit, place: ring.place, named: false, served: 0 });
        }
    }
}

impl Waiter for ShmWaiter {
    /// Whoever waits for an answer gets it soonest: the ring that was busy last is looked at first, but not for ever.
    #[inline]
    fn poll(&mut self) -> Option<Ready> {
        self.polls += 1;
        if self.burst < BURST
            && self.news.is_empty()
            && !self.has_vacated()
            && let Some(ready) = self.poll_turn()
        {
            return Some(ready);
        }
        self.look_around()
    }

    fn park(&mut self, limit: Duration) {
        if self.arm() == Armed::Yes {
            self.notifier.bell().sleep(limit);
        }
    }

    fn arm(&mut self) -> Armed {
        while let Some(ring) = self.hot.pop() {
            self.cool(ring);
        }
        self.turn = 0;
        if self.news.is_empty() && self.notifier.bell().park() { Armed::Yes } else { Armed::News }
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.notifier.clone()
    }
}

impl std::fmt::Debug for ShmWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShmWaiter({:?}, {} hot, {} with news)", self.notifier, self.hot.len(), self.news.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_that_finds_nobody_asleep_is_kept() {
        let mut waiter = ShmWaiter::new(&Arc::new(Board::new().unwrap())).unwrap();
        waiter.notifier().wake();
        assert!(!waiter.notifier.bell().park(), "the next park returns at once");
        assert_eq!(waiter.poll(), None, "it is no queue's");
        assert!(waiter.notifier.bell().park(), "and was taken");
        waiter.notifier.bell().unpark();
    }

    #[test]
    fn the_bit_of_wake_ups_is_no_queues() {
        let waiter = ShmWaiter::new(&Arc::new(Board::new().unwrap())).unwrap();
        let places: Vec<_> = std::iter::from_fn(|| waiter.notifier.reserve().ok()).collect();
        assert_eq!(places.len(), QUEUES as usize);
        assert!(places.iter().all(|place| place.bit != WAKE));
    }
}
