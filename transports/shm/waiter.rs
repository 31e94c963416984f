//! Completion queues of shared memory: poll the few busy rings, find the others by the doorbell, sleep on the doorbell.
//!
//! A ring is *hot* while its waiter polls it; posting to it is then one store. All others are *cold*: their
//! posters set a bit. At most [`HOT`] rings are hot; one that has been idle makes place for one that has news. To
//! sleep, the waiter makes all rings cold, looks at each once more, and parks at the doorbell.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use udeck_sys::doorbell::{BITS, Doorbell};
use udeck_sys::ring::{self, attend, ready_at};
use udeck_sys::segment::SharedRef;
use udeck_via::transport::{Armed, Notifier, Queue, Ready, Waiter};
use udeck_via::{Error, Result};

use crate::board::Board;
use crate::connection::Connection;
use crate::peer_socket_wire::DoorbellBit;

/// Rings polled at a time: their head lines stay in the first-level cache.
const HOT: usize = 8;
/// Messages taken from one ring before the others are looked at (a few more, if they are taken several at a time).
const BURST: u32 = 16;
/// Polls without a message after which a hot ring may be displaced.
const IDLE_POLLS: u64 = 1024;

/// Work queues of one completion queue. The last bit of a doorbell is no queue's.
pub const QUEUES: u32 = BITS - 1;
/// Rung to wake the waiter, news or not: so a wake-up that finds it awake waits for it as news would.
const WAKE: u32 = BITS - 1;

/// The side that connections attach to.
pub struct ShmNotifier {
    board: Arc<Board>,
    doorbell: u32,
    own: SharedRef<Doorbell>,
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

impl Place {
    /// How far the connection's ring has been read.
    fn position(&self) -> u32 {
        self.connection.position.load(Ordering::Relaxed)
    }
}

/// A connection's queue, attached to a waiter. Detached when dropped.
pub struct Attached {
    notifier: Arc<ShmNotifier>,
    bit: u32,
}

impl ShmNotifier {
    #[inline]
    fn doorbell(&self) -> &Doorbell {
        &self.own
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
    pub fn doorbell_bit(&self) -> DoorbellBit {
        DoorbellBit { doorbell: self.notifier.doorbell, bit: self.bit }
    }

    /// From now on, news are of `connection`. Announces once, for what came before.
    pub fn occupy(&self, ready: Ready, connection: Arc<Connection>) {
        self.notifier.places.lock().taken[self.bit as usize] = Some(Place { ready, connection });
        self.announce();
    }

    /// News from within this process.
    pub fn announce(&self) {
        self.notifier.doorbell().ring(self.bit);
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
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
        self.doorbell().ring_own(WAKE);
    }
    fn sleep_word(&self) -> Option<&udeck_sys::atomic::AtomicU32> {
        Some(self.doorbell().sleep_word())
    }
}

impl Drop for ShmNotifier {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.board.give_doorbell(self.doorbell);
    }
}

impl std::fmt::Debug for ShmNotifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "doorbell {}", self.doorbell)
    }
}

/// The side that polls.
pub struct ShmWaiter {
    notifier: Arc<ShmNotifier>,
    hot: Vec<HotRing>,
    /// Where the scan of `hot` starts (a place in it, or 0); how often it found something there since the others were
    /// looked at, and how far that ring had been read then. Who was named a ring may take several messages at a time.
    turn: usize,
    burst: u32,
    burst_from: u32,
    /// Cold rings and send queues with news.
    news: VecDeque<News>,
    /// By bit: whether it stands in `news`.
    listed: Vec<Listed>,
    /// Bits of the doorbell, while it is looked at.
    rung: Vec<u32>,
    polls: u64,
    /// What the hot rings have coming of the looks (see [`ShmWaiter::is_turn_of_hot`]).
    share: usize,
    /// How often [`ShmWaiter::poll_hot`] was called.
    looks: u32,
    vacated_seen: u32,
}

/// The ring that was busy last is not all that there is to look at.
struct Unsettled;

struct HotRing {
    bit: u32,
    place: Place,
    last_served: u64,
}

struct News {
    bit: u32,
    place: Place,
    /// How often it was named, and how far its ring had been read before.
    served: u32,
    served_from: u32,
}

/// Whether a queue stands in the list of news.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listed {
    No,
    Yes,
    /// And was named when its ring was empty: whoever looked has seen the connection's end, if that was the news.
    Named,
}

impl ShmWaiter {
    pub fn new(board: &Arc<Board>) -> Result<Self> {
        let doorbell = board.take_doorbell()?;
        let notifier = ShmNotifier {
            board: board.clone(),
            doorbell,
            own: board.view().keep_doorbell(doorbell),
            places: Mutex::default(),
            vacated: AtomicU32::new(0),
        };
        Ok(ShmWaiter {
            notifier: Arc::new(notifier),
            // Every postbox has a waiter, and most of them lie idle: room is made when a ring becomes hot.
            hot: Vec::new(),
            turn: 0,
            burst: 0,
            burst_from: 0,
            news: VecDeque::new(),
            listed: Vec::new(),
            rung: Vec::new(),
            polls: 0,
            share: 0,
            looks: 0,
            vacated_seen: 0,
        })
    }

    /// The ring that was busy last; `Err` if that does not settle it.
    #[inline]
    fn poll_first(&mut self) -> std::result::Result<Option<Ready>, Unsettled> {
        self.polls += 1;
        if !self.news.is_empty() || self.has_vacated() {
            return Err(Unsettled);
        }
        let rings = self.hot.len();
        let Some(ring) = self.hot.get_mut(self.turn) else {
            return if self.notifier.doorbell().has_news() { Err(Unsettled) } else { Ok(None) };
        };
        let position = ring.place.position();
        if self.burst >= BURST || position.wrapping_sub(self.burst_from) >= BURST {
            if rings > 1 || self.notifier.doorbell().has_news() {
                return Err(Unsettled);
            }
            // There are no others.
            (self.burst, self.burst_from) = (0, position);
        }
        if ready_at(&ring.place.connection.incoming, position) {
            ring.last_served = self.polls;
            self.burst += 1;
            return Ok(Some(ring.place.ready));
        }
        if rings == 1 && !self.notifier.doorbell().has_news() { Ok(None) } else { Err(Unsettled) }
    }

    /// The ring that was busy last.
    fn poll_turn(&mut self) -> Option<Ready> {
        let ring = self.hot.get_mut(self.turn)?;
        if !ring.place.connection.has_arrival() {
            return None;
        }
        ring.last_served = self.polls;
        self.burst += 1;
        Some(ring.place.ready)
    }

    /// Whether the ring that was busy last may go first once more.
    fn may_stay(&self) -> bool {
        let taken =
            self.hot.get(self.turn).map_or(0, |ring| ring.place.position().wrapping_sub(self.burst_from));
        self.burst < BURST && taken < BURST
    }

    fn begin_burst(&mut self) {
        self.burst = 0;
        self.burst_from = self.hot.get(self.turn).map_or(0, |ring| ring.place.position());
    }

    #[cold]
    fn look_twice(&mut self) -> Option<Ready> {
        self.look_around().or_else(|| self.poll())
    }

    /// Everything that may have news, each ring as often as any other.
    fn look_around(&mut self) -> Option<Ready> {
        if self.has_vacated() || self.notifier.doorbell().has_news() {
            self.refresh();
        }
        if self.is_turn_of_hot() {
            self.poll_hot().or_else(|| self.poll_news())
        } else {
            self.poll_news().or_else(|| self.poll_hot())
        }
    }

    /// Shares out the looks evenly (Bresenham's line): of `hot` hot rings and `cold` queues with news, the hot ones have
    /// `hot` of every `hot + cold`. Half for each kind would serve a thousand that flood as often as the eight.
    fn is_turn_of_hot(&mut self) -> bool {
        let hot = self.hot.len();
        let in_both = self.hot.iter().filter(|ring| self.is_listed(ring.bit)).count();
        let all = hot + self.news.len() - in_both;
        self.share += hot;
        let turn = self.share >= all;
        self.share = self.share.checked_rem(all).unwrap_or(0);
        turn
    }

    fn is_listed(&self, bit: u32) -> bool {
        self.listed.get(bit as usize).is_some_and(|&listed| listed != Listed::No)
    }

    fn is_hot(&self, bit: u32) -> bool {
        self.hot.iter().any(|ring| ring.bit == bit)
    }

    /// The ring that was busy last, but not for ever; the others after it, or sometimes.
    fn poll_hot(&mut self) -> Option<Ready> {
        self.looks = self.looks.wrapping_add(1);
        let may_stay = self.may_stay();
        if may_stay && let Some(ready) = self.poll_turn() {
            return Some(ready);
        }
        let sometimes = self.looks.is_multiple_of(2);
        if may_stay && !sometimes {
            // The burst goes on: what was found before it came here counts, however the finds fall on the looks.
            return None;
        }
        self.begin_burst();
        self.poll_other_hot().or_else(|| self.poll_turn())
    }

    fn poll_other_hot(&mut self) -> Option<Ready> {
        let (before, rest) = self.hot.split_at(self.turn);
        let after = rest.iter().enumerate().skip(1).map(|(at, ring)| (self.turn + at, ring));
        let mut others = after.chain(before.iter().enumerate());
        let (at, _) = others.find(|(_, ring)| ring.place.connection.has_arrival())?;
        self.turn = at;
        self.begin_burst();
        self.poll_turn()
    }

    fn poll_news(&mut self) -> Option<Ready> {
        if let Some(news) = self.news.front_mut()
            && news.served > 0
            && news.place.position().wrapping_sub(news.served_from) >= BURST
        {
            news.served = 0;
            self.news.rotate_left(1);
        }
        for _ in 0..self.news.len() {
            let news = self.news.front()?;
            let (bit, ready) = (news.bit, news.place.ready);
            let connection = &news.place.connection;
            let has_arrival = ready.queue == Queue::Receive && connection.has_arrival();
            if has_arrival && self.is_hot(bit) {
                // Served among the hot ones, and its end, which rings after it can be seen, is found by the doorbell.
                if connection.has_ended() {
                    self.news.rotate_left(1)
                } else {
                    self.forget_oldest_news()
                }
                continue;
            }
            let listed = &mut self.listed[bit as usize];
            if *listed == Listed::Named && !has_arrival {
                // Cold, and found empty: the next post rings again.
                self.forget_oldest_news();
                continue;
            }
            *listed = if has_arrival { Listed::Yes } else { Listed::Named };
            let news = self.news.front_mut()?;
            if news.served == 0 {
                news.served_from = news.place.position();
            }
            news.served += 1;
            if news.served >= BURST {
                news.served = 0;
                self.news.rotate_left(1);
            }
            return Some(ready);
        }
        None
    }

    fn forget_oldest_news(&mut self) {
        if let Some(news) = self.news.pop_front() {
            self.listed[news.bit as usize] = Listed::No;
        }
    }

    #[inline]
    fn has_vacated(&self) -> bool {
        self.notifier.vacated.load(Ordering::Relaxed) != self.vacated_seen
    }

    /// Looks at the doorbell and at vacated places.
    #[cold]
    fn refresh(&mut self) {
        let mut rung = std::mem::take(&mut self.rung);
        self.notifier.doorbell().drain(|bit| rung.push(bit));
        let notifier = self.notifier.clone();
        let places = notifier.places.lock();
        let vacated = notifier.vacated.load(Ordering::Relaxed);
        if vacated != self.vacated_seen {
            self.vacated_seen = vacated;
            self.drop_vacated(&places);
        }
        self.listed.resize(places.taken.len(), Listed::No);
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
                *listed = Listed::No;
            }
            keep
        });
    }

    /// A queue has news: polls its ring from now on, if there is place, and names it once in any case.
    fn admit(&mut self, bit: u32, place: Place) {
        if place.ready.queue == Queue::Receive && !self.is_hot(bit) {
            if self.hot.len() == HOT {
                self.cool_one_idle();
            }
            if self.hot.len() < HOT {
                attend(&place.connection.incoming, ring::HOT);
                self.hot.push(HotRing { bit, place: place.clone(), last_served: self.polls });
            }
        }
        self.list(bit, place);
    }

    /// What is listed already is to be named once more.
    fn list(&mut self, bit: u32, place: Place) {
        let before = std::mem::replace(&mut self.listed[bit as usize], Listed::Yes);
        if before == Listed::No {
            self.news.push_back(News { bit, place, served: 0, served_from: 0 });
        }
    }

    fn cool_one_idle(&mut self) {
        // In a flood a ring's turn may come later than that: what waits is not idle.
        let is_idle = |ring: &HotRing| {
            self.polls - ring.last_served > IDLE_POLLS && !ring.place.connection.has_arrival()
        };
        if let Some(at) = self.hot.iter().position(is_idle) {
            let ring = self.hot.swap_remove(at);
            self.turn = 0;
            self.cool(ring);
        }
    }

    /// Stops polling a ring. A message that came before its poster could know stays in the news.
    fn cool(&mut self, ring: HotRing) {
        attend(&ring.place.connection.incoming, ring::COLD);
        if ring.place.connection.has_arrival() && !self.is_listed(ring.bit) {
            self.list(ring.bit, ring.place);
        }
    }
}

impl Waiter for ShmWaiter {
    /// Whoever waits for an answer gets it soonest: the ring that was busy last is looked at first, but not for ever.
    #[inline]
    fn poll(&mut self) -> Option<Ready> {
        self.poll_first().unwrap_or_else(|Unsettled| self.look_around())
    }

    #[inline]
    fn poll_all(&mut self) -> Option<Ready> {
        // Where nothing else can have news, one look is enough.
        self.poll_first().unwrap_or_else(|Unsettled| self.look_twice())
    }

    fn sole_active(&mut self) -> Option<Ready> {
        if !self.news.is_empty() || self.has_vacated() || self.notifier.doorbell().has_news() {
            return None;
        }
        let (before, rest) = self.hot.split_at_mut_checked(self.turn)?;
        let (ring, after) = rest.split_first_mut()?;
        if before.iter().chain(&*after).any(|other| other.place.connection.has_arrival()) {
            return None;
        }
        // Whoever looks at it there does not poll: it is not idle.
        ring.last_served = self.polls;
        Some(ring.place.ready)
    }

    fn park(&mut self, limit: Duration) {
        if self.arm() == Armed::Yes {
            self.notifier.doorbell().sleep(limit);
        }
    }

    fn arm(&mut self) -> Armed {
        while let Some(ring) = self.hot.pop() {
            self.cool(ring);
        }
        self.turn = 0;
        if self.news.is_empty() && self.notifier.doorbell().park() { Armed::Yes } else { Armed::News }
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
        assert!(!waiter.notifier.doorbell().park(), "the next park returns at once");
        assert_eq!(waiter.poll(), None, "it is no queue's");
        assert!(waiter.notifier.doorbell().park(), "and was taken");
        waiter.notifier.doorbell().unpark();
    }

    #[test]
    fn the_bit_of_wake_ups_is_no_queues() {
        let waiter = ShmWaiter::new(&Arc::new(Board::new().unwrap())).unwrap();
        let places: Vec<_> = std::iter::from_fn(|| waiter.notifier.reserve().ok()).collect();
        assert_eq!(places.len(), QUEUES as usize);
        assert!(places.iter().all(|place| place.bit != WAKE));
    }
}
