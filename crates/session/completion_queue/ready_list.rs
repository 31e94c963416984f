//! Entries of a completion queue, and which of them were announced.

use std::collections::VecDeque;
use std::sync::Arc;

use udeck_via::transport::{Notifier, Queue, Queues, Ready};
use udeck_via::{Error, Result};

use super::{Backend, CompletionQueue, HasArrivals};
use crate::watching::Announce;

/// Upper bound of work queues that one completion queue watches.
pub const QUEUES: usize = 8192;

pub(super) struct ReadyList<Q: Backend> {
    entries: Vec<Option<ReadyEntry<Q>>>,
    free: Vec<u32>,
    /// Indices of entries that may have news, next first; each at most once.
    announced: VecDeque<u32>,
}

struct ReadyEntry<Q: Backend> {
    ready: Ready,
    link: Arc<Q::Link>,
    data: Q::SlotData,
    /// Whether the entry's index stands in `announced`.
    listed: bool,
    /// Whether the entry was announced and not named since.
    fresh: bool,
}

impl<Q: Backend> Default for ReadyList<Q> {
    fn default() -> Self {
        ReadyList { entries: Vec::new(), free: Vec::new(), announced: VecDeque::new() }
    }
}

impl<Q: Backend> ReadyList<Q> {
    fn reserve(&mut self) -> Result<u32> {
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        if self.entries.len() == QUEUES {
            let bound = format!("{QUEUES} work queues");
            return Err(Error::Full { what: "the completion queue", bound: bound.into() });
        }
        self.entries.push(None);
        Ok(self.entries.len() as u32 - 1)
    }

    fn leave(&mut self, index: u32) -> Option<ReadyEntry<Q>> {
        let entry = self.entries[index as usize].take();
        self.free.push(index);
        if entry.as_ref().is_some_and(|entry| entry.listed) {
            self.announced.retain(|listed| *listed != index);
        }
        entry
    }

    /// The next queue in turn that has news.
    #[inline]
    pub fn next(&mut self) -> Option<Ready> {
        let index = self.next_index()?;
        Some(self.entries[index as usize].as_ref()?.ready)
    }

    /// The same as [`ReadyList::next`], with the connection and its index here.
    pub fn next_with_link(&mut self) -> Option<(Ready, Arc<Q::Link>, u32)> {
        let index = self.next_index()?;
        let entry = self.entries[index as usize].as_ref()?;
        Some((entry.ready, entry.link.clone(), index))
    }

    #[inline]
    fn next_index(&mut self) -> Option<u32> {
        while let Some(index) = self.announced.pop_front() {
            let Some(entry) = &mut self.entries[index as usize] else { continue };
            let lies_there = entry.ready.queue == Queue::Receive && entry.link.has_arrivals();
            if !lies_there && !entry.fresh {
                entry.listed = false;
                continue;
            }
            entry.fresh = false;
            // The entry is named again until it is found empty.
            self.announced.push_back(index);
            return Some(index);
        }
        None
    }

    /// Announces news of an entry. Returns whether there is such an entry.
    pub fn announce(&mut self, index: u32) -> bool {
        let Some(Some(entry)) = self.entries.get_mut(index as usize) else { return false };
        entry.fresh = true;
        if !std::mem::replace(&mut entry.listed, true) {
            self.announced.push_back(index);
        }
        true
    }
}

/// A work queue's entry; given back when dropped.
pub struct Slot<Q: Backend> {
    cq: Arc<CompletionQueue<Q>>,
    index: u32,
}

/// Entries of a VI's two queues.
pub struct Slots<Q: Backend> {
    /// The send queue's entry.
    pub send: Slot<Q>,
    /// The receive queue's entry.
    pub receive: Slot<Q>,
}

impl<Q: Backend> Slots<Q> {
    /// Takes entries for a connection that is to be made. `is_ours`: whether a completion queue belongs to the NIC that makes it.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] when a completion queue belongs to another NIC; [`Error::Full`].
    pub fn take(queues: &Queues<'_>, is_ours: impl Fn(&Q) -> bool) -> Result<Self> {
        Ok(Slots { send: slot_at(queues.send, &is_ours)?, receive: slot_at(queues.receive, &is_ours)? })
    }
}

pub(super) fn slot_at<Q: Backend>(
    notifier: &Arc<dyn Notifier>,
    is_ours: impl Fn(&Q) -> bool,
) -> Result<Slot<Q>> {
    match notifier.clone().into_any().downcast::<CompletionQueue<Q>>() {
        Ok(cq) if is_ours(&cq.backend) => cq.slot(),
        _ => Err(Error::InvalidParameter("the completion queue belongs to another NIC".into())),
    }
}

impl<Q: Backend> CompletionQueue<Q> {
    fn slot(&self) -> Result<Slot<Q>> {
        let cq = self.this.upgrade().ok_or_else(|| Error::Lost("the completion queue is gone".into()))?;
        let index = self.ready_list.lock().reserve()?;
        Ok(Slot { cq, index })
    }
}

impl<Q: Backend> Slot<Q> {
    /// The completion queue of this entry.
    pub fn cq(&self) -> &Arc<CompletionQueue<Q>> {
        &self.cq
    }

    /// Binds the entry to this connection: announcements are of it from now on.
    pub fn occupy(&self, ready: Ready, link: Arc<Q::Link>, data: Q::SlotData) {
        let entry = ReadyEntry { ready, link, data, listed: false, fresh: false };
        self.cq.ready_list.lock().entries[self.index as usize] = Some(entry);
    }
}

impl<Q: Backend> Announce for Slot<Q> {
    fn announce(&self) {
        self.cq.announce(self.index);
    }
}

impl<Q: Backend> Drop for Slot<Q> {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        let entry = self.cq.ready_list.lock().leave(self.index);
        // The connection may be dropped with the entry, so no lock is held here.
        if let Some(ReadyEntry { ready, link, data, .. }) = entry {
            self.cq.backend.vacated(ready.queue, link, data);
        }
    }
}
