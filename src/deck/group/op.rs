//! Operators of reductions.

mod by_type;

use std::fmt;
use std::ops::{Add, Mul};

pub use self::by_type::{ByType, ElementType, Named, WithElements};

/// How two elements become one. Any function of two elements is an operator, too: `|a, b| a.max(b)`.
///
/// It has to be associative, and commutative unless it is used by [`in_order`]. All members have to use the same one.
/// Where rounding makes a difference (sums of floating-point numbers), all members get the same result; but another number of
/// members, another layout over hosts or another algorithm may round otherwise. [`in_order`] fixes that.
pub trait Operator<T> {
    /// How members find out that they use different ones.
    #[doc(hidden)]
    fn code(&self) -> OperatorCode;

    /// The elements' type, for the same.
    #[doc(hidden)]
    #[inline]
    fn element(&self) -> &'static str {
        std::any::type_name::<T>()
    }

    /// Each of `left` becomes itself combined with the one of `right`, as many as both have.
    fn combine(&self, left: &mut [T], right: &[T]);

    /// Each of `right` becomes the one of `left` combined with itself, as many as both have.
    fn combine_into_right(&self, left: &[T], right: &mut [T]);
}

/// Names an operator in a message's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatorCode(u8);

const NAMES: [&str; 8] =
    ["an operator of the program's own", "sum", "product", "min", "max", "and", "or", "exclusive or"];
const IN_ORDER: u8 = 8;

impl OperatorCode {
    pub(crate) const NONE: OperatorCode = OperatorCode(0);

    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    pub(crate) const fn of_bits(bits: u8) -> Self {
        OperatorCode(bits & 15)
    }

    pub(crate) const fn is_in_order(self) -> bool {
        self.0 & IN_ORDER != 0
    }
}

impl fmt::Display for OperatorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES[usize::from(self.0 & 7)])?;
        if self.is_in_order() { f.write_str(", in order") } else { Ok(()) }
    }
}

/// Defines operators that are functions of two elements, known by name.
macro_rules! operators {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $bound:path, |$a:ident, $b:ident| $result:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;

        impl<T: Copy + $bound> Operator<T> for $name {
            #[inline]
            fn code(&self) -> OperatorCode {
                OperatorCode($code)
            }

            #[inline]
            fn combine(&self, left: &mut [T], right: &[T]) {
                combine_by(|$a, $b| $result, left, right);
            }

            #[inline]
            fn combine_into_right(&self, left: &[T], right: &mut [T]) {
                combine_into_right_by(|$a, $b| $result, left, right);
            }
        }
    )*};
}

operators! {
    /// The sum, by `+` (which panics on overflow of integers where the program's arithmetic does).
    Sum = 1, Add<Output = T>, |a, b| a + b;
    /// The product, by `*`.
    Product = 2, Mul<Output = T>, |a, b| a * b;
    /// The lesser one. If one is not comparable (not a number), the result is either.
    Min = 3, PartialOrd, |a, b| if b < a { b } else { a };
    /// The greater one. If one is not comparable (not a number), the result is either.
    Max = 4, PartialOrd, |a, b| if b > a { b } else { a };
    /// Bits that both have.
    BitAnd = 5, std::ops::BitAnd<Output = T>, |a, b| a & b;
    /// Bits that one of them has.
    BitOr = 6, std::ops::BitOr<Output = T>, |a, b| a | b;
    /// Bits that exactly one of them has.
    BitXor = 7, std::ops::BitXor<Output = T>, |a, b| a ^ b;
}

impl<T: Copy, F: Fn(T, T) -> T> Operator<T> for F {
    #[inline]
    fn code(&self) -> OperatorCode {
        OperatorCode(0)
    }

    #[inline]
    fn combine(&self, left: &mut [T], right: &[T]) {
        combine_by(self, left, right);
    }

    #[inline]
    fn combine_into_right(&self, left: &[T], right: &mut [T]) {
        combine_into_right_by(self, left, right);
    }
}

#[inline]
fn combine_by<T: Copy>(op: impl Fn(T, T) -> T, left: &mut [T], right: &[T]) {
    left.iter_mut().zip(right).for_each(|(left, right)| *left = op(*left, *right));
}

#[inline]
fn combine_into_right_by<T: Copy>(op: impl Fn(T, T) -> T, left: &[T], right: &mut [T]) {
    left.iter().zip(right).for_each(|(left, right)| *right = op(*left, *right));
}

/// An operator whose results are combined from member 0 on, as a loop would do it: `((x0 op x1) op x2) …`. So the result is
/// the same to the last bit on any machine, and the operator need not be commutative. Large reductions take longer.
#[derive(Clone, Copy, Debug)]
pub struct InOrder<O>(O);

/// Makes the order of a reduction fixed ([`InOrder`]).
pub fn in_order<O>(op: O) -> InOrder<O> {
    InOrder(op)
}

impl<T, O: Operator<T>> Operator<T> for InOrder<O> {
    #[inline]
    fn code(&self) -> OperatorCode {
        OperatorCode(self.0.code().0 | IN_ORDER)
    }

    #[inline]
    fn element(&self) -> &'static str {
        self.0.element()
    }

    #[inline]
    fn combine(&self, left: &mut [T], right: &[T]) {
        self.0.combine(left, right);
    }

    #[inline]
    fn combine_into_right(&self, left: &[T], right: &mut [T]) {
        self.0.combine_into_right(left, right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold<O: Operator<i32>>(op: O, with: &[i32]) -> i32 {
        let mut total = [with[0]];
        with[1..].iter().for_each(|next| op.combine(&mut total, &[*next]));
        total[0]
    }

    #[test]
    fn operators_do_what_they_are_named_for() {
        let of = [6, -3, 12];
        assert_eq!([fold(Sum, &of), fold(Product, &of), fold(Min, &of), fold(Max, &of)], [15, -216, -3, 12]);
        assert_eq!([fold(BitAnd, &[6, 12]), fold(BitOr, &[6, 12]), fold(BitXor, &[6, 12])], [4, 14, 10]);
        assert_eq!(fold(|a: i32, b: i32| a - b, &[10, 3, 2]), 5);
        let mut right = [3];
        in_order(|a: i32, b: i32| a - b).combine_into_right(&[10], &mut right);
        assert_eq!(right, [7]);
    }
}
