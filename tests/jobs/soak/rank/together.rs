//! Joint actions of all ranks after their streams, in plans without faults.

mod sharing;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use udeck::op::{Max, Min, Operator, Product, Sum, in_order};
use udeck::{Error, Group};
use udeck_jobs::soak::plan::{Together, mixed};

use crate::{PATIENCE, Rank};

pub fn play(rank: &Rank<'_>, together: Together) {
    let done = match together {
        Together::Numbers => numbers(rank),
        Together::Panic => panics(rank),
        Together::Sharing => sharing::play(rank),
    };
    if let Err(error) = done {
        rank.wrong(format!("{together:?}: {error}"));
    }
}

fn group(rank: &Rank<'_>) -> udeck::Result<Group> {
    let all = rank.watch.call("the group", PATIENCE, || rank.world.all())?;
    Ok(all.within(PATIENCE))
}

/// A random number for a purpose, the same on each rank.
fn draw(rank: &Rank<'_>, purpose: u64, number: usize) -> u64 {
    mixed(rank.plan.seed, purpose, number as u64)
}

// ---- numbers ----

const NUMBERS: [f64; 9] =
    [f64::NAN, -f64::NAN, 0.0, -0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE];

/// Checks that every member has the same result, to the last bit.
fn numbers(rank: &Rank<'_>) -> udeck::Result {
    let all = group(rank)?;
    for (round, len) in [1, 2, 5, 64, 1000, 30_000].into_iter().enumerate() {
        let data: Vec<f64> = (0..len)
            .map(|at| NUMBERS[draw(rank, (rank.rank * 100 + round) as u64, at) as usize % NUMBERS.len()])
            .collect();
        same(rank, &all, "Max", data.clone(), Max)?;
        same(rank, &all, "Min", data.clone(), Min)?;
        same(rank, &all, "Sum", data.clone(), Sum)?;
        same(rank, &all, "Product", data, Product)?;
    }
    Ok(())
}

fn same(
    rank: &Rank<'_>,
    all: &Group,
    what: &str,
    mut data: Vec<f64>,
    op: impl Operator<f64>,
) -> udeck::Result {
    let what = format!("an all-reduce of {} by {what}", data.len());
    rank.watch.call(&what, PATIENCE, || all.all_reduce(&mut data, op))?;
    let bits: Vec<u64> = data.iter().map(|number| number.to_bits()).collect();
    let mut roots = bits.clone();
    rank.watch.call("a broadcast", PATIENCE, || all.broadcast(0, &mut roots))?;
    if let Some(at) = bits.iter().zip(&roots).position(|(mine, roots)| mine != roots) {
        rank.wrong(format!("{what}: element {at} is {:#x} here, and {:#x} at rank 0", bits[at], roots[at]));
    }
    Ok(())
}

// ---- an operator that panics ----

/// Longest time of a call that must fail before.
const LIMIT: Duration = Duration::from_secs(60);

/// Checks that all members get an error that is no deadline, and that the process survives.
fn panics(rank: &Rank<'_>) -> udeck::Result {
    let ranks = rank.plan.ranks;
    let all = group(rank)?.within(LIMIT);
    rank.watch.call("a barrier", LIMIT, || all.barrier())?;
    let victim = draw(rank, 1, 0) as usize % ranks;
    let len = [1, 100, 50_000][draw(rank, 2, 0) as usize % 3];
    let mut data = vec![1_u64; len];
    let is_victim = rank.rank == victim;
    // Nothing is printed, because this panic is intended.
    let op = |one: u64, other: u64| match is_victim {
        true => resume_unwind(Box::new("on purpose")),
        false => one + other,
    };
    // The reduction is in order, so that every member combines, whatever the algorithm of another all-reduce
    // is.
    let call = || catch_unwind(AssertUnwindSafe(|| all.all_reduce(&mut data, in_order(op))));
    match rank.watch.call("an all-reduce whose operator panics", LIMIT, call) {
        Err(_) if is_victim => {}
        Err(_) => rank.wrong("another rank's panic is this one's".into()),
        Ok(Err(error @ Error::Deadline { .. })) => {
            rank.wrong(format!("nobody told of an operator that panicked on rank {victim}: {error}"));
        }
        Ok(Err(error)) => rank.note(format!("an operator panicked: {error}")),
        Ok(Ok(())) if is_victim => rank.wrong("an operator that panics was not called".into()),
        // A rank that is ahead already has its result.
        Ok(Ok(())) => rank.note("the result was there before".into()),
    }
    let again =
        rank.watch.call("a call of a group that has failed", LIMIT, || all.all_reduce(&mut [1_u64], Sum));
    match again {
        Err(Error::Deadline { .. }) | Ok(()) => {
            rank.wrong(format!("a group whose operator panicked on rank {victim} goes on: {again:?}"));
        }
        Err(_) => {}
    }
    Ok(())
}
