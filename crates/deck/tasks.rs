//! Waking of tasks, shared by all futures.
//!
//! This file runs no tasks. A waiting task sleeps nowhere: its waker is with the world's [`Watcher`], which
//! has one thread for 127 waiting tasks, started by the first one.

use std::task::Waker;
use std::time::Instant;

use udeck_via::{CqHandle, Error as ViaError, Watch};

use crate::world_state::WorldState;

/// Polls of a queue whose events are not for the task, before other tasks may run.
pub(crate) const POLLS: usize = 16;

/// Alarm of one future's task: a watch for each queue that it waits on. Once dropped with the future, it
/// wakes nobody any more.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Vec<Watch>);

impl Alarm {
    /// Wakes the task when one of the armed queues may have news, at the latest at `at_latest`. `queues` are
    /// the same each time.
    pub fn set<Q: IntoIterator<Item = CqHandle>>(
        &mut self,
        world: &WorldState,
        queues: impl FnOnce() -> Q,
        waker: &Waker,
        at_latest: Option<Instant>,
    ) -> Result<(), ViaError> {
        if self.0.is_empty() {
            let watches = queues().into_iter().map(|queue| world.watcher().watch(&queue));
            self.0 = watches.collect::<Result<_, _>>()?;
        }
        self.0.iter().for_each(|watch| watch.wake(waker, at_latest));
        Ok(())
    }

    /// Rests: nothing is waited for at the moment.
    pub fn rest(&self) {
        self.0.iter().for_each(Watch::rest);
    }
}
