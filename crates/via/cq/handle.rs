//! Handle of a completion queue for threads other than its owner: attach work queues, post events, wake.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{CqEntry, Source};
use crate::error::{Error, Result};
use crate::transport::Notifier;
use udeck_sys::process::is_forked;

/// Handle of a completion queue, for attaching VIs and posting events from any thread. It may outlive its [`super::Cq`], to
/// no effect.
#[derive(Clone, Debug)]
pub struct CqHandle(pub(super) Arc<Shared>);

impl CqHandle {
    /// Wakes the waiting thread, with or without news: it asks its `until`.
    pub fn wake(&self) {
        if is_forked() {
            return;
        }
        self.0.wakes.fetch_add(1, Ordering::Release);
        self.0.notifier.wake();
    }

    /// Posts a software event (uDAPL: `dat_evd_post_se`): an entry of [`Source::Software`] with `number` as its
    /// context. Events come out in the order in which they were posted; the waiting thread is woken. Does not block.
    ///
    /// # Errors
    /// [`Error::Full`], and nothing is posted, when all entries are taken by work queues and by events that were not polled
    /// yet.
    pub fn post_event(&self, number: u64) -> Result {
        if is_forked() {
            return Err(Error::forked());
        }
        self.0.push_event(number)?;
        self.0.notifier.wake();
        Ok(())
    }

    /// The transport's notifier of the queue.
    pub(crate) fn notifier(&self) -> &Arc<dyn Notifier> {
        &self.0.notifier
    }

    fn place(&self) -> Result<CqReservation> {
        self.0.attach()?;
        Ok(CqReservation(self.0.clone()))
    }
}

/// Entries of a VI's two work queues on their completion queues, taken before the transport attaches the queues and given
/// back when dropped.
#[derive(Debug)]
pub(crate) struct CqReservations {
    pub send: CqReservation,
    _receive: CqReservation,
}

/// One work queue's entry.
#[derive(Debug)]
pub(crate) struct CqReservation(Arc<Shared>);

impl CqReservations {
    /// Takes both entries.
    ///
    /// # Errors
    /// [`Error::Full`]: nothing is taken.
    pub fn take(send: &CqHandle, receive: &CqHandle) -> Result<Self> {
        Ok(CqReservations { send: send.place()?, _receive: receive.place()? })
    }
}

impl Drop for CqReservation {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.0.counts.lock().attached -= 1;
    }
}

/// State of a completion queue that all threads share.
#[derive(Debug)]
pub(super) struct Shared {
    notifier: Arc<dyn Notifier>,
    /// Whether `counts` has events, so that a poll takes the lock only then. Set and cleared under the lock.
    has_events: AtomicBool,
    /// Calls of [`CqHandle::wake`] so far.
    wakes: AtomicU64,
    /// The NIC's bound of entries.
    most: usize,
    counts: Mutex<EntryCounts>,
}

/// Counts of used entries: `attached + events.len() <= entries`.
#[derive(Debug)]
struct EntryCounts {
    entries: usize,
    attached: usize,
    events: VecDeque<u64>,
}

impl Shared {
    pub fn new(notifier: Arc<dyn Notifier>, entries: usize, most: usize) -> Self {
        let counts = EntryCounts { entries, attached: 0, events: VecDeque::new() };
        Shared {
            notifier,
            has_events: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            most,
            counts: Mutex::new(counts),
        }
    }

    pub fn entries(&self) -> usize {
        self.counts.lock().entries
    }

    pub fn most(&self) -> usize {
        self.most
    }

    pub fn wakes(&self) -> u64 {
        self.wakes.load(Ordering::Acquire)
    }

    /// The word that is slept on in this queue's place while it is armed.
    pub fn sleep_word(&self) -> Option<&udeck_sys::atomic::AtomicU32> {
        self.notifier.sleep_word()
    }

    /// Wakes the waiting thread for an internal reason: it is no call of the program's.
    pub fn rouse(&self) {
        self.notifier.wake();
    }

    pub fn resize(&self, entries: usize) -> Result {
        let mut counts = self.counts.lock();
        if counts.taken() > entries {
            return Err(counts.full("a completion queue of that size", entries));
        }
        counts.entries = entries;
        Ok(())
    }

    fn attach(&self) -> Result {
        let mut counts = self.counts.lock();
        counts.check_room()?;
        counts.attached += 1;
        Ok(())
    }

    fn push_event(&self, number: u64) -> Result {
        let mut counts = self.counts.lock();
        counts.check_room()?;
        counts.events.push_back(number);
        self.has_events.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether there may be events. Relaxed: a poller that reads `true` takes the lock; one that reads `false` too early is
    /// woken by the poster (see `Cq::park`).
    #[inline]
    pub fn has_events(&self) -> bool {
        self.has_events.load(Ordering::Relaxed)
    }

    /// Takes the oldest event, whose entry is free again.
    pub fn take_event(&self) -> Option<CqEntry> {
        let mut counts = self.counts.lock();
        let context = counts.events.pop_front();
        self.has_events.store(!counts.events.is_empty(), Ordering::Relaxed);
        context.map(|context| CqEntry { context, source: Source::Software })
    }
}

impl EntryCounts {
    fn taken(&self) -> usize {
        self.attached + self.events.len()
    }

    fn check_room(&self) -> Result {
        if self.taken() < self.entries {
            Ok(())
        } else {
            Err(self.full("the completion queue", self.entries))
        }
    }

    #[cold]
    fn full(&self, what: &'static str, entries: usize) -> Error {
        let (attached, events) = (self.attached, self.events.len());
        let bound = format!(
            "{entries} entries, and {attached} work queues and {events} software events have one; Cq::resize makes room"
        );
        Error::Full { what, bound: bound.into() }
    }
}
