//! Arrays in registered memory: what `World.empty` gives, and how it becomes a message without a copy.
//!
//! Such an array is a view of another array, its *root*, whose base is a [`Memory`]. numpy makes each further view of the same
//! class (a slice, a transpose) a view of the root. The root's reference count therefore tells whether the array is the only one
//! of its class that uses the memory. An array that shares its memory with another one is not posted.
//!
//! Anything else that can write the memory holds a reference to the array: a view of another class (`numpy.asarray`), a buffer,
//! an iterator, a tensor, a call in another thread. The memory therefore moves only if the call itself and one variable explain
//! all references to the array (`references`); otherwise the message is a copy. An operation that gives the address out as a
//! number marks the memory as exposed: from then on the array is copied. In both cases the array is left without elements, in a
//! class whose error says why, before the interpreter's lock is released.
#![allow(unsafe_code, reason = "arrays over message memory")]

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::prelude::*;
use udeck::via::Nic;

use crate::content::{self, Buffer};
use crate::errors::raise;
use crate::numpy::{self, Array, Before};
use crate::references::KnownReferences;
use crate::wire::{Head, bytes_mut};

/// Bytes beside the elements, for the description of another shape than the first.
const ROOM: usize = 64;

/// The memory of an array, until it is posted.
#[pyclass(frozen, module = "udeck")]
pub struct Memory {
    buffer: Mutex<Option<Buffer>>,
    /// Bytes of the array's elements, at the beginning.
    len: usize,
    /// Whether addresses of the memory were given out that hold no reference.
    exposed: AtomicBool,
    /// Keeps the memory mapped, even while the buffer travels as a message that may come back.
    _nic: Nic,
}

/// Notes that the address of an array's elements is given out.
#[pyfunction]
pub fn expose(array: &Bound<'_, PyAny>) {
    let mut base = Some(array.clone());
    while let Some(array) = base.as_ref().and_then(Array::of) {
        base = array.base();
    }
    if let Some(memory) = base.as_ref().and_then(|base| base.cast::<Memory>().ok()) {
        memory.get().exposed.store(true, Ordering::Relaxed);
    }
}

/// Length in bytes of the buffer for an array with `elements` bytes of elements.
pub fn len_for(elements: usize, head: &Head<'_>) -> usize {
    elements + head.len().max(ROOM)
}

/// An array over the first `elements` bytes of the buffer.
pub fn array<'py>(
    mut buffer: Buffer,
    nic: Nic,
    dtype: &Bound<'py, PyAny>,
    dims: &[isize],
    elements: usize,
) -> PyResult<Array<'py>> {
    let py = dtype.py();
    let data = bytes_mut(&mut buffer).as_mut_ptr();
    let memory = Memory {
        buffer: Mutex::new(Some(buffer)),
        len: elements,
        exposed: AtomicBool::new(false),
        _nic: nic,
    };
    let memory = Bound::new(py, memory)?.into_any();
    // SAFETY: the elements lie at the beginning of the buffer, which the memory keeps, and which nobody else uses: it is taken out by
    // posting only, and then this array and its only view have no elements.
    let root = unsafe { numpy::movable_view(dtype.clone(), dims, data, memory) }?;
    // SAFETY: as above; the view keeps the root.
    unsafe { numpy::movable_view(dtype.clone(), dims, data, root.into_object()) }
}

/// The memory that an array covers completely, and the root of that array.
pub struct MovableMemory<'py> {
    memory: Bound<'py, Memory>,
    root: Array<'py>,
}

/// Memory that is posted with the array, if the array is from `World.empty` or is a view of all of it.
#[inline]
pub fn movable_memory<'py>(array: &Array<'py>, elements: usize) -> Option<MovableMemory<'py>> {
    let root = array.base_array()?;
    let memory = root.base()?.cast_into::<Memory>().ok()?;
    let is_all = array.data() == root.data()
        && elements == memory.get().len
        && array.is_contiguous()
        && array.is_movable();
    is_all.then_some(MovableMemory { memory, root })
}

impl<'py> MovableMemory<'py> {
    /// Number of other arrays of this class that use the memory.
    fn views(&self) -> isize {
        // One reference belongs to the array; this object holds the other.
        self.root.references() - 2
    }

    /// # Errors
    /// Other arrays of this class use the memory.
    pub fn check_views(&self, mailbox: &str) -> PyResult<()> {
        let views = self.views();
        if views <= 0 {
            return Ok(());
        }
        let text = format!(
            "{views} more array(s) are views of the memory that is to be posted to mailbox {mailbox:?}: delete them first, or post a copy \
             (array.copy())"
        );
        Err(raise(self.memory.py(), "ArrayInUse", text, None, Some(mailbox)))
    }

    /// Takes the buffer out, with the description of `array`. `None`: the description does not fit, or other code may know the
    /// address.
    pub fn take(&self, array: &Array<'_>, known: KnownReferences, head: &Head<'_>) -> Option<Buffer> {
        let this = self.memory.get();
        if !known.all(array) || self.views() > 0 || this.exposed.load(Ordering::Relaxed) {
            return None;
        }
        let mut taken = this.buffer.lock();
        let buffer = taken.as_mut().filter(|buffer| buffer.len() >= this.len + head.len())?;
        head.write(bytes_mut(buffer), this.len);
        taken.take()
    }

    /// Marks the array as posted. `moved`: its buffer was taken.
    pub fn posted(&self, array: Array<'py>, moved: bool) -> Posted<'py> {
        let before = array.mark_posted();
        Posted { array, before, memory: self.memory.clone(), moved }
    }
}

/// An array of `World.empty` during its post, marked as posted.
pub struct Posted<'py> {
    array: Array<'py>,
    before: Before,
    memory: Bound<'py, Memory>,
    /// Whether the array's buffer is the message.
    moved: bool,
}

impl Posted<'_> {
    /// Ends the post: the array no longer belongs to the program.
    pub fn done(self) {
        if self.moved {
            self.array.forget_base();
        }
    }

    /// Restores the array, which was not posted.
    pub fn undo(self, buffer: Buffer) {
        if self.moved {
            *self.memory.get().buffer.lock() = Some(buffer);
        }
        self.array.unmark_posted(self.before);
    }
}

/// Bytes of the elements, and the text of their type.
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
