//! `deckperf multi-pair`: several pairs stream at once, as in OSU's `osu_mbw_mr`. Rank `n` sends to rank `n` + half the job, so
//! that the pairs of a job on two hosts lie across them.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use udeck::{Group, Protocol, World};

use super::{JobStage, JobsPlan, Measured, Placement, sizes_or};
use crate::{
    experiment::{
        Experiment, Timing,
        messages::stream,
        plan::{Batch, Payload, Quantity, Test},
        rank_pair::RankPair,
        rounds::{Contend, Results, SMALL, Trial},
        sizes,
    },
    failure::{PerfError, Result},
    named::Named,
    report::{
        Body, Report, data, export, scheduling,
        summary::Finding,
        table_body::{Cell, Table, names},
    },
};

const SIZES: [usize; 4] = [SMALL, 4 << 10, 64 << 10, 1 << 20];

/// Target length of a batch: long beside the barriers around it, also where ranks share cores.
const BATCH: Duration = Duration::from_millis(10);

/// Contender: this many pairs stream at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Streams(usize);

impl Contend for Streams {
    fn quantity(&self) -> Quantity {
        Quantity::Throughput
    }

    fn counted(&self, messages: u64) -> u64 {
        self.0 as u64 * messages
    }

    fn batch(&self) -> Duration {
        BATCH
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
}

impl Experiment for Streamer<'_> {
    type Contender = Streams;

    fn followers(&self, trial: &Trial<Streams>) -> Vec<usize> {
        self.members(trial.contender.0).into_iter().filter(|&rank| rank != 0).collect()
    }

    /// Runs this rank's part of a batch, from one barrier of all pairs to another.
    fn perform(&mut self, trial: &Trial<Streams>) -> Result<Timing> {
        let &Trial { contender: Streams(pairs), size, shape } = trial;
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
        Ok(started.elapsed().into())
    }
}

/// Plays one rank's part.
pub fn play(stage: &JobStage<'_, '_>, pairs: &[usize]) -> Result<Option<Report>> {
    let (plan, world) = (stage.plan, stage.world());
    let sizes: Vec<usize> = sizes_or(plan, &SIZES).into_iter().filter(|&size| size > 0).collect();
    let half = world.size() / 2;
    let pairs: Vec<usize> = pairs.iter().copied().filter(|&pairs| pairs <= half).collect();
    let cells = sizes.iter().flat_map(|&size| pairs.iter().map(move |&pairs| (Streams(pairs), size)));
    let wanted = Results::empty(&sizes, cells);
    let Some(measured) = stage.run(wanted, &mut Streamer::new(world, plan.protocol))? else {
        return Ok(None);
    };
    let Measured { placement, results, machine } = measured;
    Ok(Some(Report {
        method: method(plan, placement, &results),
        noise: placement.noise(&results),
        command: "multi-pair",
        series: series(machine.network(), plan.protocol, &results),
        body: Body::of_tables(&[table(&sizes, &pairs, &results)]),
        findings: findings(&sizes, &pairs, &results),
        machine,
    }))
}

fn method(plan: &JobsPlan, placement: &Placement, results: &Results<Streams>) -> String {
    scheduling(plan.pace.iterations, results)
        + &format!(
            "rank n sends to rank n + half the job; a figure is of all pairs together, from one barrier of their ranks to \
             another\n\
             each pair sends windows of {} messages (fewer where those of all exceed 64 MiB), each window answered by an empty \
             message; messages travel by {}, the sender writes every word and the receiver sums them; a MB is 10^6 bytes\n",
            plan.pace.window, plan.protocol
        )
        + &placement.raw_sentences(results)
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
    let figures = |pairs, size| results.figures(Streams(pairs), size);
    let one = |(size, more): (usize, usize)| {
        let what = format!("rate of {more} pairs / {fewest}, {}", sizes::show(size));
        Finding::of(what, figures(more, size), figures(fewest, size))
    };
    let more = |size: usize| pairs.iter().filter(move |&&more| more > fewest).map(move |&more| (size, more));
    sizes.iter().flat_map(|&size| more(size)).filter_map(one).collect()
}

fn series(network: &str, protocol: Protocol, results: &Results<Streams>) -> Vec<data::Series> {
    export::series_of(results, |Streams(pairs), size| data::Key {
        protocol: Some(protocol.to_string()),
        payload: Some(Payload::WrittenRead.name()),
        ranks: Some(2 * pairs as u64),
        labels: [("pairs".to_owned(), pairs.to_string())].into(),
        ..export::key(Test::Bandwidth, network, size)
    })
}
