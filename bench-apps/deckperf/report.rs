//! Reports: what all commands show alike, in any format, around a body of their own.

pub mod aligned;
pub mod data;
pub mod export;
pub mod labelled;
pub mod summary;
pub mod table;
pub mod table_body;

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    experiment::{
        plan::{Format, Quantity},
        rounds::{BATCH, Contend, Results, Series},
    },
    report::summary::Finding,
    stats::{median, noise::Noise, percentile},
};
use udeck_cli::machine::Machine;

/// Everything that a report shows.
pub struct Report {
    /// Machine of the run.
    pub machine: Machine,
    /// Name of the command, for programs that read figures.
    pub command: &'static str,
    /// Sentences on how the figures were measured, one on a line.
    pub method: String,
    /// Noise of the machine, if it was measured.
    pub noise: Option<Noise>,
    /// Every figure of every round; empty where there are no rounds.
    pub series: Vec<data::Series>,
    /// Ratios that follow from the figures.
    pub findings: Vec<Finding>,
    /// Figures in the command's own form.
    pub body: Body,
}

/// Figures in each format.
pub struct Body {
    /// Tables for readers.
    pub text: String,
    /// Header lines and rows.
    pub csv: String,
    /// Members of the JSON object.
    pub json: Value,
    /// Hand-over of a cache line in µs, which closes the ratios for readers.
    pub line: Option<f64>,
}

/// Statistics of one cell, over all batches of a series.
#[derive(Serialize, Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Median of the batches.
    pub p50: f64,
    /// Bound that 99 % of the batches reach: the 99th percentile of a latency, the first of a
    /// bandwidth.
    pub p99: f64,
    /// Number of batches, one per round.
    pub batches: usize,
    /// Iterations in each batch: round trips, or windows.
    #[serde(rename = "iterations_per_batch")]
    pub iterations: u64,
}

impl Report {
    /// Text in the format that was asked for, with a line break at the end.
    pub fn render(&self, format: Format) -> String {
        let Self { machine, command, method, noise, series, findings, body } = self;
        match format {
            Format::Table => {
                table::head(machine, method, noise.as_ref()) + &body.text + &table::shows(findings, body.line)
            }
            Format::Csv => body.csv.clone(),
            Format::Json => {
                let mut more = body.json.clone();
                more["noise"] = json!(noise.as_ref().map(Noise::json));
                more["ratios"] = findings.iter().map(export::ratio_json).collect();
                export::written(&export::run(command, machine, method, series.clone()), more)
            }
        }
    }
}

/// Sentences on how the rounds were run.
pub fn scheduling<C: Contend>(iterations: Option<u64>, results: &Results<C>) -> String {
    rounds_in_words(iterations, results)
        + "a figure is the median over the batches; 99 % of the batches are at least as good as p99\n"
}

/// Sentences on the rounds and their warm-up.
pub fn rounds_in_words<C: Contend>(iterations: Option<u64>, results: &Results<C>) -> String {
    let length = match iterations {
        Some(fixed) => format!("{fixed} iterations"),
        None => {
            let batch = results.posts.first().map_or(BATCH, |series| series.contender.batch());
            format!("about {} ms", batch.as_secs_f64() * 1e3)
        }
    };
    format!(
        "interleaved: in each of {} rounds ({:.1} s in all) every contender of a size runs one batch of {length}, in \
         rotating order\n{}\n",
        results.rounds + results.warm_up.dropped,
        results.elapsed.as_secs_f64(),
        results.warm_up.sentence()
    )
}

/// Definition of latency, for the report's method.
pub const LATENCY: &str = "latency is half the round trip of a ping-pong\n";

/// Definition of bandwidth, for the report's method.
pub fn bandwidth(window: u64) -> String {
    format!(
        "bandwidth is a window of {window} messages (fewer where they exceed 64 MiB), then one empty message back; a MB is \
         10^6 bytes\n"
    )
}

/// Description of the raw limits that stand beside the figures.
pub fn raw_limits<C: Contend>(results: &Results<C>) -> &'static str {
    if results.raws.iter().all(|raw| raw.line.is_empty()) {
        return "raw limits: not measured, they need two cores\n";
    }
    "raw limits, by two threads on the same cores in the same rounds while rank 1 sleeps: hand-over = a counter to and \
     fro through 64 pairs of cache lines; memcpy = one copy out of the other core's dirty cache lines; 2 memcpys = that \
     and a copy into lines that the other core read last\n"
}

impl<C: Contend> Series<C> {
    /// Statistics of the series; `None` before the first round.
    pub fn figure(&self) -> Option<Figure> {
        let tail = match self.contender.quantity() {
            Quantity::Time => 99.0,
            Quantity::Throughput => 1.0,
        };
        Some(Figure {
            p50: median(&self.figures)?,
            p99: percentile(&self.figures, tail)?,
            batches: self.figures.len(),
            iterations: self.iterations,
        })
    }
}

impl<C: Contend> Results<C> {
    /// Median of one contender at one size; `None` if it was not measured.
    pub fn p50(&self, contender: C, size: usize) -> Option<f64> {
        Some(self.of(contender, size)?.figure()?.p50)
    }
}
