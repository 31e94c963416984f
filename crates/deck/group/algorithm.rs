//! The algorithms, each in a file with its source, and the dispatch of collectives to them.
//!
//! Each algorithm is an `async` function of one member ([`super::call`]) for the members of a
//! [`super::layout::Team`]: all members, those of a host, or one of each host.
//!
//! | file | use |
//! |---|---|
//! | `direct` | everything, among few members |
//! | `binomial` | broadcast, reduce, gather, scatter |
//! | `doubling` | all-reduce of short data, scans |
//! | `rabenseifner` | all-reduce of long data, powers of two |
//! | `ring` | all-reduce, all-gather, reduce-scatter of long data |
//! | `bruck` | all-gather and all-to-all of short data |
//! | `pairwise` | all-to-all of long data |
//! | `hosts` | broadcast, reduce and all-reduce over hosts with several members each |
//! | `ragged` | parts of different lengths: lengths first, then the data by one of the others |
//!
//! Source where no other is named: Thakur, Rabenseifner, Gropp, *Optimization of collective communication operations in MPICH*,
//! International Journal of High Performance Computing Applications 19 (1), 2005.

pub(super) mod barrier;
pub(super) mod binomial;
pub(super) mod bruck;
pub(super) mod direct;
pub(super) mod doubling;
pub(super) mod hosts;
pub(super) mod pairwise;
pub(super) mod rabenseifner;
pub(super) mod ragged;
pub(super) mod ring;

use std::ops::Range;

use bytemuck::Pod;

use super::call::{Call, Link};
use super::choice::{Algorithm, AlgorithmChoice};
use super::choose::choose;
use super::kind::Kind;
use super::op::Operator;
use crate::error::Result;

/// Chooses the algorithm for this call. Reports it to the user if `DECK_EXPLAIN` is set.
fn take<L: Link>(call: &Call<L>, kind: Kind, bytes: usize, in_order: bool) -> Algorithm {
    let choice = choose(kind, bytes, in_order, call.layout());
    if call.state().world().config().explain && call.layout().me == 0 {
        report(call, kind, &choice);
    }
    choice.algorithm
}

/// Reports the choice once for each algorithm of a kind.
#[cold]
fn report<L: Link>(call: &Call<L>, kind: Kind, choice: &AlgorithmChoice) {
    let known = (kind, choice.algorithm);
    let is_news = call.with(|engine| {
        let is_news = !engine.explained.contains(&known);
        if is_news {
            engine.explained.push(known);
        }
        is_news
    });
    if is_news {
        let title = call.state().title(call.signature());
        udeck_via::stderr_line(format_args!("deck: {title}: {choice}"));
    }
}

pub async fn broadcast<L: Link, T: Pod>(call: &Call<L>, root: usize, data: &mut [T]) -> Result {
    let team = call.layout().everybody();
    match take(call, Kind::Broadcast, size_of_val(data), false) {
        Algorithm::Hosts => hosts::broadcast(call, root, data).await,
        Algorithm::Binomial => binomial::broadcast(call, team, root, data).await,
        _ => direct::broadcast(call, team, root, data).await,
    }
}

pub async fn reduce<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    root: usize,
    data: &mut [T],
    op: &O,
) -> Result {
    let team = call.layout().everybody();
    match take(call, Kind::Reduce, size_of_val(data), op.code().is_in_order()) {
        Algorithm::Hosts => hosts::reduce(call, root, data, op).await,
        Algorithm::Binomial => binomial::reduce(call, team, root, data, op).await,
        _ => direct::reduce(call, team, root, data, op).await,
    }
}

pub async fn all_reduce<L: Link, T: Pod, O: Operator<T>>(call: &Call<L>, data: &mut [T], op: &O) -> Result {
    let team = call.layout().everybody();
    match take(call, Kind::AllReduce, size_of_val(data), op.code().is_in_order()) {
        Algorithm::Hosts => hosts::all_reduce(call, data, op).await,
        Algorithm::Doubling => doubling::all_reduce(call, team, data, op).await,
        Algorithm::Rabenseifner => rabenseifner::all_reduce(call, team, data, op).await,
        Algorithm::Ring => ring::all_reduce(call, team, data, op).await,
        _ => direct::all_reduce(call, team, data, op).await,
    }
}

/// Gathers `mine` of each member. `all` is used at the root only.
pub async fn gather<L: Link, T: Pod>(call: &Call<L>, root: usize, mine: &[T], all: &mut [T]) -> Result {
    let team = call.layout().everybody();
    match take(call, Kind::Gather, size_of_val(mine), false) {
        Algorithm::Binomial => binomial::gather(call, team, root, mine, all).await,
        _ => direct::gather(call, team, root, mine, &mut equal_mut(all, team.size)).await,
    }
}

pub async fn scatter<L: Link, T: Pod>(call: &Call<L>, root: usize, all: &[T], mine: &mut [T]) -> Result {
    let team = call.layout().everybody();
    match take(call, Kind::Scatter, size_of_val(mine), false) {
        Algorithm::Binomial => binomial::scatter(call, team, root, all, mine).await,
        _ => direct::scatter(call, team, root, &equal(all, team.size), mine).await,
    }
}

pub async fn all_gather<L: Link, T: Pod>(call: &Call<L>, mine: &[T], all: &mut [T]) -> Result {
    let team = call.layout().everybody();
    match take(call, Kind::AllGather, size_of_val(mine), false) {
        Algorithm::Bruck => bruck::all_gather(call, team, mine, all).await,
        Algorithm::Ring => ring::all_gather(call, team, mine, &mut equal_mut(all, team.size)).await,
        _ => direct::all_gather(call, team, mine, &mut equal_mut(all, team.size)).await,
    }
}

pub async fn all_to_all<L: Link, T: Pod>(call: &Call<L>, from: &[T], to: &mut [T]) -> Result {
    let team = call.layout().everybody();
    let each = from.len() / team.size;
    match take(call, Kind::AllToAll, each * size_of::<T>(), false) {
        Algorithm::Bruck => bruck::all_to_all(call, team, from, to).await,
        Algorithm::Pairwise => {
            pairwise::all_to_all(call, team, &equal(from, team.size), &mut equal_mut(to, team.size)).await
        }
        _ => direct::all_to_all(call, team, &equal(from, team.size), &mut equal_mut(to, team.size)).await,
    }
}

pub async fn reduce_scatter<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    from: &[&[T]],
    mine: &mut [T],
    op: &O,
) -> Result {
    let team = call.layout().everybody();
    match take(call, Kind::ReduceScatter, size_of_val(mine), op.code().is_in_order()) {
        Algorithm::Ring => ring::reduce_scatter(call, team, from, mine, op).await,
        _ => direct::reduce_scatter(call, team, from, mine, op).await,
    }
}

/// Computes prefixes. `inclusive`: with the member's own data.
pub async fn scan<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    data: &mut [T],
    op: &O,
    inclusive: bool,
) -> Result {
    let team = call.layout().everybody();
    match take(call, call.kind(), size_of_val(data), op.code().is_in_order()) {
        Algorithm::Doubling => doubling::scan(call, team, data, op, inclusive).await,
        _ => direct::scan(call, team, data, op, inclusive).await,
    }
}

/// Splits a slice into equal parts, one for each member.
fn equal<T>(all: &[T], members: usize) -> Vec<&[T]> {
    let each = all.len() / members;
    (0..members).map(|nth| &all[nth * each..(nth + 1) * each]).collect()
}

fn equal_mut<T>(mut all: &mut [T], members: usize) -> Vec<&mut [T]> {
    let each = all.len() / members;
    let mut next = || all.split_off_mut(..each).unwrap_or_default();
    (0..members).map(|_| next()).collect()
}

/// The range of `len` elements that the member at `place` of `size` reduces.
pub(super) fn share_of(len: usize, place: usize, size: usize) -> Range<usize> {
    // Computed in 128 bits, so that no length overflows.
    let bound = |place: usize| (len as u128 * place as u128 / size as u128) as usize;
    bound(place)..bound(place + 1)
}
