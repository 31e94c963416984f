//! Event dispatchers: queues of events.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use udeck::via::AtomicSpinHistory;
use udeck_rdma::{Bell, Ring};

use super::cno::Cno;
use super::code::{Code, Result};
use super::event::{Event, number};
use super::wire::Process;

/// Streams of events (`DAT_EVD_FLAGS`).
pub mod stream {
    pub const SOFTWARE: u32 = 0x001;
    pub const CR: u32 = 0x010;
    pub const DTO: u32 = 0x020;
    pub const CONNECTION: u32 = 0x040;
    pub const RMR_BIND: u32 = 0x080;
    pub const ASYNC: u32 = 0x100;
    pub const ALL: u32 = SOFTWARE | CR | DTO | CONNECTION | RMR_BIND | ASYNC;
}

/// Least room of a dispatcher, in events: a program that asks for less loses none when it is slow to take them.
pub const LEAST: usize = 8192;
/// Connection events whose private data stay after the program has taken the events, at least, whatever becomes of their
/// end points.
const LATE: usize = 256;
/// Most room that a program may ask for, in events.
pub const MOST: usize = 1 << 20;

pub struct Evd {
    pub handle: usize,
    /// Streams that feed it.
    pub flags: u32,
    bell: Arc<Bell>,
    /// Unanswered connection requests of all its service points.
    pub requests: Arc<AtomicUsize>,
    /// The asynchronous event dispatcher, which gets an event when this one has lost one.
    overflow: Weak<Evd>,
    /// Number of events that can be taken; written under the lock of `inner`.
    len: AtomicUsize,
    inner: Mutex<Inner>,
    pub spin_history: AtomicSpinHistory,
    pub waiting: AtomicBool,
    pub unwaitable: AtomicBool,
    pub dead: AtomicBool,
}

struct Inner {
    queue: Ring<Event>,
    /// Accepts under way, oldest first.
    accepts: Vec<Accept>,
    /// Events that are yet to come from `accepts`: one of each, and those that wait behind it.
    later: usize,
    room: usize,
    cno: Option<Arc<Cno>>,
    enabled: bool,
    overflowed: bool,
    /// Private data that connection events point to: of events in the queue, and of the last ones that were taken.
    said: VecDeque<Arc<[u8]>>,
    /// Length of `said` above which it is searched for data that are no longer needed.
    said_room: usize,
}

/// An accept under way. The peer learns of the connection before the accept returns, and other threads report what it does then: those
/// events come behind the end point's event.
struct Accept {
    number: u64,
    peer: Process,
    behind: Vec<Event>,
}

impl Inner {
    fn keep(&mut self, said: Arc<[u8]>) {
        self.said.push_back(said);
        if self.said.len() > self.said_room {
            let behind = self.accepts.iter().flat_map(|accept| &accept.behind);
            let told: Vec<&Event> =
                self.queue.iter().chain(behind).filter(|event| event.has_private_data()).collect();
            let needed = LATE + told.len();
            // An event that waits behind an accept is taken after younger ones.
            let oldest = self.said.iter().position(|said| told.iter().any(|event| event.points_to(said)));
            let spare = self.said.len().saturating_sub(needed);
            self.said.drain(..spare.min(oldest.unwrap_or(spare)));
            self.said_room = 2 * needed.max(self.said.len());
        }
    }
}

impl Evd {
    pub fn new(
        handle: usize,
        flags: u32,
        len: usize,
        cno: Option<Arc<Cno>>,
        bell: Arc<Bell>,
        overflow: Weak<Evd>,
    ) -> Evd {
        let inner = Inner {
            queue: Ring::default(),
            accepts: Vec::new(),
            later: 0,
            room: len.max(LEAST),
            cno,
            enabled: true,
            overflowed: false,
            said: VecDeque::new(),
            said_room: 2 * LATE,
        };
        Evd {
            handle,
            flags,
            bell,
            requests: Arc::default(),
            overflow,
            len: AtomicUsize::new(0),
            inner: Mutex::new(inner),
            spin_history: AtomicSpinHistory::default(),
            waiting: AtomicBool::new(false),
            unwaitable: AtomicBool::new(false),
            dead: AtomicBool::new(false),
        }
    }

    /// Adds an event of the library's. An event that finds no room is lost; the asynchronous event dispatcher reports the first loss.
    pub fn push(&self, event: Event) {
        self.push_from(event, || None);
    }

    /// Like [`Evd::push`], for an event that this peer process may have caused. It waits while a request of that process is being accepted.
    #[inline(always)]
    pub fn push_from(&self, event: Event, from: impl FnOnce() -> Option<Process>) {
        if self.put_from(event, from).is_err() {
            self.lost();
        }
    }

    /// Keeps the private data that the next pushed event points to.
    pub fn keep_said(&self, said: &Arc<[u8]>) {
        if !said.is_empty() {
            self.inner.lock().keep(said.clone());
        }
    }

    #[cold]
    fn lost(&self) {
        let first = !std::mem::replace(&mut self.inner.lock().overflowed, true);
        if first && let Some(asynchronous) = self.overflow.upgrade() {
            let _ = asynchronous.put(Event::asynchronous(number::ASYNC_EVD_OVERFLOW, self.handle, 0));
        }
    }

    /// Adds an event.
    ///
    /// # Errors
    /// `DAT_QUEUE_FULL`.
    pub fn put(&self, event: Event) -> Result {
        self.put_from(event, || None)
    }

    /// Like [`Evd::put`], for an event that a peer process may have caused, as [`Evd::push_from`].
    ///
    /// # Errors
    /// `DAT_QUEUE_FULL`.
    #[inline(always)]
    pub fn put_from(&self, event: Event, from: impl FnOnce() -> Option<Process>) -> Result {
        let mut inner = self.inner.lock();
        if inner.later > 0 {
            return self.put_beside_accepts(inner, event, from());
        }
        if inner.queue.len() >= inner.room {
            return Err(Code::QUEUE_FULL);
        }
        inner.queue.push_back(event);
        self.count(&inner);
        self.tell(inner);
        Ok(())
    }

    /// Adds an event while accepts are under way. Out of line, to keep its code out of the path of a post.
    #[cold]
    #[inline(never)]
    fn put_beside_accepts(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        event: Event,
        from: Option<Process>,
    ) -> Result {
        if inner.queue.len() + inner.later >= inner.room {
            return Err(Code::QUEUE_FULL);
        }
        if let Some(accept) = inner.accepts.iter_mut().rfind(|accept| Some(accept.peer) == from) {
            accept.behind.push(event);
            inner.later += 1;
        } else {
            inner.queue.push_back(event);
            self.count(&inner);
            self.tell(inner);
        }
        Ok(())
    }

    /// Reports that the queue has events: to the CNO, and to waiting threads.
    #[inline(always)]
    fn tell(&self, inner: MutexGuard<'_, Inner>) {
        if inner.cno.is_some() {
            self.trigger(inner);
        } else {
            drop(inner);
        }
        self.bell.ring();
    }

    #[cold]
    fn trigger(&self, inner: MutexGuard<'_, Inner>) {
        let cno = inner.cno.clone().filter(|_| inner.enabled);
        drop(inner);
        cno.iter().for_each(|cno| cno.trigger(self.handle));
    }

    /// Notes that an end point begins to accept a request of this peer. Until the [event](Evd::accepted) of the accept with this number, the peer's
    /// other events wait. Events of others do not.
    pub fn accepting(&self, number: u64, peer: Process) {
        let mut inner = self.inner.lock();
        if inner.queue.len() + inner.later < inner.room {
            inner.accepts.push(Accept { number, peer, behind: Vec::new() });
            inner.later += 1;
        }
    }

    /// Ends an accept: its event comes first, if there is one, and then the events that have waited for it.
    pub fn accepted(&self, number: u64, event: Option<Event>) {
        let mut inner = self.inner.lock();
        let Some(at) = inner.accepts.iter().position(|accept| accept.number == number) else {
            // The dispatcher had no room when the accept began.
            drop(inner);
            return event.into_iter().for_each(|event| self.push(event));
        };
        let Accept { peer, behind, .. } = inner.accepts.remove(at);
        inner.later -= 1;
        event.into_iter().for_each(|event| inner.queue.push_back(event));
        // Another thread may have begun to answer the same peer before.
        if let Some(older) = inner.accepts[..at].iter_mut().rfind(|older| older.peer == peer) {
            older.behind.extend(behind);
        } else {
            inner.later -= behind.len();
            behind.into_iter().for_each(|event| inner.queue.push_back(event));
        }
        self.count(&inner);
        if !inner.queue.is_empty() {
            self.tell(inner);
        }
    }

    #[inline(always)]
    fn count(&self, inner: &Inner) {
        self.len.store(inner.queue.len(), Ordering::Relaxed);
    }

    /// Number of events.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Number of events, for a thread that is about to sleep: every event that was put before is counted.
    pub fn len_for_sure(&self) -> usize {
        let _inner = self.inner.lock();
        self.len()
    }

    /// Takes the oldest event.
    #[inline]
    pub fn take(&self) -> Option<Event> {
        if self.len() == 0 {
            return None;
        }
        let mut inner = self.inner.lock();
        let event = inner.queue.pop_front();
        self.count(&inner);
        event
    }

    pub fn room(&self) -> usize {
        self.inner.lock().room
    }

    /// # Errors
    /// `DAT_INVALID_STATE`: the queue holds more than `len` events.
    pub fn resize(&self, len: usize) -> Result {
        let mut inner = self.inner.lock();
        if inner.queue.len() + inner.later > len.max(LEAST) {
            return Err(Code::INVALID_STATE);
        }
        inner.room = len.max(LEAST);
        Ok(())
    }

    pub fn cno(&self) -> Option<Arc<Cno>> {
        self.inner.lock().cno.clone()
    }

    /// Sets the consumer notification object. It is notified at once if there are events.
    pub fn set_cno(&self, cno: Option<Arc<Cno>>) {
        let mut inner = self.inner.lock();
        let before = std::mem::replace(&mut inner.cno, cno.clone());
        let tells = inner.enabled && !inner.queue.is_empty();
        drop(inner);
        before.iter().for_each(|cno| cno.forget(self.handle));
        if tells {
            cno.iter().for_each(|cno| cno.trigger(self.handle));
        }
    }

    pub fn is_enabled(&self) -> bool {
        self.inner.lock().enabled
    }

    /// Sets whether the consumer notification object is notified.
    pub fn set_enabled(&self, enabled: bool) {
        let mut inner = self.inner.lock();
        let tells = enabled && !inner.enabled && !inner.queue.is_empty();
        inner.enabled = enabled;
        let cno = inner.cno.clone();
        drop(inner);
        if tells {
            cno.iter().for_each(|cno| cno.trigger(self.handle));
        }
    }

    pub fn set_unwaitable(&self, unwaitable: bool) {
        self.unwaitable.store(unwaitable, Ordering::Relaxed);
        self.bell.ring_all();
    }

    /// Ends the dispatcher, and the waits.
    pub fn end(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.set_cno(None);
        self.bell.ring_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udeck::via::Cq;

    fn evd() -> Evd {
        let nic = udeck::open_nic("shm0", &udeck::NicOptions::new([7; 32])).unwrap();
        let cq = Cq::new(&nic).unwrap();
        Evd::new(7, stream::ALL, 1, None, Arc::new(Bell::new(cq.handle())), Weak::new())
    }

    fn event(number: u32, ep: usize) -> Event {
        Event::connection(number, ep, &[])
    }

    fn taken(evd: &Evd) -> Vec<u64> {
        std::iter::from_fn(|| evd.take()).map(|event| event.data[0]).collect()
    }

    /// Events of a peer come behind the event of its accept; events of others need not wait.
    #[test]
    fn events_of_a_peer_come_behind_its_accept() {
        let evd = evd();
        let [one, other] = [1, 2].map(|process| Process::of(&[0; 16], process << 32 | 9));
        evd.push_from(event(number::DISCONNECTED, 1), || Some(one));
        evd.accepting(5, one);
        evd.push_from(event(number::DISCONNECTED, 2), || Some(one));
        evd.push_from(event(number::DISCONNECTED, 3), || Some(other));
        evd.push(event(number::DISCONNECTED, 4)); // from no peer
        evd.push_from(event(number::DISCONNECTED, 5), || Some(one));
        assert_eq!((evd.len(), evd.len_for_sure()), (3, 3));
        assert_eq!(taken(&evd), [1, 3, 4]);
        evd.accepted(5, Some(event(number::ESTABLISHED, 9)));
        assert_eq!((evd.len(), taken(&evd)), (3, vec![9, 2, 5]));
        evd.push_from(event(number::DISCONNECTED, 6), || Some(one));
        assert_eq!(taken(&evd), [6], "it is over");
        // An accept that was not noted has its event behind the others, and nothing waits for it.
        evd.accepted(6, Some(event(number::ESTABLISHED, 7)));
        assert_eq!(taken(&evd), [7]);
    }

    /// Two threads answer one peer: its events wait for both, in their order.
    #[test]
    fn events_of_a_peer_wait_for_all_its_accepts() {
        for first in [1, 2] {
            let evd = evd();
            let peer = Process::of(&[0; 16], 1 << 32);
            let came = |ep| evd.push_from(event(number::DISCONNECTED, ep), || Some(peer));
            evd.accepting(1, peer);
            came(11);
            evd.accepting(2, peer);
            came(12);
            evd.accepted(first, Some(event(number::ESTABLISHED, first as usize)));
            assert_eq!(taken(&evd), if first == 1 { vec![1, 11] } else { vec![2] });
            came(13);
            // The accept has failed before the peer learnt of it: there is no event.
            evd.accepted(3 - first, None);
            assert_eq!(taken(&evd), if first == 1 { vec![12, 13] } else { vec![11, 12, 13] });
        }
    }

    /// Waiting events take room: no more wait than there is room for.
    #[test]
    fn what_waits_takes_room() {
        let (evd, peer) = (evd(), Process::of(&[0; 16], 1 << 32));
        evd.accepting(1, peer);
        for ep in 1..LEAST {
            assert_eq!(evd.put_from(event(number::DISCONNECTED, ep), || Some(peer)), Ok(()));
        }
        assert_eq!(evd.put(event(number::DISCONNECTED, 0)), Err(Code::QUEUE_FULL));
        assert_eq!((evd.len(), evd.resize(1)), (0, Ok(())));
        evd.accepted(1, Some(event(number::ESTABLISHED, LEAST)));
        assert_eq!((evd.len(), evd.put(event(number::DISCONNECTED, 0))), (LEAST, Err(Code::QUEUE_FULL)));
    }

    /// Private data of events in the queue stay; those of events that were taken long ago do not.
    #[test]
    fn private_data_stay_as_long_as_events_point_to_them() {
        let mut inner = Inner {
            queue: Ring::default(),
            accepts: Vec::new(),
            later: 0,
            room: LEAST,
            cno: None,
            enabled: true,
            overflowed: false,
            said: VecDeque::new(),
            said_room: 2 * LATE,
        };
        let (mut weak, put) = (VecDeque::new(), |inner: &mut Inner, number: usize| {
            let said: Arc<[u8]> = number.to_le_bytes().into();
            let event = Event::connection(number::ESTABLISHED, 1, &said);
            let known = Arc::downgrade(&said);
            inner.keep(said);
            inner.queue.push_back(event);
            known
        });
        for number in 0..4 * LATE {
            weak.push_back(put(&mut inner, number));
        }
        assert!(weak.iter().all(|said| said.upgrade().is_some()), "all are in the queue");
        for number in 0..10 * LATE {
            weak.push_back(put(&mut inner, number));
            let _ = inner.queue.pop_front();
        }
        let queued = inner.queue.len();
        assert!(weak.iter().rev().take(queued + LATE).all(|said| said.upgrade().is_some()));
        assert!(inner.said.len() <= 2 * (queued + LATE), "{} for {queued} events", inner.said.len());
    }
}
