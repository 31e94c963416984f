//! The world that all objects of one job share.

use std::time::Duration;

use parking_lot::RwLock;
use pyo3::prelude::*;
use udeck::via::is_forked;
use udeck::{Error, lock_within};

use crate::content::Buffer;
use crate::errors::{OrRaise, forked, raise};
use crate::wait::{self, Timeout};

/// The library's world, until it is finished.
pub struct Handle {
    pub world: RwLock<Option<udeck::World>>,
    /// Deadline of the world (`DECK_DEADLINE`), and of making mailboxes and postboxes (`DECK_SETUP_TIMEOUT`).
    pub deadline: Duration,
    pub setup: Duration,
}

/// Why there is no memory for a message.
pub enum Unavailable {
    /// Receivers hold the memory, and may give it back.
    ForNow,
    Failed(PyErr),
}

impl From<PyErr> for Unavailable {
    fn from(error: PyErr) -> Self {
        Unavailable::Failed(error)
    }
}

#[cold]
pub fn finished(py: Python<'_>) -> PyErr {
    if is_forked() {
        return forked(py);
    }
    raise(py, "Closed", "the world was finished: this rank has left its job".into(), None, None)
}

impl Handle {
    pub fn new(world: udeck::World) -> Self {
        let (deadline, setup) = (world.config().deadline, world.config().setup);
        Handle { world: RwLock::new(Some(world)), deadline, setup }
    }

    /// Takes the world out of the handle; `None` if it was taken before. Ends the calls of other threads that wait in the world,
    /// and waits until these threads have left it.
    pub fn take(&self, limit: Duration) -> udeck::Result<Option<udeck::World>> {
        match self.world.try_read_recursive().as_deref() {
            Some(Some(world)) => world.shutdown(),
            Some(None) => return Ok(None),
            None => {}
        }
        let what = "the calls of other threads to end, to finish";
        let lock = |limit| Ok::<_, Error>(self.world.try_write_for(limit));
        let mut world = lock_within(&[], &what, limit, lock)?;
        Ok(world.take())
    }

    /// Runs a call that does not wait.
    #[inline]
    pub fn with<R>(&self, py: Python<'_>, body: impl FnOnce(&udeck::World) -> R) -> PyResult<R> {
        match self.world.try_read_recursive().as_deref() {
            Some(Some(world)) => Ok(body(world)),
            _ => Err(finished(py)),
        }
    }

    /// Runs a call that may wait, without the interpreter's lock.
    pub fn wait<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&udeck::World) -> udeck::Result<R> + Send,
    ) -> PyResult<R> {
        let done = wait::detached(py, || self.world.try_read_recursive().as_deref()?.as_ref().map(body));
        done.ok_or_else(|| finished(py))?.or_raise(py, None)
    }

    /// Returns memory for a message of `len` bytes, and waits for it if there is none.
    #[inline]
    pub fn buffer(&self, py: Python<'_>, len: usize, timeout: Timeout) -> PyResult<Buffer> {
        match self.try_buffer(py, len) {
            Ok(buffer) => Ok(buffer),
            Err(Unavailable::Failed(error)) => Err(error),
            Err(Unavailable::ForNow) => {
                let limit = timeout.or(self.deadline);
                self.wait(py, |world| world.buf_reused_timeout(len, limit))
            }
        }
    }

    /// Returns memory for a message of `len` bytes, without waiting.
    #[inline]
    pub fn try_buffer(&self, py: Python<'_>, len: usize) -> Result<Buffer, Unavailable> {
        match self.with(py, |world| world.try_buf_reused(len))? {
            Err(Error::WouldBlock { .. }) => Err(Unavailable::ForNow),
            made => Ok(made.or_raise(py, None)?),
        }
    }
}
