//! What was received: an array where it lies, or an object.
#![allow(unsafe_code, reason = "arrays over message memory")]

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList};
use udeck::Received;

use crate::content::helper;
use crate::errors::raise;
use crate::numpy::{self, UINT8};
use crate::wire::{self, Content, Malformed, PythonValues};

pub type Arrived = Received<PythonValues>;

/// So short an array is copied: making an object that keeps the message takes longer.
const SHORT: usize = 512;

/// A message that arrays are views of. It goes back to its sender with the last of them.
#[pyclass(frozen, module = "udeck")]
pub struct Held(Arrived);

/// A message with its source and tag. Made by Mailbox.retrieve_message() and Mailbox.try_retrieve().
#[pyclass(frozen, generic, module = "udeck", name = "Message")]
pub struct Message {
    /// What was posted: a read-only array, or an object.
    #[pyo3(get)]
    value: Py<PyAny>,
    /// The rank that has posted it.
    #[pyo3(get)]
    source: usize,
    /// What its sender has marked it with: 0 to 2**32 - 1.
    #[pyo3(get)]
    tag: u32,
}

#[pymethods]
impl Message {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let value = self.value.bind(py).repr()?;
        Ok(format!("Message(source={}, tag={}, value={value})", self.source, self.tag))
    }
}

impl Message {
    pub fn new(arrived: Arrived, of: &Mailbox<'_>, py: Python<'_>) -> PyResult<Self> {
        let (source, tag) = (arrived.source(), arrived.tag());
        Ok(Message { value: value(py, arrived, of)?.unbind(), source, tag })
    }
}

/// The mailbox that a message was retrieved from.
pub struct Mailbox<'a> {
    pub name: &'a str,
    /// Whether it takes pickled objects.
    pub objects: bool,
}

/// What the message is to the program.
///
/// # Errors
/// It is an object, and the mailbox takes none; or it is none of Python's.
#[inline]
pub fn value<'py>(py: Python<'py>, arrived: Arrived, of: &Mailbox<'_>) -> PyResult<Bound<'py, PyAny>> {
    let bytes = wire::bytes(&arrived);
    let content = wire::read(bytes).map_err(|why| malformed(py, &arrived, of, &why))?;
    let array = match content {
        Content::Array(array) => array,
        Content::Object { .. } => return object(py, arrived, of),
    };
    let (dtype, size) = match numpy::size_of_number(array.type_number) {
        Some(size) => (numpy::dtype_of_number(py, array.type_number)?, size),
        None => named_dtype(py, &array, &arrived, of)?,
    };
    let dims = array.dims(size).map_err(|why| malformed(py, &arrived, of, &why))?;
    if array.elements.len() <= SHORT {
        let made = numpy::new(dtype, dims.as_slice())?;
        // SAFETY: the new array has as many bytes as there are elements, and nobody else has seen it.
        unsafe { std::ptr::copy_nonoverlapping(array.elements.as_ptr(), made.data(), array.elements.len()) };
        made.make_read_only();
        return Ok(made.into_object());
    }
    // The bytes lie elsewhere than in the message itself, because they are many; but this does not depend on it.
    let held = Bound::new(py, Held(arrived))?;
    let data = held.get().0.as_ptr().cast::<u8>().cast_mut();
    // SAFETY: the elements are the first bytes of the message, and were counted. The message is kept by the array, and stays where it
    // is, in an object. It is read only, as the memory is that it lies in.
    let view = unsafe { numpy::view(dtype, dims.as_slice(), data, false, held.into_any()) }?;
    Ok(view.into_object())
}

#[cold]
fn malformed(py: Python<'_>, arrived: &Arrived, of: &Mailbox<'_>, why: &Malformed) -> PyErr {
    let rank = arrived.source();
    let text =
        format!("rank {rank} posted what is no message of Python's to mailbox {:?}: {}", of.name, why.0);
    raise(py, "WrongType", text, Some(rank), Some(of.name))
}

/// A type that came as a text. It is read as data: a name, or a list of fields; nothing of it is run.
#[cold]
fn named_dtype<'py>(
    py: Python<'py>,
    array: &wire::Array<'_>,
    arrived: &Arrived,
    of: &Mailbox<'_>,
) -> PyResult<(Bound<'py, PyAny>, usize)> {
    if array.type_number != wire::TEXT {
        return Err(malformed(py, arrived, of, &Malformed("numpy has no type of that number")));
    }
    let dtype = helper(py, intern!(py, "dtype_of"))?.call1((array.text,));
    let dtype =
        dtype.map_err(|_| malformed(py, arrived, of, &Malformed("numpy has no type of that name")))?;
    let size = numpy::size_of(&dtype)?;
    Ok((dtype, size))
}

/// Unpickles it, where its buffers lie.
fn object<'py>(py: Python<'py>, arrived: Arrived, of: &Mailbox<'_>) -> PyResult<Bound<'py, PyAny>> {
    static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if !of.objects {
        let rank = arrived.source();
        let text = format!(
            "rank {rank} posted a pickled object, and mailbox {:?} takes arrays: make it by world.mailbox({0:?}, objects=True), which \
             runs what a pickle says",
            of.name
        );
        return Err(raise(py, "WrongType", text, Some(rank), Some(of.name)));
    }
    let held = Bound::new(py, Held(arrived))?;
    let message = &held.get().0;
    let Ok(Content::Object { pickle, buffers }) = wire::read(wire::bytes(message)) else {
        return Err(malformed(py, message, of, &Malformed("it is no object")));
    };
    let part = |bytes: &[u8]| {
        let data = bytes.as_ptr().cast_mut();
        let dtype = numpy::dtype_of_number(py, UINT8)?;
        // SAFETY: a part of the message, which the array keeps where it is; read only.
        let view =
            unsafe { numpy::view(dtype, &[bytes.len() as isize], data, false, held.clone().into_any()) }?;
        PyResult::Ok(view.into_object())
    };
    let parts: Vec<_> = buffers.into_iter().map(part).collect::<PyResult<_>>()?;
    let options = PyDict::new(py);
    options.set_item(intern!(py, "buffers"), PyList::new(py, parts)?)?;
    let loads = LOADS.get_or_try_init(py, || py.import("pickle")?.getattr("loads").map(Bound::unbind))?;
    loads.bind(py).call((part(pickle)?,), Some(&options))
}

/// Copies an array that came into one of the program's. The number of its elements.
///
/// # Errors
/// It is of another type, or too long: it can be tried again.
pub fn copy_into(
    py: Python<'_>,
    arrived: &Arrived,
    to: &numpy::Array<'_>,
    of: &Mailbox<'_>,
) -> PyResult<usize> {
    let refused = |why: String, class: &str| {
        let rank = arrived.source();
        let text =
            format!("the message of rank {rank} in mailbox {:?} {why}; it stays the next one", of.name);
        Err(raise(py, class, text, Some(rank), Some(of.name)))
    };
    let array = match wire::read(wire::bytes(arrived)).map_err(|why| malformed(py, arrived, of, &why))? {
        Content::Array(array) => array,
        Content::Object { .. } => return refused("is a pickled object".into(), "WrongType"),
    };
    let (dtype, size) = match numpy::size_of_number(array.type_number) {
        Some(size) if to.type_number() == Some(array.type_number) => (None, size),
        Some(size) => (Some(numpy::dtype_of_number(py, array.type_number)?), size),
        None => named_dtype(py, &array, arrived, of).map(|(dtype, size)| (Some(dtype), size))?,
    };
    if let Some(dtype) = dtype
        && !dtype.eq(to.dtype())?
    {
        return refused(format!("has elements of {dtype}, and the array is of {}", to.dtype()), "WrongType");
    }
    let (have, needed) = (to.len_bytes()?, array.elements.len());
    if needed > have {
        let why = format!("has {} elements, and the array {}", needed / size.max(1), have / size.max(1));
        return refused(why, "TooSmall");
    }
    // SAFETY: the array has at least so many bytes in a row (its caller has looked), and the program may write them.
    let room = unsafe { std::slice::from_raw_parts_mut(to.data(), needed) };
    udeck_sys::copy_bytes(room, array.elements);
    Ok(needed / size.max(1))
}
