//! Retrieving and posting in tasks of asyncio.
//!
//! `udeck/_helpers.py` polls a [`Task`] in the loop's thread. A thread of the library that has news for the task rings the loop's
//! [`Bell`]. This thread never enters the interpreter, which may be ending. A cancelled task drops the library's future, which
//! loses no message.

use std::collections::BTreeSet;
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyFloat;
use udeck_sys::EventFd;

use crate::content::helper;
use crate::handle::Unavailable;

/// The end of a call, made with the interpreter attached.
pub type Completion = Box<dyn for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>> + Send>;
type Running = Pin<Box<dyn Future<Output = Completion> + Send>>;
/// Begins a call with the interpreter attached.
type Begin = Box<dyn FnMut(Python<'_>) -> Result<Running, Unavailable> + Send>;

/// Interval at which a call looks for memory; receivers give memory back without a notification.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// A call in progress.
#[pyclass(frozen, module = "udeck")]
pub struct Task(Mutex<Option<Stage>>);

enum Stage {
    Unbegun(Begin),
    Running(Running),
    /// The result, which the awaiting code takes.
    Done(PyResult<Py<PyAny>>),
}

/// Result of one poll.
enum Progress {
    Waits(Stage),
    LacksMemory(Stage),
    Done(PyResult<Py<PyAny>>),
}

impl Stage {
    fn poll(self, py: Python<'_>, waker: &Waker) -> Progress {
        let mut running = match self {
            Stage::Done(result) => return Progress::Done(result),
            Stage::Running(running) => running,
            Stage::Unbegun(mut begin) => match begin(py) {
                Ok(running) => running,
                Err(Unavailable::ForNow) => return Progress::LacksMemory(Stage::Unbegun(begin)),
                Err(Unavailable::Failed(error)) => return Progress::Done(Err(error)),
            },
        };
        match py.detach(|| running.as_mut().poll(&mut Context::from_waker(waker))) {
            Poll::Pending => Progress::Waits(Stage::Running(running)),
            Poll::Ready(end) => Progress::Done(end(py).map(Bound::unbind)),
        }
    }
}

impl Task {
    /// A call that begins when it is first polled. `begin` is called again if it found no memory.
    pub fn new<F: Future<Output = Completion> + Send + 'static>(
        mut begin: impl FnMut(Python<'_>) -> Result<F, Unavailable> + Send + 'static,
    ) -> Self {
        let begin: Begin = Box::new(move |py| Ok(Box::pin(begin(py)?)));
        Task(Mutex::new(Some(Stage::Unbegun(begin))))
    }

    /// Does the part that needs no waiting. The awaiting code gets the result, also if it is an error.
    pub fn begin(self, py: Python<'_>) -> Self {
        let Some(stage) = self.0.into_inner() else { return Task(Mutex::new(None)) };
        let stage = match stage.poll(py, Waker::noop()) {
            Progress::Waits(stage) | Progress::LacksMemory(stage) => stage,
            Progress::Done(result) => Stage::Done(result),
        };
        Task(Mutex::new(Some(stage)))
    }
}

#[pymethods]
impl Task {
    /// Polls the call. Returns the result in a tuple; None: `bell` rings when there may be one; a number: poll again after this
    /// many seconds.
    fn poll<'py>(slf: &Bound<'py, Self>, bell: &Bell) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        // No thread waits for this lock: it is not held while the call runs.
        let stage =
            this.0.lock().take().ok_or_else(|| {
                PyRuntimeError::new_err("the call has ended: it was awaited or closed already")
            })?;
        let waker = Waker::from(Arc::new(Ringer { bell: bell.0.clone(), task: slf.as_ptr().addr() }));
        let keep = |stage| *this.0.lock() = Some(stage);
        match stage.poll(py, &waker) {
            Progress::Waits(stage) => {
                keep(stage);
                Ok(py.None().into_bound(py))
            }
            Progress::LacksMemory(stage) => {
                keep(stage);
                Ok(PyFloat::new(py, MEMORY_PAUSE.as_secs_f64()).into_any())
            }
            Progress::Done(result) => Ok((result?,).into_pyobject(py)?.into_any()),
        }
    }

    /// Cancels the call.
    fn close(&self, py: Python<'_>) {
        let stage = self.0.lock().take();
        py.detach(|| drop(stage));
    }
}

/// Wakes the tasks of one loop of asyncio, by a descriptor that the loop watches.
#[pyclass(frozen, module = "udeck")]
pub struct Bell(Arc<Rung>);

struct Rung {
    event: EventFd,
    /// Tasks for which the bell was rung, by their addresses, which are their id().
    tasks: Mutex<BTreeSet<usize>>,
}

#[pymethods]
impl Bell {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Bell(Arc::new(Rung { event: EventFd::new()?, tasks: Mutex::default() })))
    }

    /// Returns the descriptor, which is readable when the bell was rung.
    fn fileno(&self) -> i32 {
        self.0.event.as_fd().as_raw_fd()
    }

    /// Returns the tasks for which the bell was rung since the last call, by id(). Some may have ended.
    fn rung(&self) -> BTreeSet<usize> {
        // The order matters: a ring between the two steps counts for the next call.
        self.0.event.reset();
        std::mem::take(&mut *self.0.tasks.lock())
    }
}

/// Rings for one task, in the library's thread that has news for it. Nothing here belongs to Python.
struct Ringer {
    bell: Arc<Rung>,
    task: usize,
}

impl Wake for Ringer {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut tasks = self.bell.tasks.lock();
        let is_first = tasks.is_empty();
        tasks.insert(self.task);
        if is_first {
            self.bell.event.signal();
        }
    }
}

/// Returns a coroutine that awaits `task`. `iterates`: the error that no rank is left which could post ends an
/// iteration.
pub fn run<'py>(py: Python<'py>, task: Task, iterates: bool) -> PyResult<Bound<'py, PyAny>> {
    let drive = if iterates { intern!(py, "drive_iteration") } else { intern!(py, "drive") };
    helper(py, drive)?.call1((Bound::new(py, task)?,))
}
