//! Mailboxes: where a rank retrieves.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use udeck::{Error, Match};

use crate::content;
use crate::errors::{OrRaise, raise};
use crate::message::{self, Arrived, Mailbox as Of, Message};
use crate::tasks::{self, End, Lent, Task};
use crate::wait::{self, Timeout};
use crate::wire::PythonValues;

/// A mailbox of the library's, and a message that did not fit where it was to be copied: the next one.
pub struct Inner {
    pub mailbox: udeck::Mailbox<PythonValues>,
    kept: Option<Arrived>,
}

/// Where the mailbox is now.
pub enum Place {
    Here(Box<Inner>),
    /// A task has it, and brings it back.
    Lent,
    Closed,
}

/// Shared with tasks.
pub type Slot = Arc<Mutex<Place>>;

/// A named mailbox of this rank's. Made by World.mailbox() and World.mailboxes().
///
/// Iterating over it (`for`, `async for`) gives what retrieve() gives, until nobody is left who could post. It is a context
/// manager, whose end is close(). Threads that retrieve take turns; a task that retrieves has it alone, and who comes meanwhile
/// gets Busy.
///
/// source is the rank whose message is wanted, tag the tag; None: any. Messages of one postbox come in the order of their posts.
#[pyclass(frozen, generic, module = "udeck")]
pub struct Mailbox {
    slot: Slot,
    /// The name that it was made by.
    #[pyo3(get)]
    name: String,
    objects: bool,
    /// The world's deadline.
    limit: Duration,
}

/// Why a mailbox cannot be used.
enum Unusable {
    Closed,
    Busy,
}

/// What a call without waiting came to.
enum Now {
    Message(Arrived),
    Nothing,
    /// Another thread uses the mailbox.
    Busy,
}

fn matching(source: Option<usize>, tag: Option<u32>) -> Match {
    let any = source.map_or(Match::ANY, Match::source);
    tag.map_or(any, |tag| any.and_tag(tag))
}

/// Which messages a call is for.
#[derive(Clone, Copy)]
struct Wanted {
    source: Option<usize>,
    tag: Option<u32>,
}

impl Wanted {
    const ANY: Wanted = Wanted { source: None, tag: None };

    #[inline]
    fn is_any(self) -> bool {
        self.source.is_none() && self.tag.is_none()
    }

    fn takes(self, message: &Arrived) -> bool {
        self.source.is_none_or(|source| source == message.source())
            && self.tag.is_none_or(|tag| tag == message.tag())
    }
}

impl Inner {
    pub fn new(mailbox: udeck::Mailbox<PythonValues>) -> Self {
        Inner { mailbox, kept: None }
    }

    /// The message that did not fit, if it is wanted.
    #[inline]
    fn take_kept(&mut self, wanted: Wanted) -> Option<Arrived> {
        self.kept.take_if(|kept| wanted.takes(kept))
    }

    async fn next_async(&mut self) -> udeck::Result<Arrived> {
        match self.kept.take() {
            Some(kept) => Ok(kept),
            None => self.mailbox.retrieve_async().await,
        }
    }

    #[inline]
    fn now(&mut self, wanted: Wanted) -> udeck::Result<Option<Arrived>> {
        if let Some(kept) = self.take_kept(wanted) {
            return Ok(Some(kept));
        }
        if wanted.is_any() {
            self.mailbox.try_retrieve()
        } else {
            self.mailbox.try_retrieve_matching(matching(wanted.source, wanted.tag))
        }
    }

    fn wait(&mut self, wanted: Wanted, limit: Option<Duration>) -> udeck::Result<Arrived> {
        if let Some(kept) = self.take_kept(wanted) {
            return Ok(kept);
        }
        match (wanted.is_any(), limit) {
            (true, None) => self.mailbox.retrieve(),
            (true, Some(limit)) => self.mailbox.retrieve_timeout(limit),
            (false, None) => self.mailbox.retrieve_matching(matching(wanted.source, wanted.tag)),
            (false, Some(limit)) => {
                self.mailbox.retrieve_matching_timeout(matching(wanted.source, wanted.tag), limit)
            }
        }
    }
}

impl Mailbox {
    pub fn new(mailbox: udeck::Mailbox<PythonValues>, objects: bool, limit: Duration) -> Self {
        let name = mailbox.name().to_owned();
        let slot = Arc::new(Mutex::new(Place::Here(Box::new(Inner::new(mailbox)))));
        Mailbox { slot, name, objects, limit }
    }

    pub fn of(&self) -> Of<'_> {
        Of { name: &self.name, objects: self.objects }
    }

    #[cold]
    fn unusable(&self, py: Python<'_>, why: &Unusable) -> PyErr {
        let name = &self.name;
        let text = match why {
            Unusable::Closed => format!("mailbox {name:?} was closed"),
            Unusable::Busy => {
                format!("another thread or task of this rank is retrieving from mailbox {name:?}")
            }
        };
        raise(py, if matches!(why, Unusable::Closed) { "Closed" } else { "Busy" }, text, None, Some(name))
    }

    #[inline]
    fn now(&self, py: Python<'_>, wanted: Wanted) -> PyResult<Now> {
        let Some(mut place) = self.slot.try_lock() else { return Ok(Now::Busy) };
        let inner = inner(&mut place).map_err(|why| self.unusable(py, &why))?;
        let found = inner.now(wanted);
        drop(place);
        Ok(found.or_raise(py, Some(&self.name))?.map_or(Now::Nothing, Now::Message))
    }

    /// The next message.
    #[inline]
    fn next(&self, py: Python<'_>, wanted: Wanted, timeout: Timeout) -> PyResult<Arrived> {
        match self.now(py, wanted)? {
            Now::Message(message) => Ok(message),
            Now::Nothing | Now::Busy => self.wait(py, wanted, timeout),
        }
    }

    #[inline(never)]
    fn wait(&self, py: Python<'_>, wanted: Wanted, timeout: Timeout) -> PyResult<Arrived> {
        let waited = wait::detached(py, || {
            let mut place = self.slot.try_lock_for(timeout.or(self.limit)).ok_or(Unusable::Busy)?;
            Ok(inner(&mut place)?.wait(wanted, timeout.0))
        });
        waited.map_err(|why| self.unusable(py, &why))?.or_raise(py, Some(&self.name))
    }

    fn keep(&self, message: Arrived) {
        if let Some(mut place) = self.slot.try_lock()
            && let Place::Here(inner) = &mut *place
        {
            inner.kept = Some(message);
        }
    }
}

fn inner<'a>(place: &'a mut MutexGuard<'_, Place>) -> Result<&'a mut Inner, Unusable> {
    match &mut **place {
        Place::Here(inner) => Ok(inner),
        Place::Lent => Err(Unusable::Busy),
        Place::Closed => Err(Unusable::Closed),
    }
}

#[pymethods]
impl Mailbox {
    /// The next message: a read-only array where it lies, of the shape and dtype that were posted, or an object. Waits for it.
    ///
    /// Over shared memory the array is a view of the sender's memory, which goes back with the last view. One of at most
    /// 512 bytes is a copy. timeout: seconds; None: DECK_DEADLINE. Raises Deadline, PeerLost once for each rank that died,
    /// RankFinished or NobodyLeft when nobody is left who could post, SetAsideFull, WrongType, Closed, and Busy.
    #[pyo3(signature = (source=None, tag=None, timeout=Timeout::USUAL), text_signature = "($self, source=None, tag=None, timeout=None)")]
    fn retrieve<'py>(
        &self,
        py: Python<'py>,
        source: Option<usize>,
        tag: Option<u32>,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        let message = self.next(py, Wanted { source, tag }, timeout)?;
        message::value(py, message, &self.of())
    }

    /// As retrieve(), with the message's source and tag.
    #[pyo3(signature = (source=None, tag=None, timeout=Timeout::USUAL), text_signature = "($self, source=None, tag=None, timeout=None)")]
    fn retrieve_message(
        &self,
        py: Python<'_>,
        source: Option<usize>,
        tag: Option<u32>,
        timeout: Timeout,
    ) -> PyResult<Message> {
        let message = self.next(py, Wanted { source, tag }, timeout)?;
        Message::new(message, &self.of(), py)
    }

    /// The next message, with its source and tag, if one is there; None otherwise. Does not wait.
    ///
    /// Raises PeerLost once for each rank that died, SetAsideFull, WrongType, Closed, and Busy.
    #[pyo3(signature = (source=None, tag=None))]
    fn try_retrieve(
        &self,
        py: Python<'_>,
        source: Option<usize>,
        tag: Option<u32>,
    ) -> PyResult<Option<Message>> {
        match self.now(py, Wanted { source, tag })? {
            Now::Message(message) => Message::new(message, &self.of(), py).map(Some),
            Now::Nothing => Ok(None),
            Now::Busy => Err(self.unusable(py, &Unusable::Busy)),
        }
    }

    /// Copies the next message into an array of the same dtype, and returns the number of its elements. Waits for it, as
    /// retrieve().
    ///
    /// The array is writeable and in C order; its shape may be another one, with room for more elements, which stay.
    /// Raises as retrieve(), and TooSmall or WrongType if the message does not fit: it stays the next one.
    #[pyo3(signature = (array, source=None, tag=None, timeout=Timeout::USUAL), text_signature = "($self, array, source=None, tag=None, timeout=None)")]
    fn retrieve_into(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        source: Option<usize>,
        tag: Option<u32>,
        timeout: Timeout,
    ) -> PyResult<usize> {
        let to = content::array(array)?;
        if !to.is_writeable() || !to.is_contiguous() {
            return Err(PyValueError::new_err(
                "the array is read only, or its elements do not lie in a row in C order",
            ));
        }
        let message = self.next(py, Wanted { source, tag }, timeout)?;
        let copied = message::copy_into(py, &message, &to, &self.of());
        if copied.is_err() {
            self.keep(message);
        }
        copied
    }

    /// Declares that these ranks post here: the loss of one ends a wait, although it has made no postbox yet. Does not wait.
    #[pyo3(signature = (*ranks))]
    fn expect(&self, py: Python<'_>, ranks: Vec<usize>) -> PyResult<()> {
        let expected = py.detach(|| {
            let mut place = self.slot.try_lock_for(self.limit).ok_or(Unusable::Busy)?;
            inner(&mut place)?.mailbox.expect(ranks);
            Ok(())
        });
        expected.map_err(|why| self.unusable(py, &why))
    }

    /// Destroys the mailbox: its postboxes then fail with MailboxGone. Arrays that were received stay.
    ///
    /// Raises Busy when a task has it, or another thread retrieves all the time (DECK_DEADLINE).
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| {
            let mut place = self.slot.try_lock_for(self.limit).ok_or(Unusable::Busy)?;
            match std::mem::replace(&mut *place, Place::Closed) {
                Place::Lent => {
                    *place = Place::Lent;
                    Err(Unusable::Busy)
                }
                Place::Here(_) | Place::Closed => Ok(()),
            }
        });
        closed.map_err(|why| self.unusable(py, &why))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Messages until nobody is left who could post.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = match self.now(py, Wanted::ANY)? {
            Now::Message(message) => Ok(message),
            _ => {
                let waited = wait::detached(py, || {
                    let mut place = self.slot.try_lock_for(self.limit).ok_or(Unusable::Busy)?;
                    Ok(inner(&mut place)?.wait(Wanted::ANY, None))
                });
                waited.map_err(|why| self.unusable(py, &why))?
            }
        };
        match found {
            Err(Error::NobodyLeft { .. }) => Ok(None),
            found => message::value(py, found.or_raise(py, Some(&self.name))?, &self.of()).map(Some),
        }
    }

    /// The next message, in a task of asyncio: `await inbox.retrieve_async()`. The task's timeouts are asyncio's.
    ///
    /// Raises as retrieve(), but for Deadline. A task that is cancelled loses no message.
    fn retrieve_async<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        tasks::run(slf.py(), Mailbox::task(slf)?, false)
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        tasks::run(slf.py(), Mailbox::task(slf)?, true)
    }

    fn __repr__(&self) -> String {
        format!("Mailbox({:?})", self.name)
    }
}

impl Mailbox {
    /// A retrieve in a task, which has the mailbox until it ends.
    fn task(slf: &Bound<'_, Self>) -> PyResult<Task> {
        let (py, this) = (slf.py(), slf.get());
        let object = {
            let mut place = this.slot.try_lock().ok_or_else(|| this.unusable(py, &Unusable::Busy))?;
            match std::mem::replace(&mut *place, Place::Lent) {
                Place::Here(object) => object,
                other => {
                    let why = if matches!(other, Place::Closed) { Unusable::Closed } else { Unusable::Busy };
                    *place = other;
                    return Err(this.unusable(py, &why));
                }
            }
        };
        let mut lent = Lent::new(this.slot.clone(), object, Place::Here);
        let mailbox = slf.clone().unbind();
        Ok(Task::new(async move {
            let retrieved = lent.next_async().await;
            let end: End = Box::new(move |py| {
                let this = mailbox.get();
                message::value(py, retrieved.or_raise(py, Some(&this.name))?, &this.of())
            });
            end
        }))
    }
}
