//! Measurements among more ranks than two: streams of several pairs at once, every pair of a job alone, and many ranks that
//! send to one.
//!
//! Rank 0 conducts as everywhere: it says who does what, holds the clock and prints. Whatever started the job, each rank works
//! with the world that it finds.

mod control;
mod incast;
mod matrix;
mod multi_pair;

use std::time::Duration;

use udeck::{Protocol, World};

use crate::{
    binding::Spot,
    failure::{Failure, Result},
    plan::{Format, Pace},
};
use cli_common::machine::Machine;
use cli_common::progress;

use control::{Control, Placement};

/// What is measured, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct JobsPlan {
    /// What.
    pub kind: Kind,
    /// How messages travel.
    pub protocol: Protocol,
    /// Ascending, in bytes; empty: the usual ones of [`JobsPlan::kind`].
    pub sizes: Vec<usize>,
    /// How long, and in which portions.
    pub pace: Pace,
    /// How the result is written.
    pub format: Format,
    /// Each rank on a core of its own, where there are as many.
    pub pin: bool,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// So many pairs stream at once.
    MultiPair(Vec<usize>),
    /// Every pair, one at a time.
    Matrix(usize),
    /// All ranks but the first one send to it, in jobs of so many.
    Incast(Vec<usize>),
}

impl Kind {
    /// Of the command.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::MultiPair(_) => "multi-pair",
            Kind::Matrix(_) => "matrix",
            Kind::Incast(_) => "incast",
        }
    }

    /// That the command starts.
    pub fn ranks(&self) -> usize {
        let most = |counts: &[usize]| counts.iter().copied().max().unwrap_or(1);
        match self {
            Kind::MultiPair(pairs) => 2 * most(pairs),
            Kind::Matrix(ranks) => *ranks,
            Kind::Incast(ranks) => most(ranks),
        }
    }

    /// The fewest that it works with, where something else has started the job.
    pub fn fewest(&self) -> usize {
        let least = |counts: &[usize]| counts.iter().copied().min().unwrap_or(1);
        match self {
            Kind::MultiPair(pairs) => 2 * least(pairs),
            Kind::Matrix(_) => 2,
            Kind::Incast(ranks) => least(ranks),
        }
    }
}

/// A whole life in the job; rank 0's has something to print.
pub fn play(world: &World, plan: &JobsPlan, spots: &[Spot]) -> Result<String> {
    if world.size() < plan.kind.fewest() {
        let (wanted, got) = (plan.kind.fewest(), world.size());
        return Err(Failure::FewRanks { command: plan.kind.name(), wanted, got });
    }
    let control = Control::open(world)?;
    let placement = control.place(plan.pin, spots)?;
    let Some(placement) = placement else {
        match plan.kind {
            Kind::MultiPair(_) => multi_pair::follow(&control, plan.protocol)?,
            Kind::Matrix(_) => matrix::follow(&control, plan.protocol)?,
            Kind::Incast(_) => incast::follow(&control)?,
        }
        return Ok(String::new());
    };
    let bar = progress::bar(plan.pace.time.as_millis() as u64, "measuring");
    let passed = |passed: Duration| bar.set_position(passed.as_millis() as u64);
    let report = match &plan.kind {
        Kind::MultiPair(pairs) => multi_pair::measure(&control, plan, pairs, &placement, passed)?,
        Kind::Matrix(_) => matrix::measure(&control, plan, &placement, passed)?,
        Kind::Incast(ranks) => incast::measure(&control, plan, ranks, &placement, passed)?,
    };
    bar.finish_and_clear();
    Ok(report.render(plan.format))
}

/// Of a report.
fn machine(control: &Control<'_>, placement: &Placement) -> Machine {
    let nic = control.world().nic().attributes().name.clone();
    Machine { ranks: control.world().size(), ..Machine::describe(placement.describe(), nic) }
}

/// The sizes asked for, or those that the command has of its own.
fn sizes_or(plan: &JobsPlan, default: &[usize]) -> Vec<usize> {
    if plan.sizes.is_empty() { default.to_vec() } else { plan.sizes.clone() }
}
