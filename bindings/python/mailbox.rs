//! Mailboxes: the objects from which a rank retrieves.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use udeck::{Error, Match, Turns, in_turn};

use crate::arguments;
use crate::content;
use crate::errors::OrRaise;
use crate::message::{self, Arrived, Message, Objects, Origin, Room};
use crate::slot::{Slot, Unusable};
use crate::tasks::{self, Completion, Task};
use crate::wait::{self, Timeout};
use crate::wire::PythonValues;

/// Longest wait for another thread's use of the mailbox, in a call that does not wait for a message.
const MOMENT: Duration = Duration::from_secs(1);

/// The library's mailbox.
pub type Inner = udeck::Mailbox<PythonValues>;

/// A named mailbox of this rank. Made by World.mailbox() and World.mailboxes().
///
/// Iterating over it (`for`, `async for`) gives what retrieve() gives, until no rank is left that could post. A mailbox is a
/// context manager; the end of the block is close(). Threads may retrieve from it at the same time, also by source and tag: each
/// waits for its own message, and at most its own timeout. A task that retrieves has exclusive use; other callers get Busy
/// meanwhile.
///
/// source is the rank whose message is wanted, tag is its tag; None: any. Messages of one postbox arrive in the order of their
/// posts.
#[pyclass(frozen, generic, module = "udeck")]
pub struct Mailbox {
    pub slot: Slot<Inner>,
    objects: Objects,
}

/// Result of an attempt to retrieve without waiting.
enum Polled {
    Message(Arrived),
    Nothing,
    /// Another thread uses the mailbox.
    Busy,
}

/// Source and tag of the messages that a call accepts.
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

    fn matching(self) -> Match {
        let any = self.source.map_or(Match::ANY, Match::source);
        self.tag.map_or(any, |tag| any.and_tag(tag))
    }

    #[inline]
    fn try_retrieve_from(self, mailbox: &Inner) -> udeck::Result<Option<Arrived>> {
        if self.is_any() { mailbox.try_retrieve() } else { mailbox.matching(self.matching()).try_retrieve() }
    }
}

impl Mailbox {
    pub fn new(mailbox: udeck::Mailbox<PythonValues>, objects: Objects, limit: Duration) -> Self {
        let (name, turns) = (mailbox.name().to_owned(), mailbox.turns());
        Mailbox { slot: Slot::new(mailbox, "mailbox", name, limit, Some(turns)), objects }
    }

    pub fn of(&self) -> Origin<'_> {
        Origin::Mailbox { name: &self.slot.name, objects: self.objects }
    }

    #[inline]
    fn poll(&self, py: Python<'_>, wanted: Wanted) -> PyResult<Polled> {
        let found = match self.slot.try_use() {
            Ok(mailbox) => wanted.try_retrieve_from(&mailbox),
            Err(Unusable::Busy) => return Ok(Polled::Busy),
            Err(why) => return Err(self.slot.raise(py, why)),
        };
        Ok(found.or_raise(py, Some(&self.slot.name))?.map_or(Polled::Nothing, Polled::Message))
    }

    /// Retrieves the next message, and waits for it.
    #[inline]
    fn next(&self, py: Python<'_>, wanted: Wanted, timeout: Timeout) -> PyResult<Arrived> {
        match self.poll(py, wanted)? {
            Polled::Message(message) => Ok(message),
            Polled::Nothing | Polled::Busy => self.wait(py, wanted, timeout),
        }
    }

    #[inline(never)]
    fn wait(&self, py: Python<'_>, wanted: Wanted, timeout: Timeout) -> PyResult<Arrived> {
        self.waited(py, wanted, timeout)?.or_raise(py, Some(&self.slot.name))
    }

    /// Same as [`Mailbox::next`] after the first attempt, with the library's error.
    fn waited(&self, py: Python<'_>, wanted: Wanted, timeout: Timeout) -> PyResult<udeck::Result<Arrived>> {
        let matching = wanted.matching();
        self.in_turn(py, matching, timeout, |mailbox, limit| {
            mailbox.matching(matching).within(limit).retrieve()
        })
    }

    /// Makes a call that waits for a message. A thread in such a call waits at most its own deadline, never
    /// another thread's.
    fn in_turn<R: Send>(
        &self,
        py: Python<'_>,
        matching: Match,
        timeout: Timeout,
        mut attempt: impl FnMut(&Inner, Duration) -> udeck::Result<R> + Send,
    ) -> PyResult<udeck::Result<R>> {
        let limit = timeout.or(self.slot.limit);
        let ended = wait::detached(py, move || {
            let turns: Option<&Turns> = self.slot.turns();
            in_turn(
                turns.as_slice(),
                matching,
                limit,
                |limit| self.slot.use_within(limit),
                |mailbox, limit| attempt(mailbox, limit),
            )
        });
        match ended {
            Err(Unusable::Failed(error)) => Ok(Err(error)),
            ended => ended.map(Ok).map_err(|why| self.slot.raise(py, why)),
        }
    }

    /// Tries to retrieve while another thread waits at the mailbox. The waiting thread releases the mailbox for a moment.
    #[cold]
    fn try_retrieve_in_turn(&self, py: Python<'_>, wanted: Wanted) -> PyResult<Option<Arrived>> {
        let found = wait::detached(py, || Ok(wanted.try_retrieve_from(&*self.slot.wait_for_use(MOMENT)?)));
        match found {
            Err(Unusable::Failed(Error::Deadline { .. })) => Err(self.slot.raise(py, Unusable::Busy)),
            Err(why) => Err(self.slot.raise(py, why)),
            Ok(found) => found.or_raise(py, Some(&self.slot.name)),
        }
    }
}

#[pymethods]
impl Mailbox {
    /// Returns the next message: a read-only array in place, with the shape and dtype that were posted, or an object. Waits
    /// for it.
    ///
    /// Over shared memory the array is a view of the sender's memory, which returns to the sender with the last view. A
    /// message of at most 512 bytes is a copy. timeout: seconds; None: DECK_DEADLINE. Raises Deadline, PeerLost once for
    /// each rank that died, RankFinished if `source` has finished, NobodyLeft when no rank is left that could post,
    /// SetAsideFull, WrongType, Closed, and Busy.
    #[pyo3(signature = (source=None, tag=None, timeout=Timeout::USUAL), text_signature = "($self, source=None, tag=None, timeout=None)")]
    fn retrieve<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = arguments::source)] source: Option<usize>,
        #[pyo3(from_py_with = arguments::optional_tag)] tag: Option<u32>,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        let message = self.next(py, Wanted { source, tag }, timeout)?;
        message::value(py, message, &self.of())
    }

    /// Returns the next message with its source and tag. Waits, and raises, as retrieve().
    #[pyo3(signature = (source=None, tag=None, timeout=Timeout::USUAL), text_signature = "($self, source=None, tag=None, timeout=None)")]
    fn retrieve_message(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::source)] source: Option<usize>,
        #[pyo3(from_py_with = arguments::optional_tag)] tag: Option<u32>,
        timeout: Timeout,
    ) -> PyResult<Message> {
        let message = self.next(py, Wanted { source, tag }, timeout)?;
        Message::new(message, &self.of(), py)
    }

    /// Returns the next message, with its source and tag, if one has arrived; None otherwise. Waits only for a moment, if another
    /// thread uses the mailbox.
    ///
    /// Raises PeerLost once for each rank that died, SetAsideFull, WrongType, Closed, and Busy.
    #[pyo3(signature = (source=None, tag=None))]
    fn try_retrieve(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::source)] source: Option<usize>,
        #[pyo3(from_py_with = arguments::optional_tag)] tag: Option<u32>,
    ) -> PyResult<Option<Message>> {
        let wanted = Wanted { source, tag };
        let message = match self.poll(py, wanted)? {
            Polled::Message(message) => Some(message),
            Polled::Nothing => None,
            Polled::Busy => self.try_retrieve_in_turn(py, wanted)?,
        };
        message.map(|message| Message::new(message, &self.of(), py)).transpose()
    }

    /// Copies the next message into an array of the same dtype, and returns the number of its elements. Waits as
    /// retrieve().
    ///
    /// The array is writeable and in C order. Its shape may differ, and it may have room for more elements, which
    /// stay as they are. Raises as retrieve(), and TooSmall or WrongType if the message does not fit: the message
    /// stays the next one.
    #[pyo3(signature = (array, source=None, tag=None, timeout=Timeout::USUAL), text_signature = "($self, array, source=None, tag=None, timeout=None)")]
    fn retrieve_into(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::source)] source: Option<usize>,
        #[pyo3(from_py_with = arguments::optional_tag)] tag: Option<u32>,
        timeout: Timeout,
    ) -> PyResult<usize> {
        let to = content::array(array)?;
        if !to.is_writeable() || !to.is_contiguous() {
            return Err(PyValueError::new_err(
                "the array is read only, or its elements do not lie in a row in C order",
            ));
        }
        let room = Room::of(&to)?;
        let matching = Wanted { source, tag }.matching();
        let offer = |mailbox: &Inner, limit| {
            mailbox
                .matching(matching)
                .within(limit)
                .retrieve_if(|message, about| room.fill(message, about.source))
        };
        let now = match self.slot.try_use() {
            Ok(mailbox) if room.is_short() => Some(offer(&mailbox, Duration::ZERO)),
            _ => None,
        };
        let copied = match now {
            Some(Err(Error::Deadline { .. })) | None => {
                // While this view exists, no other thread can post the array, which would turn its memory into another
                // message.
                let _view = to.object().call_method0("view")?;
                self.in_turn(py, matching, timeout, offer)?
            }
            Some(copied) => copied,
        };
        copied.or_raise(py, Some(&self.slot.name))?.map_err(|misfit| misfit.raise(&to, &self.of()))
    }

    /// Declares that these ranks post here: the loss of one ends a wait, even if that rank has made no postbox yet. Does not
    /// wait.
    #[pyo3(signature = (*ranks))]
    fn expect(&self, py: Python<'_>, ranks: &Bound<'_, PyTuple>) -> PyResult<()> {
        let ranks = arguments::ranks(ranks.as_any())?;
        let expected = py.detach(|| {
            self.slot.wait_for_use(self.slot.limit)?.expect(ranks);
            Ok(())
        });
        expected.map_err(|why| self.slot.raise(py, why))
    }

    /// Destroys the mailbox: its postboxes then fail with MailboxGone. Received arrays stay valid.
    ///
    /// Raises Busy when a task uses the mailbox, and Deadline when another thread's call does not end
    /// (DECK_DEADLINE).
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.slot.close(py)
    }

    /// The name that the mailbox was created with.
    #[getter]
    fn name(&self) -> &str {
        &self.slot.name
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

    /// Returns the next message, until no rank is left that could post.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = match self.poll(py, Wanted::ANY)? {
            Polled::Message(message) => Ok(message),
            _ => self.waited(py, Wanted::ANY, Timeout::USUAL)?,
        };
        match found {
            Err(Error::NobodyLeft { .. }) => Ok(None),
            found => message::value(py, found.or_raise(py, Some(&self.slot.name))?, &self.of()).map(Some),
        }
    }

    /// Returns the next message, in a task of asyncio: `await inbox.retrieve_async()`. The task's timeouts are
    /// asyncio's.
    ///
    /// Raises as retrieve(), except Deadline. A cancelled task loses no message.
    #[pyo3(signature = (source=None, tag=None))]
    fn retrieve_async<'py>(
        slf: &Bound<'py, Self>,
        #[pyo3(from_py_with = arguments::source)] source: Option<usize>,
        #[pyo3(from_py_with = arguments::optional_tag)] tag: Option<u32>,
    ) -> PyResult<Bound<'py, PyAny>> {
        tasks::run(slf.py(), Mailbox::task(slf, Wanted { source, tag }, message::value), false)
    }

    /// Returns the next message with its source and tag, in a task of asyncio. Waits, and raises, as retrieve_async().
    #[pyo3(signature = (source=None, tag=None))]
    fn retrieve_message_async<'py>(
        slf: &Bound<'py, Self>,
        #[pyo3(from_py_with = arguments::source)] source: Option<usize>,
        #[pyo3(from_py_with = arguments::optional_tag)] tag: Option<u32>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let task = Mailbox::task(slf, Wanted { source, tag }, |py, arrived, of| {
            Ok(Bound::new(py, Message::new(arrived, of, py)?)?.into_any())
        });
        tasks::run(slf.py(), task, false)
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        tasks::run(slf.py(), Mailbox::task(slf, Wanted::ANY, message::value), true)
    }

    fn __repr__(&self) -> String {
        format!("Mailbox({:?})", self.slot.name)
    }
}

impl Mailbox {
    /// A retrieve in a task, which uses the mailbox exclusively from its first poll to its end. `finish` makes what the program
    /// gets.
    fn task(
        slf: &Bound<'_, Self>,
        wanted: Wanted,
        finish: for<'a, 'py> fn(Python<'py>, Arrived, &Origin<'a>) -> PyResult<Bound<'py, PyAny>>,
    ) -> Task {
        let mailbox = slf.clone().unbind();
        Task::new(move |py| {
            let this = mailbox.get();
            let mut lent = this.slot.lend().map_err(|why| this.slot.raise(py, why))?;
            let mailbox = mailbox.clone_ref(py);
            Ok(async move {
                let retrieved = lent.retrieve_async().matching(wanted.matching()).await;
                let end: Completion = Box::new(move |py| {
                    let this = mailbox.get();
                    finish(py, retrieved.or_raise(py, Some(&this.slot.name))?, &this.of())
                });
                end
            })
        })
    }
}
