//! Postboxes: the objects by which a rank posts.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use udeck::via::Deadline;
use udeck::{Error, PostError, WithTag};

use crate::arguments;
use crate::content::{self, Arguments, Buffer, Method};
use crate::errors::{OrRaise, exception};
use crate::handle::{Handle, Unavailable};
use crate::memory::{self, Posted};
use crate::numpy::{self, Array};
use crate::references::KnownReferences;
use crate::slot::{Slot, Unusable};
use crate::tasks::{self, Completion, Task};
use crate::wait::{self, Timeout};
use crate::wire::{Head, PythonValues, bytes_mut, values};

/// Longest message in bytes that is built on the stack: the library has room of its own for short messages.
const SHORT: usize = 256;

/// A connection to a mailbox. Made by World.postbox() and World.postbox_of().
///
/// A postbox is a context manager; the end of the block is close(). Threads that post take turns. A task that posts has
/// exclusive use; other callers get Busy meanwhile. A tag is a number from 0 to 2**32 - 1.
#[pyclass(frozen, module = "udeck")]
pub struct Postbox {
    slot: Slot<udeck::Postbox<PythonValues>>,
    world: Arc<Handle>,
}

/// Why a message was not posted, and the message, unless it was copied.
enum Unposted {
    Unusable(Unusable, Option<Buffer>),
    Failed(Error, Option<Buffer>),
}

impl From<Unusable> for Unposted {
    fn from(why: Unusable) -> Self {
        Unposted::Unusable(why, None)
    }
}

/// A message that is ready to be posted, with its memory.
pub struct Prepared<'py> {
    pub buffer: Buffer,
    /// The posted array of `World.empty`, which is restored if the post fails.
    pub array: Option<Posted<'py>>,
    /// Number of bytes that were copied into the buffer.
    copied: usize,
}

impl Postbox {
    pub fn new(postbox: udeck::Postbox<PythonValues>, world: Arc<Handle>, limit: Duration) -> Self {
        let name = postbox.name().to_owned();
        Postbox { slot: Slot::new(postbox, "the postbox of mailbox", name, limit, None), world }
    }

    /// Posts a short array, built on the stack. `false`: there is no room now, or the postbox is in use.
    #[inline]
    fn post_short(
        &self,
        py: Python<'_>,
        array: &Array<'_>,
        head: &Head<'_>,
        elements: usize,
        tag: u32,
    ) -> PyResult<bool> {
        let postbox = match self.slot.try_use() {
            Ok(postbox) => postbox,
            Err(Unusable::Busy) => return Ok(false),
            Err(why) => return Err(self.slot.raise(py, why)),
        };
        let mut room = [0; SHORT];
        let message = &mut room[..elements + head.len()];
        content::copy_elements(array, &mut message[..elements])?;
        head.write(message, elements);
        match postbox.try_post(values(message).with_tag(tag)) {
            Ok(()) => Ok(true),
            Err(PostError { error: Error::WouldBlock { .. }, .. }) => Ok(false),
            Err(PostError { error, .. }) => Err(exception(py, &error, Some(&self.slot.name))),
        }
    }

    /// Builds an array's message: its own memory, or a copy in memory from `allocate`. `known`: known references to the
    /// array.
    fn prepare<'py, E: From<PyErr>>(
        &self,
        array: Array<'py>,
        known: KnownReferences,
        allocate: impl FnOnce(usize) -> Result<Buffer, E>,
    ) -> Result<Prepared<'py>, E> {
        let (elements, text) = (array.len_bytes()?, content::text(&array)?);
        let text = text.as_ref().map(|text| text.to_cow()).transpose()?;
        // Posting changes the array's shape, so the shape is copied.
        let dims = array.dims().to_vec();
        let head = content::head(array.type_number(), text.as_deref(), &dims)?;
        let owned = memory::movable_memory(&array, elements);
        if let Some(owned) = &owned {
            owned.check_views(&self.slot.name)?;
        }
        if let Some(owned) = &owned
            && let Some(buffer) = owned.take(&array, known, &head)
        {
            let array = owned.posted(array, true);
            return Ok(Prepared { buffer, array: Some(array), copied: 0 });
        }
        let mut buffer = allocate(elements + head.len())?;
        // Other threads may have run meanwhile, and posted the array.
        let check = |array: &Array<'py>| match array.is_posted() {
            true => Err(numpy::already_posted_error(array.object().py())),
            false => Ok(()),
        };
        check(&array)?;
        let message = bytes_mut(&mut buffer);
        content::copy_elements(&array, &mut message[..elements])?;
        head.write(message, elements);
        check(&array)?;
        let array = match &owned {
            Some(owned) => {
                owned.check_views(&self.slot.name)?;
                Some(owned.posted(array, false))
            }
            None => None,
        };
        Ok(Prepared { buffer, array, copied: elements })
    }

    /// Builds an object's message.
    fn prepare_object<'py>(&self, value: &Bound<'py, PyAny>, timeout: Timeout) -> PyResult<Prepared<'py>> {
        let allocate = |len| self.world.buffer(value.py(), len, timeout);
        let buffer = content::object_message(value, allocate)?;
        let copied = buffer.len();
        Ok(Prepared { buffer, array: None, copied })
    }

    /// Posts a message, and waits for room if necessary.
    fn send(&self, py: Python<'_>, prepared: Prepared<'_>, tag: u32, timeout: Timeout) -> PyResult<()> {
        let Prepared { buffer, array, copied } = prepared;
        let buffer = buffer.with_tag(tag);
        let posted = match self.try_send(buffer, copied) {
            Err(
                Unposted::Failed(Error::WouldBlock { .. }, Some(buffer))
                | Unposted::Unusable(Unusable::Busy, Some(buffer)),
            ) => {
                let limit = timeout.or(self.slot.limit);
                wait::detached(py, || self.send_within(buffer, copied, limit))
            }
            posted => posted,
        };
        self.sent(py, posted, array)
    }

    /// Ends a post: makes the call's result, and sets the array's state.
    fn sent(&self, py: Python<'_>, posted: Result<(), Unposted>, array: Option<Posted<'_>>) -> PyResult<()> {
        let (error, back) = match posted {
            Ok(()) => {
                array.into_iter().for_each(Posted::done);
                return Ok(());
            }
            Err(Unposted::Unusable(why, back)) => (self.slot.raise(py, why), back),
            Err(Unposted::Failed(error, back)) => (exception(py, &error, Some(&self.slot.name)), back),
        };
        match (array, back) {
            (Some(array), Some(buffer)) => array.undo(buffer),
            // The message was under way.
            (Some(array), None) => array.done(),
            (None, _) => {}
        }
        Err(error)
    }

    fn try_send(&self, buffer: Buffer, copied: usize) -> Result<(), Unposted> {
        match self.slot.try_use() {
            Ok(postbox) => counted(&postbox, copied, postbox.try_post(buffer)),
            Err(why) => Err(Unposted::Unusable(why, Some(buffer))),
        }
    }

    fn send_within(&self, buffer: Buffer, copied: usize, limit: Duration) -> Result<(), Unposted> {
        let deadline = Deadline::after(limit);
        let postbox = match self.slot.wait_for_use(limit) {
            Ok(postbox) => postbox,
            Err(why) => return Err(Unposted::Unusable(why, Some(buffer))),
        };
        counted(&postbox, copied, postbox.post_timeout(buffer, deadline.remaining()))
    }
}

/// Counts the copied bytes of a message that was posted.
fn counted(
    postbox: &udeck::Postbox<PythonValues>,
    copied: usize,
    posted: Result<(), PostError<Buffer>>,
) -> Result<(), Unposted> {
    posted.map_err(|failed| Unposted::Failed(failed.error, failed.message))?;
    postbox.count_copy(copied);
    Ok(())
}

/// The method Postbox.post().
pub struct Post;

impl Method for Post {
    const NAME: &CStr = c"post";
    const ARGUMENTS: &[&str] = &["array", "tag", "timeout"];
    const DOC: &CStr = c"post($self, array, tag=0, timeout=None)
--

Posts an array of any shape: moves it if it is one of World.empty(), and copies it otherwise.

Takes arrays of numpy's, what has the buffer protocol, and tensors by DLPack, with up to 32 dimensions. An array of World.empty()
cannot be used any more (ArrayPosted). It is moved if one variable of the function that calls is all that has it, or none;
otherwise its elements are copied. Waits, at most the timeout (seconds; None: DECK_DEADLINE), while the mailbox's queue is full.
Raises ArrayInUse when other arrays are views of what is to be moved, TypeError for elements that are objects and for arrays that
would come as others, MailboxGone, PeerLost, Deadline, NoMemory, TooLarge, Undelivered for an earlier message, Closed,
and Busy. An array that was not posted is as before.";

    #[inline]
    fn call<'py>(this: &Bound<'py, PyAny>, arguments: &Arguments<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        let py = this.py();
        let array = content::first_argument::<Post>(arguments)?;
        let tag = arguments[1].as_deref().map_or(Ok(0), arguments::tag)?;
        let timeout = arguments[2].as_deref().map_or(Ok(Timeout::USUAL), |value| value.extract())?;
        this.cast::<Postbox>()?.get().post(array, tag, timeout)?;
        Ok(py.None().into_bound(py))
    }
}

/// The method Postbox.post_async().
pub struct PostAsync;

impl Method for PostAsync {
    const NAME: &CStr = c"post_async";
    const ARGUMENTS: &[&str] = &["array", "tag"];
    const DOC: &CStr = c"post_async($self, array, tag=0)
--

As post(), in a task of asyncio: waits for room and for memory without holding the thread. The task's timeouts are
asyncio's.

The array is posted by the call itself, before the first await. Where there is no room or no memory, that happens in the
task: the array may be changed once the task is done. Whoever awaits it gets the errors, Busy among them. A task that is
cancelled may have posted the array.";

    fn call<'py>(this: &Bound<'py, PyAny>, arguments: &Arguments<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        let array = content::first_argument::<PostAsync>(arguments)?;
        let tag = arguments[1].as_deref().map_or(Ok(0), arguments::tag)?;
        let task = Postbox::task_of_array(this.cast()?, array, tag).begin(this.py());
        tasks::run(this.py(), task, false)
    }
}

#[pymethods]
impl Postbox {
    /// Posts any object that can be pickled, to a mailbox that was made with objects=True. Long buffers in it are not
    /// copied into the pickle.
    ///
    /// Waits and raises as post(), and what pickling raises.
    #[pyo3(signature = (value, tag=0, timeout=Timeout::USUAL), text_signature = "($self, value, tag=0, timeout=None)")]
    fn post_object(
        &self,
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::tag)] tag: u32,
        timeout: Timeout,
    ) -> PyResult<()> {
        let prepared = self.prepare_object(value, timeout)?;
        self.send(py, prepared, tag, timeout)
    }

    /// Posts an object as post_object() does, in a task of asyncio: waits for room and for memory without holding the thread. The
    /// task's timeouts are asyncio's.
    ///
    /// The object is pickled by the call itself. Where there is no memory, its long buffers are copied in the task: they may be
    /// changed once the task is done. Whoever awaits it gets the errors, Busy among them, except those of pickling. A task that is
    /// cancelled may have posted the object.
    #[pyo3(signature = (value, tag=0))]
    fn post_object_async<'py>(
        slf: &Bound<'py, Self>,
        value: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::tag)] tag: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, pickled) = (slf.py(), content::pickle(value)?);
        let task = Postbox::task(slf, tag, move |py, this| {
            let buffer = pickled.message(py, |len| this.world.try_buffer(py, len))?;
            let copied = buffer.len();
            Ok(Prepared { buffer, array: None, copied })
        });
        tasks::run(py, task.begin(py), false)
    }

    /// Waits until every message that was posted here has been read, at most the timeout (seconds; None:
    /// DECK_DEADLINE).
    ///
    /// Raises Undelivered, MailboxGone, PeerLost, Deadline, Closed, and Busy.
    #[pyo3(signature = (timeout=Timeout::USUAL), text_signature = "($self, timeout=None)")]
    fn flush(&self, py: Python<'_>, timeout: Timeout) -> PyResult<()> {
        let limit = timeout.or(self.slot.limit);
        let flushed = wait::detached(py, || {
            let deadline = Deadline::after(limit);
            let postbox = self.slot.wait_for_use(limit)?;
            Ok(postbox.flush_timeout(deadline.remaining()))
        });
        flushed.map_err(|why| self.slot.raise(py, why))?.or_raise(py, Some(&self.slot.name))
    }

    /// The mailbox's name.
    #[getter(name)]
    fn mailbox_name(&self) -> &str {
        &self.slot.name
    }

    /// The transport that messages take from here, and why no better one is used: a text for people.
    #[getter]
    fn route(&self, py: Python<'_>) -> PyResult<String> {
        let postbox = self.slot.try_use().map_err(|why| self.slot.raise(py, why))?;
        Ok(postbox.route().to_string())
    }

    /// Closes the connection. Posted messages are still delivered. Raises Busy when a task uses the postbox.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.slot.close(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("Postbox({:?})", self.slot.name)
    }
}

impl Postbox {
    fn post(&self, array: &Bound<'_, PyAny>, tag: u32, timeout: Timeout) -> PyResult<()> {
        let py = array.py();
        let array = content::array(array)?;
        let number = array.type_number();
        if number.is_some() && array.base_array().is_none() {
            let elements = array.len_bytes()?;
            let head = content::head(number, None, array.dims())?;
            if elements + head.len() <= SHORT && self.post_short(py, &array, &head, elements, tag)? {
                return Ok(());
            }
        }
        // `content::array` holds one more reference.
        let prepared = self
            .prepare(array, KnownReferences::by_call().and(1), |len| self.world.buffer(py, len, timeout))?;
        self.send(py, prepared, tag, timeout)
    }

    fn task_of_array(slf: &Bound<'_, Self>, array: &Bound<'_, PyAny>, tag: u32) -> Task {
        let (array, mut at_first) = (array.clone().unbind(), Some(KnownReferences::by_call()));
        Postbox::task(slf, tag, move |py, this| {
            // The call's own reference exists only at the first attempt. This function holds two.
            let known = at_first.take().unwrap_or(KnownReferences::exactly(0)).and(2);
            let array = content::array(array.bind(py))?;
            this.prepare(array, known, |len| this.world.try_buffer(py, len))
        })
    }

    /// A post in a task, which uses the postbox exclusively from its first poll to its end. `prepare` is called again if it
    /// found no memory.
    fn task(
        slf: &Bound<'_, Self>,
        tag: u32,
        mut prepare: impl for<'py> FnMut(Python<'py>, &Postbox) -> Result<Prepared<'py>, Unavailable>
        + Send
        + 'static,
    ) -> Task {
        let (postbox, mut lent) = (slf.clone().unbind(), None);
        Task::new(move |py| {
            let this = postbox.get();
            if lent.is_none() {
                lent = Some(this.slot.lend().map_err(|why| this.slot.raise(py, why))?);
            }
            let Prepared { buffer, array, copied } = prepare(py, this)?;
            let buffer = buffer.with_tag(tag);
            // The message may leave at any time: from now on the array does not belong to the program.
            array.into_iter().for_each(Posted::done);
            let (mut lent, name) = (lent.take().expect("lent before"), this.slot.name.clone());
            Ok(async move {
                let posted = lent.post_async(buffer).await;
                if posted.is_ok() {
                    lent.count_copy(copied);
                }
                let end: Completion = Box::new(move |py| match posted {
                    Ok(()) => Ok(py.None().into_bound(py)),
                    Err(PostError { error, .. }) => Err(exception(py, &error, Some(&name))),
                });
                end
            })
        })
    }
}
