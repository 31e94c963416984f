//! Table of a NIC's completion queues.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use udeck_via::{Error, Result};

use super::{Backend, CompletionQueue};

/// Upper bound of completion queues of one NIC.
pub const MAX_COMPLETION_QUEUES: usize = 2048;

/// Completion queues of a NIC, by number. A queue is in the table as long as it has an owner.
pub struct CompletionQueues<Q: Backend>(Mutex<Table<Q>>);

struct Table<Q: Backend> {
    /// Number of the last completion queue.
    last: u64,
    completion_queues: HashMap<u64, Weak<CompletionQueue<Q>>>,
}

impl<Q: Backend> Default for CompletionQueues<Q> {
    fn default() -> Self {
        CompletionQueues(Mutex::new(Table { last: 0, completion_queues: HashMap::new() }))
    }
}

impl<Q: Backend> CompletionQueues<Q> {
    /// Opens a completion queue, with a number that no other of this NIC has had.
    ///
    /// # Errors
    /// [`Error::Full`] when the NIC has [`MAX_COMPLETION_QUEUES`].
    pub fn open(&self, backend: impl FnOnce(u64) -> Q) -> Result<Arc<CompletionQueue<Q>>> {
        let mut table = self.0.lock();
        table.completion_queues.retain(|_, cq| cq.strong_count() > 0);
        if table.completion_queues.len() == MAX_COMPLETION_QUEUES {
            let bound = format!("{MAX_COMPLETION_QUEUES} per NIC");
            return Err(Error::Full { what: "the table of completion queues", bound: bound.into() });
        }
        table.last += 1;
        let number = table.last;
        let cq = CompletionQueue::new(number, backend(number));
        table.completion_queues.insert(number, Arc::downgrade(&cq));
        Ok(cq)
    }

    /// The completion queue of this number, if it still exists.
    pub fn get(&self, number: u64) -> Option<Arc<CompletionQueue<Q>>> {
        self.0.lock().completion_queues.get(&number).and_then(Weak::upgrade)
    }

    /// Folds `step` over all completion queues.
    pub fn fold<R>(&self, first: R, step: impl FnMut(R, Arc<CompletionQueue<Q>>) -> R) -> R {
        self.0.lock().completion_queues.values().filter_map(Weak::upgrade).fold(first, step)
    }
}
