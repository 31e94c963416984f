//! The tag of a group's messages: it identifies the call that a message belongs to, so that members notice
//! when they make different calls.
//!
//! ```text
//! bit  31                             13 12      8 7        0
//!     ┌────────┬────────────────────────┬─────────┬──────────┐
//!     │operat. │ elements, root         │  call   │  number  │   calls that combine
//!     ├────────┴────────────────────────┼─────────┼──────────┤
//!     │ elements, root                  │  call   │  number  │   others
//!     └─────────────────────────────────┴─────────┴──────────┘
//! ```
//!
//! Elements and root are stored as they are if they fit: then the first bit is 0. Otherwise it is 1, followed
//! by a digest of both, by which members still notice a difference.
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
    BroadcastBuf,
    Reduce,
    AllReduce,
    Gather,
    GatherV,
    GatherBuf,
    Scatter,
    ScatterV,
    ScatterBuf,
    AllGather,
    AllGatherV,
    AllGatherBuf,
    AllToAll,
    AllToAllV,
    AllToAllBuf,
    ReduceScatter,
    ReduceScatterV,
    Scan,
    Exscan,
    Neighbours,
    Split,
    /// Not a call: the sender's call of that number has failed, and no other member can complete it.
    Failed,
}

impl Kind {
    const ALL: [Kind; 25] = [
        Kind::Create,
        Kind::Barrier,
        Kind::Broadcast,
        Kind::BroadcastBuf,
        Kind::Reduce,
        Kind::AllReduce,
        Kind::Gather,
        Kind::GatherV,
        Kind::GatherBuf,
        Kind::Scatter,
        Kind::ScatterV,
        Kind::ScatterBuf,
        Kind::AllGather,
        Kind::AllGatherV,
        Kind::AllGatherBuf,
        Kind::AllToAll,
        Kind::AllToAllV,
        Kind::AllToAllBuf,
        Kind::ReduceScatter,
        Kind::ReduceScatterV,
        Kind::Scan,
        Kind::Exscan,
        Kind::Neighbours,
        Kind::Split,
        Kind::Failed,
    ];

    /// Kinds of calls that have a choice of algorithms.
    pub fn with_algorithms() -> impl Iterator<Item = Kind> {
        use Kind::{
            AllGather, AllReduce, AllToAll, Broadcast, Exscan, Gather, Reduce, ReduceScatter, Scan, Scatter,
        };
        [Broadcast, Reduce, AllReduce, Gather, Scatter, AllGather, AllToAll, ReduceScatter, Scan, Exscan]
            .into_iter()
    }

    /// The name of the call's method.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Create => "creation",
            Kind::Barrier => "barrier",
            Kind::Broadcast => "broadcast",
            Kind::BroadcastBuf => "broadcast_buf",
            Kind::Reduce => "reduce",
            Kind::AllReduce => "all_reduce",
            Kind::Gather => "gather",
            Kind::GatherV => "gather_v",
            Kind::GatherBuf => "gather_buf",
            Kind::Scatter => "scatter",
            Kind::ScatterV => "scatter_v",
            Kind::ScatterBuf => "scatter_buf",
            Kind::AllGather => "all_gather",
            Kind::AllGatherV => "all_gather_v",
            Kind::AllGatherBuf => "all_gather_buf",
            Kind::AllToAll => "all_to_all",
            Kind::AllToAllV => "all_to_all_v",
            Kind::AllToAllBuf => "all_to_all_buf",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::ReduceScatterV => "reduce_scatter_v",
            Kind::Scan => "scan",
            Kind::Exscan => "exscan",
            Kind::Neighbours => "neighbours",
            Kind::Split => "split",
            Kind::Failed => "failure",
        }
    }

    fn has_root(self) -> bool {
        use Kind::{
            Broadcast, BroadcastBuf, Gather, GatherBuf, GatherV, Reduce, Scatter, ScatterBuf, ScatterV,
        };
        matches!(
            self,
            Broadcast
                | BroadcastBuf
                | Reduce
                | Gather
                | GatherV
                | GatherBuf
                | Scatter
                | ScatterV
                | ScatterBuf
        )
    }

    fn has_operator(self) -> bool {
        use Kind::{AllReduce, Exscan, Reduce, ReduceScatter, ReduceScatterV, Scan};
        matches!(self, Reduce | AllReduce | ReduceScatter | ReduceScatterV | Scan | Exscan)
    }

    /// Bits for elements and root, including the bit that says how they are stored; and how many of them a
    /// root takes.
    #[inline]
    fn detail_bits(self) -> (u32, u32) {
        match (self.has_operator(), self.has_root()) {
            (true, true) => (15, 8),
            (true, false) => (15, 0),
            // 12 bits for the root: as many as a job has ranks.
            (false, true) => (19, 12),
            (false, false) => (19, 0),
        }
    }
}

/// Type of a call's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elements(u32);

/// Types that tags identify by index. Other types are identified by size, or by a digest of their name.
const NAMED: [&str; 20] = [
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
    "truth values",
    "complex numbers of f32",
    "complex numbers of f64",
    "arrays of Python",
    "objects of Python",
];
const NO_ELEMENTS: u32 = NAMED.len() as u32;
const FIRST_SIZE: u32 = NO_ELEMENTS + 1;
const IS_DIGEST: u32 = 1 << 31;

impl Elements {
    pub const NONE: Elements = Elements(NO_ELEMENTS);

    #[inline]
    pub fn of<T: Payload>() -> Elements {
        Self::known_as(T::kind(), T::SIZE)
    }

    /// The element type of an operator, which may know it better than the compiler.
    #[inline]
    pub fn reduced_by<T: Pod, O: Operator<T>>(op: &O) -> Elements {
        Self::known_as(op.element(), size_of::<T>())
    }

    /// The element type of a name that the compiler does not know.
    pub fn named(name: &str) -> Elements {
        let digest = |name: &str| digest(name.bytes().fold(0, |hash, byte| mix(hash, u64::from(byte))), 31);
        Self::of_name(name).unwrap_or_else(|| Elements(IS_DIGEST | digest(name)))
    }

    #[inline]
    fn known_as(name: &str, size: usize) -> Elements {
        Self::of_name(name)
            .unwrap_or(Elements(FIRST_SIZE.saturating_add(size.try_into().unwrap_or(u32::MAX)) & !IS_DIGEST))
    }

    #[inline]
    fn of_name(name: &str) -> Option<Elements> {
        NAMED.iter().position(|known| *known == name).map(|nth| Elements(nth as u32))
    }
}

#[inline]
fn mix(hash: u64, next: u64) -> u64 {
    (hash ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// Returns the upper bits of a well mixed number.
#[inline]
fn digest(hash: u64, bits: u32) -> u32 {
    (mix(hash, hash >> 32) >> (64 - bits)) as u32
}

/// The tag of a message, which identifies its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature(u32);

/// Number of calls after which all members wait for each other, as part of the call: a blocking call at once,
/// a request when it moves on. One such request may be under way when the next is due, so members are at most
/// twice as many calls apart. This bounds the messages that a member keeps for later calls, and makes numbers
/// modulo 256 sufficient.
pub(super) const SYNCHRONIZE: u32 = 64;

pub(super) const NUMBERS: u32 = 256;

impl Signature {
    #[inline]
    pub fn new(kind: Kind, root: usize, operator: OperatorCode, elements: Elements) -> Self {
        let (bits, root_bits) = kind.detail_bits();
        let root = root as u64;
        let as_it_is = (u64::from(elements.0) << root_bits) | root;
        let fits = root >> root_bits == 0 && as_it_is >> (bits - 1) == 0;
        let detail = match fits {
            true => as_it_is as u32,
            false => (1 << (bits - 1)) | digest(mix(mix(0, u64::from(elements.0)), root), bits - 1),
        };
        let operator = if kind.has_operator() { u32::from(operator.bits()) << 28 } else { 0 };
        Signature(operator | (detail << 13) | ((kind as u32) << 8))
    }

    /// The signature of a call that has no elements.
    pub fn plain(kind: Kind) -> Self {
        Signature::new(kind, 0, OperatorCode::NONE, Elements::NONE)
    }

    /// The same signature, with the number of a call of the group.
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

    /// Number of the call in the group, modulo 256.
    #[inline]
    pub fn number(self) -> usize {
        (self.0 % NUMBERS) as usize
    }

    /// The kind of call; `None`: no correct member has sent this tag.
    pub fn kind(self) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u32 == (self.0 >> 8) & 31)
    }
}

/// Formats the call: `all_reduce (sum) of f64`.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(kind) = self.kind() else { return f.write_str("something unknown") };
        f.write_str(kind.name())?;
        if kind.has_operator() {
            write!(f, " ({})", OperatorCode::of_bits((self.0 >> 28) as u8))?;
        }
        let (bits, root_bits) = kind.detail_bits();
        let detail = (self.0 >> 13) & ((1 << bits) - 1);
        if detail >> (bits - 1) != 0 {
            let or_root = if kind.has_root() { ", or with a root," } else { "" };
            return write!(f, " of elements{or_root} that messages do not name");
        }
        match (detail >> root_bits) as usize {
            code if code == NO_ELEMENTS as usize => {}
            code if code < NAMED.len() => write!(f, " of {}", NAMED[code])?,
            code => write!(f, " of elements of {} bytes", code - FIRST_SIZE as usize)?,
        }
        if kind.has_root() {
            write!(f, " with root {}", detail & ((1 << root_bits) - 1))?;
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
        let reduce = Signature::new(Kind::Reduce, 255, sum, Elements::of::<f64>()).numbered(300);
        assert_eq!(reduce.to_string(), "reduce (sum) of f64 with root 255");
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

    /// Checks that any difference shows, whether or not the words can express it.
    #[test]
    fn no_two_calls_look_the_same() {
        let sum = Operator::<f64>::code(&Sum);
        let sizes =
            [1, 3, 16, 31, 51, 64, 99, 100, 300, 20_000, 1 << 20].map(|size| Elements::known_as("own", size));
        let named = ["f64", ">f8", "<M8[ns]", "<M8[us]", "truth values"].map(Elements::named);
        let elements = [&sizes[..], &named].concat();
        for (nth, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, nth);
            let roots = if kind.has_root() { &[0, 1, 255, 256, 511, 512, 1024, 4095][..] } else { &[0] };
            let all = elements
                .iter()
                .flat_map(|one| roots.iter().map(|root| Signature::new(kind, *root, sum, *one)));
            let mut tags: Vec<u32> = all.map(Signature::tag).collect();
            assert!(tags.iter().all(|tag| Signature::of_tag(*tag).kind() == Some(kind)));
            tags.sort_unstable();
            assert!(tags.windows(2).all(|two| two[0] != two[1]), "{kind:?}");
        }
    }

    #[test]
    fn what_has_no_short_name_is_said_so() {
        let words =
            |kind, root, elements| Signature::new(kind, root, OperatorCode::NONE, elements).to_string();
        assert_eq!(words(Kind::Broadcast, 4095, Elements::of::<f64>()), "broadcast of f64 with root 4095");
        assert_eq!(
            words(Kind::AllGatherV, 0, Elements::known_as("own", 9000)),
            "all_gather_v of elements of 9000 bytes"
        );
        assert_eq!(
            words(Kind::AllGather, 0, Elements::named(">f8")),
            "all_gather of elements that messages do not name"
        );
        assert_eq!(
            words(Kind::GatherBuf, 1, Elements::known_as("own", 9000)),
            "gather_buf of elements, or with a root, that messages do not name"
        );
    }
}
