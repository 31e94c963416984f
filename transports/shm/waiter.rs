//! Completion queues over shared memory: they poll the few busy rings, find the others by the doorbell, and sleep on it.
//!
//! A ring is *hot* while its waiter polls it; posting to it is then one store. All other rings are *cold*: their
//! posters set a bit of the doorbell. At most [`HOT`] rings are hot. A hot ring that has been idle makes place for
//! one that has news. To sleep, the waiter makes all rings cold, checks each once more, and parks at the doorbell.

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

/// Upper bound of the rings polled at a time: their head lines stay in the first-level cache.
const HOT: usize = 8;
/// Messages taken from one ring before the others are polled (a few more, if several are taken at a time).
const BURST: u32 = 16;
/// Polls without a message after which a hot ring may be displaced.
const IDLE_POLLS: u64 = 1024;

/// Work queues of one completion queue. The last bit of a doorbell belongs to no queue.
pub const QUEUES: u32 = BITS - 1;
/// Bit that wakes the waiter without news of a queue. It stays set, so a waiter that is awake finds it before it sleeps.
const WAKE: u32 = BITS - 1;

/// The half of a completion queue to which connections attach.
pub struct ShmNotifier {
    board: Arc<Board>,
    doorbell: u32,
    own: SharedRef<Doorbell>,
    places: Mutex<Places>,
    /// Counts vacated places. It grows with `places` locked, and the waiter then drops its copies of those places.
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
    /// Read position of the connection's ring, modulo 2^32.
    fn position(&self) -> u32 {
        self.connection.position.load(Ordering::Relaxed)
    }
}

/// A connection's queue, attached to a waiter. Dropping it detaches the queue.
pub struct Attached {
    notifier: Arc<ShmNotifier>,
    bit: u32,
}

impl ShmNotifier {
    #[inline]
    fn doorbell(&self) -> &Doorbell {
        &self.own
    }

    /// Whether the queue belongs to the NIC of `board`.
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
    /// Doorbell and bit at which peers announce news for this queue.
    pub fn doorbell_bit(&self) -> DoorbellBit {
        DoorbellBit { doorbell: self.notifier.doorbell, bit: self.bit }
    }

    /// Assigns the bit to `connection`. Announces once, for the messages that came before.
    pub fn occupy(&self, ready: Ready, connection: Arc<Connection>) {
        self.notifier.places.lock().taken[self.bit as usize] = Some(Place { ready, connection });
        self.announce();
    }

    /// Announces news from within this process.
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
        // The count grows under the lock: a waiter that sees the bit's next connection then knows that the former
        // one went.
        self.notifier.vacated.fetch_add(1, Ordering::Relaxed);
        drop(places);
        drop(place); // may end a connection, so it happens outside the lock
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
        self.board.release_doorbell(self.doorbell);
    }
}

impl std::fmt::Debug for ShmNotifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "doorbell {}", self.doorbell)
    }
}

/// The half of a completion queue that polls.
pub struct ShmWaiter {
    notifier: Arc<ShmNotifier>,
    hot: Vec<HotRing>,
    /// Ring of the current burst, as an index into `hot` (or 0). `burst` counts how often this ring was returned
    /// since the others were polled, and `burst_from` is its read position when the burst began. Both are needed
    /// because the caller may take several messages of a ring at a time.
    turn: usize,
    burst: u32,
    burst_from: u32,
    /// Cold rings and send queues with news.
    news: VecDeque<News>,
    /// Whether each bit is in `news`.
    listed: Vec<Listed>,
    /// Scratch list of the doorbell's set bits.
    rung: Vec<u32>,
    polls: u64,
    /// Share of the polls that is due to the hot rings (see [`ShmWaiter::is_turn_of_hot`]).
    share: usize,
    /// Number of calls of [`ShmWaiter::poll_hot`].
    hot_polls: u32,
    vacated_seen: u32,
}

/// The busiest ring alone does not answer the poll: other queues may have news.
struct MoreToPoll;

struct HotRing {
    bit: u32,
    place: Place,
    last_served: u64,
}

struct News {
    bit: u32,
    place: Place,
    /// How often the queue was returned, and the read position of its ring before the first time.
    served: u32,
    served_from: u32,
}

/// Whether a queue stands in the list of news.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listed {
    No,
    Yes,
    /// In the list, and returned when its ring was empty: the caller has then seen the connection's end, if that was
    /// the news.
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
            // Every postbox has a waiter, and most of them stay idle, so memory is taken when a ring becomes hot.
            hot: Vec::new(),
            turn: 0,
            burst: 0,
            burst_from: 0,
            news: VecDeque::new(),
            listed: Vec::new(),
            rung: Vec::new(),
            polls: 0,
            share: 0,
            hot_polls: 0,
            vacated_seen: 0,
        })
    }

    /// Polls the ring that was busy last. `Err` if this ring alone does not settle the poll.
    #[inline]
    fn poll_first(&mut self) -> std::result::Result<Option<Ready>, MoreToPoll> {
        self.polls += 1;
        if !self.news.is_empty() || self.has_vacated() {
            return Err(MoreToPoll);
        }
        let rings = self.hot.len();
        let Some(ring) = self.hot.get_mut(self.turn) else {
            return if self.notifier.doorbell().has_news() { Err(MoreToPoll) } else { Ok(None) };
        };
        let position = ring.place.position();
        if self.burst >= BURST || position.wrapping_sub(self.burst_from) >= BURST {
            if rings > 1 || self.notifier.doorbell().has_news() {
                return Err(MoreToPoll);
            }
            // There are no other rings.
            (self.burst, self.burst_from) = (0, position);
        }
        if ready_at(&ring.place.connection.incoming, position) {
            ring.last_served = self.polls;
            self.burst += 1;
            return Ok(Some(ring.place.ready));
        }
        if rings == 1 && !self.notifier.doorbell().has_news() { Ok(None) } else { Err(MoreToPoll) }
    }

    /// Polls the ring that was busy last.
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
    fn poll_all_queues_twice(&mut self) -> Option<Ready> {
        self.poll_all_queues().or_else(|| self.poll())
    }

    /// Polls every queue that may have news, each ring as often as any other.
    fn poll_all_queues(&mut self) -> Option<Ready> {
        if self.has_vacated() || self.notifier.doorbell().has_news() {
            self.refresh();
        }
        if self.is_turn_of_hot() {
            self.poll_hot().or_else(|| self.poll_news())
        } else {
            self.poll_news().or_else(|| self.poll_hot())
        }
    }

    /// Shares out the polls evenly (Bresenham's line): with `hot` hot rings and `cold` queues with news, the hot
    /// ones have `hot` of every `hot + cold` polls. Half for each kind would serve a thousand flooding peers only as
    /// often as the eight.
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

    /// Polls the ring that was busy last, while its burst lasts. Polls the others after it, and also on every second
    /// call.
    fn poll_hot(&mut self) -> Option<Ready> {
        self.hot_polls = self.hot_polls.wrapping_add(1);
        let may_stay = self.may_stay();
        if may_stay && let Some(ready) = self.poll_turn() {
            return Some(ready);
        }
        let sometimes = self.hot_polls.is_multiple_of(2);
        if may_stay && !sometimes {
            // The burst goes on: messages found before this call count, whichever function found them.
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
                // The ring is served among the hot ones. Its end rings the doorbell after it can be seen, and is
                // found by that.
                if connection.has_ended() {
                    self.news.rotate_left(1)
                } else {
                    self.forget_oldest_news()
                }
                continue;
            }
            let listed = &mut self.listed[bit as usize];
            if *listed == Listed::Named && !has_arrival {
                // The ring is cold and was found empty: the next post rings again.
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

    /// Collects the doorbell's bits, and drops vacated places.
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

    /// Handles news of a queue: makes its ring hot if there is place, and returns the queue once in any case.
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

    /// Puts a queue into `news`. A queue that is in the list already will be returned once more.
    fn list(&mut self, bit: u32, place: Place) {
        let before = std::mem::replace(&mut self.listed[bit as usize], Listed::Yes);
        if before == Listed::No {
            self.news.push_back(News { bit, place, served: 0, served_from: 0 });
        }
    }

    fn cool_one_idle(&mut self) {
        // In a flood a ring's turn may come later than that, so a ring with a message is not idle.
        let is_idle = |ring: &HotRing| {
            self.polls - ring.last_served > IDLE_POLLS && !ring.place.connection.has_arrival()
        };
        if let Some(at) = self.hot.iter().position(is_idle) {
            let ring = self.hot.swap_remove(at);
            self.turn = 0;
            self.cool(ring);
        }
    }

    /// Stops polling a ring. A message whose poster did not know yet that the ring is cold stays in the news.
    fn cool(&mut self, ring: HotRing) {
        attend(&ring.place.connection.incoming, ring::COLD);
        if ring.place.connection.has_arrival() && !self.is_listed(ring.bit) {
            self.list(ring.bit, ring.place);
        }
    }
}

impl Waiter for ShmWaiter {
    /// Polls the ring that was busy last before all others, so a caller that waits for an answer gets it soonest.
    /// After [`BURST`] messages the others have their turn.
    #[inline]
    fn poll(&mut self) -> Option<Ready> {
        self.poll_first().unwrap_or_else(|MoreToPoll| self.poll_all_queues())
    }

    #[inline]
    fn poll_all(&mut self) -> Option<Ready> {
        // Where no other queue can have news, one poll is enough.
        self.poll_first().unwrap_or_else(|MoreToPoll| self.poll_all_queues_twice())
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
        // The caller reads this ring without polling here, so the ring counts as busy.
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
