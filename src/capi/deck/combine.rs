//! How elements of C's types are combined, on their bytes.

use std::ffi::c_int;

use udeck::{Pod, bytemuck};

use super::error::{Result, invalid};
use super::message::size_of_type;

/// Combines each element of the first slice with the one of the second, into the first. If it is told so, the first one's elements
/// are the right operands.
pub(super) type Combine = fn(&mut [u8], &[u8], bool);

/// Bytes of an element. Messages are no elements here.
pub(super) fn width(code: c_int) -> Result<usize> {
    size_of_type(code)
}

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
            1 => |into, with, right| by::<$number>(<$number>::wrapping_add, into, with, right),
            2 => |into, with, right| by::<$number>(<$number>::wrapping_mul, into, with, right),
            3 => |into, with, right| by::<$number>(Ord::min, into, with, right),
            4 => |into, with, right| by::<$number>(Ord::max, into, with, right),
            5 => |into, with, right| by::<$number>(|a, b| a & b, into, with, right),
            6 => |into, with, right| by::<$number>(|a, b| a | b, into, with, right),
            7 => |into, with, right| by::<$number>(|a, b| a ^ b, into, with, right),
            _ => return Err(no_operator($op)),
        }
    };
}

macro_rules! floats {
    ($number:ty, $op:expr) => {
        match $op {
            1 => |into, with, right| by::<$number>(|a, b| a + b, into, with, right),
            2 => |into, with, right| by::<$number>(|a, b| a * b, into, with, right),
            3 => |into, with, right| by::<$number>(|a, b| if b < a { b } else { a }, into, with, right),
            4 => |into, with, right| by::<$number>(|a, b| if b > a { b } else { a }, into, with, right),
            5..=7 => return Err(invalid("floating-point numbers have no DECK_BAND, DECK_BOR and DECK_BXOR")),
            _ => return Err(no_operator($op)),
        }
    };
}

/// The operator `op` for elements of this type.
pub(super) fn combine(code: c_int, op: c_int) -> Result<Combine> {
    Ok(match code {
        1 => integers!(std::ffi::c_char, op),
        2 => integers!(u8, op),
        3 => integers!(i16, op),
        4 => integers!(u16, op),
        5 => integers!(i32, op),
        6 => integers!(u32, op),
        7 | 9 => integers!(i64, op),
        8 | 10 => integers!(u64, op),
        11 => floats!(f32, op),
        12 => floats!(f64, op),
        _ => return Err(invalid(format!("{code} is no type of numbers (DECK_CHAR to DECK_DOUBLE)"))),
    })
}

#[cold]
fn no_operator(op: c_int) -> super::error::Failure {
    invalid(format!("{op} is no operator (DECK_SUM to DECK_BXOR)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined<T: Pod>(code: c_int, op: c_int, left: T, right: T) -> T {
        let mut into = [left];
        combine(code, op).unwrap()(bytemuck::cast_slice_mut(&mut into), bytemuck::bytes_of(&right), false);
        let mut other = [right];
        combine(code, op).unwrap()(bytemuck::cast_slice_mut(&mut other), bytemuck::bytes_of(&left), true);
        assert_eq!(bytemuck::bytes_of(&into[0]), bytemuck::bytes_of(&other[0]), "either way the same");
        into[0]
    }

    #[test]
    fn operators_do_what_they_are_named_for() {
        let all = |left, right| [1, 2, 3, 4, 5, 6, 7].map(|op| combined::<i32>(5, op, left, right));
        assert_eq!(all(6, 12), [18, 72, 6, 12, 4, 14, 10]);
        assert_eq!(combined::<i64>(7, 1, i64::MAX, 1), i64::MIN, "as machines add");
        assert_eq!(combined::<u8>(2, 4, 200, 7), 200, "unsigned");
        assert_eq!([1, 2, 3, 4].map(|op| combined(12, op, 1.5, -2.0)), [-0.5, -3.0, -2.0, 1.5]);
    }

    #[test]
    fn what_is_no_operator_or_no_number_is_an_error() {
        assert!(combine(12, 5).is_err() && combine(5, 0).is_err() && combine(5, 8).is_err());
        assert!(combine(13, 1).is_err() && combine(0, 1).is_err());
    }
}
