//! Received messages: an array in place, or an object.
#![allow(unsafe_code, reason = "arrays over message memory")]

use std::fmt;
use std::ptr::NonNull;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList};
use udeck::Received;

use crate::content::{self, helper};
use crate::errors::raise;
use crate::numpy::{self, UINT8};
use crate::wire::{self, Content, Malformed, PythonValues};

pub type Arrived = Received<PythonValues>;

/// Longest array in bytes that is copied: making an object that holds the message takes longer.
const SHORT: usize = 512;

/// A message of which arrays are views. It returns to its sender with the last of them.
#[pyclass(frozen, module = "udeck")]
pub struct RetainedMessage(Arrived);

/// A message with its source and tag. Made by Mailbox.retrieve_message() and Mailbox.try_retrieve().
#[pyclass(frozen, generic, module = "udeck", name = "Message")]
pub struct Message {
    /// The received value: a read-only array, or an object.
    #[pyo3(get)]
    value: Py<PyAny>,
    /// The rank that posted the message.
    #[pyo3(get)]
    source: usize,
    /// The tag that the sender gave the message: 0 to 2**32 - 1.
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
    pub fn new(arrived: Arrived, of: &Origin<'_>, py: Python<'_>) -> PyResult<Self> {
        let (source, tag) = (arrived.source(), arrived.tag());
        Ok(Message { value: value(py, arrived, of)?.unbind(), source, tag })
    }
}

/// The call that a message was received by.
pub enum Origin<'a> {
    /// A retrieve from a mailbox.
    Mailbox { name: &'a str, objects: Objects },
    /// A collective call.
    Call { name: &'a str, objects: Objects },
}

impl Origin<'_> {
    fn objects(&self) -> Objects {
        let (Origin::Mailbox { objects, .. } | Origin::Call { objects, .. }) = self;
        *objects
    }

    /// Name of the mailbox, if there is one.
    fn mailbox(&self) -> Option<&str> {
        match self {
            Origin::Mailbox { name, .. } => Some(name),
            Origin::Call { .. } => None,
        }
    }
}

impl fmt::Display for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Mailbox { name, .. } => write!(f, "mailbox {name:?}"),
            Origin::Call { name, .. } => write!(f, "the members of {name}"),
        }
    }
}

/// Treatment of pickled objects by a mailbox.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Objects {
    Refuse,
    /// Copies the buffers, which are then writeable.
    Copy,
    /// Passes the buffers as read-only views of the message.
    View,
}

impl Objects {
    /// # Errors
    /// `views` is set without `objects`.
    pub fn of(objects: bool, views: bool) -> PyResult<Self> {
        match (objects, views) {
            (true, true) => Ok(Objects::View),
            (true, false) => Ok(Objects::Copy),
            (false, false) => Ok(Objects::Refuse),
            (false, true) => Err(PyValueError::new_err(
                "views=True: objects=True is wanted, too (arrays that are posted as such are views already)",
            )),
        }
    }
}

/// Value of a message for the program.
///
/// # Errors
/// The message is an object, and the mailbox takes none; or its sender is not Python's.
#[inline]
pub fn value<'py>(py: Python<'py>, arrived: Arrived, of: &Origin<'_>) -> PyResult<Bound<'py, PyAny>> {
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
    // The bytes lie outside the message object, because they are many; this code does not depend on it.
    let held = Bound::new(py, RetainedMessage(arrived))?;
    let data = held.get().0.as_ptr().cast::<u8>().cast_mut();
    // SAFETY: the elements are the first bytes of the message, and were counted. The message is kept by the array, and stays where it
    // is, in an object. It is read only, as the memory is that it lies in.
    let view = unsafe { numpy::view(dtype, dims.as_slice(), data, false, held.into_any()) }?;
    Ok(view.into_object())
}

#[cold]
fn malformed(py: Python<'_>, arrived: &Arrived, of: &Origin<'_>, why: &Malformed) -> PyErr {
    let rank = arrived.source();
    let text = format!("rank {rank} posted a message to {of} that was not made by Python: {}", why.0);
    raise(py, "WrongType", text, Some(rank), of.mailbox())
}

/// Element type that came as a text. The text is read as data, a name or a list of fields; none of it is
/// executed.
#[cold]
fn named_dtype<'py>(
    py: Python<'py>,
    array: &wire::Array<'_>,
    arrived: &Arrived,
    of: &Origin<'_>,
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

#[cold]
fn refuse_object(py: Python<'_>, rank: usize, of: &Origin<'_>) -> PyErr {
    let advice = match of {
        Origin::Mailbox { name, .. } => format!("make it by world.mailbox({name:?}, objects=True)"),
        Origin::Call { .. } => "exchange objects by the calls whose names end in _object".to_owned(),
    };
    let takes = if of.mailbox().is_some() { "takes" } else { "take" };
    let text = format!(
        "rank {rank} posted a pickled object, and {of} {takes} arrays: {advice}, which runs what a pickle says"
    );
    raise(py, "WrongType", text, Some(rank), of.mailbox())
}

/// Unpickles the object of a message.
fn object<'py>(py: Python<'py>, arrived: Arrived, of: &Origin<'_>) -> PyResult<Bound<'py, PyAny>> {
    static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if of.objects() == Objects::Refuse {
        return Err(refuse_object(py, arrived.source(), of));
    }
    let held = Bound::new(py, RetainedMessage(arrived))?;
    let message = &held.get().0;
    let Ok(Content::Object { pickle, buffers }) = wire::read(wire::bytes(message)) else {
        return Err(malformed(py, message, of, &Malformed("it is no object")));
    };
    let view = |bytes: &[u8]| {
        let data = bytes.as_ptr().cast_mut();
        let dtype = numpy::dtype_of_number(py, UINT8)?;
        // SAFETY: a part of the message, which the array keeps where it is; read only.
        unsafe { numpy::view(dtype, &[bytes.len() as isize], data, false, held.clone().into_any()) }
    };
    let buffer = |bytes: &[u8]| match of.objects() {
        Objects::View => view(bytes),
        _ => content::copy_of(py, bytes),
    };
    let buffers: Vec<_> = buffers
        .into_iter()
        .map(|bytes| buffer(bytes).map(numpy::Array::into_object))
        .collect::<PyResult<_>>()?;
    let options = PyDict::new(py);
    options.set_item(intern!(py, "buffers"), PyList::new(py, buffers)?)?;
    let loads = LOADS.get_or_try_init(py, || py.import("pickle")?.getattr("loads").map(Bound::unbind))?;
    loads.bind(py).call((view(pickle)?.into_object(),), Some(&options))
}

/// The program's array into which a message is copied: the facts that are compared without the interpreter.
pub struct Room {
    data: NonNull<u8>,
    len: usize,
    /// Bytes of an element.
    size: usize,
    /// numpy's number of the element type, or the name of the type.
    kind: Kind,
}

// SAFETY: an address of an array that the caller keeps; `fill` says who may write there.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

#[derive(PartialEq)]
enum Kind {
    Number(u8),
    Text(String),
}

/// Why a message does not fit into an array, and the rank that posted it.
pub struct Misfit {
    rank: usize,
    why: Why,
}

enum Why {
    Malformed(Malformed),
    Object,
    Type(Kind),
    /// Bytes of the message's elements.
    Long(usize),
}

/// Maps types that are equal to one number: `long long` and `long` have 64 bits on all systems that µDECK
/// supports.
fn one_of_equals(number: u8) -> u8 {
    match number {
        9 => 7,
        10 => 8,
        number => number,
    }
}

impl Room {
    /// # Errors
    /// Elements of this type cannot be sent.
    pub fn of(array: &numpy::Array<'_>) -> PyResult<Self> {
        let kind = match array.type_number() {
            Some(number) => Kind::Number(one_of_equals(number)),
            None => Kind::Text(content::describe(&array.dtype())?.to_string()),
        };
        let data = NonNull::new(array.data()).unwrap_or(NonNull::dangling());
        Ok(Room { data, len: array.len_bytes()?, size: array.item_size()?.max(1), kind })
    }

    /// Whether copying into the array takes no longer than releasing the interpreter's lock.
    pub fn is_short(&self) -> bool {
        self.len < content::LONG
    }

    /// Copies a message's elements, and returns their number. The caller keeps the array. The array is writeable, has its
    /// elements in a row, and is not touched by the program meanwhile.
    ///
    /// # Errors
    /// The message does not fit into the array.
    pub fn fill(&self, message: &[u8], rank: usize) -> Result<usize, Misfit> {
        let refuse = |why| Err(Misfit { rank, why });
        let array = match wire::read(message) {
            Ok(Content::Array(array)) => array,
            Ok(Content::Object { .. }) => return refuse(Why::Object),
            Err(why) => return refuse(Why::Malformed(why)),
        };
        let kind = match array.type_number {
            wire::TEXT => Kind::Text(array.text.to_owned()),
            number => Kind::Number(one_of_equals(number)),
        };
        let needed = array.elements.len();
        if kind != self.kind {
            return refuse(Why::Type(kind));
        }
        if needed > self.len {
            return refuse(Why::Long(needed));
        }
        // SAFETY: the array has at least so many bytes in a row, and the program may write them.
        let room = unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), needed) };
        udeck_sys::copy_bytes(room, array.elements);
        Ok(needed / self.size)
    }
}

impl Misfit {
    #[cold]
    pub fn raise(&self, to: &numpy::Array<'_>, of: &Origin<'_>) -> PyErr {
        let py = to.object().py();
        let text = self.text(py, to).unwrap_or_else(|error| error.to_string());
        let class = if matches!(self.why, Why::Long(_)) { "TooSmall" } else { "WrongType" };
        let Misfit { rank, .. } = self;
        let text = format!("the message of rank {rank} in {of} {text}; it stays the next one");
        raise(py, class, text, Some(*rank), of.mailbox())
    }

    fn text(&self, py: Python<'_>, to: &numpy::Array<'_>) -> PyResult<String> {
        let size = to.item_size()?.max(1);
        Ok(match &self.why {
            Why::Malformed(why) => format!("was not made by Python: {}", why.0),
            Why::Object => "is a pickled object".to_owned(),
            Why::Type(Kind::Text(text)) => {
                format!("has elements of {text}, and the array is of {}", to.dtype())
            }
            Why::Type(Kind::Number(number)) => match numpy::size_of_number(*number) {
                Some(_) => {
                    let dtype = numpy::dtype_of_number(py, *number)?;
                    format!("has elements of {dtype}, and the array is of {}", to.dtype())
                }
                None => "has elements of a type that numpy does not have".to_owned(),
            },
            Why::Long(needed) => {
                format!("has {} elements, and the array {}", needed / size, to.len_bytes()? / size)
            }
        })
    }
}
