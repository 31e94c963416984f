//! Retrieving and posting in tasks of asyncio.
//!
//! A [`Task`] has a future of the library's. `udeck/_helpers.py` polls it, and waits in between for a future of asyncio's, which a
//! thread of the library sets by `call_soon_threadsafe`. A task that is cancelled drops the library's future, which loses no message.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use udeck::{Error, PostError};

use crate::content::helper;
use crate::errors::{OrRaise, exception};
use crate::mailbox::{self, Mailbox};
use crate::memory::{Buffer, Memory};
use crate::message::{self, Arrived};
use crate::postbox::{self, Postbox, Prepared};

/// How it ended.
enum Done {
    Retrieved(udeck::Result<Arrived>),
    Posted(Result<(), (Error, Option<Buffer>)>),
}

/// Whose it is.
enum Of {
    Mailbox(Py<Mailbox>),
    /// With the array whose memory was moved.
    Postbox(Py<Postbox>, Option<(Py<PyAny>, Py<Memory>)>),
}

/// A call that is under way.
#[pyclass(frozen, module = "udeck")]
pub struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = Done> + Send>>>>,
    of: Of,
}

/// What a slot has lent: it is brought back when this is dropped.
struct Lent<T, P> {
    slot: Arc<Mutex<P>>,
    object: Option<Box<T>>,
    here: fn(Box<T>) -> P,
}

impl<T, P> Drop for Lent<T, P> {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            // Whoever has the lock finds that it is lent, and gives it up.
            *self.slot.lock() = (self.here)(object);
        }
    }
}

impl<T, P> Deref for Lent<T, P> {
    type Target = T;
    fn deref(&self) -> &T {
        self.object.as_ref().expect("lent until it is dropped")
    }
}

impl<T, P> DerefMut for Lent<T, P> {
    fn deref_mut(&mut self) -> &mut T {
        self.object.as_mut().expect("lent until it is dropped")
    }
}

impl Task {
    pub fn retrieve(of: &Bound<'_, Mailbox>) -> PyResult<Task> {
        let this = of.get();
        let slot = this.slot();
        let lent = {
            let mut place = slot.try_lock().ok_or_else(|| this.busy(of.py(), false))?;
            match std::mem::replace(&mut *place, mailbox::Place::Lent) {
                mailbox::Place::Here(object) => object,
                other => {
                    let closed = matches!(other, mailbox::Place::Closed);
                    *place = other;
                    return Err(this.busy(of.py(), closed));
                }
            }
        };
        let mut lent = Lent { slot, object: Some(lent), here: mailbox::Place::Here };
        let future = Box::pin(async move { Done::Retrieved(lent.next_async().await) });
        Ok(Task { future: Mutex::new(Some(future)), of: Of::Mailbox(of.clone().unbind()) })
    }

    pub fn post(of: &Bound<'_, Postbox>, prepared: Prepared<'_>) -> PyResult<Task> {
        let this = of.get();
        let slot = this.slot();
        let Prepared { buffer, moved } = prepared;
        let lent = {
            let place = slot.try_lock();
            let taken = place.map(|mut place| match std::mem::replace(&mut *place, postbox::Place::Lent) {
                postbox::Place::Here(object) => Ok(object),
                other => {
                    let closed = matches!(other, postbox::Place::Closed);
                    *place = other;
                    Err(closed)
                }
            });
            match taken.unwrap_or(Err(false)) {
                Ok(object) => object,
                Err(closed) => {
                    if let Some((_, owned)) = moved {
                        owned.put_back(buffer);
                    }
                    return Err(this.busy(of.py(), closed));
                }
            }
        };
        let mut lent = Lent { slot, object: Some(lent), here: postbox::Place::Here };
        let future = Box::pin(async move {
            let posted = lent.post_async(buffer).await;
            Done::Posted(posted.map_err(|PostError { error, message }| (error, message)))
        });
        let moved = moved.map(|(array, owned)| {
            // From now on it is not the program's: the message may go at any time.
            array.mark_posted();
            (array.into_object().unbind(), owned.memory().clone().unbind())
        });
        Ok(Task { future: Mutex::new(Some(future)), of: Of::Postbox(of.clone().unbind(), moved) })
    }

    fn result<'py>(&self, py: Python<'py>, done: Done) -> PyResult<Bound<'py, PyAny>> {
        match (&self.of, done) {
            (Of::Mailbox(mailbox), Done::Retrieved(retrieved)) => {
                let of = mailbox.get().of();
                message::value(py, retrieved.or_raise(py, Some(of.name))?, &of)
            }
            (Of::Postbox(..), Done::Posted(Ok(()))) => Ok(py.None().into_bound(py)),
            (Of::Postbox(postbox, moved), Done::Posted(Err((error, back)))) => {
                if let (Some((_, memory)), Some(buffer)) = (moved, back) {
                    memory.get().put_back(buffer);
                }
                Err(exception(py, &error, Some(postbox.get().name())))
            }
            _ => unreachable!("a mailbox retrieves, and a postbox posts"),
        }
    }
}

impl mailbox::Inner {
    async fn next_async(&mut self) -> udeck::Result<Arrived> {
        match self.take_any_kept() {
            Some(kept) => Ok(kept),
            None => self.mailbox.retrieve_async().await,
        }
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
            Some(Poll::Ready(done)) => Ok(Some((self.result(py, done)?,))),
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
