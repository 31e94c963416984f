//! The job as this rank sees it.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use udeck::ExitKind;
use udeck::via::Deadline;

use crate::arguments;
use crate::content;
use crate::errors::{OrRaise, raise};
use crate::group::Group;
use crate::handle::{Handle, finished};
use crate::mailbox::Mailbox;
use crate::memory;
use crate::message::Objects;
use crate::numpy::{self, FLOAT64};
use crate::postbox::Postbox;
use crate::shared::SharedArray;
use crate::wait::{self, Timeout};
use crate::wire::bytes_mut;

/// A job, as one rank sees it. Made by init().
///
/// A world is a context manager: the end of the block is finish(), unless the block ended by an exception. Its attributes and
/// methods can be used by several threads. Every timeout is in seconds, from 0 on; None is the job's default (DECK_DEADLINE, or
/// DECK_SETUP_TIMEOUT for the search for a mailbox). A wait releases the interpreter's lock, and a signal's exception ends it.
#[pyclass(frozen, module = "udeck")]
pub struct World {
    handle: Arc<Handle>,
    /// This rank's number, from 0.
    #[pyo3(get)]
    rank: usize,
    /// Number of ranks.
    #[pyo3(get)]
    size: usize,
}

/// Joins the job in which this process was started; without a launcher, a job of one rank. Call it once in each
/// process.
///
/// Waits until the launcher has told the ranks of each other, at most DECK_SETUP_TIMEOUT.
/// Raises ConfigError if a setting makes no sense, and Error if the job cannot be joined.
#[pyfunction]
pub fn init(py: Python<'_>) -> PyResult<World> {
    let world = py.detach(udeck::init).or_raise(py, None)?;
    let (rank, size) = (world.rank(), world.size());
    Ok(World { handle: Arc::new(Handle::new(world)), rank, size })
}

#[pymethods]
impl World {
    /// Creates a mailbox of this rank. Its name is unique in the job.
    ///
    /// objects: whether the mailbox takes pickled objects (Postbox.post_object), whose unpickling can run any code. queue: bytes
    /// of messages that may be under way from each postbox before a post waits; None is the job's default (DECK_QUEUE). views:
    /// whether arrays within objects are read-only views of the message, instead of copies that can be written.
    /// Waits for the name service only. Raises NameTaken, BadName, and Closed after finish().
    #[pyo3(signature = (name, objects=false, queue=None, views=false))]
    fn mailbox(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: String,
        objects: bool,
        #[pyo3(from_py_with = arguments::queue)] queue: Option<usize>,
        views: bool,
    ) -> PyResult<Mailbox> {
        let objects = Objects::of(objects, views)?;
        let made = self.handle.wait(py, |world| match queue {
            Some(bytes) => world.mailbox_with_queue(&name, bytes),
            None => world.mailbox(&name),
        })?;
        Ok(Mailbox::new(made, objects, self.handle.deadline))
    }

    /// Creates this rank's mailbox of a family: each rank may have one of the same name. Other ranks reach it by
    /// postbox_of().
    ///
    /// objects, views: as for mailbox(). Waits for the name service only. Raises NameTaken, BadName, and Closed after
    /// finish().
    #[pyo3(signature = (name, objects=false, views=false))]
    fn mailboxes(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: String,
        objects: bool,
        views: bool,
    ) -> PyResult<Mailbox> {
        let objects = Objects::of(objects, views)?;
        let made = self.handle.wait(py, |world| world.mailboxes(&name))?;
        Ok(Mailbox::new(made, objects, self.handle.deadline))
    }

    /// Connects to the mailbox of this name. Waits until it exists, at most the timeout.
    ///
    /// Raises NoSuchMailbox when the timeout ends, NobodyLeft when no rank is left that could create it, WrongType if
    /// its element type belongs to another language, and Unreachable if no transport leads there.
    #[pyo3(signature = (name, timeout=Timeout::USUAL), text_signature = "($self, name, timeout=None)")]
    fn postbox(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: String,
        timeout: Timeout,
    ) -> PyResult<Postbox> {
        let limit = timeout.or(self.handle.setup);
        let made = self.handle.wait(py, |world| world.postbox_timeout(&name, limit))?;
        Ok(Postbox::new(made, self.handle.clone(), self.handle.deadline))
    }

    /// Connects to a rank's mailbox of a family. Waits until it exists, at most the timeout.
    ///
    /// Raises as postbox(), PeerLost if the rank is lost, MailboxGone if it has finished, and NoSuchRank.
    #[pyo3(signature = (name, rank, timeout=Timeout::USUAL), text_signature = "($self, name, rank, timeout=None)")]
    fn postbox_of(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: String,
        #[pyo3(from_py_with = arguments::rank)] rank: usize,
        timeout: Timeout,
    ) -> PyResult<Postbox> {
        let limit = timeout.or(self.handle.setup);
        let made = self.handle.wait(py, |world| world.postbox_of_timeout(&name, rank, limit))?;
        Ok(Postbox::new(made, self.handle.clone(), self.handle.deadline))
    }

    /// Returns an array in registered memory, with arbitrary contents. Posting it copies nothing.
    ///
    /// shape: a number of elements, or a sequence of numbers, one for each dimension. dtype: any argument of
    /// numpy.dtype(), but no objects; None: float64. The array is in C order. Waits, at most the timeout, for memory that
    /// other arrays and messages hold. Raises NoMemory when this program itself holds all of it (DECK_ARENA), Deadline,
    /// TooLarge, and TypeError for elements that are objects.
    #[pyo3(signature = (shape, dtype=None, timeout=Timeout::USUAL), text_signature = "($self, shape, dtype=None, timeout=None)")]
    fn empty<'py>(
        &self,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.make(shape, dtype, timeout, false)
    }

    /// Returns an array as empty() does, filled with zeros.
    #[pyo3(signature = (shape, dtype=None, timeout=Timeout::USUAL), text_signature = "($self, shape, dtype=None, timeout=None)")]
    fn zeros<'py>(
        &self,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.make(shape, dtype, timeout, true)
    }

    /// Returns an array of zeros in memory that ranks of this host share. All of them make the call, with the same name, shape and
    /// dtype, and wait for each other, at most DECK_DEADLINE.
    ///
    /// ranks: those that share it, this one among them; None: all ranks of this host. shape, dtype: as for empty(). The name may
    /// be used again: the n-th call with a name meets the n-th of the others. Raises Unreachable for a rank of another host,
    /// CallMismatch if another rank's array has another length in bytes, PeerLost, Deadline, BadName, InvalidArgument, and
    /// TypeError for elements that are objects.
    #[pyo3(signature = (name, shape, dtype=None, ranks=None))]
    fn shared(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: String,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        ranks: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<SharedArray> {
        let ranks = ranks.map(arguments::ranks).transpose()?;
        let (dtype, number, dims) = layout(shape, dtype)?;
        let (len, _) = memory::measure(&dtype, number, &dims)?;
        SharedArray::make(py, &self.handle, &name, ranks, dtype, (&dims, len))
    }

    /// Returns the ranks of this rank's host, in ascending order: those that can share memory. Does not wait.
    fn host_ranks(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.handle.with(py, udeck::World::host_ranks)
    }

    /// Waits until all ranks have entered this barrier, at most the timeout.
    ///
    /// Raises PeerLost for a rank that is lost or has finished, and Deadline, which names the ranks that did not
    /// enter it.
    #[pyo3(signature = (timeout=Timeout::USUAL), text_signature = "($self, timeout=None)")]
    fn barrier(&self, py: Python<'_>, timeout: Timeout) -> PyResult<()> {
        let limit = timeout.or(self.handle.deadline);
        self.handle.wait(py, |world| world.barrier_timeout(limit))
    }

    /// Returns the group of all ranks. All ranks make the first call, which waits for them.
    ///
    /// Raises PeerLost and Deadline, as barrier().
    fn all(&self, py: Python<'_>) -> PyResult<Group> {
        let all = self.handle.wait(py, |world| Ok(world.all()?.within(world.config().deadline)))?;
        Ok(Group::new(all, self.handle.clone()))
    }

    /// Returns a group of these ranks, numbered in this order. All of them make the call, with the same list and name, and
    /// wait for each other.
    ///
    /// name: distinguishes the group from another one of the same ranks. Raises NoSuchRank, InvalidArgument if
    /// a rank is listed twice or this one is not listed, CallMismatch, PeerLost and Deadline.
    #[pyo3(signature = (ranks, name=None))]
    fn group(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::ranks)] ranks: Vec<usize>,
        #[pyo3(from_py_with = arguments::optional_name)] name: Option<String>,
    ) -> PyResult<Group> {
        if let Some(rank) = ranks.iter().find(|rank| **rank >= self.size) {
            let text =
                format!("ranks: there is no rank {rank}: the job has {} rank(s), numbered from 0", self.size);
            return Err(raise(py, "NoSuchRank", text, Some(*rank), None));
        }
        let made = self.handle.wait(py, |world| match &name {
            Some(name) => world.group(name, &ranks),
            None => world.anonymous_group(&ranks),
        })?;
        Ok(Group::new(made, self.handle.clone()))
    }

    /// Returns a group of all ranks that have not ended, after the death of one. All ranks that are left make the call.
    ///
    /// All get the same group, whoever dies meanwhile. If a member dies afterwards, the group's calls raise PeerLost at all
    /// members, which call this again. Raises Deadline, which names the ranks that have not come.
    #[pyo3(signature = (timeout=Timeout::USUAL), text_signature = "($self, timeout=None)")]
    fn survivors(&self, py: Python<'_>, timeout: Timeout) -> PyResult<Group> {
        let limit = timeout.or(self.handle.deadline);
        let made = self.handle.wait(py, |world| world.survivors_timeout(limit))?;
        Ok(Group::new(made, self.handle.clone()))
    }

    /// Returns the bits that are set in the flags of all ranks that have not ended, and the list of these ranks. All of them
    /// make the call, and get the same, whoever dies meanwhile.
    ///
    /// A collective call in which a rank dies may succeed at some members only: agree(True) after a step tells whether it
    /// succeeded at all. Raises Deadline, which names the ranks that have not come.
    #[pyo3(signature = (flags, timeout=Timeout::USUAL), text_signature = "($self, flags, timeout=None)")]
    fn agree(&self, py: Python<'_>, flags: u64, timeout: Timeout) -> PyResult<(u64, Vec<usize>)> {
        let limit = timeout.or(self.handle.deadline);
        let agreement = self.handle.wait(py, |world| world.agree_timeout(flags, limit))?;
        Ok((agreement.flags, agreement.ranks))
    }

    /// Returns the ranks that have ended so far: pairs of a rank, and how it was lost, or None if it finished. Does
    /// not wait.
    fn exited_ranks(&self, py: Python<'_>) -> PyResult<Vec<(usize, Option<String>)>> {
        self.handle.with(py, |world| {
            let exits = world.exited_ranks();
            exits
                .map(|exit| match exit.how {
                    ExitKind::Lost(how) => (exit.rank, Some(how)),
                    _ => (exit.rank, None),
                })
                .collect()
        })
    }

    /// Returns counters of the library's work on this rank: messages and bytes, by name. Does not wait.
    ///
    /// The keys are messages_posted, bytes_posted, messages_retrieved, bytes_retrieved, and bytes_copied (by the
    /// library, for posts).
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.handle.with(py, udeck::World::stats)?;
        let all = PyDict::new(py);
        all.set_item("messages_posted", stats.messages_posted)?;
        all.set_item("bytes_posted", stats.bytes_posted)?;
        all.set_item("messages_retrieved", stats.messages_retrieved)?;
        all.set_item("bytes_retrieved", stats.bytes_retrieved)?;
        all.set_item("bytes_copied", stats.bytes_copied)?;
        Ok(all)
    }

    /// Ends the whole job now, and this process, with this exit code (0 to 255). The launcher prints why.
    #[pyo3(signature = (code=1, why="the program gave up".to_owned()), text_signature = "($self, code=1, why='the program gave up')")]
    fn abort(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::code)] code: u8,
        #[pyo3(from_py_with = arguments::why)] why: String,
    ) -> PyResult<()> {
        self.handle.wait(py, |world| world.abort(code, &why))
    }

    /// Ends this rank's part in the job: delivers the posted messages, and tells the other ranks. Waits for both, at most the
    /// timeout. Calls of other threads that wait in the world, or at its mailboxes, end with Closed. A signal's exception ends
    /// finish(): then this rank is lost to the others.
    ///
    /// Received arrays stay valid. Raises Undelivered if a mailbox ended while messages for it still waited here (queued or
    /// announced), Deadline, and Closed if it was called before. A message that the connection had taken and the mailbox left
    /// unread raises nothing here: Postbox.flush reports it, by MailboxGone or PeerLost.
    #[pyo3(signature = (timeout=Timeout::USUAL), text_signature = "($self, timeout=None)")]
    fn finish(&self, py: Python<'_>, timeout: Timeout) -> PyResult<()> {
        let limit = timeout.or(self.handle.deadline);
        let ended = wait::detached(py, || {
            let deadline = Deadline::after(limit);
            let world = self.handle.take(limit)?;
            Ok(world.map(|world| world.finish_timeout(deadline.remaining())))
        });
        ended.or_raise(py, None)?.ok_or_else(|| finished(py))?.or_raise(py, None)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Finishes, unless the block ended by an exception: then this rank is lost to the others, because it has not done its
    /// part.
    #[pyo3(signature = (*raised))]
    fn __exit__(&self, py: Python<'_>, raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        let is_finished = self.handle.with(py, |_| ()).is_err();
        let has_failed = raised.iter().any(|one| !one.is_none());
        if is_finished || has_failed { Ok(()) } else { self.finish(py, Timeout::USUAL) }
    }

    fn __repr__(&self) -> String {
        format!("World(rank {} of {})", self.rank, self.size)
    }
}

impl World {
    fn make<'py>(
        &self,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        timeout: Timeout,
        zeroed: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = shape.py();
        let (dtype, number, dims) = layout(shape, dtype)?;
        let (elements, text) = memory::measure(&dtype, number, &dims)?;
        let text = text.as_ref().map(|text| text.to_cow()).transpose()?;
        let head = content::head(number, text.as_deref(), &dims)?;
        let mut buffer = self.handle.buffer(py, memory::len_for(elements, &head), timeout)?;
        if zeroed {
            py.detach(|| bytes_mut(&mut buffer)[..elements].fill(0));
        }
        let nic = self.handle.with(py, |world| world.nic().clone())?;
        Ok(memory::array(buffer, nic, &dtype, &dims, elements)?.into_object())
    }
}

/// Element type with its number, and dimensions, of an array that is to be made.
fn layout<'py>(
    shape: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyAny>, Option<u8>, Vec<isize>)> {
    let py = shape.py();
    let mut dims = arguments::shape(shape)?;
    let Some(dtype) = dtype else { return Ok((numpy::dtype_of_number(py, FLOAT64)?, Some(FLOAT64), dims)) };
    let (dtype, inner): (Bound<'py, PyAny>, Vec<isize>) =
        content::helper(py, intern!(py, "dtype"))?.call1((dtype,))?.extract()?;
    dims.extend(inner);
    let number = numpy::number_of_dtype(&dtype)?;
    Ok((dtype, number, dims))
}
