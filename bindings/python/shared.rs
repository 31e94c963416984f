//! Arrays in memory that the ranks of a host share.
#![allow(unsafe_code, reason = "arrays over shared memory, and locks kept beside what they lock")]

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use udeck::{SegmentLock, SharedSegment};

use crate::errors::{OrRaise, raise};
use crate::handle::Handle;
use crate::numpy;
use crate::wait::{self, Timeout};

/// The library's segment. It is counted in bytes, as the ranks' lengths are compared, and begins at a page, so the memory is aligned for
/// every type of numpy's.
type Segment = SharedSegment<u8>;

/// Owner of the memory of shared arrays: the segment lives until the last array and view of it is gone.
#[pyclass(frozen, module = "udeck")]
pub struct RetainedSegment {
    _segment: Arc<Segment>,
}

/// An array in memory that ranks of one host share. Made by World.shared().
///
/// All of these ranks may read and write the array at any moment. One is sure to see what another one wrote after both have passed
/// a barrier() in between, or while it holds the lock() that the other one held. While a call of this package uses the array's memory
/// (post(grid.array), retrieve_into(grid.array), allreduce(grid.array) and others), no other rank may write there, and none may read
/// what the call writes: keep them away by the barrier or the lock. The memory stays until the last array or view of it is gone at all
/// ranks, however the others end, and also after the world's end.
#[pyclass(frozen, module = "udeck")]
pub struct SharedArray {
    segment: Arc<Segment>,
    world: Arc<Handle>,
    /// The array, writeable, zeros at first.
    #[pyo3(get)]
    array: Py<PyAny>,
}

impl SharedArray {
    /// # Errors
    /// Those of the library's call, which waits for the other ranks; and numpy's.
    pub fn make(
        py: Python<'_>,
        world: &Arc<Handle>,
        name: &str,
        ranks: Option<Vec<usize>>,
        dtype: Bound<'_, PyAny>,
        (dims, len): (&[isize], usize),
    ) -> PyResult<Self> {
        let made = world.wait(py, |world| {
            let ranks = ranks.unwrap_or_else(|| world.host_ranks());
            world.shared_segment_of::<u8>(&ranks, name, len.max(1))
        })?;
        let segment = Arc::new(made);
        let data = segment.as_ptr();
        let owner = Bound::new(py, RetainedSegment { _segment: segment.clone() })?.into_any();
        // SAFETY: the segment has so many bytes, and the owner keeps it. Elements are numbers or bytes, which may have any value. Other
        // ranks write there, too. Calls of this package that take the array make a slice of its memory while they run; the class's
        // documentation obliges the program to keep other ranks from writing meanwhile, as the buffer protocol obliges it for threads.
        let array = unsafe { numpy::view(dtype, dims, data, true, owner) }?;
        Ok(SharedArray { segment, world: world.clone(), array: array.into_object().unbind() })
    }

    fn new_lock(&self, timeout: Timeout, recovers: bool) -> SharedLock {
        let limit = timeout.or(self.world.deadline);
        SharedLock { guard: Mutex::new(None), segment: self.segment.clone(), limit, recovers }
    }
}

#[pymethods]
impl SharedArray {
    /// The ranks that share the array, in ascending order.
    #[getter]
    fn ranks(&self) -> Vec<usize> {
        self.segment.ranks().to_vec()
    }

    /// The name that the array was made with.
    #[getter]
    fn name(&self) -> &str {
        self.segment.name()
    }

    /// Waits until all ranks that share the array have called it, at most the timeout. After it, each sees what all wrote before.
    ///
    /// Raises Deadline, which names the missing ranks: the next call goes on waiting at the same barrier. Raises PeerLost when one of
    /// them cannot come any more.
    #[pyo3(signature = (timeout=Timeout::USUAL), text_signature = "($self, timeout=None)")]
    fn barrier(&self, py: Python<'_>, timeout: Timeout) -> PyResult<()> {
        let limit = timeout.or(self.world.deadline);
        wait::detached(py, || self.segment.barrier_timeout(limit)).or_raise(py, None)
    }

    /// Returns the array's lock, for a `with` block: one thread of all ranks is in such a block at a time. The block waits for it, at
    /// most the timeout. An exception that leaves the block releases the lock as its end does.
    ///
    /// Entering raises Deadline, which names the rank that has the lock, and Abandoned if its last holder died: see recover().
    #[pyo3(signature = (timeout=Timeout::USUAL), text_signature = "($self, timeout=None)")]
    fn lock(&self, timeout: Timeout) -> SharedLock {
        self.new_lock(timeout, false)
    }

    /// Returns the lock as lock() does, also if its last holder died and may have left the array half written. `with
    /// grid.recover() as rank:` names that rank; None: nobody left it so. After the block the array counts as whole again, except if an
    /// exception leaves the block.
    fn recover(&self) -> SharedLock {
        self.new_lock(Timeout::USUAL, true)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let array = self.array.bind(py);
        let (shape, dtype) = (array.getattr(intern!(py, "shape"))?, array.getattr(intern!(py, "dtype"))?);
        Ok(format!(
            "SharedArray({:?}, {shape}, {dtype}, ranks {:?})",
            self.segment.name(),
            self.segment.ranks()
        ))
    }
}

/// The lock of a shared array, for one `with` block at a time. Made by SharedArray.lock() and SharedArray.recover().
#[pyclass(frozen, module = "udeck")]
pub struct SharedLock {
    /// The held lock. It borrows the segment, so it is dropped first.
    guard: Mutex<Option<SegmentLock<'static>>>,
    segment: Arc<Segment>,
    limit: std::time::Duration,
    recovers: bool,
}

#[pymethods]
impl SharedLock {
    fn __enter__(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        let taken = wait::detached(py, || match self.recovers {
            true => self.segment.recover(),
            false => self.segment.lock_timeout(self.limit),
        });
        let guard = taken.or_raise(py, None)?;
        let abandoned_by = guard.abandoned_by();
        // SAFETY: what the guard borrows lives in an `Arc` beside it, which is dropped after it.
        let guard: SegmentLock<'static> = unsafe { std::mem::transmute(guard) };
        *self.guard.lock() = Some(guard);
        Ok(abandoned_by)
    }

    #[pyo3(signature = (*raised))]
    fn __exit__(&self, py: Python<'_>, raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        let is_whole = raised.iter().all(|part| part.is_none());
        match self.guard.lock().take() {
            // The block has not repaired what a dead rank left.
            Some(guard) if !is_whole => {
                guard.release_unrepaired();
                Ok(())
            }
            Some(_guard) => Ok(()),
            None => Err(raise(py, "Closed", "the lock is not held".to_owned(), None, None)),
        }
    }
}
