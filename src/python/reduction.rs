//! Operators on elements of numpy's types, on their bytes: so algorithms are compiled for each width, not for each type and operator.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use udeck::op::{Operator, OperatorCode};
use udeck::{Pod, bytemuck};

/// Combines each element of the first slice with the one of the second, into the first. If it is told so, the first one's elements
/// are the right operands.
type Combine = fn(&mut [u8], &[u8], bool);

/// An operator on numbers as wide as the elements.
#[derive(Clone, Copy)]
pub struct OfType(Combine);

impl<T: Pod> Operator<T> for OfType {
    // Operators of the program's own: that all members have the same one is not looked at.
    const CODE: OperatorCode = <fn(u8, u8) -> u8 as Operator<u8>>::CODE;

    fn combine(&self, left: &mut [T], right: &[T]) {
        (self.0)(bytemuck::cast_slice_mut(left), bytemuck::cast_slice(right), false);
    }

    fn combine_into_right(&self, left: &[T], right: &mut [T]) {
        (self.0)(bytemuck::cast_slice_mut(right), bytemuck::cast_slice(left), true);
    }
}

#[inline(always)]
fn by<T: Pod>(op: impl Fn(T, T) -> T, into: &mut [u8], with: &[u8], into_is_right: bool) {
    let (into, with): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(with));
    let pairs = into.iter_mut().zip(with);
    if into_is_right {
        pairs.for_each(|(into, with)| *into = op(*with, *into));
    } else {
        pairs.for_each(|(into, with)| *into = op(*into, *with));
    }
}

macro_rules! integers {
    ($number:ty, $op:expr) => {
        match $op {
            Op::Sum => |into, with, right| by::<$number>(<$number>::wrapping_add, into, with, right),
            Op::Product => |into, with, right| by::<$number>(<$number>::wrapping_mul, into, with, right),
            Op::Min => |into, with, right| by::<$number>(Ord::min, into, with, right),
            Op::Max => |into, with, right| by::<$number>(Ord::max, into, with, right),
            Op::And => |into, with, right| by::<$number>(|a, b| a & b, into, with, right),
            Op::Or => |into, with, right| by::<$number>(|a, b| a | b, into, with, right),
            Op::Xor => |into, with, right| by::<$number>(|a, b| a ^ b, into, with, right),
        }
    };
}

// `min` and `max` of a number and what is none is the one that numpy's `minimum` gives: not a number.
macro_rules! floats {
    ($number:ty, $op:expr) => {
        match $op {
            Op::Sum => |into, with, right| by::<$number>(|a, b| a + b, into, with, right),
            Op::Product => |into, with, right| by::<$number>(|a, b| a * b, into, with, right),
            Op::Min => |into, with, right| {
                by::<$number>(|a, b| if b < a || b.is_nan() { b } else { a }, into, with, right)
            },
            Op::Max => |into, with, right| {
                by::<$number>(|a, b| if b > a || b.is_nan() { b } else { a }, into, with, right)
            },
            Op::And | Op::Or | Op::Xor => return None,
        }
    };
}

macro_rules! complex {
    ($number:ty, $op:expr) => {
        match $op {
            Op::Sum => {
                |into, with, right| by::<[$number; 2]>(|a, b| [a[0] + b[0], a[1] + b[1]], into, with, right)
            }
            Op::Product => |into, with, right| {
                let product =
                    |a: [$number; 2], b: [$number; 2]| [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]];
                by::<[$number; 2]>(product, into, with, right)
            },
            _ => return None,
        }
    };
}

#[derive(Clone, Copy)]
enum Op {
    Sum,
    Product,
    Min,
    Max,
    And,
    Or,
    Xor,
}

const NAMES: [(&str, Op); 8] = [
    ("sum", Op::Sum),
    ("product", Op::Product),
    ("prod", Op::Product),
    ("min", Op::Min),
    ("max", Op::Max),
    ("and", Op::And),
    ("or", Op::Or),
    ("xor", Op::Xor),
];

/// By numpy's number of the type.
fn combine(number: u8, op: Op) -> Option<Combine> {
    Some(match number {
        // Truth values: as numpy has it, a sum is `or`, and a product is `and`.
        0 => match op {
            Op::Sum | Op::Or | Op::Max => |into, with, right| by::<u8>(|a, b| a | b, into, with, right),
            Op::Product | Op::And | Op::Min => |into, with, right| by::<u8>(|a, b| a & b, into, with, right),
            Op::Xor => |into, with, right| by::<u8>(|a, b| a ^ b, into, with, right),
        },
        1 => integers!(i8, op),
        2 => integers!(u8, op),
        3 => integers!(i16, op),
        4 => integers!(u16, op),
        5 => integers!(i32, op),
        6 => integers!(u32, op),
        7 | 9 => integers!(i64, op),
        8 | 10 => integers!(u64, op),
        11 => floats!(f32, op),
        12 => floats!(f64, op),
        14 => complex!(f32, op),
        15 => complex!(f64, op),
        _ => return None,
    })
}

/// The operator of this name, for elements of this type.
pub fn operator(name: &str, number: Option<u8>, dtype: &Bound<'_, PyAny>) -> PyResult<OfType> {
    let Some((_, op)) = NAMES.iter().find(|(known, _)| *known == name) else {
        let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
        return Err(PyValueError::new_err(format!("op={name:?}: one of {} is possible", names.join(", "))));
    };
    number.and_then(|number| combine(number, *op)).map(OfType).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "elements of {dtype} have no {name}: integers have all operators, floating-point numbers sum, product, min and max, \
             complex64 and complex128 sum and product"
        ))
    })
}
