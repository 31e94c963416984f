//! Waits: without the interpreter's lock, and ended by the exception of a signal handler.

use std::cell::Cell;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use udeck::{Error, Result};

/// How often a wait asks for signals that the library does not ask for itself.
const SLICE: Duration = Duration::from_millis(100);
/// Longer than anybody waits, and short enough to be added to a time.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

thread_local! {
    /// What the signal's handler raised in the wait of this thread.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Whether a signal handler has raised something. Handlers run in the main thread only; elsewhere this is `false`.
fn is_interrupted() -> bool {
    // An interpreter that ends has no handlers.
    Python::try_attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            RAISED.set(Some(error));
            true
        }
    })
    .unwrap_or(false)
}

/// What a signal handler raised.
pub fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// Runs what may wait, without the interpreter's lock. Where the library can, a signal ends it.
pub fn detached<R: Send>(py: Python<'_>, body: impl FnOnce() -> R + Send) -> R {
    py.detach(|| udeck::interruptible(is_interrupted, body))
}

/// Runs what waits for at most the time that it is given, and can be begun again: in slices, with a look at signals in between.
/// `state` is what one attempt leaves for the next.
pub fn in_slices<S, R>(
    limit: Duration,
    mut state: S,
    mut attempt: impl FnMut(S, Duration) -> std::result::Result<R, (Error, Option<S>)>,
) -> std::result::Result<R, (Error, Option<S>)> {
    let begun = Instant::now();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        match attempt(state, left.min(SLICE)) {
            Err((error, Some(back))) if is_time_up(&error) => {
                if is_interrupted() {
                    return Err((Error::Interrupted, Some(back)));
                }
                if left <= SLICE {
                    return Err((with_time(error, begun.elapsed()), Some(back)));
                }
                state = back;
            }
            result => return result,
        }
    }
}

fn is_time_up(error: &Error) -> bool {
    matches!(error, Error::Deadline { .. })
}

/// An error of the last slice, for all of them.
fn with_time(error: Error, all: Duration) -> Error {
    match error {
        Error::Deadline { what, whom, .. } => Error::Deadline { what, waited: all, whom },
        other => other,
    }
}

/// As above, for what leaves nothing.
pub fn in_slices_again<R>(limit: Duration, mut attempt: impl FnMut(Duration) -> Result<R>) -> Result<R> {
    in_slices(limit, (), |(), slice| attempt(slice).map_err(|error| (error, Some(()))))
        .map_err(|(error, _)| error)
}

/// How long a call waits: seconds, or what the world says.
#[derive(Clone, Copy)]
pub struct Timeout(pub Option<Duration>);

impl<'py> FromPyObject<'_, 'py> for Timeout {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_none() {
            return Ok(Timeout(None));
        }
        let seconds: f64 = object.extract()?;
        if seconds.is_nan() || seconds < 0.0 {
            return Err(PyValueError::new_err(format!(
                "timeout={seconds}: seconds from 0 on are possible, and None, which is what the world says (DECK_DEADLINE)"
            )));
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
