//! Operators of reductions by their names, for numpy's types.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3::{IntoPyObjectExt, intern};
use udeck::op::{ByType, ElementType, Named};

use crate::content::helper;
use crate::numpy::Array;

const NAMES: [(&str, Named); 8] = [
    ("sum", Named::Sum),
    ("product", Named::Product),
    ("prod", Named::Product),
    ("min", Named::Min),
    ("max", Named::Max),
    ("and", Named::BitAnd),
    ("or", Named::BitOr),
    ("xor", Named::BitXor),
];

/// Element type by numpy's number of it.
pub fn element(number: u8) -> Option<ElementType> {
    Some(match number {
        0 => ElementType::Bool,
        1 => ElementType::I8,
        2 => ElementType::U8,
        3 => ElementType::I16,
        4 => ElementType::U16,
        5 => ElementType::I32,
        6 => ElementType::U32,
        7 | 9 => ElementType::I64,
        8 | 10 => ElementType::U64,
        11 => ElementType::F32,
        12 => ElementType::F64,
        14 => ElementType::Complex64,
        15 => ElementType::Complex128,
        _ => return None,
    })
}

/// The operator of a reduction.
pub enum Op<'py> {
    Named(Named),
    /// A function of two arrays.
    Function(Bound<'py, PyAny>),
}

/// The operator that an argument gives.
pub fn op<'py>(value: &Bound<'py, PyAny>) -> PyResult<Op<'py>> {
    if value.is_callable() { Ok(Op::Function(value.clone())) } else { named(value).map(Op::Named) }
}

fn named(value: &Bound<'_, PyAny>) -> PyResult<Named> {
    let name = value.cast::<PyString>().ok().map(|name| name.to_cow()).transpose()?;
    let found = NAMES.iter().find(|(known, _)| name.as_deref() == Some(*known));
    found.map(|(_, op)| *op).ok_or_else(|| {
        let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
        let shown = value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
        let text =
            format!("op={shown}: one of {} is possible, or a function of two arguments", names.join(", "));
        if name.is_some() { PyValueError::new_err(text) } else { PyTypeError::new_err(text) }
    })
}

/// The named operator that does the same as a function does on elements of the array's type.
pub fn equal(function: &Bound<'_, PyAny>, array: &Array<'_>) -> PyResult<Option<Named>> {
    if array.type_number().and_then(element).is_none() {
        return Ok(None);
    }
    let py = function.py();
    let name = helper(py, intern!(py, "equal_operator"))?.call1((function, array.dtype()))?;
    if name.is_none() { Ok(None) } else { named(&name).map(Some) }
}

/// The function that an argument gives for objects; `None`: their sum.
pub fn of_objects<'py>(py: Python<'py>, op: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    match op {
        Some(op) if op.is_callable() => return Ok(op.clone()),
        Some(op) => drop(named(op)?),
        None => {}
    }
    helper(py, intern!(py, "function_of_operator"))?
        .call1((op.map_or("sum".into_bound_py_any(py)?, Clone::clone),))
}

/// Combines objects in their order.
pub fn fold<'py>(op: &Bound<'py, PyAny>, values: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    let mut values = values.into_iter();
    let first = values.next().ok_or_else(|| PyValueError::new_err("no members"))?;
    values.try_fold(first, |left, right| op.call1((left, right)))
}

/// The operator for elements of this type.
pub fn operator(op: Named, number: Option<u8>, dtype: &Bound<'_, PyAny>) -> PyResult<ByType> {
    number.and_then(element).and_then(|element| ByType::new(op, element)).ok_or_else(|| {
        let name = NAMES.iter().find(|(_, known)| *known == op).map_or("such operator", |(name, _)| name);
        PyTypeError::new_err(format!(
            "elements of {dtype} have no {name}: integers have all operators, floating-point numbers sum, product, min and max, \
             complex64 and complex128 sum and product"
        ))
    })
}
