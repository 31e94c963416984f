//! Arrays in registered memory: what `World.empty` gives, and how it becomes a message without a copy.
//!
//! Such an array is a view of another array, its *root*, whose base is a [`Memory`]. numpy makes each further view (a slice, a transpose)
//! a view of the root. So the root's references tell whether the array is the only one that uses the memory, and an array that is
//! not is not posted. Posting takes the buffer out of the `Memory`, and leaves the array without elements, in a class that says why.
//! What has got hold of the address by other ways (a `memoryview`, a tensor, `numpy.asarray`) is not seen: it can still write what has become a
//! message, as a program in C can. The memory stays mapped as long as the array lives.
#![allow(unsafe_code, reason = "arrays over message memory")]

use parking_lot::Mutex;
use pyo3::prelude::*;
use udeck::Buf;
use udeck::via::Nic;

use crate::content;
use crate::errors::raise;
use crate::numpy::{self, Array};
use crate::wire::{Head, PythonValues, bytes_mut};

pub type Buffer = Buf<PythonValues>;

/// Beside the elements: for the description of another shape than the first.
const ROOM: usize = 64;

/// The memory of an array, until it is posted.
#[pyclass(frozen, module = "udeck")]
pub struct Memory {
    buffer: Mutex<Option<Buffer>>,
    /// Bytes of the array's elements, at the beginning.
    len: usize,
    /// Keeps the memory mapped, also when the buffer has become a message: there may be pointers to it that nobody knows.
    _nic: Nic,
}

/// How many bytes the buffer for such an array has.
pub fn len_for(elements: usize, head: &Head<'_>) -> usize {
    elements + head.len().max(ROOM)
}

/// An array of all `elements` bytes at the beginning of the buffer.
pub fn array<'py>(
    mut buffer: Buffer,
    nic: Nic,
    dtype: &Bound<'py, PyAny>,
    dims: &[isize],
    elements: usize,
) -> PyResult<Array<'py>> {
    let py = dtype.py();
    let data = bytes_mut(&mut buffer).as_mut_ptr();
    let memory =
        Bound::new(py, Memory { buffer: Mutex::new(Some(buffer)), len: elements, _nic: nic })?.into_any();
    // SAFETY: the elements lie at the beginning of the buffer, which the memory keeps, and which nobody else uses: it is taken out by
    // posting only, and then this array and its only view have no elements.
    let root = unsafe { numpy::movable_view(dtype.clone(), dims, data, memory) }?;
    // SAFETY: as above; the view keeps the root.
    unsafe { numpy::movable_view(dtype.clone(), dims, data, root.into_object()) }
}

/// The memory that an array is all of, and its root.
pub struct Owned<'py> {
    memory: Bound<'py, Memory>,
    root: Array<'py>,
}

/// What is to be moved, if the array is one of `World.empty`, or a view of all of it.
#[inline]
pub fn owned<'py>(array: &Array<'py>, elements: usize) -> Option<Owned<'py>> {
    let root = array.base_array()?;
    let memory = root.base()?.cast_into::<Memory>().ok()?;
    let is_all = array.data() == root.data()
        && elements == memory.get().len
        && array.is_contiguous()
        && array.is_movable();
    is_all.then_some(Owned { memory, root })
}

impl Owned<'_> {
    /// Takes the buffer out, with the description of `array`. `None`: the description does not fit.
    ///
    /// # Errors
    /// Other arrays use the memory, or a call of another thread posts it.
    pub fn take(&self, head: &Head<'_>, mailbox: &str) -> PyResult<Option<Buffer>> {
        let py = self.memory.py();
        // One is the array's, the other one is held here.
        let views = self.root.references() - 2;
        if views > 0 {
            let text = format!(
                "{views} more array(s) are views of the memory that is to be posted to mailbox {mailbox:?}: delete them first, or post \
                 a copy (array.copy())"
            );
            return Err(raise(py, "ArrayInUse", text, None, Some(mailbox)));
        }
        let this = self.memory.get();
        let Some(mut taken) = this.buffer.try_lock().and_then(|mut buffer| buffer.take()) else {
            let text = "another thread is posting this array".to_owned();
            return Err(raise(py, "ArrayInUse", text, None, Some(mailbox)));
        };
        if taken.len() < this.len + head.len() {
            self.put_back(taken);
            return Ok(None);
        }
        head.write(bytes_mut(&mut taken), this.len);
        Ok(Some(taken))
    }

    /// It was not posted: the array has its memory again.
    pub fn put_back(&self, buffer: Buffer) {
        *self.memory.get().buffer.lock() = Some(buffer);
    }
}

/// The bytes of so many elements, and the text of their type.
pub fn measure<'py>(
    dtype: &Bound<'py, PyAny>,
    number: Option<u8>,
    dims: &[isize],
) -> PyResult<(usize, content::Text<'py>)> {
    let size = match number.and_then(numpy::size_of_number) {
        Some(size) => size,
        None => numpy::size_of(dtype)?,
    };
    let text = if number.is_some() { None } else { Some(content::describe(dtype)?) };
    let bytes = dims.iter().try_fold(size, |bytes, dim| bytes.checked_mul(*dim as usize));
    let bytes =
        bytes.ok_or_else(|| pyo3::exceptions::PyValueError::new_err("more elements than any memory has"))?;
    Ok((bytes, text))
}
