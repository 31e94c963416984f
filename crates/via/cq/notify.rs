//! Threads that serve a completion queue ([`Notify`]).
//!
//! VIA has three calls that run a handler when something completes, each once: `VipSendNotify` and `VipRecvNotify` for one
//! work queue of a VI, `VipCQNotify` for a completion queue. This library has one, [`Cq::notify`], which runs its handler for
//! each entry until the handler breaks:
//!
//! | VIA | here |
//! |---|---|
//! | `VipCQNotify(cq, context, handler)` | `cq.notify(context, handler)` |
//! | `VipRecvNotify(vi, context, handler)` | the VI's receive queue on a `Cq` of its own; `(vi, context)` is the state, and the handler asks `vi.receive_done()` |
//! | `VipSendNotify(vi, context, handler)` | likewise with the send queue and `vi.send_done()`; [`crate::Vi::request_send_notify`] asks that the send queue be named |
//! | one notification per call | the handler breaks at the first |
//!
//! The thread owns the queue and the state, so the handler needs no locks, and no other thread can take the completions that
//! it is told of. [`Notify::stop`] and [`Notify::join`] give both back.

use std::any::Any;
use std::fmt;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use udeck_sys::{Deadline, thread};

use super::{Cq, CqEntry, CqHandle};
use crate::error::{Error, Result};

/// A thread that serves a completion queue. When dropped, it is told to stop, and not waited for: the thread drops queue and
/// state when its handler returns.
pub struct Notify<T> {
    served: Arc<Served<T>>,
    handle: CqHandle,
}

/// State shared by the thread and by callers that stop it.
struct Served<T> {
    stop: AtomicBool,
    end: Mutex<Option<ServedEnd<T>>>,
    ended: Condvar,
}

enum ServedEnd<T> {
    Whole(Cq, T),
    Panicked(Box<dyn Any + Send>),
}

impl Cq {
    /// Gives the queue and `state` to a thread, which waits and calls `handler` for each entry, until the handler breaks or
    /// [`Notify::stop`] is called. Take a [`Cq::handle`] before, if more is to be attached later.
    ///
    /// # Errors
    /// Queue and state come back with [`Error::Os`] when no threads are left.
    #[allow(clippy::result_large_err, reason = "what was given comes back by value; refusals are rare")]
    pub fn notify<T: Send + 'static>(
        self,
        state: T,
        handler: impl FnMut(&mut T, CqEntry) -> ControlFlow<()> + Send + 'static,
    ) -> Result<Notify<T>, (Error, Cq, T)> {
        let served = Arc::new(Served::default());
        let handle = self.handle();
        // A closure that could not be started is dropped with everything in it; values that must come back are handed over
        // afterwards.
        let given = Arc::new(Mutex::new(Some((self, state))));
        let (theirs, taken, failing) = (served.clone(), given.clone(), served.clone());
        let serving = move || {
            if let Some((cq, state)) = { taken.lock().take() } {
                theirs.serve(cq, state, handler);
            }
        };
        // The handler's own panic is caught by `serve`, and does not get here.
        let on_panic = move |why: &str| failing.end(ServedEnd::Panicked(Box::new(why.to_owned())));
        match thread::spawn_handlers("via-notify", serving, on_panic) {
            Ok(_detached) => Ok(Notify { served, handle }),
            Err(error) => {
                let (cq, state) = given.lock().take().expect("no thread has taken it");
                Err((Error::os("starting a thread that serves a completion queue", error), cq, state))
            }
        }
    }
}

impl<T> Notify<T> {
    /// The handle of the queue that is served.
    pub fn handle(&self) -> &CqHandle {
        &self.handle
    }

    /// Tells the thread to stop, waits for its handler to return, and takes queue and state back. Entries that the
    /// handler was not called for are still on the queue.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the thread, which goes on stopping, when the handler has not returned by the deadline.
    ///
    /// # Panics
    /// With the handler's own panic, if the handler has panicked.
    pub fn stop(self, deadline: Deadline) -> Result<(Cq, T), (Error, Self)> {
        self.request_stop();
        self.join(deadline)
    }

    /// Waits for the handler to break, and takes queue and state back.
    ///
    /// # Errors
    /// [`Error::Timeout`] with the thread, which goes on, when the handler has not broken by the deadline.
    ///
    /// # Panics
    /// Those of [`Notify::stop`].
    pub fn join(self, deadline: Deadline) -> Result<(Cq, T), (Error, Self)> {
        match self.served.wait(deadline) {
            Ok(ServedEnd::Whole(cq, state)) => Ok((cq, state)),
            Ok(ServedEnd::Panicked(panic)) => resume_unwind(panic),
            Err(waited) => {
                let what = "the handler of a completion queue to return".into();
                Err((Error::Timeout { what, waited }, self))
            }
        }
    }

    fn request_stop(&self) {
        self.served.stop.store(true, Ordering::Release);
        self.handle.wake();
    }
}

impl<T> Drop for Notify<T> {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.request_stop();
    }
}

impl<T> fmt::Debug for Notify<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Notify({:?})", self.handle)
    }
}

impl<T> Default for Served<T> {
    fn default() -> Self {
        Served { stop: AtomicBool::new(false), end: Mutex::new(None), ended: Condvar::new() }
    }
}

impl<T> Served<T> {
    /// Body of the thread. A state that a panic left behind is given to no caller, and dropped here.
    fn serve(
        &self,
        mut cq: Cq,
        mut state: T,
        handler: impl FnMut(&mut T, CqEntry) -> ControlFlow<()> + Send + 'static,
    ) {
        match catch_unwind(AssertUnwindSafe(|| self.run(&mut cq, &mut state, handler))) {
            Ok(()) => self.end(ServedEnd::Whole(cq, state)),
            Err(panic) => {
                self.end(ServedEnd::Panicked(panic));
                // Dropping the state may panic in its turn.
                drop(state);
            }
        }
    }

    fn run(&self, cq: &mut Cq, state: &mut T, mut handler: impl FnMut(&mut T, CqEntry) -> ControlFlow<()>) {
        let told = || self.stop.load(Ordering::Acquire);
        while !told() {
            // The wait has no deadline: `told` ends it.
            let Some(entry) = cq.wait(Deadline::after(Duration::MAX), told) else { continue };
            if handler(state, entry).is_break() {
                return;
            }
        }
    }

    fn end(&self, end: ServedEnd<T>) {
        *self.end.lock() = Some(end);
        self.ended.notify_all();
    }

    fn wait(&self, deadline: Deadline) -> Result<ServedEnd<T>, Duration> {
        let start = Instant::now();
        let mut end = self.end.lock();
        loop {
            if let Some(end) = end.take() {
                return Ok(end);
            }
            if self.ended.wait_until(&mut end, deadline.instant()).timed_out() && deadline.passed() {
                return end.take().ok_or_else(|| start.elapsed());
            }
        }
    }
}
