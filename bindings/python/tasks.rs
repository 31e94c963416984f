//! Retrieving and posting in tasks of asyncio.
//!
//! `udeck/_helpers.py` polls a [`Task`] in the loop's thread. What has news for it rings the loop's [`Bell`]: the thread of the library that does
//! so never enters the interpreter, which may be ending. A task that is cancelled drops the library's future, which loses no message.

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
pub type End = Box<dyn for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>> + Send>;
type Running = Pin<Box<dyn Future<Output = End> + Send>>;
/// Begins a call with the interpreter attached.
type Begin = Box<dyn FnMut(Python<'_>) -> Result<Running, Unavailable> + Send>;

/// Interval at which a call looks for memory, which receivers give back without a word.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// A call that is under way.
#[pyclass(frozen, module = "udeck")]
pub struct Task(Mutex<Option<Stage>>);

enum Stage {
    Unbegun(Begin),
    Running(Running),
    /// The result, for whoever awaits it.
    Done(PyResult<Py<PyAny>>),
}

/// What one poll came to.
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
                Err(Unavailable::Now) => return Progress::LacksMemory(Stage::Unbegun(begin)),
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
    /// A call that begins when it is first polled. `begin` is called again when it found no memory.
    pub fn new<F: Future<Output = End> + Send + 'static>(
        mut begin: impl FnMut(Python<'_>) -> Result<F, Unavailable> + Send + 'static,
    ) -> Self {
        let begin: Begin = Box::new(move |py| Ok(Box::pin(begin(py)?)));
        Task(Mutex::new(Some(Stage::Unbegun(begin))))
    }

    /// Does what can be done without waiting. Whoever awaits the task gets the result, also if it is an error.
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
    /// The result in a tuple; None: `bell` rings when there may be one; a number: it is to be polled again after so many seconds.
    fn poll<'py>(slf: &Bound<'py, Self>, bell: &Bell) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        // Nobody waits for the lock: it is not held while anything runs.
        let stage = this.0.lock().take().ok_or_else(|| PyRuntimeError::new_err("the call was over"))?;
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

    /// Gives the call up.
    fn close(&self, py: Python<'_>) {
        let stage = self.0.lock().take();
        py.detach(|| drop(stage));
    }
}

/// What wakes the tasks of one loop of asyncio: a descriptor, which the loop watches.
#[pyclass(frozen, module = "udeck")]
pub struct Bell(Arc<Rung>);

struct Rung {
    event: EventFd,
    /// The tasks that it was rung for, by their addresses: as id() has them.
    tasks: Mutex<BTreeSet<usize>>,
}

#[pymethods]
impl Bell {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Bell(Arc::new(Rung { event: EventFd::new()?, tasks: Mutex::default() })))
    }

    /// The descriptor, which is readable when the bell was rung.
    fn fileno(&self) -> i32 {
        self.0.event.as_fd().as_raw_fd()
    }

    /// The tasks that it was rung for since the last call, by id(). Some may be over.
    fn rung(&self) -> BTreeSet<usize> {
        // In this order: whoever rings in between rings for the next call.
        self.0.event.reset();
        std::mem::take(&mut *self.0.tasks.lock())
    }
}

/// Rings for one task, in whatever thread of the library has news for it. Nothing here is Python's.
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

/// A coroutine that awaits it. `iterates`: that nobody is left ends an iteration.
pub fn run<'py>(py: Python<'py>, task: Task, iterates: bool) -> PyResult<Bound<'py, PyAny>> {
    let drive = if iterates { intern!(py, "drive_iteration") } else { intern!(py, "drive") };
    helper(py, drive)?.call1((Bound::new(py, task)?,))
}
