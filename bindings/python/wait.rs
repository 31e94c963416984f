//! Waits: without the interpreter's lock, and ended by the exception of a signal handler.

use std::cell::Cell;
use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Longer than any wait, and short enough to be added to an `Instant`.
pub const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

thread_local! {
    /// Exception that a signal handler raised during this thread's wait.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Whether a signal handler raised an exception. Handlers run in the main thread only; elsewhere this is `false`.
fn is_interrupted() -> bool {
    // An interpreter that is ending runs no handlers.
    Python::try_attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            RAISED.set(Some(error));
            true
        }
    })
    .unwrap_or(false)
}

/// Takes the exception that a signal handler raised.
pub fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// Runs a call that may wait, without the interpreter's lock. A signal ends the wait.
pub fn detached<R: Send>(py: Python<'_>, body: impl FnOnce() -> R + Send) -> R {
    py.detach(|| udeck::interruptible(is_interrupted, body))
}

/// Runs a collective call, which may wait at most the timeout.
pub fn for_members<R: Send>(
    py: Python<'_>,
    group: &udeck::Group,
    timeout: Timeout,
    body: impl FnOnce(&udeck::Group) -> udeck::Result<R> + Send,
) -> udeck::Result<R> {
    detached(py, || match timeout.0 {
        Some(limit) => body(&group.within(limit)),
        None => body(group),
    })
}

/// Longest wait of a call: seconds, or the world's deadline.
#[derive(Clone, Copy)]
pub struct Timeout(pub Option<Duration>);

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_none() {
            return Ok(Timeout(None));
        }
        const WANTED: &str =
            "possible are seconds from 0 on, and None for the world's deadline (DECK_DEADLINE)";
        let seconds: f64 = match object.extract() {
            Ok(seconds) => seconds,
            Err(_) => return Err(PyTypeError::new_err(format!("timeout={}: {WANTED}", object.repr()?))),
        };
        if seconds.is_nan() || seconds < 0.0 {
            return Err(PyValueError::new_err(format!("timeout={seconds}: {WANTED}")));
        }
        let limit = Duration::try_from_secs_f64(seconds).unwrap_or(FOR_EVER).min(FOR_EVER);
        Ok(Timeout(Some(limit)))
    }
}

impl Timeout {
    pub const USUAL: Timeout = Timeout(None);

    pub fn or(self, usual: Duration) -> Duration {
        self.0.unwrap_or(usual)
    }
}
