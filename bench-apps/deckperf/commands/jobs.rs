//! Measurements among more than two ranks: streams of several pairs at once, each pair of a job alone, and many ranks that
//! send to one.
//!
//! Rank 0 conducts as everywhere: it gives the orders, holds the clock and prints. Each rank works with the world that it finds,
//! whatever started the job.

mod control;
mod incast;
mod matrix;
mod multi_pair;

use udeck::{Protocol, World};

use crate::{
    experiment::{
        self, Experiment,
        binding::BindPlace,
        plan::{Format, Pace},
        rounds::Results,
    },
    failure::{PerfError, Result},
};
use udeck_cli::machine::Machine;

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
    let stage = JobStage { control: &control, placement, plan };
    let report = match &plan.kind {
        Kind::MultiPair(pairs) => multi_pair::play(&stage, pairs)?,
        Kind::Matrix(_) => matrix::play(&stage)?,
        Kind::Incast(ranks) => incast::play(&stage, ranks)?,
    };
    Ok(report.map_or(String::new(), |report| report.render(plan.format)))
}

/// Ranks that are connected and on their cores.
struct JobStage<'l, 'w> {
    control: &'l Control<'w>,
    /// Places of all ranks, which rank 0 knows.
    placement: Option<Placement>,
    plan: &'l JobsPlan,
}

/// Results of an experiment, with the places of the ranks.
struct Measured<'l, C> {
    placement: &'l Placement,
    results: Results<C>,
    machine: Machine,
}

impl<'w> JobStage<'_, 'w> {
    fn world(&self) -> &'w World {
        self.control.world()
    }

    /// Runs an experiment; all ranks call this, and rank 0 gets the results.
    fn run<E: Experiment>(
        &self,
        cells: Results<E::Contender>,
        experiment: &mut E,
    ) -> Result<Option<Measured<'_, E::Contender>>> {
        let raw = |largest| self.placement.as_ref().and_then(|placement| placement.raw_limits(largest));
        let results = experiment::run(self.control, self.plan.pace, cells, raw, experiment)?;
        Ok(results.zip(self.placement.as_ref()).map(|(results, placement)| {
            let nic = self.world().nic().attributes().name.clone();
            let machine = Machine::describe(placement.describe(), nic);
            let machine = Machine { ranks: self.world().size(), ..machine };
            Measured { placement, results, machine }
        }))
    }
}

/// The sizes asked for, or the command's default.
fn sizes_or(plan: &JobsPlan, default: &[usize]) -> Vec<usize> {
    if plan.sizes.is_empty() { default.to_vec() } else { plan.sizes.clone() }
}
