//! `deckperf overlap`: how much of a transfer hides behind computation.
//!
//! Three batches lie close together in time: the transfer alone, as much computation alone, and both at once (post,
//! compute, wait until it is done). The time of both beyond the computation is the part that was not hidden. Source: the
//! post-work-wait method of Lawry, Wilson, Maccabe, Brightwell, *COMB*, 2002, and of Sandia's SMB.

mod batch;
mod overlap_ratio;
mod report;

use std::time::{Duration, Instant};

use udeck::Protocol;
use udeck_cli::progress;

use crate::{
    experiment::{
        conduct, follow,
        places::Stage,
        plan::Format,
        rounds::{Results, Shape, Trial, repeat, rotation},
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
    let mut rows: Vec<OverlapSeries> =
        cells.posts.iter().map(|cell| OverlapSeries::new(cell.contender, cell.size)).collect();
    let (rounds, elapsed) = measure(plan, &mut overlapped, &mut rows)?;
    stop(pair)?;
    let machine =
        stage.machine(&format!("; copy has {} fragments under way", pair.world().config().copy_window));
    let report = Report {
        method: report::method(&machine, plan, rounds, elapsed),
        machine,
        noise: None,
        command: "overlap",
        series: Vec::new(),
        body: Body::of_tables(&report::tables(&rows)),
        findings: Vec::new(),
    };
    Ok(report.render(plan.format))
}

/// Runs rounds until the time is used up; returns their number and their time.
fn measure(
    plan: &OverlapPlan,
    overlapped: &mut Overlapped<'_, '_>,
    rows: &mut [OverlapSeries],
) -> Result<(usize, Duration)> {
    let started = Instant::now();
    let bar = progress::bar(plan.time.as_millis() as u64, "measuring");
    let passed = || bar.set_position(started.elapsed().as_millis() as u64);
    let per_1000 = Work::calibrate();
    for (cell, row) in rows.iter_mut().enumerate() {
        calibrate(plan, per_1000, overlapped, cell, row)?;
        passed();
    }
    let found = repeat(started, plan.time, |round| {
        for cell in rotation(round, rows.len()) {
            let sample = measure_one(overlapped, cell, &rows[cell])?;
            rows[cell].samples.push(sample);
            passed();
        }
        Ok::<_, PerfError>(())
    })?;
    bar.finish_and_clear();
    Ok(found)
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

/// Finds how many transfers fill a batch, and how much computation goes with each.
fn calibrate(
    plan: &OverlapPlan,
    per_1000: Duration,
    overlapped: &mut Overlapped<'_, '_>,
    cell: usize,
    row: &mut OverlapSeries,
) -> Result {
    batch(overlapped, cell, row, Work::NONE)?; // pays for fresh memory
    row.iterations = plan.iterations.unwrap_or(TRIED);
    // The best of a few is used: a disturbed one would ask for far too much computation.
    let mut best = batch(overlapped, cell, row, Work::NONE)?;
    for _ in 1..TRIES {
        best = best.min(batch(overlapped, cell, row, Work::NONE)?);
    }
    let transfer = best.div_f64(row.iterations as f64);
    let fitting = (BATCH.as_secs_f64() / transfer.as_secs_f64()) as u64;
    row.iterations = plan.iterations.unwrap_or(fitting.clamp(1, MAX_ITERATIONS));
    let compute = plan.compute.unwrap_or(transfer.mul_f64(WORK_PER_TRANSFER));
    row.work = Work::lasting(compute, per_1000);
    Ok(())
}

/// Runs the three batches.
fn measure_one(
    overlapped: &mut Overlapped<'_, '_>,
    cell: usize,
    row: &OverlapSeries,
) -> Result<OverlapSample> {
    let per_message = |lasted: Duration| lasted.as_secs_f64() * 1e6 / row.iterations as f64;
    let transfer = batch(overlapped, cell, row, Work::NONE)?;
    let compute = timed_work(row.iterations, row.work);
    let both = batch(overlapped, cell, row, row.work)?;
    let [transfer, compute, both] = [transfer, compute, both].map(per_message);
    Ok(OverlapSample { transfer, compute, both })
}

/// Runs a batch of a row with this computation, and returns the time of its messages.
fn batch(
    overlapped: &mut Overlapped<'_, '_>,
    cell: usize,
    row: &OverlapSeries,
    work: Work,
) -> Result<Duration> {
    overlapped.work = work;
    let shape = Shape { warm_up: 0, iterations: row.iterations, messages: 1 };
    let trial = Trial { contender: row.side, size: row.size, shape };
    Ok(conduct(overlapped.pair, cell, &trial, overlapped)?.elapsed)
}
