//! `deckperf multi-pair`: several pairs stream at once, as in OSU's `osu_mbw_mr`. Rank `n` sends to rank `n` + half the job, so
//! that the pairs of a job on two hosts lie across them.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use udeck::{Group, Protocol, World};

use super::{Control, JobsPlan, Placement, machine, sizes_or};
use crate::{
    experiment::{
        baseline::{BaselineSample, Baselines},
        order::Batch,
        plan::{Payload, Quantity, Test},
        rank_pair::RankPair,
        rounds::{self, Contend, Results, Runner, SMALL, Sample, Shape},
        sizes, stream,
    },
    failure::{PerfError, Result},
    report::{
        data, export, scheduling,
        summary::Finding,
        table_report::{Cell, Table, TableReport, names},
    },
    stats::paired_ratio,
};

const SIZES: [usize; 4] = [SMALL, 4 << 10, 64 << 10, 1 << 20];

/// Target length of a batch: long beside the barriers around it, also where ranks share cores.
const BATCH: Duration = Duration::from_millis(10);

/// Contender: this many pairs stream at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Streams(usize);

#[derive(Clone, Copy, Debug, PartialEq)]
struct StreamsOrder {
    pairs: usize,
    size: usize,
    shape: Shape,
}

impl Contend for Streams {
    type Order = StreamsOrder;

    fn quantity(&self) -> Quantity {
        Quantity::Throughput
    }

    fn order(&self, size: usize, shape: Shape) -> StreamsOrder {
        StreamsOrder { pairs: self.0, size, shape }
    }

    fn counted(&self, messages: u64) -> u64 {
        self.0 as u64 * messages
    }

    fn batch(&self) -> Duration {
        BATCH
    }
}

impl StreamsOrder {
    fn encode(&self) -> [u64; 5] {
        let Shape { warm_up, iterations, messages } = self.shape;
        [self.pairs as u64, self.size as u64, warm_up, iterations, messages]
    }

    /// Decodes an order; `None` is the stop order.
    fn decode(words: &[u64]) -> Result<Option<Self>> {
        match *words {
            [] => Ok(None),
            [pairs, size, warm_up, iterations, messages] => {
                let shape = Shape { warm_up, iterations, messages };
                Ok(Some(StreamsOrder { pairs: pairs as usize, size: size as usize, shape }))
            }
            _ => Err(PerfError::BadOrder(format!("not five words in {words:?}"))),
        }
    }
}

/// One rank's pair, and the groups of ranks that begin and end together.
struct Streamer<'w> {
    world: &'w World,
    protocol: Protocol,
    pair: Option<RankPair<'w>>,
    groups: BTreeMap<usize, Group>,
}

impl<'w> Streamer<'w> {
    fn new(world: &'w World, protocol: Protocol) -> Self {
        Streamer { world, protocol, pair: None, groups: BTreeMap::new() }
    }

    /// Ranks of the first `pairs` pairs.
    fn members(&self, pairs: usize) -> Vec<usize> {
        let half = self.world.size() / 2;
        (0..pairs).chain(half..half + pairs).collect()
    }

    /// Runs this rank's part of a batch, from one barrier of all pairs to another.
    fn perform(&mut self, order: StreamsOrder) -> Result<Duration> {
        let StreamsOrder { pairs, size, shape } = order;
        let (me, half) = (self.world.rank(), self.world.size() / 2);
        if self.pair.is_none() {
            let leads = me < half;
            let (sender, peer) = if leads { (me, me + half) } else { (me - half, me - half) };
            let name = format!("multi.{sender}");
            self.pair = Some(RankPair::between(self.world, peer, leads, &name, &[self.protocol])?);
        }
        if !self.groups.contains_key(&pairs) {
            let group = self.world.group(&format!("pairs.{pairs}"), &self.members(pairs))?;
            self.groups.insert(pairs, group);
        }
        let (Some(pair), Some(group)) = (&self.pair, self.groups.get(&pairs)) else {
            return Err(PerfError::Internal("a pair that was just opened is missing".into()));
        };
        let (protocol, payload) = (self.protocol, Payload::WrittenRead);
        let batch = |iterations| Batch { protocol, payload, size, warm_up: 0, iterations };
        stream(pair, &batch(shape.warm_up), shape.messages)?;
        group.barrier()?;
        let started = Instant::now();
        stream(pair, &batch(shape.iterations), shape.messages)?;
        group.barrier()?;
        Ok(started.elapsed())
    }
}

/// Rank 0's role: it says how many pairs stream, and streams in the first of them.
struct StreamConductor<'l, 'w> {
    control: &'l Control<'w>,
    streamer: Streamer<'w>,
    raw: Option<Baselines>,
}

impl Runner for StreamConductor<'_, '_> {
    type Contender = Streams;

    fn post(&mut self, order: StreamsOrder) -> Result<Sample> {
        for rank in self.streamer.members(order.pairs).into_iter().filter(|&rank| rank != 0) {
            self.control.send(rank, &order.encode())?;
        }
        let elapsed = self.streamer.perform(order)?;
        Ok(Sample { elapsed, lasted: elapsed, copied: 0 })
    }

    fn raw(&mut self, size: usize) -> Result<Option<BaselineSample>> {
        self.raw.as_mut().map(|raw| raw.measure(size)).transpose()
    }
}

/// Measures as rank 0.
pub fn measure(
    control: &Control<'_>,
    plan: &JobsPlan,
    pairs: &[usize],
    placement: &Placement,
    progress: impl FnMut(Duration),
) -> Result<TableReport> {
    let sizes: Vec<usize> = sizes_or(plan, &SIZES).into_iter().filter(|&size| size > 0).collect();
    let half = control.world().size() / 2;
    let pairs: Vec<usize> = pairs.iter().copied().filter(|&pairs| pairs <= half).collect();
    let cells = sizes.iter().flat_map(|&size| pairs.iter().map(move |&pairs| (Streams(pairs), size)));
    let wanted = Results::empty(&sizes, cells);
    let streamer = Streamer::new(control.world(), plan.protocol);
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let mut conductor = StreamConductor { control, streamer, raw: placement.raw_limits(largest) };
    let results = rounds::measure(plan.pace, wanted, &mut conductor, progress)?;
    control.send_all(&[])?;
    let machine = machine(control, placement);
    Ok(TableReport {
        method: method(plan, placement, &results),
        noise: placement.noise(&results),
        command: "multi-pair",
        series: series(machine.network(), plan.protocol, &results),
        tables: vec![table(&sizes, &pairs, &results)],
        findings: findings(&sizes, &pairs, &results),
        machine,
    })
}

/// Follows orders, as any rank but 0.
pub fn follow(control: &Control<'_>, protocol: Protocol) -> Result {
    let mut streamer = Streamer::new(control.world(), protocol);
    while let Some(order) = StreamsOrder::decode(&control.receive(0)?)? {
        streamer.perform(order)?;
    }
    Ok(())
}

fn method(plan: &JobsPlan, placement: &Placement, results: &Results<Streams>) -> Vec<Cow<'static, str>> {
    let mut sentences = scheduling(plan.pace.iterations, results);
    if plan.pace.iterations.is_none()
        && let Some(first) = sentences.first_mut()
    {
        *first = first.replace("1.5 ms", "10 ms").into();
    }
    sentences.extend([
        "rank n sends to rank n + half the job; a figure is of all pairs together, from one barrier of their ranks to another".into(),
        format!(
            "each pair sends windows of {} messages (fewer where those of all exceed 64 MiB), each window answered by an empty \
             message; messages travel by {}, the sender writes every word and the receiver sums them; a MB is 10^6 bytes",
            plan.pace.window, plan.protocol
        )
        .into(),
    ]);
    sentences.extend(placement.raw_sentences(results));
    sentences
}

fn table(sizes: &[usize], pairs: &[usize], results: &Results<Streams>) -> Table {
    let row = |(size, pairs): (usize, usize)| {
        let figure = results.of(Streams(pairs), size).and_then(|series| series.figure());
        let rate = figure.map(|figure| figure.p50);
        vec![
            Cell::Count(size as u64),
            Cell::Count(pairs as u64),
            Cell::Figure(rate),
            Cell::Figure(figure.map(|figure| figure.p99)),
            Cell::Figure(rate.map(|rate| rate / size as f64)),
            Cell::Figure(rate.map(|rate| rate / pairs as f64)),
        ]
    };
    let rows = sizes.iter().flat_map(|&size| pairs.iter().map(move |&pairs| (size, pairs)));
    Table {
        title: "All pairs together: MB/s (median, and what 99 % of the batches reach), million messages per second; \
                MB/s of each pair"
            .to_owned(),
        name: "multi_pair".into(),
        columns: names(&["size", "pairs", "MB/s", "p99", "M/s", "each"]),
        rows: rows.map(row).collect(),
    }
}

/// Ratios of the rate of more pairs to that of the fewest.
fn findings(sizes: &[usize], pairs: &[usize], results: &Results<Streams>) -> Vec<Finding> {
    let Some(&fewest) = pairs.iter().min() else { return Vec::new() };
    let figures =
        |pairs, size| results.of(Streams(pairs), size).map_or(&[][..], |series| &series.figures[..]);
    let one = |(size, more): (usize, usize)| {
        let ratio = paired_ratio(figures(more, size), figures(fewest, size))?;
        Some(Finding { what: format!("rate of {more} pairs / {fewest}, {}", sizes::show(size)), ratio })
    };
    let more = |size: usize| pairs.iter().filter(move |&&more| more > fewest).map(move |&more| (size, more));
    sizes.iter().flat_map(|&size| more(size)).filter_map(one).collect()
}

fn series(network: &str, protocol: Protocol, results: &Results<Streams>) -> Vec<data::Series> {
    let ours = results.posts.iter().map(|series| {
        let Streams(pairs) = series.contender;
        let mut key = export::key(Test::Bandwidth, network, series.size);
        key.protocol = Some(protocol.to_string());
        key.payload = Some(Payload::WrittenRead.name().to_owned());
        key.ranks = Some(2 * pairs as u64);
        key.labels.insert("pairs".to_owned(), pairs.to_string());
        export::of_rounds(key, Quantity::Throughput, &series.figures)
    });
    ours.chain(export::raw_series(results)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_journey() {
        let shape = Shape { warm_up: 3, iterations: 70, messages: 64 };
        let order = StreamsOrder { pairs: 4, size: 4099, shape };
        assert_eq!(StreamsOrder::decode(&order.encode()).expect("decodes"), Some(order));
        assert_eq!(StreamsOrder::decode(&[]).expect("decodes"), None);
        assert!(StreamsOrder::decode(&[1; 4]).is_err());
    }
}
