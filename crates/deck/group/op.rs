//! Operators of reductions.

mod by_type;

use std::fmt;
use std::ops::{Add, Mul};

use smallvec::SmallVec;

pub use self::by_type::{ByType, ElementType, Named, WithElements};

/// Operator that combines two elements into one. Any function of two elements is an operator, too:
/// `|a: f64, b: f64| a.max(b)`.
///
/// An operator has to be associative, and commutative unless it is used by [`in_order`]. All members have to
/// use the same one. Where the order makes a difference (sums of floating-point numbers, the sign of a zero,
/// the bits of a NaN), all members get the same result; but another number of members, another layout over
/// hosts or another algorithm may give another one. [`in_order`] fixes the result.
///
/// A panic of an operator ends its call, and with it the group: the other members get
/// [`crate::Error::GroupFailed`], and the panic is resumed. An operator must not call its own group.
pub trait Operator<T> {
    /// Code by which members notice that they use different operators.
    #[doc(hidden)]
    fn code(&self) -> OperatorCode;

    /// Name of the elements' type, for the same purpose.
    #[doc(hidden)]
    #[inline]
    fn element(&self) -> &'static str {
        std::any::type_name::<T>()
    }

    /// Combines each element of `left` with that of `right`, into `left`, for as many as both have.
    fn combine(&self, left: &mut [T], right: &[T]);
}

/// Side of an operator on which the other member's elements stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Bytes that are combined at a time.
const STRIDE: usize = 4 << 10;

/// Combines each element of `mine` with that of `theirs`, which has the same length, into `mine`.
///
/// Members that combine the same two elements get the same bits, whichever element is local: the left operand
/// is always in the slice that [`Operator::combine`] writes. (A compiler may exchange the operands of a sum,
/// which shows in a NaN. Within one function it does so for all.)
pub(crate) fn combine<T: Copy, O: Operator<T>>(op: &O, mine: &mut [T], theirs: &[T], side: Side) {
    let stride = (STRIDE / size_of::<T>().max(1)).max(1);
    let mut own = Vec::new();
    for (mine, theirs) in mine.chunks_mut(stride).zip(theirs.chunks(stride)) {
        match side {
            Side::Right => op.combine(mine, theirs),
            // A few small elements need no allocation. Large ones would not fit on every stack.
            Side::Left if size_of_val(mine) <= FEW && size_of::<T>() <= FEW / 8 => {
                swapped_on_stack(op, mine, theirs)
            }
            Side::Left => {
                own.clear();
                own.extend_from_slice(mine);
                swapped(op, mine, theirs, &own);
            }
        }
    }
}

/// Maximum number of bytes of elements on the stack.
const FEW: usize = 128;

fn swapped_on_stack<T: Copy, O: Operator<T>>(op: &O, mine: &mut [T], theirs: &[T]) {
    swapped(op, mine, theirs, &SmallVec::<[T; 8]>::from_slice(mine));
}

fn swapped<T: Copy, O: Operator<T>>(op: &O, mine: &mut [T], theirs: &[T], own: &[T]) {
    mine.copy_from_slice(theirs);
    op.combine(mine, own);
}

/// Code of an operator in a message's tag.
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

/// Defines operators that are functions of two elements and have a name.
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
        }
    )*};
}

operators! {
    /// The sum, by `+` (which panics on overflow of integers where the program's arithmetic does).
    Sum = 1, Add<Output = T>, |a, b| a + b;
    /// The product, by `*`.
    Product = 2, Mul<Output = T>, |a, b| a * b;
    /// The lesser element. If one is not comparable (not a number), the result is either of them, the same at
    /// all members.
    Min = 3, PartialOrd, |a, b| if b < a { b } else { a };
    /// The greater element. If one is not comparable (not a number), the result is either of them, the same
    /// at all members.
    Max = 4, PartialOrd, |a, b| if b > a { b } else { a };
    /// The bits that are set in both elements.
    BitAnd = 5, std::ops::BitAnd<Output = T>, |a, b| a & b;
    /// The bits that are set in at least one element.
    BitOr = 6, std::ops::BitOr<Output = T>, |a, b| a | b;
    /// The bits that are set in exactly one element.
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
}

/// Combines in one piece of machine code for each type and operator: see [`combine`].
#[inline(never)]
fn combine_by<T: Copy>(op: impl Fn(T, T) -> T, left: &mut [T], right: &[T]) {
    left.iter_mut().zip(right).for_each(|(left, right)| *left = op(*left, *right));
}

/// An operator whose results are combined from member 0 on, like in a loop: `((x0 op x1) op x2) …`. The
/// result is the same to the last bit on any machine, and the operator need not be commutative. Large
/// reductions take longer.
#[derive(Clone, Copy, Debug)]
pub struct InOrder<O>(O);

/// Fixes the order of a reduction ([`InOrder`]).
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
    }

    /// Checks many strides, and a last one that is shorter.
    #[test]
    fn on_either_side_the_same_comes_out() {
        let minus = in_order(|a: i32, b: i32| a - b);
        for len in [0, 1, 8, 9, 3 * STRIDE / 4 + 5] {
            let of = |first| -> Vec<i32> { (first..first + len as i32).map(|n| n * n).collect() };
            let (mut left, mut right) = (of(3), of(5));
            combine(&minus, &mut left, &of(5), Side::Right);
            combine(&minus, &mut right, &of(3), Side::Left);
            assert!(
                left == right && left.iter().zip(of(3).iter().zip(of(5))).all(|(got, (a, b))| *got == a - b)
            );
        }
    }
}
