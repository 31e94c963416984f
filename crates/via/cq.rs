//! Completion queues: one place to ask which of many work queues has news.
//!
//! An entry names a *work queue that has news*, or is a software event ([`CqHandle::post_event`]). News of one work queue
//! coalesce, so a completion queue needs one entry per work queue on it, however much arrives. VIA's completion queues fill
//! with completions, and overrun loses them. Here nothing can overrun: a work queue or an event that would not fit is refused
//! beforehand, and each work queue keeps its entry until it detaches.
//!
//! A [`Cq`] belongs to one thread at a time; a [`CqHandle`] is for all others. [`Cno`] waits on several at once;
//! [`Cq::notify`] hands one to a thread of its own; a [`Watcher`] is one thread that wakes the tasks of many.

mod cno;
mod handle;
mod notify;
#[cfg(test)]
mod tests;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use udeck_sys::process::is_forked;
use udeck_sys::{Deadline, Pause, SpinHistory, Spinner};

use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::transport::{Armed, Queue, Ready, Waiter};
pub use cno::Cno;
pub use handle::CqHandle;
use handle::Shared;
pub(crate) use handle::{CqReservation, CqReservations};
pub use notify::Notify;
pub use watch::{Watch, Watcher};

/// A completion queue's entry: the source of news. For a work queue the program then asks that VI (`receive_done`,
/// `send_done`, `arrival`), as VIA's `VipCQDone` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqEntry {
    /// [`crate::ViAttributes::context`] of the VI; of a software event, the number it was posted with.
    pub context: u64,
    /// Source of the news.
    pub source: Source,
}

/// Source of news.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The VI's send queue.
    Send,
    /// The VI's receive queue.
    Receive,
    /// [`CqHandle::post_event`].
    Software,
}

impl From<Ready> for CqEntry {
    #[inline]
    fn from(Ready { context, queue }: Ready) -> Self {
        let source = match queue {
            Queue::Send => Source::Send,
            Queue::Receive => Source::Receive,
        };
        CqEntry { context, source }
    }
}

/// Watches the work queues of many VIs. Belongs to one thread at a time; VIs may be attached from any.
#[derive(Debug)]
pub struct Cq {
    waiter: Box<dyn Waiter>,
    shared: Arc<Shared>,
    /// Whether software events come next, while there are both these and news of work queues.
    events_turn: bool,
    oversubscribed: bool,
    /// Whether a wait on several queues asks others first.
    costly_poll: bool,
    /// Spin history of [`Cq::wait`], and of [`Cno::wait`] on this queue and others behind it.
    spin_history: SpinHistory,
}

impl Cq {
    /// A completion queue of `nic`, with as many entries as it can have ([`crate::NicAttributes::max_cq_entries`]).
    ///
    /// # Errors
    /// [`Error::Full`] when the NIC has no more.
    pub fn new(nic: &Nic) -> Result<Self> {
        Self::with_entries(nic, nic.attributes().max_cq_entries)
    }

    /// A completion queue of `entries` entries: work queues attached and software events pending, together.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] when that is none, or more than [`crate::NicAttributes::max_cq_entries`];
    /// [`Error::Full`] when the NIC has no more completion queues.
    pub fn with_entries(nic: &Nic, entries: usize) -> Result<Self> {
        let most = nic.attributes().max_cq_entries;
        check_entries(entries, most)?;
        let waiter = nic.device().waiter()?;
        let shared = Arc::new(Shared::new(waiter.notifier(), entries, most));
        Ok(Cq {
            waiter,
            shared,
            events_turn: false,
            oversubscribed: false,
            costly_poll: false,
            spin_history: SpinHistory::default(),
        })
    }

    /// Number of entries.
    pub fn entries(&self) -> usize {
        self.shared.entries()
    }

    /// Changes the number of entries; everything on the queue stays (VIA: `VipResizeCQ`).
    ///
    /// # Errors
    /// [`Error::Full`] when more than `entries` are in use, [`Error::InvalidParameter`] as for [`Cq::with_entries`]. The size
    /// stays then.
    pub fn resize(&self, entries: usize) -> Result {
        check_entries(entries, self.shared.most())?;
        self.shared.resize(entries)
    }

    /// Says that more ranks run on this host than it has processors: waits yield soon instead of spinning, or at once
    /// unless spinning briefly has paid lately.
    pub fn set_oversubscribed(&mut self, oversubscribed: bool) {
        self.oversubscribed = oversubscribed;
    }

    /// Says that polling this queue costs more than polling others (a system call, for example): a [`Cno`] that spins polls
    /// it at every 16th round only, so that it does not hold up news of the others.
    pub fn set_costly_poll(&mut self, costly_poll: bool) {
        self.costly_poll = costly_poll;
    }

    /// The handle by which VIs are attached, and which other threads use.
    pub fn handle(&self) -> CqHandle {
        CqHandle(self.shared.clone())
    }

    /// Polls for a work queue with news, or a software event; fairly among work queues, and between these and events. A
    /// receive queue is named until it has been emptied. A named queue may turn out to have nothing.
    #[inline]
    pub fn poll(&mut self) -> Option<CqEntry> {
        if is_forked() {
            return None;
        }
        if self.shared.has_events() {
            // A source that one poll passes over is found by the next one.
            return self.poll_in_turn().or_else(|| self.poll_in_turn());
        }
        Some(self.waiter.poll_all()?.into())
    }

    /// The work queue that had news last, while no other has any, and there is no event and no wake-up. A thread that waits
    /// for a message may poll that VI itself ([`crate::Vi::arrival_short`]) a few times, which is quicker, and then asks
    /// again. `None` whenever the transport cannot tell: poll.
    pub fn sole_active(&mut self) -> Option<CqEntry> {
        if is_forked() || self.shared.has_events() {
            return None;
        }
        self.waiter.sole_active().map(CqEntry::from)
    }

    /// Whether waits yield soon instead of spinning: see [`Cq::set_oversubscribed`].
    pub fn is_oversubscribed(&self) -> bool {
        self.oversubscribed
    }

    #[inline]
    fn poll_queue(&mut self) -> Option<CqEntry> {
        if is_forked() {
            return None;
        }
        if self.shared.has_events() {
            return self.poll_in_turn();
        }
        self.waiter.poll().map(CqEntry::from)
    }

    #[cold]
    fn poll_in_turn(&mut self) -> Option<CqEntry> {
        self.events_turn = !self.events_turn;
        if self.events_turn {
            self.shared.take_event().or_else(|| self.waiter.poll().map(CqEntry::from))
        } else {
            self.waiter.poll().map(CqEntry::from).or_else(|| self.shared.take_event())
        }
    }

    /// Waits for an entry: spins for as long as a sleep would have cost, then sleeps; sleeps at once, if the wait before spun
    /// and came to its deadline. `None` at the deadline, or when `until` returns true (it is asked between polls, at least
    /// every 100 ms).
    pub fn wait(&mut self, deadline: Deadline, mut until: impl FnMut() -> bool) -> Option<CqEntry> {
        let mut spinner = Spinner::with_history(self.oversubscribed, self.spin_history);
        let mut polls = 0u32;
        // A forked child will never get an entry.
        let deadline = if is_forked() { Deadline::now() } else { deadline };
        loop {
            if let Some(entry) = self.poll_queue() {
                self.spin_history = spinner.found();
                return Some(entry);
            }
            if until() {
                self.spin_history = spinner.found();
                return None;
            }
            polls = polls.wrapping_add(1);
            let pause = spinner.pause();
            if (pause == Pause::Sleep || polls.is_multiple_of(256)) && deadline.passed() {
                break;
            }
            if pause == Pause::Sleep {
                self.park(deadline.remaining());
            }
        }
        self.spin_history = spinner.gave_up();
        None
    }

    /// Makes the next [`Cq::wait`] sleep at once: the awaited event takes its time, and other threads can use the processor.
    pub fn sleep_at_once(&mut self) {
        self.spin_history = self.spin_history.for_sleep();
    }

    /// Prepares for another thread to sleep in this queue's place ([`Watcher::watch`]). [`Armed::News`]: there may be some;
    /// poll until there are none, and try again.
    pub fn arm(&mut self) -> Armed {
        // This check finds events that a poll has overlooked although it took their wake-up, as in `park`.
        if self.shared.has_events() || is_forked() { Armed::News } else { self.waiter.arm() }
    }

    /// Sleeps until there may be news, at most `limit`.
    ///
    /// An event is noted before its wake-up. Either the wake-up is still to be taken, and the transport's `park`
    /// returns at once; or the last poll took it after it had looked for events, and then they are seen here.
    fn park(&mut self, limit: Duration) {
        if !is_forked() && !self.shared.has_events() {
            self.waiter.park(limit);
        }
    }
}

fn check_entries(entries: usize, most: usize) -> Result {
    if (1..=most).contains(&entries) {
        return Ok(());
    }
    let what = format!("a completion queue of {entries} entries: this NIC's have 1 to {most}");
    Err(Error::InvalidParameter(what))
}
