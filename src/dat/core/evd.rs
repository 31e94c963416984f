//! Event dispatchers: queues of events.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::bell::Bell;
use super::cno::Cno;
use super::code::{Code, Result};
use super::event::{Event, number};
use super::ring::Ring;

/// `DAT_EVD_FLAGS`.
pub mod stream {
    pub const SOFTWARE: u32 = 0x001;
    pub const CR: u32 = 0x010;
    pub const DTO: u32 = 0x020;
    pub const CONNECTION: u32 = 0x040;
    pub const RMR_BIND: u32 = 0x080;
    pub const ASYNC: u32 = 0x100;
    pub const ALL: u32 = SOFTWARE | CR | DTO | CONNECTION | RMR_BIND | ASYNC;
}

/// Events that each can keep, at least: a program that asks for fewer does not lose any that it is slow to take.
pub const LEAST: usize = 8192;
/// Private data of connection events that stay for the program after it has taken the events, at least, whatever becomes of their
/// end points.
const LATE: usize = 256;
/// Events that one can be asked to keep.
pub const MOST: usize = 1 << 20;

pub struct Evd {
    pub handle: usize,
    /// Streams that feed it.
    pub flags: u32,
    bell: Arc<Bell>,
    /// Connection requests of all service points that nobody has answered.
    pub requests: Arc<AtomicUsize>,
    /// Told when this one has lost an event.
    overflow: Weak<Evd>,
    /// Events that can be taken; under the queue's lock.
    len: AtomicUsize,
    /// Places in the queue whose events have yet to happen; under its lock.
    reserved: AtomicUsize,
    inner: Mutex<Inner>,
    pub waiting: AtomicBool,
    pub unwaitable: AtomicBool,
    pub dead: AtomicBool,
}

struct Inner {
    queue: Ring<Event>,
    room: usize,
    cno: Option<Arc<Cno>>,
    enabled: bool,
    overflowed: bool,
    /// Private data that connection events point to: of those in the queue, and of the last ones before.
    said: VecDeque<Arc<[u8]>>,
    /// How many of them there may be before it is looked which are needed.
    said_room: usize,
}

impl Inner {
    fn keep(&mut self, said: Arc<[u8]>) {
        self.said.push_back(said);
        if self.said.len() > self.said_room {
            let needed = LATE + self.queue.iter().filter(|event| event.has_private_data()).count();
            self.said.drain(..self.said.len().saturating_sub(needed));
            self.said_room = 2 * needed;
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
            reserved: AtomicUsize::new(0),
            inner: Mutex::new(inner),
            waiting: AtomicBool::new(false),
            unwaitable: AtomicBool::new(false),
            dead: AtomicBool::new(false),
        }
    }

    /// An event of the library's. One that finds no room is lost, and the asynchronous event dispatcher tells once.
    #[inline(always)]
    pub fn push(&self, event: Event) {
        if self.put(event).is_err() {
            self.lost();
        }
    }

    /// As [`Evd::push`], of a connection event and the private data that it points to.
    pub fn push_said(&self, event: Event, said: &Arc<[u8]>) {
        if !said.is_empty() {
            self.inner.lock().keep(said.clone());
        }
        self.push(event);
    }

    #[cold]
    fn lost(&self) {
        let first = !std::mem::replace(&mut self.inner.lock().overflowed, true);
        if first && let Some(asynchronous) = self.overflow.upgrade() {
            let _ = asynchronous.put(Event::asynchronous(number::ASYNC_EVD_OVERFLOW, self.handle, 0));
        }
    }

    /// An event of anybody's.
    ///
    /// # Errors
    /// `DAT_QUEUE_FULL`.
    #[inline(always)]
    pub fn put(&self, event: Event) -> Result {
        let mut inner = self.inner.lock();
        if inner.queue.len() >= inner.room {
            return Err(Code::QUEUE_FULL);
        }
        inner.queue.push_back(event);
        self.count(&inner);
        self.tell(inner);
        Ok(())
    }

    /// There is news in the queue.
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

    /// Keeps a place for an end point's connection event that is about to happen: what other threads learn of by that comes behind
    /// it. Nothing behind it is taken before [`Evd::fill`].
    pub fn reserve(&self, ep: usize) {
        let mut inner = self.inner.lock();
        if inner.queue.len() < inner.room {
            inner.queue.push_back(Event::connection(number::RESERVED, ep, &[]));
            self.reserved.fetch_add(1, Ordering::Relaxed);
            self.count(&inner);
        }
    }

    /// Puts the event at the end point's place; if there was no room for that, behind all others.
    pub fn fill(&self, ep: usize, event: Event) {
        let mut inner = self.inner.lock();
        let Some(place) = inner.queue.rfind_mut(|place| place.is_reserved_for(ep)) else {
            drop(inner);
            return self.push(event);
        };
        *place = event;
        self.reserved.fetch_sub(1, Ordering::Relaxed);
        self.count(&inner);
        self.tell(inner);
    }

    #[inline]
    fn count(&self, inner: &Inner) {
        let mut len = inner.queue.len();
        if self.reserved.load(Ordering::Relaxed) > 0 {
            len = inner.queue.iter().position(|event| event.number == number::RESERVED).unwrap_or(len);
        }
        self.len.store(len, Ordering::Relaxed);
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// How many there are, for who is about to sleep: what was put before is counted.
    pub fn len_for_sure(&self) -> usize {
        let _inner = self.inner.lock();
        self.len()
    }

    /// The oldest.
    #[inline]
    pub fn take(&self) -> Option<Event> {
        if self.len() == 0 {
            return None;
        }
        let mut inner = self.inner.lock();
        // Another thread may have taken what there was.
        let event = if self.len() == 0 { None } else { inner.queue.pop_front() };
        self.count(&inner);
        event
    }

    pub fn room(&self) -> usize {
        self.inner.lock().room
    }

    /// # Errors
    /// `DAT_INVALID_STATE`: it holds more than that.
    pub fn resize(&self, len: usize) -> Result {
        let mut inner = self.inner.lock();
        if inner.queue.len() > len.max(LEAST) {
            return Err(Code::INVALID_STATE);
        }
        inner.room = len.max(LEAST);
        Ok(())
    }

    pub fn cno(&self) -> Option<Arc<Cno>> {
        self.inner.lock().cno.clone()
    }

    /// Another consumer notification object, which learns at once of what is there.
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

    /// Whether its consumer notification object is told.
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
        self.bell.ring_loudly();
    }

    /// It goes. Who waits gives up.
    pub fn end(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.set_cno(None);
        self.bell.ring_loudly();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udeck::via::Cq;

    /// What happens behind an event that is about to happen is not taken before it.
    #[test]
    fn a_reserved_place_keeps_its_turn() {
        let nic = udeck::open_nic("shm0", &udeck::NicOptions::new([7; 32])).unwrap();
        let cq = Cq::new(&nic).unwrap();
        let evd = Evd::new(7, stream::ALL, 1, None, Arc::new(Bell::new(cq.handle())), Weak::new());
        let event = |number, ep| Event::connection(number, ep, &[]);
        evd.push(event(number::DISCONNECTED, 1));
        evd.reserve(2);
        evd.push(event(number::DISCONNECTED, 3));
        assert_eq!((evd.len(), evd.len_for_sure()), (1, 1));
        assert_eq!(evd.take(), Some(event(number::DISCONNECTED, 1)));
        assert_eq!((evd.take(), evd.len()), (None, 0));
        evd.fill(2, event(number::ESTABLISHED, 2));
        assert_eq!(evd.len(), 2);
        assert_eq!(evd.take(), Some(event(number::ESTABLISHED, 2)));
        assert_eq!(evd.take(), Some(event(number::DISCONNECTED, 3)));
        // Without a place it comes behind the others.
        evd.fill(4, event(number::ESTABLISHED, 4));
        assert_eq!((evd.take(), evd.take()), (Some(event(number::ESTABLISHED, 4)), None));
    }

    /// What an event in the queue points to stays; what was taken long ago does not.
    #[test]
    fn private_data_stay_as_long_as_events_point_to_them() {
        let mut inner = Inner {
            queue: Ring::default(),
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
