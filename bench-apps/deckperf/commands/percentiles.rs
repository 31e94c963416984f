//! `deckperf latency --percentiles`: every round trip is timed by itself, so that the slow ones among a thousand are seen.
//!
//! A batch's mean hides slow round trips, and a percentile over batches is one of means. The price is one read of the clock in
//! each round trip; it is measured and reported.

use std::time::Instant;

use hdrhistogram::Histogram;

use crate::{
    experiment::{
        Experiment, Timing, messages,
        places::Stage,
        plan::{Payload, Plan},
        rank_pair::RankPair,
        rounds::{Contender, Results, Trial, contenders},
    },
    failure::Result,
    named::Named,
    report::{
        Body, Report, data, export, raw_limits, rounds_in_words,
        table_body::{Cell, Table, names},
    },
    stats::steady,
};
use udeck_cli::machine::Machine;

/// Decimal digits that a histogram keeps of each value.
const DIGITS: u8 = 3;

/// Percentiles of the tables, and their names.
const PERCENTILES: [(f64, &str); 5] =
    [(50.0, "p50"), (90.0, "p90"), (99.0, "p99"), (99.9, "p99.9"), (99.99, "p99.99")];

/// Times of single round trips: one list for each early round, which may turn out to be warm-up, and one histogram of all
/// later rounds.
pub struct Singles {
    early: Vec<Vec<u32>>,
    later: Histogram<u64>,
}

impl Singles {
    /// No times yet.
    pub fn new() -> Self {
        Singles { early: Vec::new(), later: empty() }
    }

    /// Adds the times of a batch of this round, in nanoseconds.
    pub fn add(&mut self, round: usize, nanoseconds: &[u32]) {
        if round < steady::MOST {
            self.early.resize_with(self.early.len().max(round + 1), Vec::new);
            self.early[round].extend_from_slice(nanoseconds);
        } else {
            record(&mut self.later, nanoseconds);
        }
    }

    /// Histogram of all rounds without the first `dropped` ones.
    pub fn settled(&self, dropped: usize) -> Histogram<u64> {
        let mut all = self.later.clone();
        self.early.iter().skip(dropped).for_each(|round| record(&mut all, round));
        all
    }
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, u64::from(u32::MAX), DIGITS).expect("bounds and digits that it knows")
}

fn record(histogram: &mut Histogram<u64>, nanoseconds: &[u32]) {
    nanoseconds.iter().for_each(|&value| histogram.saturating_record(u64::from(value)));
}

/// Names of the columns that [`cells`] fills.
pub fn columns() -> impl Iterator<Item = &'static str> {
    PERCENTILES.iter().map(|(_, name)| *name).chain(["max"])
}

/// The percentiles and the maximum, in nanoseconds; each value is divided by `trips`.
pub fn cells(histogram: &Histogram<u64>, trips: u64) -> Vec<Cell> {
    let most = histogram.max();
    // A percentile is the upper end of a histogram bucket, which may lie above the largest value.
    let at = |percent: f64| Cell::Count(histogram.value_at_quantile(percent / 100.0).min(most) / trips);
    PERCENTILES.iter().map(|&(percent, _)| at(percent)).chain([Cell::Count(most / trips)]).collect()
}

/// Cost of one read of the clock, in nanoseconds: the median of the differences between two consecutive reads.
pub fn clock_cost() -> u64 {
    const READS: usize = 10_001;
    let mut costs = Vec::with_capacity(READS);
    let mut last = Instant::now();
    for _ in 0..READS {
        let now = Instant::now();
        costs.push(now.duration_since(last).as_nanos() as u64);
        last = now;
    }
    costs.sort_unstable();
    costs[READS / 2]
}

/// Sentence for the report's method: the cost of reading the clock.
pub fn clock_sentence() -> String {
    let cost = clock_cost();
    format!(
        "the clock is read once in each of them, which costs {cost} ns here (the median of 10000 reads) and is in the figures\n"
    )
}

/// The experiment of `deckperf latency`; rank 0 also keeps the time of each round trip.
struct Observer<'l, 'w> {
    pair: &'l RankPair<'w>,
    /// Current round; `None` while batches are calibrated.
    round: Option<usize>,
    seen: Vec<(Contender, usize, Singles)>,
    last: Vec<u32>,
}

impl Experiment for Observer<'_, '_> {
    type Contender = Contender;

    fn begin_round(&mut self, number: usize) {
        self.round = Some(number);
    }

    fn perform(&mut self, trial: &Trial<Contender>) -> Result<Timing> {
        if !self.pair.leads() {
            return Ok(messages::perform(self.pair, trial)?.into());
        }
        self.last.clear();
        let lasted = messages::ping_pong_each(self.pair, &messages::batch_of(trial), &mut self.last)?;
        let of = |(contender, size, _): &&mut (Contender, usize, Singles)| {
            (*contender, *size) == (trial.contender, trial.size)
        };
        if let (Some(round), Some((.., singles))) = (self.round, self.seen.iter_mut().find(of)) {
            singles.add(round, &self.last);
        }
        Ok(lasted.into())
    }
}

/// Plays one rank's part; rank 0's result is the text to print.
pub fn play(stage: &Stage<'_, '_>, plan: &Plan) -> Result<String> {
    let (pair, wanted) = (stage.pair, contenders(plan));
    let seen = wanted.posts.iter().map(|series| (series.contender, series.size, Singles::new())).collect();
    let mut observer = Observer { pair, round: None, seen, last: Vec::new() };
    let Some(results) = stage.run(plan.pace, wanted, &mut observer)? else { return Ok(String::new()) };
    let machine = Machine { off_cache: plan.off_cache, ..stage.machine("") };
    let tables = plan.payloads.iter().map(|&payload| table(plan, payload, &observer.seen, &results));
    let report = Report {
        method: method(pair, plan, &results),
        noise: results.noise(),
        command: "percentiles",
        series: series(machine.network(), &results),
        body: Body::of_tables(&tables.collect::<Vec<_>>()),
        findings: Vec::new(),
        machine,
    };
    Ok(report.render(plan.format))
}

fn method(pair: &RankPair<'_>, plan: &Plan, results: &Results) -> String {
    let rotation = pair.rotation().map(|rotation| rotation.sentence(&plan.sizes) + "\n");
    // The third sentence of other reports speaks of batches; the figures here do not.
    rounds_in_words(plan.pace.iterations, results)
        + "a figure is of single messages: half of a round trip that was timed by itself, in ns; the percentiles are of all \
           round trips of all rounds that count (hdrhistogram, three digits)\n"
        + &clock_sentence()
        + "batch = the median over the rounds of a batch's mean, which is what `deckperf latency` shows\n"
        + raw_limits(results)
        + &rotation.unwrap_or_default()
}

fn table(plan: &Plan, payload: Payload, seen: &[(Contender, usize, Singles)], results: &Results) -> Table {
    let of_payload = seen.iter().filter(|(contender, ..)| contender.payload == payload);
    let row = |(contender, size, singles): &(Contender, usize, Singles)| {
        let histogram = singles.settled(results.warm_up.dropped);
        let batch = results.of(*contender, *size).and_then(|series| series.figure());
        let head = [Cell::Count(*size as u64), Cell::text(contender.protocol), Cell::Count(histogram.len())];
        let batch = Cell::Figure(batch.map(|figure| figure.p50 * 1e3));
        [&head[..], &cells(&histogram, 2), &[batch]].concat()
    };
    let mut columns = names(&["size", "protocol", "messages"]);
    columns.extend(self::columns().map(str::to_owned));
    columns.push("batch".into());
    let mut rows: Vec<Vec<Cell>> = of_payload.map(row).collect();
    let protocol = |row: &[Cell]| plan.protocols.iter().position(|known| row[1] == Cell::text(known));
    rows.sort_by_key(|row| protocol(row));
    Table {
        title: format!("Latency of single messages (ns), {}", payload.name()),
        name: match payload {
            Payload::Untouched => "untouched".into(),
            Payload::WrittenRead => "written_read".into(),
        },
        columns,
        rows,
    }
}

fn series(network: &str, results: &Results) -> Vec<data::Series> {
    export::series_of(results, |Contender { test, protocol, payload }, size| data::Key {
        protocol: Some(protocol.to_string()),
        payload: Some(payload.name()),
        labels: [("timed".to_owned(), "each".to_owned())].into(),
        ..export::key(test, network, size)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_rounds_that_count() {
        let mut singles = Singles::new();
        singles.add(0, &[1_000_000; 10]);
        singles.add(1, &[200; 50]);
        singles.add(steady::MOST, &[400; 50]);
        let all = singles.settled(0);
        assert_eq!((all.len(), all.max() / 1000), (110, 1000));
        let settled = singles.settled(1);
        assert_eq!(settled.len(), 100);
        let cells = cells(&settled, 2);
        assert_eq!((&cells[0], &cells[4]), (&Cell::Count(100), &Cell::Count(200)));
        assert_eq!(cells.len(), columns().count());
    }

    #[test]
    fn a_clock_costs_something_and_not_much() {
        assert!(clock_cost() < 100_000, "a read of a clock is no system call of 0.1 ms");
    }
}
