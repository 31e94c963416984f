//! Measurements among more than two ranks: streams of several pairs at once, each pair of a job alone, and many ranks that
//! send to one.
//!
//! Rank 0 conducts as everywhere: it gives the orders, holds the clock and prints. Each rank works with the world that it finds,
//! whatever started the job.

mod control;
mod incast;
mod matrix;
mod multi_pair;

use std::time::Duration;

use udeck::{Protocol, World};

use crate::{
    experiment::{
        binding::BindPlace,
        plan::{Format, Pace},
    },
    failure::{PerfError, Result},
};
use udeck_cli::machine::Machine;
use udeck_cli::progress;

use control::{Control, Placement};

/// Plan of a measurement among several ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct JobsPlan {
    /// Kind of the measurement.
    pub kind: Kind,
    /// Protocol of the messages.
    pub protocol: Protocol,
    /// Message sizes, ascending, in bytes; empty: the default of [`JobsPlan::kind`].
    pub sizes: Vec<usize>,
    /// Time and portions of the measurement.
    pub pace: Pace,
    /// Format of the report.
    pub format: Format,
    /// Whether each rank runs on a core of its own, where there are enough.
    pub pin: bool,
}

/// Kind of a measurement, with its numbers of pairs or ranks.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Pairs that stream at once: one measurement for each number.
    MultiPair(Vec<usize>),
    /// Every pair of a job of this many ranks, one pair at a time.
    Matrix(usize),
    /// All ranks but the first send to it, in jobs of these sizes.
    Incast(Vec<usize>),
}

impl Kind {
    /// Name of the command.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::MultiPair(_) => "multi-pair",
            Kind::Matrix(_) => "matrix",
            Kind::Incast(_) => "incast",
        }
    }

    /// Ranks that the command starts.
    pub fn ranks(&self) -> usize {
        let most = |counts: &[usize]| counts.iter().copied().max().unwrap_or(1);
        match self {
            Kind::MultiPair(pairs) => 2 * most(pairs),
            Kind::Matrix(ranks) => *ranks,
            Kind::Incast(ranks) => most(ranks),
        }
    }

    /// Fewest ranks that suffice where something else has started the job.
    pub fn fewest(&self) -> usize {
        let least = |counts: &[usize]| counts.iter().copied().min().unwrap_or(1);
        match self {
            Kind::MultiPair(pairs) => 2 * least(pairs),
            Kind::Matrix(_) => 2,
            Kind::Incast(ranks) => least(ranks),
        }
    }
}

/// Runs the plan at one rank of the job; rank 0's result is the text to print.
pub fn play(world: &World, plan: &JobsPlan, bind_places: &[BindPlace]) -> Result<String> {
    if world.size() < plan.kind.fewest() {
        let (wanted, got) = (plan.kind.fewest(), world.size());
        return Err(PerfError::FewRanks { command: plan.kind.name(), wanted, got });
    }
    let control = Control::open(world)?;
    let placement = control.place(plan.pin, bind_places)?;
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

/// Description of the machine for a report.
fn machine(control: &Control<'_>, placement: &Placement) -> Machine {
    let nic = control.world().nic().attributes().name.clone();
    Machine { ranks: control.world().size(), ..Machine::describe(placement.describe(), nic) }
}

/// The sizes asked for, or the command's default.
fn sizes_or(plan: &JobsPlan, default: &[usize]) -> Vec<usize> {
    if plan.sizes.is_empty() { default.to_vec() } else { plan.sizes.clone() }
}
