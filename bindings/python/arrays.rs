//! Arrays of collective calls: checks before a call, and their memory, which calls use without the interpreter's lock.
#![allow(unsafe_code, reason = "collective calls on the program's arrays")]

use std::ptr::NonNull;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyComplex, PyFloat, PyInt, PyList, PyTuple, PyType};
use udeck::Pod;
use udeck::op::{ByType, WithElements};

use crate::arguments;
use crate::content::{self, helper};
use crate::numpy::{self, Array};
use crate::reduction::element;

/// Memory of an array. The caller keeps the array alive.
#[derive(Clone, Copy)]
pub struct Bytes {
    pub data: *mut u8,
    pub len: usize,
}

// SAFETY: an address and a length; what may be done there is said where it is done.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// Address of the first element. numpy calls arrays without elements aligned wherever they lie; here they lie nowhere.
    pub fn start<T>(self) -> *mut T {
        if self.len == 0 { NonNull::dangling().as_ptr() } else { self.data.cast() }
    }

    /// # Safety
    /// The array lives, nobody else writes it meanwhile, and its elements are numbers of this width.
    pub unsafe fn read<'a, T: Pod>(self) -> &'a [T] {
        // SAFETY: our contract; numpy's arrays are aligned if they say so, which was asked.
        unsafe { std::slice::from_raw_parts(self.start(), self.len / size_of::<T>()) }
    }

    /// # Safety
    /// As [`Bytes::read`], and nobody else reads it.
    pub unsafe fn write<'a, T: Pod>(self) -> &'a mut [T] {
        // SAFETY: our contract.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len / size_of::<T>()) }
    }

    fn overlaps(self, other: Bytes) -> bool {
        let (mine, theirs) = (self.data.addr(), other.data.addr());
        self.len > 0 && other.len > 0 && mine < theirs + other.len && theirs < mine + self.len
    }
}

/// Returns a value as an array: numpy's, what numpy has a view of, a list of numbers, or a number.
///
/// # Errors
/// No array can be made of the value. The error names the argument `what`.
#[inline]
pub fn given<'py>(value: &Bound<'py, PyAny>, what: &str) -> PyResult<Array<'py>> {
    match Array::of(value) {
        Some(_) => content::array(value),
        None => converted(value, what),
    }
}

#[cold]
fn converted<'py>(value: &Bound<'py, PyAny>, what: &str) -> PyResult<Array<'py>> {
    let py = value.py();
    if is_list(value) || value.is_instance_of::<PyTuple>() || is_number(value)? {
        let made = helper(py, intern!(py, "from_list"))?.call1((value, what))?;
        return Array::of(&made).ok_or_else(|| PyTypeError::new_err("numpy made no array"));
    }
    if content::has_elements(value)? {
        return content::array(value);
    }
    Err(arguments::refuse(
        value,
        what,
        "an array, a list of numbers, or a tensor on the CPU is wanted (the calls whose names end in _object take any object)",
    ))
}

fn is_list(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<PyList>()
}

/// Whether the value is a number of Python's or a scalar of numpy's.
fn is_number(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static SCALAR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    Ok(value.is_instance_of::<PyInt>()
        || value.is_instance_of::<PyFloat>()
        || value.is_instance_of::<PyComplex>()
        || value.is_instance(SCALAR.import(value.py(), "numpy", "generic")?)?)
}

/// Returns the array if its elements lie in a row in C order, each aligned. Otherwise returns a copy.
#[inline]
fn in_rows<'py>(array: Array<'py>) -> PyResult<Array<'py>> {
    match array.is_contiguous() && array.is_aligned() {
        true => Ok(array),
        false => copied(&array),
    }
}

#[cold]
fn copied<'py>(array: &Array<'py>) -> PyResult<Array<'py>> {
    let copy = numpy::new(array.dtype(), array.dims())?;
    copy.copy_from(array)?;
    Ok(copy)
}

/// Checks an array that a call reads, and returns it with its memory. An array whose elements do not lie in a row is copied.
#[inline]
pub fn read<'py>(value: &Bound<'py, PyAny>, what: &str) -> PyResult<(Array<'py>, Bytes)> {
    let array = in_rows(given(value, what)?)?;
    if array.type_number().is_none() {
        // Objects are addresses of this process.
        content::name_of(&array.dtype())?;
    }
    let bytes = Bytes { data: array.data(), len: array.len_bytes()? };
    Ok((array, bytes))
}

/// An array that a call writes.
pub struct Target<'py> {
    /// The program's array, or a copy in a row.
    pub array: Array<'py>,
    pub bytes: Bytes,
    given: Bound<'py, PyAny>,
    destination: Destination<'py>,
}

/// Place of the result of a call.
enum Destination<'py> {
    /// The array that the call writes.
    Itself,
    /// An array whose elements do not lie in a row.
    Strided(Array<'py>),
    List,
    /// The returned number.
    Number,
}

impl<'py> Target<'py> {
    /// Copies the result to where the program wants it, and returns what the call returns: what was given, or a number.
    #[inline]
    pub fn finish(self) -> PyResult<Bound<'py, PyAny>> {
        match &self.destination {
            Destination::Itself => Ok(self.given),
            _ => self.deliver(),
        }
    }

    /// Combines the first `count` of the members' rows by a function, and delivers the result. Without rows, all stays as it
    /// is.
    #[cold]
    pub fn combine(
        self,
        function: &Bound<'py, PyAny>,
        rows: &Bound<'py, PyAny>,
        count: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = function.py();
        let arguments = (function, rows, count, self.array.object(), &self.given);
        let combined = helper(py, intern!(py, "combine"))?.call1(arguments)?;
        if matches!(self.destination, Destination::Number) { Ok(combined) } else { self.finish() }
    }

    #[cold]
    fn deliver(self) -> PyResult<Bound<'py, PyAny>> {
        let py = self.given.py();
        match self.destination {
            Destination::Itself => {}
            Destination::Strided(array) => array.copy_from(&self.array)?,
            Destination::List => {
                helper(py, intern!(py, "fill_list"))?.call1((&self.given, self.array.object()))?;
            }
            Destination::Number => {
                return helper(py, intern!(py, "number"))?.call1((self.array.object(), &self.given));
            }
        }
        Ok(self.given)
    }
}

/// A [`Target`] that outlives its call.
pub struct KeptTarget {
    array: Py<PyAny>,
    bytes: Bytes,
    given: Py<PyAny>,
    destination: KeptDestination,
}

enum KeptDestination {
    Itself,
    Strided(Py<PyAny>),
    List,
    Number,
}

impl Target<'_> {
    pub fn keep(self) -> KeptTarget {
        let destination = match self.destination {
            Destination::Itself => KeptDestination::Itself,
            Destination::Strided(array) => KeptDestination::Strided(array.into_object().unbind()),
            Destination::List => KeptDestination::List,
            Destination::Number => KeptDestination::Number,
        };
        let (array, given) = (self.array.into_object().unbind(), self.given.unbind());
        KeptTarget { array, bytes: self.bytes, given, destination }
    }
}

impl KeptTarget {
    /// Returns the array alone, which the call does not change.
    pub fn into_array(self) -> Py<PyAny> {
        self.array
    }

    /// Does what [`Target::finish`] does.
    pub fn finish(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let array = |kept: Py<PyAny>| {
            Array::of(&kept.into_bound(py))
                .ok_or_else(|| PyTypeError::new_err("the array was posted meanwhile"))
        };
        let destination = match self.destination {
            KeptDestination::Itself => Destination::Itself,
            KeptDestination::Strided(strided) => Destination::Strided(array(strided)?),
            KeptDestination::List => Destination::List,
            KeptDestination::Number => Destination::Number,
        };
        let target = Target {
            array: array(self.array)?,
            bytes: self.bytes,
            given: self.given.into_bound(py),
            destination,
        };
        target.finish()
    }
}

/// Checks an array that a call writes. Lists and arrays whose elements do not lie in a row are copied, and get the result by
/// [`Target::finish`].
#[inline]
pub fn written<'py>(value: &Bound<'py, PyAny>, what: &str) -> PyResult<Target<'py>> {
    let original = match Array::of(value) {
        Some(_) => content::array(value)?,
        None => writable_other(value, what)?,
    };
    let is_list = is_list(value);
    if !is_list && !original.is_writeable() {
        return Err(PyValueError::new_err(format!(
            "{what} is read only (as received arrays are, and tensors by older versions of numpy), and the result is written into it: pass a copy"
        )));
    }
    let (array, bytes) = read(original.object(), what)?;
    let destination = match array.object().is(original.object()) {
        _ if is_list => Destination::List,
        true => Destination::Itself,
        false => Destination::Strided(original),
    };
    Ok(Target { array, bytes, given: value.clone(), destination })
}

#[cold]
fn writable_other<'py>(value: &Bound<'py, PyAny>, what: &str) -> PyResult<Array<'py>> {
    if is_list(value) {
        return converted(value, what);
    }
    if value.is_instance_of::<PyTuple>() || is_number(value)? || !content::has_elements(value)? {
        return Err(arguments::refuse(
            value,
            what,
            "a numpy array, a list of numbers, or what has the buffer protocol or DLPack is wanted: the result is written into it",
        ));
    }
    content::array(value)
}

/// Does what [`written`] does. A number is taken, too, and the result is another number.
#[inline]
pub fn reduced<'py>(value: &Bound<'py, PyAny>, what: &str) -> PyResult<Target<'py>> {
    if Array::of(value).is_some() || !is_number(value)? {
        return written(value, what);
    }
    let (array, bytes) = read(value, what)?;
    Ok(Target { array, bytes, given: value.clone(), destination: Destination::Number })
}

/// Checks that memory that is written does not overlap with memory that is read. Each comes with the name of its argument.
pub fn check_apart(one: (&str, Bytes), other: (&str, Bytes)) -> PyResult<()> {
    match one.1.overlaps(other.1) {
        true => Err(PyValueError::new_err(format!(
            "{} and {} overlap: one is read while the other one is written, so pass a copy",
            one.0, other.0
        ))),
        false => Ok(()),
    }
}

/// Checks that two arrays have elements of one type. Each comes with the name of its argument.
pub fn same_type(one: (&str, &Array<'_>), other: (&str, &Array<'_>)) -> PyResult<()> {
    let (a, b) = (one.1.dtype(), other.1.dtype());
    match a.eq(&b)? {
        true => Ok(()),
        false => Err(PyTypeError::new_err(format!(
            "{} has elements of {a}, and {} of {b}: both need the same type, as by {0}.astype(\"{b}\")",
            one.0, other.0
        ))),
    }
}

fn elements(array: &Array<'_>) -> isize {
    array.dims().iter().product()
}

/// Checks that `whole` has as many elements as the parts of all members together. Each array comes with the
/// name of its argument.
pub fn check_whole(whole: (&str, &Array<'_>), part: (&str, &Array<'_>), members: usize) -> PyResult<()> {
    let (all, each) = (elements(whole.1), elements(part.1));
    if each.checked_mul(members as isize) == Some(all) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{} has {all} elements, and {} has {each}: {members} members need {members} x {each}",
        whole.0, part.0
    )))
}

/// A reduction in place: the program's elements become the result.
pub struct InPlace<'a> {
    pub group: &'a udeck::Group,
    pub data: Bytes,
    pub which: Which,
}

pub enum Which {
    Reduce(usize),
    AllReduce,
    Scan,
    ExScan,
}

impl WithElements for InPlace<'_> {
    type Output = udeck::Result;

    fn run<T: Pod + Send + Sync>(self, op: ByType) -> udeck::Result {
        let group = self.group;
        // SAFETY: an array that is written and kept by its caller, whose elements have this width.
        let data = unsafe { self.data.write::<T>() };
        match self.which {
            Which::Reduce(root) => group.reduce(root, data, op),
            Which::AllReduce => group.all_reduce(data, op),
            Which::Scan => group.scan(data, op),
            Which::ExScan => group.exscan(data, op),
        }
    }
}

/// A reduction whose result is given out in parts.
pub struct Scattered<'a> {
    pub group: &'a udeck::Group,
    pub from: Bytes,
    pub to: Bytes,
}

impl WithElements for Scattered<'_> {
    type Output = udeck::Result;

    fn run<T: Pod + Send + Sync>(self, op: ByType) -> udeck::Result {
        // SAFETY: arrays that their caller keeps, apart from each other, whose elements have this width.
        let (from, to) = unsafe { (self.from.read::<T>(), self.to.write::<T>()) };
        self.group.reduce_scatter(from, to, op)
    }
}

/// Returns the array for a result of this shape: the given one, or a new one.
fn room<'py>(
    given: Option<&Bound<'py, PyAny>>,
    like: (&str, &Array<'py>),
    dims: &[isize],
) -> PyResult<Target<'py>> {
    let target = match given {
        Some(given) => written(given, "out")?,
        None => written(numpy::new(like.1.dtype(), dims)?.object(), "out")?,
    };
    same_type(("out", &target.array), like)?;
    Ok(target)
}

/// Shape of an array that has a row of this shape for each of `n` members.
fn rows(n: usize, array: &Array<'_>) -> Vec<isize> {
    [n as isize].into_iter().chain(array.dims().iter().copied()).collect()
}

/// The array for a row of each member: the given one, or a new one.
pub fn whole<'py>(
    size: usize,
    out: Option<&Bound<'py, PyAny>>,
    array: &Array<'py>,
    from: Bytes,
) -> PyResult<Target<'py>> {
    let out = room(out, ("array", array), &rows(size, array))?;
    check_whole(("out", &out.array), ("array", array), size)?;
    check_apart(("out", out.bytes), ("array", from))?;
    Ok(out)
}

/// The array for parts of all members: the given one, or a new one.
pub fn exchanged<'py>(
    members: usize,
    out: Option<&Bound<'py, PyAny>>,
    array: &Array<'py>,
    from: Bytes,
) -> PyResult<Target<'py>> {
    let out = room(out, ("array", array), array.dims())?;
    let (sent, room) = (elements(array), elements(&out.array));
    if sent != room || sent % members as isize != 0 {
        return Err(PyValueError::new_err(format!(
            "array has {sent} elements, and out has {room}: both have the same number, a multiple of the {members} members"
        )));
    }
    check_apart(("array", from), ("out", out.bytes))?;
    Ok(out)
}

/// Name of an array's element type, which the members compare.
pub fn type_name(array: &Array<'_>) -> PyResult<String> {
    Ok(match array.type_number().and_then(element) {
        Some(known) => known.name().to_owned(),
        None => content::name_of(&array.dtype())?.to_string(),
    })
}
