//! Operators of reductions by their names, for numpy's types.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use udeck::op::{ByType, ElementType, Named};

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

/// By numpy's number of the type.
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

/// The operator of this name, for elements of this type.
pub fn operator(name: &str, number: Option<u8>, dtype: &Bound<'_, PyAny>) -> PyResult<ByType> {
    let Some((_, op)) = NAMES.iter().find(|(known, _)| *known == name) else {
        let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
        return Err(PyValueError::new_err(format!("op={name:?}: one of {} is possible", names.join(", "))));
    };
    number.and_then(element).and_then(|element| ByType::new(*op, element)).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "elements of {dtype} have no {name}: integers have all operators, floating-point numbers sum, product, min and max, \
             complex64 and complex128 sum and product"
        ))
    })
}
