//! What the futures have in common: how their tasks are woken.
//!
//! Nothing here runs tasks. A task that waits sleeps nowhere: its waker lies with the world's [`Watcher`], which has one
//! thread for 127 waiting tasks, started with the first that waits.

use std::task::Waker;
use std::time::Instant;

use udeck_via::{CqHandle, Error as ViaError, Watch};

use crate::shared::Shared;

/// Looks at a queue that has news, but not what the task waits for, before others may run.
pub(crate) const LOOKS: usize = 16;

/// What wakes one future's task. Dropped with the future, it wakes nobody any more.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Watch>);

impl Alarm {
    /// Wakes the task when the armed queue may have news, or at the latest then.
    pub fn set(
        &mut self,
        world: &Shared,
        queue: impl FnOnce() -> CqHandle,
        waker: &Waker,
        at_latest: Option<Instant>,
    ) -> Result<(), ViaError> {
        let watch = match self.0.take() {
            Some(watch) => watch,
            None => world.watcher().watch(&queue())?,
        };
        self.0.insert(watch).wake(waker, at_latest);
        Ok(())
    }

    /// Nothing is waited for at the moment.
    pub fn rest(&self) {
        if let Some(watch) = &self.0 {
            watch.rest();
        }
    }
}
