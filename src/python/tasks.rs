//! Retrieving and posting in tasks of asyncio.
//!
//! A [`Task`] has a future of the library's. `udeck/_helpers.py` polls it, and waits in between for a future of asyncio's, which a
//! thread of the library sets by `call_soon_threadsafe`. A task that is cancelled drops the library's future, which loses no message.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;

use crate::content::helper;

/// What its end is to the program, made with the interpreter attached.
pub type End = Box<dyn for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>> + Send>;

/// A call that is under way.
#[pyclass(frozen, module = "udeck")]
pub struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = End> + Send>>>>,
}

impl Task {
    pub fn new(future: impl Future<Output = End> + Send + 'static) -> Self {
        Task { future: Mutex::new(Some(Box::pin(future))) }
    }
}

/// Wakes a task of asyncio: calls what it has given.
struct PythonWaker(Py<PyAny>);

impl Wake for PythonWaker {
    fn wake(self: Arc<Self>) {
        // A loop that is closed, and an interpreter that ends, have no tasks to wake.
        Python::try_attach(|py| drop(self.0.bind(py).call0()));
    }
}

#[pymethods]
impl Task {
    /// The result in a tuple, or None: `wake` is called when there may be one.
    fn poll<'py>(&self, py: Python<'py>, wake: Py<PyAny>) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        // The thread that wakes has locks of the library's when it waits for the interpreter's: so it is not held here.
        let polled = py.detach(|| {
            let waker = Waker::from(Arc::new(PythonWaker(wake)));
            let mut future = self.future.lock();
            let polled = future.as_mut().map(|future| future.as_mut().poll(&mut Context::from_waker(&waker)));
            if matches!(polled, Some(Poll::Ready(_))) {
                *future = None;
            }
            polled
        });
        match polled {
            Some(Poll::Ready(end)) => Ok(Some((end(py)?,))),
            Some(Poll::Pending) => Ok(None),
            None => Err(pyo3::exceptions::PyRuntimeError::new_err("the call was over")),
        }
    }

    /// Gives the call up.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.future.lock().take()));
    }
}

/// A coroutine that awaits it. `iterates`: that nobody is left ends an iteration.
pub fn run<'py>(py: Python<'py>, task: Task, iterates: bool) -> PyResult<Bound<'py, PyAny>> {
    let drive = if iterates { intern!(py, "drive_iteration") } else { intern!(py, "drive") };
    helper(py, drive)?.call1((Bound::new(py, task)?,))
}
