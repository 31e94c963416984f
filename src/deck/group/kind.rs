//! What every message of a group says of the call that it belongs to, in its tag, so that members that call different things
//! find out.
//!
//! ```text
//! bit  31      26 25    22 21       13 12      8 7        0
//!     ┌──────────┬────────┬───────────┬─────────┬──────────┐
//!     │ elements │ operat.│   root    │  call   │  number  │
//!     └──────────┴────────┴───────────┴─────────┴──────────┘
//! ```
//!
//! The number counts the group's calls modulo 256. Members are at most 128 calls apart: every 64 they wait for each other
//! ([`SYNCHRONIZE`]).

use std::fmt;

use bytemuck::Pod;

use super::op::{Operator, OperatorCode};
use crate::payload::Payload;

/// A collective call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Kind {
    Create,
    Barrier,
    Broadcast,
    Reduce,
    AllReduce,
    Gather,
    Scatter,
    AllGather,
    AllToAll,
    ReduceScatter,
    Scan,
    Exscan,
    Neighbours,
    Split,
    /// No call: the sender's call of that number has failed, and no other can be complete.
    Failed,
}

impl Kind {
    const ALL: [Kind; 15] = [
        Kind::Create,
        Kind::Barrier,
        Kind::Broadcast,
        Kind::Reduce,
        Kind::AllReduce,
        Kind::Gather,
        Kind::Scatter,
        Kind::AllGather,
        Kind::AllToAll,
        Kind::ReduceScatter,
        Kind::Scan,
        Kind::Exscan,
        Kind::Neighbours,
        Kind::Split,
        Kind::Failed,
    ];

    /// Those that have a choice of algorithms.
    pub fn with_algorithms() -> impl Iterator<Item = Kind> {
        let without = [Kind::Create, Kind::Barrier, Kind::Neighbours, Kind::Split, Kind::Failed];
        Kind::ALL.into_iter().filter(move |kind| !without.contains(kind))
    }

    /// As the method is called.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Create => "creation",
            Kind::Barrier => "barrier",
            Kind::Broadcast => "broadcast",
            Kind::Reduce => "reduce",
            Kind::AllReduce => "all_reduce",
            Kind::Gather => "gather",
            Kind::Scatter => "scatter",
            Kind::AllGather => "all_gather",
            Kind::AllToAll => "all_to_all",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::Scan => "scan",
            Kind::Exscan => "exscan",
            Kind::Neighbours => "neighbours",
            Kind::Split => "split",
            Kind::Failed => "failure",
        }
    }

    fn has_root(self) -> bool {
        matches!(self, Kind::Broadcast | Kind::Reduce | Kind::Gather | Kind::Scatter)
    }

    fn has_operator(self) -> bool {
        matches!(self, Kind::Reduce | Kind::AllReduce | Kind::ReduceScatter | Kind::Scan | Kind::Exscan)
    }
}

/// The elements that a call is about: 6 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elements(u8);

/// Those that are told apart by name; others by their size.
const NAMED: [&str; 15] = [
    "u8",
    "i8",
    "u16",
    "i16",
    "u32",
    "i32",
    "u64",
    "i64",
    "u128",
    "i128",
    "usize",
    "isize",
    "f32",
    "f64",
    "packed messages",
];
const FIRST_SIZE: u8 = 16;
const SIZES: usize = 48;
const BYTES: Elements = Elements(15);

impl Elements {
    pub const NONE: Elements = BYTES;

    #[inline]
    pub fn of<T: Payload>() -> Elements {
        Self::known_as(T::kind(), T::SIZE)
    }

    /// As the operator says, which may know better than the compiler.
    #[inline]
    pub fn reduced_by<T: Pod, O: Operator<T>>(op: &O) -> Elements {
        Self::known_as(op.element(), size_of::<T>())
    }

    #[inline]
    fn known_as(name: &str, size: usize) -> Elements {
        match NAMED.iter().position(|known| *known == name) {
            Some(nth) => Elements(nth as u8),
            None => Elements(FIRST_SIZE + (size % SIZES) as u8),
        }
    }
}

/// A message's tag: which call it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature(u32);

const ROOTS: u32 = 512;
/// So many calls after the last time all members wait for each other, as a part of the call: a blocking one at once, a request
/// when it moves on. One such request may be under way when the next time comes, so members are at most twice as many calls apart.
/// So the messages that one of them keeps for later calls are bounded, and numbers modulo 256 are enough.
pub(super) const SYNCHRONIZE: u32 = 64;

pub(super) const NUMBERS: u32 = 256;

impl Signature {
    #[inline]
    pub fn new(kind: Kind, root: usize, operator: OperatorCode, elements: Elements) -> Self {
        let operator = u32::from(operator.bits());
        let root = root as u32 % ROOTS;
        Signature((u32::from(elements.0) << 26) | (operator << 22) | (root << 13) | ((kind as u32) << 8))
    }

    /// Of a call that concerns no elements.
    pub fn plain(kind: Kind) -> Self {
        Signature::new(kind, 0, OperatorCode::NONE, Elements::NONE)
    }

    /// The same, as the group's call of this number.
    #[inline]
    pub fn numbered(self, number: u32) -> Self {
        Signature((self.0 & !(NUMBERS - 1)) | (number % NUMBERS))
    }

    #[inline]
    pub fn tag(self) -> u32 {
        self.0
    }

    #[inline]
    pub fn of_tag(tag: u32) -> Self {
        Signature(tag)
    }

    /// Which of the group's calls it is, modulo 256.
    #[inline]
    pub fn number(self) -> usize {
        (self.0 % NUMBERS) as usize
    }

    /// `None`: no member of ours has sent it.
    pub fn kind(self) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u32 == (self.0 >> 8) & 31)
    }
}

/// As in `all_reduce (sum) of f64`.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(kind) = self.kind() else { return f.write_str("something unknown") };
        f.write_str(kind.name())?;
        if kind.has_operator() {
            write!(f, " ({})", OperatorCode::of_bits(((self.0 >> 22) & 15) as u8))?;
        }
        match (self.0 >> 26) as u8 {
            code if code == BYTES.0 => {}
            code if code < FIRST_SIZE => {
                write!(f, " of {}", NAMED.get(usize::from(code)).unwrap_or(&"unknown elements"))?;
            }
            code => write!(f, " of elements of {} bytes", code - FIRST_SIZE)?,
        }
        if kind.has_root() {
            write!(f, " with root {}", (self.0 >> 13) & (ROOTS - 1))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::op::{Sum, in_order};

    #[test]
    fn a_signature_says_what_was_called() {
        let sum = Operator::<f64>::code(&Sum);
        let reduce = Signature::new(Kind::Reduce, 511, sum, Elements::of::<f64>()).numbered(300);
        assert_eq!(reduce.to_string(), "reduce (sum) of f64 with root 511");
        assert_eq!(reduce.number(), 44);
        let ordered = in_order(|a: [u8; 3], _: [u8; 3]| a);
        let scan = Signature::new(Kind::Scan, 0, ordered.code(), Elements::of::<[u8; 3]>());
        assert_eq!(
            scan.to_string(),
            "scan (an operator of the program's own, in order) of elements of 3 bytes"
        );
        assert_eq!(Signature::plain(Kind::Barrier).to_string(), "barrier");
        assert_eq!(Signature::of_tag(31 << 8).to_string(), "something unknown");
    }
}
