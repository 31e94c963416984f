//! The choice of a collective's algorithm, and its reason.
//!
//! The choice depends only on facts that are the same at all members: the call, the number of members and
//! their hosts, and the length where it is the same for all.

use super::choice::{Algorithm, AlgorithmChoice};
use super::kind::Kind;
use super::layout::Layout;

/// Bytes of a member's data from which a reduction is split among the members.
const SPLIT_FROM: usize = 8 << 10;
/// Bytes for another member up to which data travel through third members, to save messages.
const SMALL: usize = 1 << 10;
/// Number of members up to which all send to one, or to each other.
const FEW: usize = 16;

/// Chooses an algorithm. `bytes`: what each member has for each other, or contributes; 0 if lengths may
/// differ. `in_order`: the operator's order is fixed.
pub(crate) fn choose(kind: Kind, bytes: usize, in_order: bool, layout: &Layout) -> AlgorithmChoice {
    let choice = |algorithm, why| AlgorithmChoice { algorithm, why };
    if in_order {
        return choice(Algorithm::Direct, "the operator's order is fixed");
    }
    match layout.agreed.forced {
        Some(forced) if serves(forced, kind) => return choice(forced, "DECK_GROUP says so"),
        _ => {}
    }
    let few = layout.size() <= FEW;
    if layout.has_shared_hosts() && serves(Algorithm::Hosts, kind) {
        return choice(Algorithm::Hosts, "several members share a host");
    }
    let one_host = layout.is_on_one_host();
    if one_host && few {
        return choice(Algorithm::Direct, "all members share a host, and read each other's memory");
    }
    match kind {
        Kind::Broadcast | Kind::Reduce => {
            choice(Algorithm::Binomial, "each round doubles the members that are served")
        }
        Kind::AllReduce if bytes < SPLIT_FROM => choice(Algorithm::Doubling, "short data: fewest rounds"),
        Kind::AllReduce if layout.size().is_power_of_two() => {
            choice(Algorithm::Rabenseifner, "long data: each member reduces a part")
        }
        Kind::AllReduce => {
            choice(Algorithm::Ring, "long data, and no power of two: each member reduces a part")
        }
        Kind::Gather | Kind::Scatter if bytes != 0 && bytes <= SMALL && !few => {
            choice(Algorithm::Binomial, "short data of many members: fewest messages")
        }
        Kind::AllGather | Kind::AllToAll if bytes != 0 && bytes <= SMALL => {
            choice(Algorithm::Bruck, "short data: fewest messages")
        }
        Kind::AllGather => choice(Algorithm::Ring, "long data: each link carries each part once"),
        Kind::AllToAll => choice(Algorithm::Pairwise, "long data: one partner at a time"),
        Kind::ReduceScatter if !few => {
            choice(Algorithm::Ring, "many members: each link carries each part once")
        }
        Kind::Scan | Kind::Exscan => choice(Algorithm::Doubling, "fewest rounds"),
        _ => choice(Algorithm::Direct, "few messages in any case"),
    }
}

/// Whether the algorithm implements that kind of call.
fn serves(algorithm: Algorithm, kind: Kind) -> bool {
    use Algorithm::{Binomial, Bruck, Doubling, Hosts, Pairwise, Rabenseifner, Ring};
    match kind {
        _ if algorithm == Algorithm::Direct => true,
        Kind::Broadcast | Kind::Reduce => matches!(algorithm, Binomial | Hosts),
        Kind::AllReduce => matches!(algorithm, Doubling | Rabenseifner | Ring | Hosts),
        Kind::Gather | Kind::Scatter => algorithm == Binomial,
        Kind::AllGather => matches!(algorithm, Bruck | Ring),
        Kind::AllToAll => matches!(algorithm, Bruck | Pairwise),
        Kind::ReduceScatter => algorithm == Ring,
        Kind::Scan | Kind::Exscan => algorithm == Doubling,
        _ => false,
    }
}

/// Whether a direct reduction of that many bytes is split among the members.
pub(crate) fn is_split(bytes: usize, members: usize) -> bool {
    members > 2 && bytes >= SPLIT_FROM
}
