//! Contents of posts: arrays, objects with the buffer protocol, tensors by DLPack, pickled objects with their buffers; and how calls get them.
#![allow(unsafe_code, reason = "it reads arrays of the program's, and the interpreter calls it")]

use std::ffi::{CStr, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyMemoryView, PyString, PyTuple, PyType};
use pyo3::{ffi, intern};

use crate::numpy::{self, Array, UINT8};
use crate::wire::{Head, Layout, MAX_DIMS, PythonValues, TEXT, bytes_mut};

/// Memory of a message.
pub type Buffer = udeck::Buf<PythonValues>;

static HELPERS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Returns a function of `udeck/_helpers.py`: rare work that is shorter in Python.
pub fn helper<'py>(py: Python<'py>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
    let module = HELPERS.get_or_try_init(py, || py.import("udeck._helpers").map(Bound::unbind))?;
    module.bind(py).getattr(name)
}

/// Length in bytes from which an array is copied without the interpreter's lock.
pub const LONG: usize = 1 << 16;

/// Returns the array to be posted.
///
/// # Errors
/// `value` is not an array and offers no elements to view.
#[inline]
pub fn array<'py>(value: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    match Array::of(value) {
        Some(array) if array.is_plain() => Ok(array),
        Some(array) => subclass(array),
        None => other(value),
    }
}

/// Refuses an array that is more than its elements (a masked array, for example).
fn subclass(array: Array<'_>) -> PyResult<Array<'_>> {
    static MASKED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = array.object().py();
    if array.is_movable() {
        return Ok(array);
    }
    if array.object().is_instance(MASKED.import(py, "numpy.ma", "MaskedArray")?)? {
        helper(py, intern!(py, "refuse_masked"))?.call0()?;
    }
    Ok(array)
}

/// Whether numpy can make a view of `value`.
#[cold]
pub fn has_elements(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(Array::is_posted_object(value)
        || PyMemoryView::from(value).is_ok()
        || value.hasattr(intern!(value.py(), "__dlpack__"))?)
}

#[cold]
#[inline(never)]
fn other<'py>(value: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
    let py = value.py();
    if Array::is_posted_object(value) {
        return Err(numpy::already_posted_error(py));
    }
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
    Array::of(&viewed).ok_or_else(|| PyTypeError::new_err("numpy could not make an array of the value"))
}

/// numpy's name of an element type that has no number.
pub type Text<'py> = Option<Bound<'py, PyString>>;

/// Description of an element type without a number. `None`: the type has a number.
///
/// # Errors
/// The elements are objects or have no bytes, or the description would be that of another type.
#[inline]
pub fn text<'py>(array: &Array<'py>) -> PyResult<Text<'py>> {
    if array.type_number().is_some() { Ok(None) } else { describe(&array.dtype()).map(Some) }
}

#[cold]
pub fn describe<'py>(dtype: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    let py = dtype.py();
    Ok(helper(py, intern!(py, "describe"))?.call1((dtype,))?.cast_into()?)
}

/// The name by which members of a group compare a type that has no number.
///
/// # Errors
/// The elements are objects, or have no bytes.
#[cold]
pub fn name_of<'py>(dtype: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    let py = dtype.py();
    Ok(helper(py, intern!(py, "name_of"))?.call1((dtype,))?.cast_into()?)
}

/// Header that describes an array of this type in its message.
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

/// Builds the message of a copy of an array, in memory from `allocate`.
///
/// # Errors
/// The elements are of a type that cannot be sent, or `allocate` fails.
pub fn array_message(
    array: &Array<'_>,
    allocate: impl FnOnce(usize) -> PyResult<Buffer>,
) -> PyResult<Buffer> {
    let (elements, text) = (array.len_bytes()?, text(array)?);
    let text = text.as_ref().map(|text| text.to_cow()).transpose()?;
    let head = head(array.type_number(), text.as_deref(), array.dims())?;
    let mut buffer = allocate(elements + head.len())?;
    let message = bytes_mut(&mut buffer);
    copy_elements(array, &mut message[..elements])?;
    head.write(message, elements);
    Ok(buffer)
}

/// Builds the message of a pickled object, in memory from `allocate`.
///
/// # Errors
/// `value` cannot be pickled, or `allocate` fails.
pub fn object_message(
    value: &Bound<'_, PyAny>,
    allocate: impl FnOnce(usize) -> PyResult<Buffer>,
) -> PyResult<Buffer> {
    pickle(value)?.message(value.py(), allocate)
}

/// Copies an array's elements, in C order, to `to`, which has the same length in bytes.
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

/// Returns a new, writeable array that holds a copy of these bytes.
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
/// `to.len()` bytes are readable at `from`, and do not overlap with `to`.
unsafe fn copy_in(to: &mut [u8], from: Address) {
    let Some(from) = NonNull::new(from.0) else { return };
    // SAFETY: our contract.
    unsafe { udeck_sys::copy_in(to, from) };
}

/// Copies a strided array by numpy, into an array over the message's memory.
fn copy_strided(array: &Array<'_>, to: &mut [u8]) -> PyResult<()> {
    let py = array.object().py();
    // SAFETY: `to` has the bytes of an array of this type and shape, and outlives this array: nobody else has it, and it is dropped here.
    let target =
        unsafe { numpy::view(array.dtype(), array.dims(), to.as_mut_ptr(), true, py.None().into_bound(py)) }?;
    target.copy_from(array)
}

/// A pickled object, and the buffers that are sent beside the pickle.
pub struct Pickled {
    pickle: Py<PyBytes>,
    buffers: Vec<Py<PyAny>>,
}

/// Pickles an object by protocol 5: its long buffers are not copied into the pickle.
///
/// # Errors
/// `value` cannot be pickled.
pub fn pickle(value: &Bound<'_, PyAny>) -> PyResult<Pickled> {
    static DUMPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = value.py();
    let dumps = DUMPS.get_or_try_init(py, || py.import("pickle")?.getattr("dumps").map(Bound::unbind))?;
    let (buffers, options) = (PyList::empty(py), PyDict::new(py));
    options.set_item(intern!(py, "protocol"), 5)?;
    options.set_item(intern!(py, "buffer_callback"), buffers.getattr(intern!(py, "append"))?)?;
    let pickle = dumps.bind(py).call((value,), Some(&options))?.cast_into()?.unbind();
    let raw = |buffer: Bound<'_, PyAny>| buffer.call_method0(intern!(py, "raw")).map(Bound::unbind);
    Ok(Pickled { pickle, buffers: buffers.iter().map(raw).collect::<PyResult<_>>()? })
}

impl Pickled {
    /// Builds the message, in memory from `allocate`: the pickle, the buffers and the description.
    ///
    /// # Errors
    /// `allocate` fails, or there are too many buffers.
    pub fn message<E: From<PyErr>>(
        &self,
        py: Python<'_>,
        allocate: impl FnOnce(usize) -> Result<Buffer, E>,
    ) -> Result<Buffer, E> {
        let pickle = self.pickle.as_bytes(py);
        let arrays: Vec<Array<'_>> =
            self.buffers.iter().map(|buffer| array(buffer.bind(py))).collect::<PyResult<_>>()?;
        let lengths: Vec<usize> = arrays.iter().map(Array::len_bytes).collect::<PyResult<_>>()?;
        let layout = Layout::new(pickle.len(), lengths.into_iter());
        let mut buffer = allocate(layout.len)?;
        let message = bytes_mut(&mut buffer);
        message[..pickle.len()].copy_from_slice(pickle);
        for (array, (offset, length)) in arrays.iter().zip(&layout.buffers) {
            copy_elements(array, &mut message[*offset..offset + length])?;
        }
        layout
            .write(message)
            .map_err(|why| PyValueError::new_err(format!("the object cannot be sent: {}", why.0)))?;
        Ok(buffer)
    }
}

/// `METH_FASTCALL | METH_KEYWORDS`: in all versions from 3.7 on, and in the stable ABI from 3.10 on.
const FLAGS: c_int = 0x80 | 0x02;

/// A method that gets its arguments as the interpreter holds them, without a tuple of their own. PyO3 supports this for version
/// 3.10 and later.
///
/// In some calls a tuple would be one more reference to each argument (`post(array)`), in others the only one
/// (`post(*arguments)`): the references to an array could not be told apart. Without a tuple, each argument has the reference of
/// the object from which it was taken.
pub trait Method {
    const NAME: &CStr;
    /// Docstring: the signature after the name, a line `--`, an empty line, and the text for users.
    const DOC: &CStr;
    /// Names of the arguments.
    const ARGUMENTS: &[&str];

    fn call<'py>(this: &Bound<'py, PyAny>, arguments: &Arguments<'_, 'py>) -> PyResult<Bound<'py, PyAny>>;
}

/// Largest number of arguments of a method in this module.
const MOST: usize = 3;

/// Values given to a method, in the order of its arguments.
pub type Arguments<'a, 'py> = [Option<Borrowed<'a, 'py, PyAny>>; MOST];

type Function = unsafe extern "C" fn(
    *mut ffi::PyObject,
    *const *mut ffi::PyObject,
    isize,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// Adds a method to a class of this module.
///
/// # Errors
/// The interpreter has no memory.
pub fn add_method<M: Method>(class: &Bound<'_, PyType>) -> PyResult<()> {
    // SAFETY: the flags say which kind of function it is.
    let function = unsafe { std::mem::transmute::<Function, ffi::PyCFunction>(enter::<M>) };
    // The class lives as long as the process.
    let method = Box::leak(Box::new(ffi::PyMethodDef {
        ml_name: M::NAME.as_ptr(),
        ml_meth: ffi::PyMethodDefPointer { PyCFunction: function },
        ml_flags: FLAGS,
        ml_doc: M::DOC.as_ptr(),
    }));
    let py = class.py();
    // SAFETY: the class is a type, and the definition stays.
    let method =
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyDescr_NewMethod(class.as_type_ptr(), method)) }?;
    class.setattr(M::NAME.to_string_lossy(), method)
}

/// The function that the interpreter calls.
///
/// # Safety
/// Same as for [`call`].
unsafe extern "C" fn enter<M: Method>(
    this: *mut ffi::PyObject,
    given: *const *mut ffi::PyObject,
    count: isize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    let entered = || {
        // SAFETY: our contract.
        Python::attach(|py| match unsafe { call::<M>(py, this, given, count, names) } {
            Ok(value) => value.into_ptr(),
            Err(error) => {
                error.restore(py);
                std::ptr::null_mut()
            }
        })
    };
    catch_unwind(AssertUnwindSafe(entered)).unwrap_or_else(|_| {
        // SAFETY: the interpreter has called, attached; the text is a C string.
        unsafe {
            ffi::PyErr_SetString(
                ffi::PyExc_SystemError,
                c"udeck panicked: the reason is on standard error".as_ptr(),
            )
        };
        std::ptr::null_mut()
    })
}

/// # Safety
/// The interpreter gives an object of the class, as many arguments as it says and has names for, and a tuple of names or NULL. All of them stay
/// during the call.
#[inline]
unsafe fn call<'py, M: Method>(
    py: Python<'py>,
    this: *mut ffi::PyObject,
    given: *const *mut ffi::PyObject,
    count: isize,
    names: *mut ffi::PyObject,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: our contract.
    let (this, names) = unsafe { (Bound::from_borrowed_ptr(py, this), Borrowed::from_ptr_or_opt(py, names)) };
    let names = names.map(|names| names.cast::<PyTuple>()).transpose()?;
    let mut arguments: Arguments<'_, '_> = [None; MOST];
    for at in 0..count as usize + names.as_ref().map_or(0, |names| names.len()) {
        // SAFETY: our contract.
        let argument = unsafe { Borrowed::from_ptr(py, *given.add(at)) };
        let place = match at.checked_sub(count as usize) {
            None if at < M::ARGUMENTS.len() => at,
            None => {
                return Err(refuse_call::<M>(&format!(
                    "takes up to {} arguments, and was given {count}",
                    M::ARGUMENTS.len()
                )));
            }
            Some(at) => place_of::<M>(names.as_ref().and_then(|names| names.get_item(at).ok()))?,
        };
        if arguments[place].replace(argument).is_some() {
            let name = M::ARGUMENTS[place];
            return Err(refuse_call::<M>(&format!("got multiple values for argument '{name}'")));
        }
    }
    M::call(&this, &arguments)
}

#[cold]
fn refuse_call<M: Method>(why: &str) -> PyErr {
    PyTypeError::new_err(format!("{}() {why}", M::NAME.to_string_lossy()))
}

fn place_of<M: Method>(name: Option<Bound<'_, PyAny>>) -> PyResult<usize> {
    let known =
        |name: &Bound<'_, PyAny>| M::ARGUMENTS.iter().position(|known| name.eq(known).unwrap_or(false));
    name.as_ref().and_then(known).ok_or_else(|| {
        let name = name.map_or_else(String::new, |name| name.to_string());
        refuse_call::<M>(&format!("got an unexpected keyword argument '{name}'"))
    })
}

/// Returns the first argument, which is required.
///
/// # Errors
/// The argument is missing.
pub fn first_argument<'b, 'a, 'py, M: Method>(
    arguments: &'b Arguments<'a, 'py>,
) -> PyResult<&'b Borrowed<'a, 'py, PyAny>> {
    let missing =
        || refuse_call::<M>(&format!("missing 1 required positional argument: '{}'", M::ARGUMENTS[0]));
    arguments[0].as_ref().ok_or_else(missing)
}
