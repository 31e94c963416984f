//! Arrays of collective calls: checks before a call, and their memory, which calls use without the interpreter's lock.
#![allow(unsafe_code, reason = "collective calls on the program's arrays")]

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use udeck::Pod;
use udeck::op::{ByType, WithElements};

use crate::content;
use crate::numpy::{self, Array};

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
    /// # Safety
    /// The array lives, nobody else writes it meanwhile, and its elements are numbers of this width.
    pub unsafe fn read<'a, T: Pod>(self) -> &'a [T] {
        // SAFETY: our contract; numpy's arrays are aligned if they say so, which was asked.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.len / size_of::<T>()) }
    }

    /// # Safety
    /// As [`Bytes::read`], and nobody else reads it.
    pub unsafe fn write<'a, T: Pod>(self) -> &'a mut [T] {
        // SAFETY: our contract.
        unsafe { std::slice::from_raw_parts_mut(self.data.cast(), self.len / size_of::<T>()) }
    }

    fn overlaps(self, other: Bytes) -> bool {
        let (mine, theirs) = (self.data.addr(), other.data.addr());
        mine < theirs + other.len && theirs < mine + self.len
    }
}

fn check_rows(array: &Array<'_>, what: &str) -> PyResult<()> {
    match array.is_contiguous() && array.is_aligned() {
        true => Ok(()),
        false => Err(PyValueError::new_err(format!(
            "{what}: the elements do not lie in a row in C order, each aligned: pass numpy.ascontiguousarray(...)"
        ))),
    }
}

/// Checks an array that a call reads, and returns its memory.
pub fn read<'py>(value: &Bound<'py, PyAny>, what: &str) -> PyResult<(Array<'py>, Bytes)> {
    let array = content::array(value)?;
    check_rows(&array, what)?;
    if array.type_number().is_none() {
        // Objects are addresses of this process.
        content::name_of(&array.dtype())?;
    }
    let bytes = Bytes { data: array.data(), len: array.len_bytes()? };
    Ok((array, bytes))
}

/// Checks an array that a call writes, and returns its memory.
pub fn written<'py>(value: &Bound<'py, PyAny>, what: &str) -> PyResult<(Array<'py>, Bytes)> {
    let is_seen = Array::of(value).is_some() || content::has_elements(value)?;
    if !is_seen {
        return Err(PyTypeError::new_err(format!(
            "{what} is to be a numpy array, or what has the buffer protocol or DLPack: the result is written into it"
        )));
    }
    let (array, bytes) = read(value, what)?;
    match array.is_writeable() {
        true => Ok((array, bytes)),
        false => Err(PyValueError::new_err(format!(
            "{what} is read only (as received arrays are, and tensors by older versions of numpy), and the result is written into it: pass a copy"
        ))),
    }
}

pub fn check_apart(one: Bytes, other: Bytes) -> PyResult<()> {
    match one.overlaps(other) {
        true => Err(PyValueError::new_err("the arrays overlap: one is read while the other one is written")),
        false => Ok(()),
    }
}

pub fn same_type(one: &Array<'_>, other: &Array<'_>) -> PyResult<()> {
    match one.dtype().eq(other.dtype())? {
        true => Ok(()),
        false => Err(PyTypeError::new_err(format!(
            "the arrays have elements of {} and {}",
            one.dtype(),
            other.dtype()
        ))),
    }
}

pub fn elements(array: &Array<'_>) -> isize {
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

/// Returns the output array for the elements of `n` members: the given one, or a new one.
pub fn room<'py>(
    given: Option<&Bound<'py, PyAny>>,
    like: &Array<'py>,
    n: usize,
) -> PyResult<(Array<'py>, Bytes)> {
    let made;
    let given = match given {
        Some(given) => given,
        None => {
            let dims: Vec<isize> = [n as isize].into_iter().chain(like.dims().iter().copied()).collect();
            made = numpy::new(like.dtype(), &dims)?.into_object();
            &made
        }
    };
    let (array, bytes) = written(given, "out")?;
    same_type(&array, like)?;
    Ok((array, bytes))
}
