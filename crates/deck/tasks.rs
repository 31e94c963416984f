//! What the futures have in common: how their tasks are woken.
//!
//! Nothing here runs tasks. A task that waits sleeps nowhere: its waker lies with the world's [`Watcher`], which has one
//! thread for 127 waiting tasks, started with the first that waits.

use std::task::Waker;
use std::time::Instant;

use udeck_via::{CqHandle, Error as ViaError, Watch};

use crate::world_state::WorldState;

/// Looks at a queue that has news, but not what the task waits for, before others may run.
pub(crate) const LOOKS: usize = 16;

/// What wakes one future's task: a watch for each queue that it waits on. Dropped with the future, it wakes nobody any
/// more.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Vec<Watch>);

impl Alarm {
    /// Wakes the task when one of the armed queues may have news, or at the latest then. They are the same each time.
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

    /// Nothing is waited for at the moment.
    pub fn rest(&self) {
        self.0.iter().for_each(Watch::rest);
    }
}
