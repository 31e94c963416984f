//! Completion queues.

use std::sync::Arc;

use udeck_sys::{Deadline, Pause, Spinner};

use crate::error::Result;
use crate::nic::Nic;
use crate::transport::{Notifier, Queue, Waiter};

/// Which work queue has news. The program then asks that VI (`receive_done`, `send_done`, `arrival`), as VIA's
/// `VipCQDone` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqEntry {
    /// [`crate::ViAttributes::context`] of the VI.
    pub context: u64,
    /// Which of its queues.
    pub queue: Queue,
}

/// Watches the work queues of many VIs. Belongs to one thread at a time; VIs may be attached from any.
#[derive(Debug)]
pub struct Cq {
    waiter: Box<dyn Waiter>,
    notifier: Arc<dyn Notifier>,
    oversubscribed: bool,
}

/// What VIs are attached to. Lets other threads wake the one that waits.
#[derive(Clone, Debug)]
pub struct CqHandle(pub(crate) Arc<dyn Notifier>);

impl CqHandle {
    /// Wakes the waiting thread, news or not.
    pub fn wake(&self) {
        self.0.wake();
    }
}

impl Cq {
    /// A completion queue of `nic`.
    ///
    /// # Errors
    /// [`crate::Error::Full`] when the NIC has no more.
    pub fn new(nic: &Nic) -> Result<Self> {
        let waiter = nic.device().waiter()?;
        let notifier = waiter.notifier();
        Ok(Cq { waiter, notifier, oversubscribed: false })
    }

    /// Says that more ranks run on this host than it has processors: waits yield at once instead of spinning.
    pub fn set_oversubscribed(&mut self, oversubscribed: bool) {
        self.oversubscribed = oversubscribed;
    }

    /// For attaching VIs.
    pub fn handle(&self) -> CqHandle {
        CqHandle(self.notifier.clone())
    }

    /// A work queue with news, if there is one. A receive queue is named until it has been emptied, fairly among
    /// queues. May name a queue that turns out to have nothing.
    #[inline]
    pub fn poll(&mut self) -> Option<CqEntry> {
        let ready = self.waiter.poll()?;
        Some(CqEntry { context: ready.context, queue: ready.queue })
    }

    /// Like [`Cq::poll`], but waits: spins for as long as a sleep would have cost, then sleeps. `None` at the
    /// deadline, or when `until` says stop (asked between looks, at least every 100 ms).
    pub fn wait(&mut self, deadline: Deadline, mut until: impl FnMut() -> bool) -> Option<CqEntry> {
        let mut spinner = Spinner::new(self.oversubscribed);
        let mut looks = 0u32;
        loop {
            if let Some(entry) = self.poll() {
                return Some(entry);
            }
            if until() {
                return None;
            }
            looks = looks.wrapping_add(1);
            let pause = spinner.pause();
            if (pause == Pause::Sleep || looks.is_multiple_of(256)) && deadline.passed() {
                return None;
            }
            if pause == Pause::Sleep {
                self.waiter.park(deadline.remaining());
            }
        }
    }
}
