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

use crate::{
    experiment::{plan::Format, rank_pair::RankPair, rounds::rotation},
    failure::Result,
    report::table_report::TableReport,
};
use udeck_cli::machine::Machine;

pub use batch::follow;

use batch::{OverlapOrder, TimedSide, Work, conduct, timed_work};
use overlap_ratio::{OverlapSample, OverlapSeries};

/// Default message sizes, in bytes.
pub const SIZES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Fewest rounds, whatever `--time` asks for: fewer say nothing about the spread.
const MIN_ROUNDS: usize = 5;
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

/// Measures as rank 0, and returns the text to print. `places` says where the ranks run.
pub fn measure(
    pair: &RankPair<'_>,
    plan: &OverlapPlan,
    places: String,
    mut progress: impl FnMut(Duration),
) -> Result<String> {
    let started = Instant::now();
    let mut series = empty(plan);
    let per_1000 = Work::calibrate();
    for series in &mut series {
        calibrate(pair, plan, per_1000, series)?;
        progress(started.elapsed());
    }
    let mut rounds = 0;
    loop {
        let round_started = Instant::now();
        for at in rotation(rounds, series.len()) {
            let sample = measure_one(pair, &series[at])?;
            series[at].samples.push(sample);
            progress(started.elapsed());
        }
        rounds += 1;
        if started.elapsed() + round_started.elapsed() > plan.time && rounds >= MIN_ROUNDS {
            break;
        }
    }
    pair.send_words(&OverlapOrder::Stop.encode()?)?;
    let nic = &pair.world().nic().attributes().name;
    let transport = format!("{nic}; copy has {} fragments under way", pair.world().config().copy_window);
    let machine = Machine::describe(places, transport);
    let method = report::method(&machine, plan, rounds, started.elapsed());
    let tables = report::tables(&series);
    let report = TableReport {
        machine,
        method,
        noise: None,
        command: "overlap",
        series: Vec::new(),
        tables,
        findings: Vec::new(),
    };
    Ok(report.render(plan.format))
}

/// Empty series for every protocol, size and side.
fn empty(plan: &OverlapPlan) -> Vec<OverlapSeries> {
    let mut all = Vec::new();
    for side in [TimedSide::Sender, TimedSide::Receiver] {
        for &size in &plan.sizes {
            let of = |&protocol| OverlapSeries::new(side, protocol, size);
            all.extend(plan.protocols.iter().map(of));
        }
    }
    all
}

/// Finds how many transfers fill a batch, and how much computation goes with each.
fn calibrate(
    pair: &RankPair<'_>,
    plan: &OverlapPlan,
    per_1000: Duration,
    series: &mut OverlapSeries,
) -> Result {
    let transfers = |series: &OverlapSeries| conduct(pair, series.batch(Work::NONE));
    transfers(series)?; // pays for fresh memory
    series.iterations = plan.iterations.unwrap_or(TRIED);
    // The best of a few is used: a disturbed one would ask for far too much computation.
    let mut best = transfers(series)?;
    for _ in 1..TRIES {
        best = best.min(transfers(series)?);
    }
    let transfer = best.div_f64(series.iterations as f64);
    let fitting = (BATCH.as_secs_f64() / transfer.as_secs_f64()) as u64;
    series.iterations = plan.iterations.unwrap_or(fitting.clamp(1, MAX_ITERATIONS));
    let compute = plan.compute.unwrap_or(transfer.mul_f64(WORK_PER_TRANSFER));
    series.work = Work::lasting(compute, per_1000);
    Ok(())
}

/// Runs the three batches.
fn measure_one(pair: &RankPair<'_>, series: &OverlapSeries) -> Result<OverlapSample> {
    let per_message = |lasted: Duration| lasted.as_secs_f64() * 1e6 / series.iterations as f64;
    let transfer = conduct(pair, series.batch(Work::NONE))?;
    let compute = timed_work(series.iterations, series.work);
    let both = conduct(pair, series.batch(series.work))?;
    let [transfer, compute, both] = [transfer, compute, both].map(per_message);
    Ok(OverlapSample { transfer, compute, both })
}
