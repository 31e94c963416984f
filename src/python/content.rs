//! What is posted: arrays, whatever has the buffer protocol, tensors by DLPack, and objects with their buffers.
#![allow(unsafe_code, reason = "it reads arrays of the program's")]

use std::ptr::NonNull;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyMemoryView, PyString, PyType};

use crate::numpy::{self, Array, UINT8};
use crate::wire::{Head, Layout, MAX_DIMS, TEXT};

static HELPERS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// `udeck/_helpers.py`: what is quicker said in Python, and seldom done.
pub fn helper<'py>(py: Python<'py>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
    let module = HELPERS.get_or_try_init(py, || py.import("udeck._helpers").map(Bound::unbind))?;
    module.bind(py).getattr(name)
}

/// From which length on an array is copied without the interpreter's lock.
pub const LONG: usize = 1 << 16;

/// What is to be posted, as an array.
///
/// # Errors
/// It is none, and has none to look at.
#[inline]
pub fn array<'py>(value: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    match Array::of(value) {
        Some(array) if array.is_plain() => Ok(array),
        Some(array) => subclass(array),
        None => other(value),
    }
}

/// Refuses an array that is more than its elements.
fn subclass(array: Array<'_>) -> PyResult<Array<'_>> {
    static MASKED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = array.object().py();
    if array.is_movable() {
        return Ok(array);
    }
    if array.is_posted() {
        return Err(posted(py));
    }
    if array.object().is_instance(MASKED.import(py, "numpy.ma", "MaskedArray")?)? {
        helper(py, intern!(py, "refuse_masked"))?.call0()?;
    }
    Ok(array)
}

#[cold]
fn posted(py: Python<'_>) -> PyErr {
    let refuse = || helper(py, intern!(py, "refuse_posted"))?.call0();
    refuse().map_or_else(|error| error, |_| PyTypeError::new_err("the array was posted"))
}

/// Whether it is something of which numpy makes a view.
#[cold]
pub fn has_elements(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(PyMemoryView::from(value).is_ok() || value.hasattr(intern!(value.py(), "__dlpack__"))?)
}

#[cold]
#[inline(never)]
fn other<'py>(value: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    let py = value.py();
    let viewed = if let Ok(memory) = PyMemoryView::from(value) {
        helper(py, intern!(py, "from_buffer"))?.call1((memory,))?
    } else if value.hasattr(intern!(py, "__dlpack__"))? {
        helper(py, intern!(py, "from_dlpack"))?.call1((value,))?
    } else {
        return Err(PyTypeError::new_err(format!(
            "{} is no array, and has neither the buffer protocol nor DLPack: post_object() posts any object that can be pickled",
            value.get_type().name()?
        )));
    };
    Array::of(&viewed).ok_or_else(|| PyTypeError::new_err("numpy made no array of it"))
}

/// What numpy calls a type that has no number.
pub type Text<'py> = Option<Bound<'py, PyString>>;

/// The description of a type without a number. `None`: it has one.
///
/// # Errors
/// Its elements are objects or have no bytes, or the description would be that of another type.
#[inline]
pub fn text<'py>(array: &Array<'py>) -> PyResult<Text<'py>> {
    if array.type_number().is_some() { Ok(None) } else { describe(&array.dtype()).map(Some) }
}

#[cold]
pub fn describe<'py>(dtype: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    let py = dtype.py();
    Ok(helper(py, intern!(py, "describe"))?.call1((dtype,))?.cast_into()?)
}

/// What members of a group compare of a type that has no number.
///
/// # Errors
/// Its elements are objects, or have no bytes.
#[cold]
pub fn name_of<'py>(dtype: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    let py = dtype.py();
    Ok(helper(py, intern!(py, "name_of"))?.call1((dtype,))?.cast_into()?)
}

/// How an array of this type is described on its way.
#[inline]
pub fn head<'a>(number: Option<u8>, text: Option<&'a str>, dims: &'a [isize]) -> PyResult<Head<'a>> {
    if dims.len() > MAX_DIMS {
        return Err(PyValueError::new_err(format!(
            "an array of {} dimensions: at most {MAX_DIMS} are sent",
            dims.len()
        )));
    }
    Ok(Head { type_number: number.unwrap_or(TEXT), text: text.unwrap_or(""), dims })
}

/// Copies an array's elements, in C order, to `to`, which has as many bytes.
pub fn copy_elements(array: &Array<'_>, to: &mut [u8]) -> PyResult<()> {
    if to.is_empty() {
        return Ok(());
    }
    if !array.is_contiguous() {
        return copy_strided(array, to);
    }
    let from = Address(array.data());
    let len = to.len();
    let mut copy = || {
        // SAFETY: the array has so many bytes in a row, and the caller holds a reference to it. Another thread of the program may
        // write them meanwhile, as with any call of numpy's; the copy is one that allows that.
        unsafe { copy_in(to, from) };
    };
    if len < LONG {
        copy()
    } else {
        array.object().py().detach(copy)
    }
    Ok(())
}

/// A new array of these bytes, which can be written.
pub fn copy_of<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Array<'py>> {
    let made = numpy::new(numpy::dtype_of_number(py, UINT8)?, &[bytes.len() as isize])?;
    let Some(data) = NonNull::new(made.data()).filter(|_| !bytes.is_empty()) else { return Ok(made) };
    // SAFETY: the new array has as many bytes, and nobody else has seen it.
    let room = unsafe { std::slice::from_raw_parts_mut(data.as_ptr(), bytes.len()) };
    let mut copy = || udeck_sys::copy_bytes(room, bytes);
    if bytes.len() < LONG {
        copy()
    } else {
        py.detach(copy)
    }
    Ok(made)
}

/// Elements of an array that are read without the interpreter's lock.
#[derive(Clone, Copy)]
struct Address(*mut u8);

// SAFETY: an address; what may be done there is said where it is done.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// # Safety
/// So many bytes are readable there, and are not `to`.
unsafe fn copy_in(to: &mut [u8], from: Address) {
    let Some(from) = NonNull::new(from.0) else { return };
    // SAFETY: our contract.
    unsafe { udeck_sys::copy_in(to, from) };
}

/// By numpy, into an array of the message's memory.
fn copy_strided(array: &Array<'_>, to: &mut [u8]) -> PyResult<()> {
    let py = array.object().py();
    // SAFETY: `to` has the bytes of an array of this type and shape, and outlives this array: nobody else has it, and it is dropped here.
    let target =
        unsafe { numpy::view(array.dtype(), array.dims(), to.as_mut_ptr(), true, py.None().into_bound(py)) }?;
    target.copy_from(array)
}

/// A pickled object, and the buffers that are sent beside it.
pub struct Pickled<'py> {
    pickle: Bound<'py, PyBytes>,
    buffers: Vec<Array<'py>>,
}

/// Pickles an object by protocol 5: its long buffers are not copied into the pickle.
pub fn pickle<'py>(value: &Bound<'py, PyAny>) -> PyResult<Pickled<'py>> {
    static DUMPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = value.py();
    let dumps = DUMPS.get_or_try_init(py, || py.import("pickle")?.getattr("dumps").map(Bound::unbind))?;
    let (buffers, options) = (PyList::empty(py), PyDict::new(py));
    options.set_item(intern!(py, "protocol"), 5)?;
    options.set_item(intern!(py, "buffer_callback"), buffers.getattr(intern!(py, "append"))?)?;
    let pickle = dumps.bind(py).call((value,), Some(&options))?.cast_into()?;
    let buffers = buffers
        .iter()
        .map(|buffer| array(&buffer.call_method0(intern!(py, "raw"))?))
        .collect::<PyResult<_>>()?;
    Ok(Pickled { pickle, buffers })
}

impl Pickled<'_> {
    pub fn layout(&self) -> PyResult<Layout> {
        let lengths: Vec<usize> = self.buffers.iter().map(Array::len_bytes).collect::<PyResult<_>>()?;
        Ok(Layout::new(self.pickle.as_bytes().len(), lengths.into_iter()))
    }

    /// Writes all of it.
    pub fn write(&self, layout: &Layout, message: &mut [u8]) -> PyResult<()> {
        let pickle = self.pickle.as_bytes();
        message[..pickle.len()].copy_from_slice(pickle);
        for (array, (offset, length)) in self.buffers.iter().zip(&layout.buffers) {
            copy_elements(array, &mut message[*offset..offset + length])?;
        }
        layout
            .write(message)
            .map_err(|why| PyValueError::new_err(format!("the object cannot be sent: {}", why.0)))
    }
}
