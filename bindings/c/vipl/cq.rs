//! Completion queues: each completed descriptor of the work queues on one is an entry, in order, so nothing can overrun.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use udeck::via::AtomicSpinHistory;

use super::engine::{CqNotify, Job, NicState};
use super::handle::{Handle, Table};

pub(super) static CQS: Table<Arc<CqState>> = Table::new(4);

pub(super) struct CqState {
    pub nic: Arc<NicState>,
    queue: Mutex<Queue>,
    pub spin_history: AtomicSpinHistory,
    /// Whether a handler waits for an entry.
    notifies: AtomicBool,
}

#[derive(Default)]
struct Queue {
    /// VI of each entry, and whether the entry is of its receive queue.
    entries: VecDeque<(Handle, bool)>,
    notify: Option<CqNotify>,
    /// VIs of work queues on this completion queue, one entry for each queue.
    vis: Vec<Handle>,
}

impl CqState {
    pub fn new(nic: Arc<NicState>) -> Self {
        let (queue, spin_history) = (Mutex::default(), AtomicSpinHistory::default());
        CqState { nic, queue, spin_history, notifies: AtomicBool::new(false) }
    }

    /// Adds an entry: a descriptor of this VI is over.
    #[inline]
    pub fn push(&self, vi: Handle, receives: bool) {
        let mut queue = self.queue.lock();
        match queue.notify.take() {
            None => queue.entries.push_back((vi, receives)),
            Some(notify) => {
                self.notifies.store(false, Ordering::Relaxed);
                drop(queue);
                self.nic.call(Job::Cq { notify, vi, receives });
            }
        }
    }

    pub fn pop(&self) -> Option<(Handle, bool)> {
        self.queue.lock().entries.pop_front()
    }

    /// Takes the next entry; polls for arrivals first if there is none.
    pub fn done(&self) -> Option<(Handle, bool)> {
        self.pop().or_else(|| {
            self.nic.progress.poll();
            self.pop()
        })
    }

    pub fn len(&self) -> usize {
        self.queue.lock().entries.len()
    }

    pub fn is_to_notify(&self) -> bool {
        self.notifies.load(Ordering::Relaxed)
    }

    pub fn attach(&self, vi: Handle) {
        self.queue.lock().vis.push(vi);
    }

    /// Removes the entries of a VI that goes.
    pub fn detach(&self, vi: Handle) {
        let mut queue = self.queue.lock();
        queue.entries.retain(|(of, _)| *of != vi);
        queue.vis.retain(|of| *of != vi);
    }

    pub fn is_attached(&self) -> bool {
        !self.queue.lock().vis.is_empty()
    }

    /// Has the handler called for the next entry. `false`: another handler waits for that.
    pub fn notify(&self, notify: CqNotify) -> bool {
        let vis = {
            let mut queue = self.queue.lock();
            if queue.notify.is_some() {
                return false;
            }
            if let Some((vi, receives)) = queue.entries.pop_front() {
                drop(queue);
                self.nic.call(Job::Cq { notify, vi, receives });
                return true;
            }
            queue.notify = Some(notify);
            self.notifies.store(true, Ordering::Relaxed);
            queue.vis.clone()
        };
        for vi in vis {
            self.nic.look_after(vi);
        }
        self.nic.progress.poll();
        true
    }
}
