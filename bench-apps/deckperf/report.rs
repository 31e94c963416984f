//! A run, ready to be written in any format.

pub mod aligned;
pub mod data;
pub mod export;
pub mod labelled;
pub mod render;
pub mod summary;
pub mod table;
pub mod table_report;

use crate::{
    experiment::{
        plan::{Payload, Plan, Quantity, Test},
        rounds::{BATCH, Contend, Results, Series},
    },
    report::summary::{Finding, findings},
    stats::{median, percentile},
};
use udeck_cli::machine::Machine;

/// Everything that a report shows.
pub struct Report {
    /// Machine of the run.
    pub machine: Machine,
    /// Plan of the run.
    pub plan: Plan,
    /// Figures of the run.
    pub results: Results,
    /// Sentence on the memory in which messages lay, if it was not the usual one.
    pub memory: Option<String>,
    /// Ratios that follow from the figures.
    pub findings: Vec<Finding>,
}

/// Statistics of one cell, over all batches of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Median of the batches.
    pub p50: f64,
    /// Bound that 99 % of the batches reach: the 99th percentile of a latency, the first of a
    /// bandwidth.
    pub p99: f64,
    /// Number of batches, one per round.
    pub batches: usize,
    /// Iterations in each batch: round trips, or windows.
    pub iterations: u64,
}

impl Report {
    /// Makes a report, and computes its findings.
    pub fn new(machine: Machine, plan: Plan, results: Results) -> Self {
        let findings = findings(&plan, &results);
        Self { machine, plan, results, memory: None, findings }
    }

    /// Sentences on how the figures were measured, one on a line.
    pub fn method(&self) -> String {
        let window = self.plan.pace.window;
        let mut text = scheduling(self.plan.pace.iterations, &self.results);
        for test in &self.plan.tests {
            text += &match test {
                Test::Latency => LATENCY.to_owned(),
                Test::Bandwidth => bandwidth(window),
                Test::BiBandwidth => format!(
                    "bidirectional bandwidth: both ranks post a window of {window} messages (fewer where those of both exceed 64 MiB) \
                     and retrieve the other's meanwhile; the bytes of both directions count, a MB is 10^6 bytes\n"
                ),
            };
        }
        for payload in &self.plan.payloads {
            text += match payload {
                Payload::Untouched => "untouched: neither side looks at the data\n",
                Payload::WrittenRead => {
                    "written+read: the sender writes every word, the receiver sums and checks them all\n"
                }
            };
        }
        text += &self.memory.as_ref().map_or(String::new(), |memory| format!("{memory}\n"));
        text += raw_limits(&self.results);
        if let Some(percent) = self.plan.handicap {
            text += &format!(
                "handicap: rank 0 stands still for {percent} % of the time of every turn (--handicap)\n"
            );
        }
        text
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

impl Results {
    /// Bytes that both libraries copied for one message, over all payload modes; `None` if no message
    /// was sent.
    pub fn copied_per_message(&self, test: Test, protocol: udeck::Protocol, size: usize) -> Option<f64> {
        let series = [Payload::Untouched, Payload::WrittenRead]
            .into_iter()
            .filter_map(|payload| self.post(test, protocol, payload, size));
        let (copied, messages) = series
            .fold((0, 0), |(copied, messages), series| (copied + series.copied, messages + series.messages));
        (messages > 0).then(|| copied as f64 / messages as f64)
    }
}

/// A small run for the tests of the formats.
#[cfg(test)]
pub fn sample(format: crate::experiment::plan::Format) -> Report {
    use std::time::Duration;

    use udeck::Protocol;

    use crate::experiment::rounds::{Contender, RawSeries};

    let series = |test, protocol, payload, size, figures: [f64; 3], copied| Series {
        contender: Contender { test, protocol, payload },
        size,
        iterations: 500,
        figures: figures.to_vec(),
        copied,
        messages: 10,
    };
    let (latency, bandwidth) = (Test::Latency, Test::Bandwidth);
    let (untouched, written) = (Payload::Untouched, Payload::WrittenRead);
    let (copy, hand_off) = (Protocol::Copy, Protocol::HandOff);
    let results = Results {
        posts: vec![
            series(latency, copy, untouched, 0, [0.5, 0.7, 0.6], 0),
            series(latency, copy, written, 0, [0.5, 0.7, 0.6], 0),
            series(latency, hand_off, untouched, 0, [0.25, 0.25, 0.25], 0),
            series(latency, hand_off, written, 0, [0.25, 0.25, 0.25], 0),
            series(latency, copy, untouched, 4096, [2.0, 1.0, 3.0], 81_920),
            series(latency, copy, written, 4096, [4.0, 4.0, 4.0], 81_920),
            series(latency, hand_off, untouched, 4096, [0.5, 0.25, 0.75], 0),
            series(latency, hand_off, written, 4096, [1.0, 2.0, 1.0], 5),
            series(bandwidth, copy, untouched, 4096, [4000.0, 5000.0, 3000.0], 81_920),
            series(bandwidth, hand_off, untouched, 4096, [40_000.0, 40_000.0, 40_000.0], 0),
        ],
        raws: vec![
            RawSeries { size: 0, line: vec![0.125; 3], ..RawSeries::default() },
            RawSeries {
                size: 4096,
                line: vec![0.125; 3],
                copy: vec![0.5, 0.5, 1.0],
                two_copies: vec![1.0, 0.5, 1.5],
            },
        ],
        rounds: 3,
        warm_up: crate::stats::steady::WarmUp::default(),
        elapsed: Duration::from_millis(2500),
    };
    let plan = Plan { sizes: vec![0, 4096], format, ..Plan::sample() };
    let machine = Machine::sample("pinned to cores 0 and 1", "shm0");
    Report::new(machine, plan, results)
}
