//! Postboxes: where a rank posts.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use udeck::via::Deadline;
use udeck::{Error, PostError, Tagged};

use crate::arguments;
use crate::content;
use crate::errors::{OrRaise, exception};
use crate::handle::Handle;
use crate::memory::{self, Buffer, Owned};
use crate::numpy::Array;
use crate::slot::{Slot, Unusable};
use crate::tasks::{self, End, Task};
use crate::wait::{self, Timeout};
use crate::wire::{Head, PythonValues, bytes_mut, values};

/// So many bytes are put together on the stack: the library has a place for short messages.
const SHORT: usize = 256;

/// A way to a mailbox. Made by World.postbox() and World.postbox_of().
///
/// It is a context manager, whose end is close(). Threads that post take turns; a task that posts has it alone, and who comes
/// meanwhile gets Busy. A tag is a number from 0 to 2**32 - 1.
#[pyclass(frozen, module = "udeck")]
pub struct Postbox {
    slot: Slot<udeck::Postbox<PythonValues>>,
    world: Arc<Handle>,
}

/// Why a message was not posted, and the message, if it was none that is copied.
enum Unposted {
    Unusable(Unusable, Option<Buffer>),
    Failed(Error, Option<Buffer>),
}

impl From<Unusable> for Unposted {
    fn from(why: Unusable) -> Self {
        Unposted::Unusable(why, None)
    }
}

/// What is to be posted, with its memory.
pub struct Prepared<'py> {
    pub buffer: Buffer,
    /// The array that the memory was taken from, and whose it is again if it is not posted.
    pub moved: Option<(Array<'py>, Owned<'py>)>,
    /// Bytes that were copied into it.
    copied: usize,
}

impl Postbox {
    pub fn new(postbox: udeck::Postbox<PythonValues>, world: Arc<Handle>, limit: Duration) -> Self {
        let name = postbox.name().to_owned();
        Postbox { slot: Slot::new(postbox, "the postbox of mailbox", name, limit, None), world }
    }

    /// Posts a short array, put together on the stack. `false`: there is no room now, or the postbox is used.
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
        match postbox.try_post(Tagged(values(message), tag)) {
            Ok(()) => Ok(true),
            Err(PostError { error: Error::WouldBlock { .. }, .. }) => Ok(false),
            Err(PostError { error, .. }) => Err(exception(py, &error, Some(&self.slot.name))),
        }
    }

    /// An array's message: its own memory, or a copy in memory that `allocate` gives.
    fn prepare<'py, E: From<PyErr>>(
        &self,
        array: Array<'py>,
        allocate: impl FnOnce(usize) -> Result<Buffer, E>,
    ) -> Result<Prepared<'py>, E> {
        let (elements, text) = (array.len_bytes()?, content::text(&array)?);
        let text = text.as_ref().map(|text| text.to_cow()).transpose()?;
        // Its shape is changed when it is moved.
        let dims = array.dims().to_vec();
        let head = content::head(array.type_number(), text.as_deref(), &dims)?;
        if let Some(owned) = memory::owned(&array, elements)
            && let Some(buffer) = owned.take(&head, &self.slot.name)?
        {
            return Ok(Prepared { buffer, moved: Some((array, owned)), copied: 0 });
        }
        let mut buffer = allocate(elements + head.len())?;
        let message = bytes_mut(&mut buffer);
        content::copy_elements(&array, &mut message[..elements])?;
        head.write(message, elements);
        Ok(Prepared { buffer, moved: None, copied: elements })
    }

    /// An object's message.
    fn prepare_object<'py>(&self, value: &Bound<'py, PyAny>, timeout: Timeout) -> PyResult<Prepared<'py>> {
        let pickled = content::pickle(value)?;
        let layout = pickled.layout()?;
        let mut buffer = self.world.buffer(value.py(), layout.len, timeout)?;
        pickled.write(&layout, bytes_mut(&mut buffer))?;
        Ok(Prepared { buffer, moved: None, copied: layout.len })
    }

    /// Posts a message, and waits for room if it must.
    fn send(&self, py: Python<'_>, mut prepared: Prepared<'_>, tag: u32, timeout: Timeout) -> PyResult<()> {
        prepared.buffer.set_tag(tag);
        let Prepared { buffer, moved, copied } = prepared;
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
        self.sent(py, posted, moved)
    }

    /// What became of it: of an array that was moved, nothing is left.
    fn sent(
        &self,
        py: Python<'_>,
        posted: Result<(), Unposted>,
        moved: Option<(Array<'_>, Owned<'_>)>,
    ) -> PyResult<()> {
        let (error, back) = match posted {
            Ok(()) => {
                if let Some((array, _)) = moved {
                    array.mark_posted();
                }
                return Ok(());
            }
            Err(Unposted::Unusable(why, back)) => (self.slot.raise(py, why), back),
            Err(Unposted::Failed(error, back)) => (exception(py, &error, Some(&self.slot.name)), back),
        };
        match (moved, back) {
            (Some((_, owned)), Some(buffer)) => owned.put_back(buffer),
            // It was under way.
            (Some((array, _)), None) => array.mark_posted(),
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

/// Counts the bytes of a message that was posted and is a copy.
fn counted(
    postbox: &udeck::Postbox<PythonValues>,
    copied: usize,
    posted: Result<(), PostError<Buffer>>,
) -> Result<(), Unposted> {
    posted.map_err(|failed| Unposted::Failed(failed.error, failed.message))?;
    postbox.count_copy(copied);
    Ok(())
}

#[pymethods]
impl Postbox {
    /// Posts an array of any shape: moves it if it is one of World.empty(), and copies it otherwise.
    ///
    /// Takes arrays of numpy's, what has the buffer protocol, and tensors by DLPack, with up to 32 dimensions. What was
    /// moved cannot be used any more (ArrayPosted). Waits, at most the timeout (seconds; None: DECK_DEADLINE), while the
    /// mailbox's queue is full. Raises ArrayInUse when other arrays are views of what is to be moved, TypeError for
    /// elements that are objects, MailboxGone, PeerLost, RankFinished, Deadline, NoMemory, TooLarge, Undelivered for an
    /// earlier message, Closed, and Busy. An array that was not posted is as before.
    #[pyo3(signature = (array, tag=0, timeout=Timeout::USUAL), text_signature = "($self, array, tag=0, timeout=None)")]
    fn post(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::tag)] tag: u32,
        timeout: Timeout,
    ) -> PyResult<()> {
        let array = content::array(array)?;
        let number = array.type_number();
        if number.is_some() && array.base_array().is_none() {
            let elements = array.len_bytes()?;
            let head = content::head(number, None, array.dims())?;
            if elements + head.len() <= SHORT && self.post_short(py, &array, &head, elements, tag)? {
                return Ok(());
            }
        }
        let prepared = self.prepare(array, |len| self.world.buffer(py, len, timeout))?;
        self.send(py, prepared, tag, timeout)
    }

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

    /// As post(), in a task of asyncio: waits for room and for memory without holding the thread. The task's timeouts are
    /// asyncio's.
    ///
    /// The array is posted by the call itself, before the first await. Where there is no room or no memory, that happens in the
    /// task: the array may be changed once the task is done. Whoever awaits it gets the errors, Busy among them. A task that is
    /// cancelled may have posted the array.
    #[pyo3(signature = (array, tag=0))]
    fn post_async<'py>(
        slf: &Bound<'py, Self>,
        array: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::tag)] tag: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        tasks::run(slf.py(), Postbox::task(slf, array, tag).begin(slf.py()), false)
    }

    /// Waits until everything that was posted here was read, at most the timeout (seconds; None: DECK_DEADLINE).
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

    /// By which transport messages travel from here, and why by no better one: a text for people.
    #[getter]
    fn route(&self, py: Python<'_>) -> PyResult<String> {
        let postbox = self.slot.try_use().map_err(|why| self.slot.raise(py, why))?;
        Ok(postbox.route().to_string())
    }

    /// Ends the connection. What was posted is still delivered. Raises Busy when a task has it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.slot.close(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("Postbox({:?})", self.slot.name)
    }
}

impl Postbox {
    /// A post in a task, which has the postbox from its first poll to its end.
    fn task(slf: &Bound<'_, Self>, array: &Bound<'_, PyAny>, tag: u32) -> Task {
        let (postbox, array) = (slf.clone().unbind(), array.clone().unbind());
        let mut lent = None;
        Task::new(move |py| {
            let this = postbox.get();
            if lent.is_none() {
                lent = Some(this.slot.lend().map_err(|why| this.slot.raise(py, why))?);
            }
            let array = content::array(array.bind(py))?;
            let Prepared { mut buffer, moved, copied } =
                this.prepare(array, |len| this.world.try_buffer(py, len))?;
            buffer.set_tag(tag);
            if let Some((array, _)) = moved {
                // The message may go at any time: from now on it is not the program's.
                array.mark_posted();
            }
            let (mut lent, name) = (lent.take().expect("lent before"), this.slot.name.clone());
            Ok(async move {
                let posted = lent.post_async(buffer).await;
                if posted.is_ok() {
                    lent.count_copy(copied);
                }
                let end: End = Box::new(move |py| match posted {
                    Ok(()) => Ok(py.None().into_bound(py)),
                    Err(PostError { error, .. }) => Err(exception(py, &error, Some(&name))),
                });
                end
            })
        })
    }
}
