//! The completion queues of a NIC.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use udeck_via::{Error, Result};

use super::{Backend, CompletionQueue};

/// Completion queues of one NIC.
pub const MAX_COMPLETION_QUEUES: usize = 2048;

/// See the module. A completion queue is in it as long as somebody has it.
pub struct CompletionQueues<Q: Backend>(Mutex<Table<Q>>);

struct Table<Q: Backend> {
    /// The last completion queue's number.
    last: u64,
    completion_queues: HashMap<u64, Weak<CompletionQueue<Q>>>,
}

impl<Q: Backend> Default for CompletionQueues<Q> {
    fn default() -> Self {
        CompletionQueues(Mutex::new(Table { last: 0, completion_queues: HashMap::new() }))
    }
}

impl<Q: Backend> CompletionQueues<Q> {
    /// A new completion queue, with a number that no other of this NIC has had.
    ///
    /// # Errors
    /// [`Error::Full`] when the NIC has no more.
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

    /// The completion queue of this number, if it is still there.
    pub fn get(&self, number: u64) -> Option<Arc<CompletionQueue<Q>>> {
        self.0.lock().completion_queues.get(&number).and_then(Weak::upgrade)
    }

    /// Goes through all of them.
    pub fn fold<R>(&self, first: R, step: impl FnMut(R, Arc<CompletionQueue<Q>>) -> R) -> R {
        self.0.lock().completion_queues.values().filter_map(Weak::upgrade).fold(first, step)
    }
}
