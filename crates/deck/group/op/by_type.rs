//! Operators on elements whose type is known only at run time, as in C and Python.
//!
//! These operators work on the elements' bytes. Hence the algorithms are compiled once for each width of
//! elements, not for each type and operator.

use bytemuck::Pod;

use super::{Operator, OperatorCode};

/// Function that combines each element of the first slice with that of the second, into the first.
type Combine = fn(&mut [u8], &[u8]);

/// Type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// Truth values, as bytes that are 0 or 1. Like in numpy, a sum is `or`, and a product is `and`.
    Bool,
    /// Signed integers of 8 bits; sums and products wrap around, for all integers here.
    I8,
    /// Unsigned integers of 8 bits.
    U8,
    /// Signed integers of 16 bits.
    I16,
    /// Unsigned integers of 16 bits.
    U16,
    /// Signed integers of 32 bits.
    I32,
    /// Unsigned integers of 32 bits.
    U32,
    /// Signed integers of 64 bits.
    I64,
    /// Unsigned integers of 64 bits.
    U64,
    /// Floating-point numbers of 32 bits. The minimum and the maximum of a number and NaN are NaN, as in numpy ([`super::Min`] and
    /// [`super::Max`] give either), here and for [`ElementType::F64`].
    F32,
    /// Floating-point numbers of 64 bits.
    F64,
    /// Complex numbers of two [`ElementType::F32`].
    Complex64,
    /// Complex numbers of two [`ElementType::F64`].
    Complex128,
}

/// Operators that have names: see [`super::Sum`] and the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is named as its own type")]
#[non_exhaustive]
pub enum Named {
    Sum,
    Product,
    Min,
    Max,
    BitAnd,
    BitOr,
    BitXor,
}

/// An operator for a type that is known only at run time: for elements of any type that has its width and
/// alignment ([`ByType::for_elements`]).
///
/// Members notice that they use different operators or types, as with operators known to the compiler.
#[derive(Clone, Copy)]
pub struct ByType {
    element: ElementType,
    op: Named,
    combine: Combine,
}

/// An action on elements of a type that [`ByType::for_elements`] chooses.
pub trait WithElements {
    /// Result of the action.
    type Output;

    /// Runs the action. `T` is as wide as the operator's elements, and aligned no more strictly.
    fn run<T: Pod + Send + Sync>(self, op: ByType) -> Self::Output;
}

impl ByType {
    /// Makes an operator; `None` if the element type has no such operator. Integers and truth values have all
    /// operators, floating-point numbers all without bits, complex numbers sum and product.
    pub fn new(op: Named, element: ElementType) -> Option<Self> {
        Some(ByType { element, op, combine: combine(op, element)? })
    }

    /// Runs an action for a type of numbers that are as wide as the elements.
    pub fn for_elements<A: WithElements>(self, act: A) -> A::Output {
        match self.element {
            ElementType::Bool | ElementType::I8 | ElementType::U8 => act.run::<u8>(self),
            ElementType::I16 | ElementType::U16 => act.run::<u16>(self),
            ElementType::I32 | ElementType::U32 | ElementType::F32 => act.run::<u32>(self),
            ElementType::I64 | ElementType::U64 | ElementType::F64 => act.run::<u64>(self),
            // Two numbers, aligned like each of them.
            ElementType::Complex64 => act.run::<[u32; 2]>(self),
            ElementType::Complex128 => act.run::<[u64; 2]>(self),
        }
    }
}

impl std::fmt::Debug for ByType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {}", self.op, self.element.name())
    }
}

impl ElementType {
    /// Bytes of an element.
    pub fn size(self) -> usize {
        use ElementType::*;
        match self {
            Bool | I8 | U8 => 1,
            I16 | U16 => 2,
            I32 | U32 | F32 => 4,
            I64 | U64 | F64 | Complex64 => 8,
            Complex128 => 16,
        }
    }

    /// Name of the type in errors of group calls.
    pub fn name(self) -> &'static str {
        use ElementType::*;
        match self {
            Bool => "truth values",
            U8 => "u8",
            I8 => "i8",
            I16 => "i16",
            U16 => "u16",
            I32 => "i32",
            U32 => "u32",
            I64 => "i64",
            U64 => "u64",
            F32 => "f32",
            F64 => "f64",
            Complex64 => "complex numbers of f32",
            Complex128 => "complex numbers of f64",
        }
    }
}

impl<T: Pod> Operator<T> for ByType {
    #[inline]
    fn code(&self) -> OperatorCode {
        OperatorCode(match self.op {
            Named::Sum => 1,
            Named::Product => 2,
            Named::Min => 3,
            Named::Max => 4,
            Named::BitAnd => 5,
            Named::BitOr => 6,
            Named::BitXor => 7,
        })
    }

    #[inline]
    fn element(&self) -> &'static str {
        self.element.name()
    }

    fn combine(&self, left: &mut [T], right: &[T]) {
        (self.combine)(bytemuck::cast_slice_mut(left), bytemuck::cast_slice(right));
    }
}

#[inline(always)]
fn by<T: Pod>(op: impl Fn(T, T) -> T, into: &mut [u8], with: &[u8]) {
    let (into, with): (&mut [T], &[T]) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(with));
    into.iter_mut().zip(with).for_each(|(into, with)| *into = op(*into, *with));
}

macro_rules! integers {
    ($number:ty, $op:expr) => {
        match $op {
            Named::Sum => |into, with| by::<$number>(<$number>::wrapping_add, into, with),
            Named::Product => |into, with| by::<$number>(<$number>::wrapping_mul, into, with),
            Named::Min => |into, with| by::<$number>(Ord::min, into, with),
            Named::Max => |into, with| by::<$number>(Ord::max, into, with),
            Named::BitAnd => |into, with| by::<$number>(|a, b| a & b, into, with),
            Named::BitOr => |into, with| by::<$number>(|a, b| a | b, into, with),
            Named::BitXor => |into, with| by::<$number>(|a, b| a ^ b, into, with),
        }
    };
}

macro_rules! floats {
    ($number:ty, $op:expr) => {
        match $op {
            Named::Sum => |into, with| by::<$number>(|a, b| a + b, into, with),
            Named::Product => |into, with| by::<$number>(|a, b| a * b, into, with),
            Named::Min => {
                |into, with| by::<$number>(|a, b| if b < a || b.is_nan() { b } else { a }, into, with)
            }
            Named::Max => {
                |into, with| by::<$number>(|a, b| if b > a || b.is_nan() { b } else { a }, into, with)
            }
            Named::BitAnd | Named::BitOr | Named::BitXor => return None,
        }
    };
}

macro_rules! complex {
    ($number:ty, $op:expr) => {
        match $op {
            Named::Sum => |into, with| by::<[$number; 2]>(|a, b| [a[0] + b[0], a[1] + b[1]], into, with),
            Named::Product => |into, with| {
                let product =
                    |a: [$number; 2], b: [$number; 2]| [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]];
                by::<[$number; 2]>(product, into, with)
            },
            _ => return None,
        }
    };
}

fn combine(op: Named, element: ElementType) -> Option<Combine> {
    Some(match element {
        ElementType::Bool => match op {
            Named::Sum | Named::BitOr | Named::Max => |into, with| by::<u8>(|a, b| a | b, into, with),
            Named::Product | Named::BitAnd | Named::Min => |into, with| by::<u8>(|a, b| a & b, into, with),
            Named::BitXor => |into, with| by::<u8>(|a, b| a ^ b, into, with),
        },
        ElementType::I8 => integers!(i8, op),
        ElementType::U8 => integers!(u8, op),
        ElementType::I16 => integers!(i16, op),
        ElementType::U16 => integers!(u16, op),
        ElementType::I32 => integers!(i32, op),
        ElementType::U32 => integers!(u32, op),
        ElementType::I64 => integers!(i64, op),
        ElementType::U64 => integers!(u64, op),
        ElementType::F32 => floats!(f32, op),
        ElementType::F64 => floats!(f64, op),
        ElementType::Complex64 => complex!(f32, op),
        ElementType::Complex128 => complex!(f64, op),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ElementType::*;

    const ALL: [Named; 7] =
        [Named::Sum, Named::Product, Named::Min, Named::Max, Named::BitAnd, Named::BitOr, Named::BitXor];

    fn combined<T: Pod>(element: ElementType, op: Named, mut left: T, right: T) -> T {
        let op = ByType::new(op, element).expect("there is such an operator");
        op.combine(std::slice::from_mut(&mut left), &[right]);
        left
    }

    #[test]
    fn operators_do_what_they_are_named_for() {
        assert_eq!(ALL.map(|op| combined::<i32>(I32, op, 6, 12)), [18, 72, 6, 12, 4, 14, 10]);
        assert_eq!(ALL.map(|op| combined::<u8>(Bool, op, 1, 1)), [1, 1, 1, 1, 1, 1, 0]);
        assert_eq!(ALL.map(|op| combined::<u8>(Bool, op, 0, 1)), [1, 0, 0, 1, 0, 1, 1]);
        assert_eq!(combined::<i64>(I64, Named::Sum, i64::MAX, 1), i64::MIN, "as machines add");
        assert_eq!(combined::<u8>(U8, Named::Max, 200, 7), 200, "unsigned");
        assert_eq!(combined::<i8>(I8, Named::Max, -56, 7), 7, "with a sign");
        assert_eq!(
            ALL[..4].iter().map(|op| combined(F64, *op, 1.5, -2.0)).collect::<Vec<_>>(),
            [-0.5, -3.0, -2.0, 1.5]
        );
        assert_eq!(combined(Complex64, Named::Product, [1_f32, 2.0], [3.0, 5.0]), [-7.0, 11.0]);
        assert_eq!(combined(Complex128, Named::Sum, [1.0, 2.0], [3.0, 5.0]), [4.0, 7.0]);
        for op in [Named::Min, Named::Max] {
            assert!(
                combined(F32, op, 1_f32, f32::NAN).is_nan() && combined(F32, op, f32::NAN, 1_f32).is_nan()
            );
        }
    }

    #[test]
    fn what_a_type_has_no_operator_for_is_none() {
        let of = |element| ALL.iter().filter(|op| ByType::new(**op, element).is_some()).count();
        assert_eq!([I8, U64, Bool, F32, F64, Complex64, Complex128].map(of), [7, 7, 7, 4, 4, 2, 2]);
    }

    /// Checks that numbers are as wide as the elements, and aligned no more strictly: they are used where the
    /// program has elements.
    #[test]
    fn elements_are_used_as_numbers_of_their_width() {
        struct Width;
        impl WithElements for Width {
            type Output = (usize, usize);
            fn run<T: Pod + Send + Sync>(self, _: ByType) -> (usize, usize) {
                (size_of::<T>(), align_of::<T>())
            }
        }
        let all = [Bool, I8, U8, I16, U16, I32, U32, I64, U64, F32, F64, Complex64, Complex128];
        let aligned = [1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 4, 8];
        for (element, align) in all.into_iter().zip(aligned) {
            let op = ByType::new(Named::Sum, element).expect("all have sums");
            assert_eq!(op.for_elements(Width), (element.size(), align), "{element:?}");
        }
    }

    #[test]
    fn members_are_told_which_operator_it_is() {
        let op = ByType::new(Named::Max, F64).expect("there is one");
        assert_eq!(Operator::<u64>::code(&op), Operator::<f64>::code(&super::super::Max));
        assert_eq!(Operator::<u64>::element(&op), "f64");
        for (nth, op) in ALL.into_iter().enumerate() {
            let op = ByType::new(op, U8).expect("bytes have all");
            assert_eq!(Operator::<u8>::code(&op), OperatorCode(nth as u8 + 1));
        }
    }
}
