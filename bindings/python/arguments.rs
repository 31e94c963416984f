//! Arguments of calls, whose errors name them: `#[pyo3(from_py_with = arguments::tag)]`.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyString};

use crate::errors::raise;

type Argument<'a, 'py> = &'a Bound<'py, PyAny>;

const RANKS: &str = "ranks are numbered from 0";
const MEMBERS: &str = "members are numbered from 0";

#[cold]
fn complaint(value: Argument<'_, '_>, name: &str, wanted: &str) -> String {
    let mut shown = value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string_lossy().into_owned());
    if let Some(end) = shown.char_indices().map(|(at, _)| at).find(|at| *at >= MAX_SHOWN) {
        shown.truncate(end);
        shown.push('…');
    }
    format!("{name}={shown}: {wanted}")
}

/// Error for an argument that is not the wanted number: its value or its type is wrong.
#[cold]
fn refuse_number(value: Argument<'_, '_>, name: &str, wanted: &str) -> PyErr {
    let text = complaint(value, name, wanted);
    if is_number(value) { PyValueError::new_err(text) } else { PyTypeError::new_err(text) }
}

/// Longest representation of a value in an error, in bytes.
const MAX_SHOWN: usize = 100;

/// Error for an argument whose type is not the wanted one.
#[cold]
pub fn refuse(value: Argument<'_, '_>, name: &str, wanted: &str) -> PyErr {
    PyTypeError::new_err(complaint(value, name, wanted))
}

fn is_number(value: Argument<'_, '_>) -> bool {
    value.hasattr("__index__").unwrap_or(false)
}

/// Converts an argument to a number, and checks the range of the type.
#[inline]
fn number<'a, 'py, T: FromPyObject<'a, 'py>>(
    value: &'a Bound<'py, PyAny>,
    name: &str,
    wanted: &str,
) -> PyResult<T> {
    value.extract::<T>().map_err(|_| refuse_number(value, name, wanted))
}

#[inline]
fn optional<'py, T>(
    value: Argument<'_, 'py>,
    read: impl FnOnce(Argument<'_, 'py>) -> PyResult<T>,
) -> PyResult<Option<T>> {
    if value.is_none() { Ok(None) } else { read(value).map(Some) }
}

/// Items of a list or of another sequence that is not text.
pub fn items<'py>(value: Argument<'_, 'py>, name: &str, wanted: &str) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let is_list = value.hasattr("__getitem__")? && value.hasattr("__len__")?;
    let is_text = value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyBytes>()
        || value.is_instance_of::<PyByteArray>()
        || value.is_instance_of::<PyDict>();
    if !is_list || is_text {
        return Err(refuse(value, name, wanted));
    }
    value.try_iter().map_err(|_| refuse(value, name, wanted))?.collect()
}

fn text(value: Argument<'_, '_>, name: &str) -> PyResult<String> {
    value.extract().map_err(|_| refuse(value, name, "a str is wanted"))
}

pub fn name(value: Argument<'_, '_>) -> PyResult<String> {
    text(value, "name")
}

pub fn optional_name(value: Argument<'_, '_>) -> PyResult<Option<String>> {
    optional(value, name)
}

pub fn why(value: Argument<'_, '_>) -> PyResult<String> {
    text(value, "why")
}

pub fn tag(value: Argument<'_, '_>) -> PyResult<u32> {
    number(value, "tag", "a number from 0 to 2**32 - 1 is wanted")
}

pub fn optional_tag(value: Argument<'_, '_>) -> PyResult<Option<u32>> {
    optional(value, tag)
}

fn rank_named(value: Argument<'_, '_>, name: &str) -> PyResult<usize> {
    value.extract().map_err(|_| match is_number(value) {
        true => raise(value.py(), "NoSuchRank", format!("{name}={value}: {RANKS}"), None, None),
        false => refuse(value, name, RANKS),
    })
}

pub fn rank(value: Argument<'_, '_>) -> PyResult<usize> {
    rank_named(value, "rank")
}

pub fn source(value: Argument<'_, '_>) -> PyResult<Option<usize>> {
    optional(value, |value| rank_named(value, "source"))
}

pub fn ranks(value: Argument<'_, '_>) -> PyResult<Vec<usize>> {
    let items = items(value, "ranks", "a list of ranks is wanted")?;
    items.iter().map(|rank| rank_named(rank, "ranks: rank")).collect()
}

/// Error for a root that the group does not have.
#[cold]
pub fn no_such_root(py: Python<'_>, root: usize, size: usize) -> PyErr {
    let text = format!("root={root}: the group has {size} member(s), numbered from 0");
    raise(py, "InvalidArgument", text, None, None)
}

pub fn root(value: Argument<'_, '_>) -> PyResult<usize> {
    number(value, "root", MEMBERS)
}

/// Pairs of a member and an array.
fn pairs<'py>(value: Argument<'_, 'py>, name: &str) -> PyResult<Vec<(usize, Bound<'py, PyAny>)>> {
    const WANTED: &str = "a list of pairs (member, array) is wanted";
    let pair = |item: &Bound<'py, PyAny>| {
        let (member, array): (Bound<'py, PyAny>, Bound<'py, PyAny>) =
            item.extract().map_err(|_| PyTypeError::new_err(format!("{name}: {WANTED}")))?;
        Ok((number(&member, &format!("{name}: member"), MEMBERS)?, array))
    };
    items(value, name, WANTED)?.iter().map(pair).collect()
}

pub fn to<'py>(value: Argument<'_, 'py>) -> PyResult<Vec<(usize, Bound<'py, PyAny>)>> {
    pairs(value, "to")
}

pub fn from<'py>(value: Argument<'_, 'py>) -> PyResult<Vec<(usize, Bound<'py, PyAny>)>> {
    pairs(value, "from_")
}

pub fn queue(value: Argument<'_, '_>) -> PyResult<Option<usize>> {
    optional(value, |value| number(value, "queue", "a number of bytes from 0 on is wanted, or None"))
}

pub fn code(value: Argument<'_, '_>) -> PyResult<u8> {
    number(value, "code", "an exit code from 0 to 255 is wanted")
}

pub fn colour(value: Argument<'_, '_>) -> PyResult<Option<usize>> {
    optional(value, |value| number(value, "colour", "a number from 0 on is wanted, or None"))
}

pub fn key(value: Argument<'_, '_>) -> PyResult<i64> {
    number(value, "key", "a number from -2**63 to 2**63 - 1 is wanted")
}

/// A shape: a number of elements, or one for each dimension.
pub fn shape(value: Argument<'_, '_>) -> PyResult<Vec<isize>> {
    const WANTED: &str = "a number of elements from 0 on is wanted, or a sequence of them";
    let dim = |value: Argument<'_, '_>| match value.extract::<isize>() {
        Ok(dim) if dim >= 0 => Ok(dim),
        _ => Err(refuse_number(value, "shape", WANTED)),
    };
    if is_number(value) && !value.hasattr("__len__")? {
        return Ok(vec![dim(value)?]);
    }
    items(value, "shape", WANTED)?.iter().map(dim).collect()
}
