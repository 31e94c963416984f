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

    fn place(&self) -> Result<CqEntryShare> {
        self.0.attach()?;
        Ok(CqEntryShare(self.0.clone()))
    }
}

/// Entries of a VI's two work queues on their completion queues, taken before the transport attaches the queues and given
/// back when dropped.
#[derive(Debug)]
pub(crate) struct CqEntryShares {
    pub send: CqEntryShare,
    _receive: CqEntryShare,
}

/// One work queue's entry.
#[derive(Debug)]
pub(crate) struct CqEntryShare(Arc<Shared>);

impl CqEntryShares {
    /// Takes both entries.
    ///
    /// # Errors
    /// [`Error::Full`]: nothing is taken.
    pub fn take(send: &CqHandle, receive: &CqHandle) -> Result<Self> {
        Ok(CqEntryShares { send: send.place()?, _receive: receive.place()? })
    }
}

impl Drop for CqEntryShare {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.0.books.lock().attached -= 1;
    }
}

/// State of a completion queue that all threads share.
#[derive(Debug)]
pub(super) struct Shared {
    notifier: Arc<dyn Notifier>,
    /// Whether `books` has events, so that a poll takes the lock only then. Set and cleared under the lock.
    has_events: AtomicBool,
    /// Calls of [`CqHandle::wake`] so far.
    wakes: AtomicU64,
    /// The NIC's bound of entries.
    most: usize,
    books: Mutex<EntryCounts>,
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
        let books = EntryCounts { entries, attached: 0, events: VecDeque::new() };
        Shared {
            notifier,
            has_events: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            most,
            books: Mutex::new(books),
        }
    }

    pub fn entries(&self) -> usize {
        self.books.lock().entries
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
        let mut books = self.books.lock();
        if books.taken() > entries {
            return Err(books.full("a completion queue of that size", entries));
        }
        books.entries = entries;
        Ok(())
    }

    fn attach(&self) -> Result {
        let mut books = self.books.lock();
        books.check_room()?;
        books.attached += 1;
        Ok(())
    }

    fn push_event(&self, number: u64) -> Result {
        let mut books = self.books.lock();
        books.check_room()?;
        books.events.push_back(number);
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
        let mut books = self.books.lock();
        let context = books.events.pop_front();
        self.has_events.store(!books.events.is_empty(), Ordering::Relaxed);
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
