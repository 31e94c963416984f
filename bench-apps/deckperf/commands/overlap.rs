//! `deckperf overlap`: how much of a transfer hides behind computation.
//!
//! Three batches lie close together in time: the transfer alone, as much computation alone, and both at once (post,
//! compute, wait until it is done). The time of both beyond the computation is the part that was not hidden. Source: the
//! post-work-wait method of Lawry, Wilson, Maccabe, Brightwell, *COMB*, 2002, and of Sandia's SMB.

mod batch;
mod overlap_ratio;
mod report;

use std::time::Duration;

use udeck::Protocol;

use crate::{
    experiment::{
        conduct,
        field::{self, Field},
        follow,
        places::Stage,
        plan::Format,
        rounds::{Results, Shape, Trial, rotation},
        stop,
    },
    failure::{PerfError, Result},
    report::{Body, Report},
};

use batch::{Overlapped, Side, TimedSide, Work, timed_work};
use overlap_ratio::{OverlapSample, OverlapSeries};

/// Default message sizes, in bytes.
pub const SIZES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Time of all transfers in one batch.
const BATCH: Duration = Duration::from_micros(1500);
const MAX_ITERATIONS: u64 = 1000;
/// Transfers of a batch that calibrates.
const TRIED: u64 = 20;
const TRIES: u64 = 5;
/// Computation per transfer, as a multiple of the transfer's time: it could hide the whole transfer, with a margin for
/// slower ones.
const WORK_PER_TRANSFER: f64 = 2.0;

/// Plan of `deckperf overlap`.
#[derive(Clone, Debug, PartialEq)]
pub struct OverlapPlan {
    /// Protocols, in the order of the rows.
    pub protocols: Vec<Protocol>,
    /// Message sizes, ascending, in bytes.
    pub sizes: Vec<usize>,
    /// Computation per message; `None`: twice the transfer's time.
    pub compute: Option<Duration>,
    /// Transfers in a batch; `None`: calibrated.
    pub iterations: Option<u64>,
    /// Time for the whole run.
    pub time: Duration,
    /// Format of the report.
    pub format: Format,
    /// Whether each rank runs on a core of its own.
    pub pin: bool,
}

/// Plays one rank's part; rank 0's result is the text to print.
pub fn play(stage: &Stage<'_, '_>, plan: &OverlapPlan) -> Result<String> {
    let pair = stage.pair;
    let cells = cells(plan);
    let mut overlapped = Overlapped { pair, work: Work::NONE };
    if !pair.leads() {
        follow(pair, &cells, &mut overlapped)?;
        return Ok(String::new());
    }
    let rows = cells.posts.iter().map(|cell| OverlapSeries::new(cell.contender, cell.size)).collect();
    let mut field = OverlapField { plan, per_1000: Work::calibrate(), overlapped, rows };
    let (rounds, elapsed) = field::measure(&mut field, plan.time, "measuring")?;
    stop(pair)?;
    let machine =
        stage.machine(&format!("; copy has {} fragments under way", pair.world().config().copy_window));
    let report = Report {
        method: report::method(&machine, plan, rounds, elapsed),
        machine,
        noise: None,
        command: "overlap",
        series: Vec::new(),
        body: Body::of_tables(&report::tables(&field.rows)),
        findings: Vec::new(),
    };
    Ok(report.render(plan.format))
}

/// Cells of every side, size and protocol.
fn cells(plan: &OverlapPlan) -> Results<Side> {
    let mut all = Vec::new();
    for timed in [TimedSide::Sender, TimedSide::Receiver] {
        for &size in &plan.sizes {
            all.extend(plan.protocols.iter().map(|&protocol| (Side { timed, protocol }, size)));
        }
    }
    Results::empty(&plan.sizes, all)
}

/// Rank 0's rows, each of which is a contender.
struct OverlapField<'p, 'l, 'w> {
    plan: &'p OverlapPlan,
    /// Time of 1000 steps of computation.
    per_1000: Duration,
    overlapped: Overlapped<'l, 'w>,
    rows: Vec<OverlapSeries>,
}

impl Field for OverlapField<'_, '_, '_> {
    type Failure = PerfError;

    fn count(&self) -> usize {
        self.rows.len()
    }

    /// Finds how many transfers fill a batch, and how much computation goes with each.
    fn calibrate(&mut self, cell: usize) -> Result {
        self.batch(cell, Work::NONE)?; // pays for fresh memory
        let plan = self.plan;
        let iterations = plan.iterations.unwrap_or(TRIED);
        self.rows[cell].iterations = iterations;
        // The best of a few is used: a disturbed one would ask for far too much computation.
        let mut best = self.batch(cell, Work::NONE)?;
        for _ in 1..TRIES {
            best = best.min(self.batch(cell, Work::NONE)?);
        }
        let transfer = best.div_f64(iterations as f64);
        let fitting = (BATCH.as_secs_f64() / transfer.as_secs_f64()) as u64;
        let compute = plan.compute.unwrap_or(transfer.mul_f64(WORK_PER_TRANSFER));
        let row = &mut self.rows[cell];
        row.iterations = plan.iterations.unwrap_or(fitting.clamp(1, MAX_ITERATIONS));
        row.work = Work::lasting(compute, self.per_1000);
        Ok(())
    }

    fn order(&mut self, round: usize) -> Vec<usize> {
        rotation(round, self.rows.len()).collect()
    }

    /// Runs the three batches.
    fn turn(&mut self, _round: usize, cell: usize) -> Result {
        let OverlapSeries { iterations, work, .. } = self.rows[cell];
        let per_message = |lasted: Duration| lasted.as_secs_f64() * 1e6 / iterations as f64;
        let transfer = self.batch(cell, Work::NONE)?;
        let compute = timed_work(iterations, work);
        let both = self.batch(cell, work)?;
        let [transfer, compute, both] = [transfer, compute, both].map(per_message);
        self.rows[cell].samples.push(OverlapSample { transfer, compute, both });
        Ok(())
    }

    fn lose(&mut self, _cell: usize, failure: PerfError) -> Result {
        Err(failure)
    }
}

impl OverlapField<'_, '_, '_> {
    /// Runs a batch of a row with this computation, and returns the time of its messages.
    fn batch(&mut self, cell: usize, work: Work) -> Result<Duration> {
        let OverlapSeries { side: contender, size, iterations, .. } = self.rows[cell];
        self.overlapped.work = work;
        let shape = Shape { warm_up: 0, iterations, messages: 1 };
        let trial = Trial { contender, size, shape };
        Ok(conduct(self.overlapped.pair, cell, &trial, &mut self.overlapped)?.elapsed)
    }
}
