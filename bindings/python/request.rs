//! Collective calls that return at once, and the requests that wait for their results.
//!
//! A request keeps the arrays of its call, which the library uses until the call is over. One thread or task at a time moves it on.
#![allow(unsafe_code, reason = "calls on the program's arrays, which requests keep")]

use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use udeck::Pod;
use udeck::op::{ByType, WithElements};

use crate::arrays::{Bytes, KeptTarget, Which};
use crate::errors::{OrRaise, raise};
use crate::tasks::{self, Completion, Task};
use crate::wait::{self, Timeout};

/// Elements of an array that a request uses.
pub struct Elements<T> {
    data: *mut T,
    len: usize,
}

// SAFETY: an address and a length; the request that holds them also keeps the array, and the program leaves the array alone meanwhile.
unsafe impl<T: Pod> Send for Elements<T> {}
// SAFETY: as above.
unsafe impl<T: Pod> Sync for Elements<T> {}

impl<T: Pod> Elements<T> {
    /// # Safety
    /// The array lives as long as this object, its elements are numbers of this width, and nobody else writes them. If they are
    /// written by way of this object, nobody else reads them.
    pub unsafe fn new(bytes: Bytes) -> Self {
        Elements { data: bytes.start(), len: bytes.len / size_of::<T>() }
    }
}

impl<T: Pod> Deref for Elements<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the contract of `new`.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl<T: Pod> DerefMut for Elements<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: the contract of `new`.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }
}

impl<T: Pod> AsRef<[T]> for Elements<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

/// A request of the library, with any result.
pub trait Pending: Send {
    fn is_done(&mut self) -> bool;
    /// Waits for the end, at most `limit`, or the group's limit.
    fn wait(&mut self, limit: Option<Duration>) -> udeck::Result;
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<udeck::Result>;
}

impl<R: Send> Pending for udeck::Request<'static, R> {
    fn is_done(&mut self) -> bool {
        udeck::Request::is_done(self)
    }

    fn wait(&mut self, limit: Option<Duration>) -> udeck::Result {
        self.wait_timeout(limit.unwrap_or(self.limit())).map(drop)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<udeck::Result> {
        Future::poll(Pin::new(self), context).map(|result| result.map(drop))
    }
}

/// Starts a reduction in place.
pub struct Reducing<'a> {
    pub group: &'a udeck::Group,
    pub data: Bytes,
    pub which: Which,
}

impl WithElements for Reducing<'_> {
    type Output = udeck::Result<Box<dyn Pending>>;

    fn run<T: Pod + Send + Sync>(self, op: ByType) -> Self::Output {
        // SAFETY: the array is kept by the request that is made of this, and is written in place.
        let data = unsafe { Elements::<T>::new(self.data) };
        Ok(match self.which {
            Which::Reduce(root) => Box::new(self.group.reduce_nonblocking(root, data, op)?),
            _ => Box::new(self.group.all_reduce_nonblocking(data, op)?),
        })
    }
}

/// Result of a request, made when its call is over.
pub enum Outcome {
    Nothing,
    Array(KeptTarget),
}

/// A call under way, and what it uses. The order matters: the call is dropped before its arrays.
struct InFlight {
    pending: Box<dyn Pending>,
    memory: Memory,
}

struct Memory {
    outcome: Outcome,
    /// The array that the call reads, if it is another one.
    _read: Option<Py<PyAny>>,
}

enum Stage {
    Running(InFlight),
    /// Over; the result has not been made.
    Ended(udeck::Result, Memory),
    Over(PyResult<Py<PyAny>>),
    /// A thread or a task moves the request on.
    InUse,
}

/// A collective call that may not be over, made by Group.iallreduce() and the others whose names begin with i. Its arrays must
/// not be touched before it is over.
///
/// A request moves on only in wait(), in test(), and in the task that awaits it; members may wait for what it has not sent yet. Members start
/// requests of a group in the same order, and wait for them in the same order, or test all of them in turn. A request that is
/// deleted before its end fails, and the group with it. One thread or task at a time uses a request; another one gets Busy.
#[pyclass(frozen, generic, module = "udeck")]
pub struct Request(Arc<Shared>);

struct Shared {
    stage: Mutex<Stage>,
    /// Whether a task awaits the request. Its waker is the only one that the call keeps.
    awaited: AtomicBool,
}

/// The right of one task to await a request, from its first poll to the end.
struct Claim(Arc<Shared>);

impl Claim {
    /// `None`: another task awaits the request.
    fn of(shared: &Arc<Shared>) -> Option<Self> {
        (!shared.awaited.swap(true, Ordering::AcqRel)).then(|| Claim(shared.clone()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.awaited.store(false, Ordering::Release);
    }
}

impl Request {
    /// `read`: an array that the call reads, which is not its result.
    pub fn new(pending: Box<dyn Pending>, outcome: Outcome, read: Option<Py<PyAny>>) -> Self {
        let memory = Memory { outcome, _read: read };
        let stage = Mutex::new(Stage::Running(InFlight { pending, memory }));
        Request(Arc::new(Shared { stage, awaited: AtomicBool::new(false) }))
    }
}

impl Shared {
    /// Takes the stage out, for a step that may take long. Without the claim of a task, a request that is not over is left to
    /// the task that awaits it.
    fn take(&self, claim: Option<&Claim>) -> Option<Stage> {
        let mut stage = self.stage.try_lock()?;
        // Asked under the lock: a task that claims the request later finds it in use.
        let is_awaited = claim.is_none() && self.awaited.load(Ordering::Acquire);
        if is_awaited && !matches!(*stage, Stage::Over(_)) {
            return None;
        }
        match std::mem::replace(&mut *stage, Stage::InUse) {
            Stage::InUse => None,
            taken => Some(taken),
        }
    }
}

fn busy(py: Python<'_>) -> PyErr {
    raise(py, "Busy", "another thread or task waits for this request".into(), None, None)
}

/// Makes the result of a call that is over, and returns it; `None`: it is under way.
fn settle(py: Python<'_>, shared: &Shared, stage: Stage) -> Option<PyResult<Py<PyAny>>> {
    let result = match stage {
        Stage::Ended(result, memory) => result.or_raise(py, None).and_then(|()| match memory.outcome {
            Outcome::Nothing => Ok(py.None()),
            Outcome::Array(target) => target.finish(py).map(Bound::unbind),
        }),
        Stage::Over(result) => result,
        running => {
            *shared.stage.lock() = running;
            return None;
        }
    };
    let copy = result.as_ref().map(|value| value.clone_ref(py)).map_err(|error| error.clone_ref(py));
    *shared.stage.lock() = Stage::Over(result);
    Some(copy)
}

#[pymethods]
impl Request {
    /// Waits until the call is over, at most the timeout (seconds; None: the group's), and returns what the blocking call
    /// returns. After Deadline the request can still be used.
    #[pyo3(signature = (timeout=Timeout::USUAL), text_signature = "($self, timeout=None)")]
    fn wait(&self, py: Python<'_>, timeout: Timeout) -> PyResult<Py<PyAny>> {
        let mut stage = self.0.take(None).ok_or_else(|| busy(py))?;
        if let Stage::Running(mut call) = stage {
            let waited = wait::detached(py, || call.pending.wait(timeout.0));
            if let Err(error @ (udeck::Error::Deadline { .. } | udeck::Error::Interrupted)) = waited {
                *self.0.stage.lock() = Stage::Running(call);
                return Err(crate::errors::exception(py, &error, None));
            }
            stage = Stage::Ended(waited, call.memory);
        }
        settle(py, &self.0, stage).unwrap_or_else(|| Err(busy(py)))
    }

    /// Moves the call on without waiting, and returns whether it is over. Raises what the call raises.
    fn test(&self, py: Python<'_>) -> PyResult<bool> {
        let mut stage = self.0.take(None).ok_or_else(|| busy(py))?;
        if let Stage::Running(mut call) = stage {
            stage =
                match py.detach(|| call.pending.is_done().then(|| call.pending.wait(Some(Duration::ZERO)))) {
                    Some(result) => Stage::Ended(result, call.memory),
                    None => Stage::Running(call),
                };
        }
        settle(py, &self.0, stage).map_or(Ok(false), |result| result.map(|_| true))
    }

    /// Awaits the call in a task of asyncio. A task that is cancelled leaves the request as it is.
    fn __await__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.0.clone();
        let task = Task::new(move |_| {
            let shared = shared.clone();
            Ok(async move {
                let claim = Claim::of(&shared);
                let is_mine = claim.is_some() && poll_fn(|context| poll(&shared.stage, context)).await;
                let end: Completion = Box::new(move |py| {
                    let stage = claim.as_ref().filter(|_| is_mine).and_then(|claim| shared.take(Some(claim)));
                    let stage = stage.ok_or_else(|| busy(py))?;
                    let settled = settle(py, &shared, stage).unwrap_or_else(|| Err(busy(py)));
                    settled.map(|value| value.into_bound(py))
                });
                end
            })
        });
        tasks::run(py, task, false)?.call_method0("__await__")
    }

    fn __repr__(&self) -> &'static str {
        match self.0.stage.try_lock().as_deref() {
            Some(Stage::Ended(..) | Stage::Over(_)) => "Request(over)",
            _ => "Request(under way)",
        }
    }
}

/// Polls a request for a task. The result says whether the task can take it: nothing else uses it.
fn poll(stage: &Mutex<Stage>, context: &mut Context<'_>) -> Poll<bool> {
    let mut stage = stage.lock();
    match &mut *stage {
        Stage::InUse => Poll::Ready(false),
        Stage::Ended(..) | Stage::Over(_) => Poll::Ready(true),
        Stage::Running(call) => call.pending.poll(context).map(|result| {
            if let Stage::Running(call) = std::mem::replace(&mut *stage, Stage::InUse) {
                *stage = Stage::Ended(result, call.memory);
            }
            true
        }),
    }
}
