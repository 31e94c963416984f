//! `deckperf matrix`: measures every pair of the job's ranks, one at a time, and shows which are near and which are far.

use std::{collections::BTreeMap, time::Duration};

use udeck::Protocol;

use super::{Control, JobStage, JobsPlan, Measured, Placement, sizes_or};
use crate::{
    experiment::{
        Experiment, Link as _, Timing, messages,
        plan::{Payload, Quantity, Test},
        rank_pair::{RankPair, report},
        rounds::{Contend, Contender, Results, SMALL, Trial},
        sizes,
    },
    failure::{PerfError, Result},
    named::Named,
    report::{
        Body, LATENCY, Report, bandwidth, data, export, scheduling, table,
        table_body::{Cell, Table},
    },
};

/// Default size of streamed messages, in bytes.
const LARGE: usize = 64 << 10;

/// Direction of a stream from one rank to another; a latency covers both ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    from: usize,
    to: usize,
    test: Test,
    protocol: Protocol,
}

impl Contend for Link {
    fn quantity(&self) -> Quantity {
        self.test.quantity()
    }
}

/// Payload mode of a test: a hand-over of unread data is no bandwidth.
fn payload(test: Test) -> Payload {
    if test == Test::Latency { Payload::Untouched } else { Payload::WrittenRead }
}

/// Empty series: round trips between every two ranks, streams from each to each.
fn links(ranks: usize, protocol: Protocol, latency: &[usize], bandwidth: &[usize]) -> Results<Link> {
    let mut all = Vec::new();
    for from in 0..ranks {
        for to in (0..ranks).filter(|&to| to != from) {
            let of = |test| Link { from, to, test, protocol };
            if from < to {
                all.extend(latency.iter().map(|&size| (of(Test::Latency), size)));
            }
            all.extend(bandwidth.iter().map(|&size| (of(Test::Bandwidth), size)));
        }
    }
    let mut sizes = [latency, bandwidth].concat();
    sizes.sort_unstable();
    sizes.dedup();
    Results::empty(&sizes, all)
}

/// This rank's ends of its pairs, by leader and follower. A pair connects when it is first used.
struct Pairs<'l, 'w> {
    control: &'l Control<'w>,
    protocol: Protocol,
    open: BTreeMap<[usize; 2], RankPair<'w>>,
}

impl<'w> Pairs<'_, 'w> {
    fn of(&mut self, leader: usize, follower: usize) -> Result<&RankPair<'w>> {
        let world = self.control.world();
        let key = [leader, follower];
        if !self.open.contains_key(&key) {
            let leads = world.rank() == leader;
            let peer = if leads { follower } else { leader };
            let name = format!("pair.{leader}.{follower}");
            let pair = RankPair::between(world, peer, leads, &name, &[self.protocol])?;
            self.open.insert(key, pair);
        }
        self.open
            .get(&key)
            .ok_or_else(|| PerfError::Internal("a pair that was just opened is missing".into()))
    }
}

impl Experiment for Pairs<'_, '_> {
    type Contender = Link;

    fn followers(&self, trial: &Trial<Link>) -> Vec<usize> {
        let Link { from, to, .. } = trial.contender;
        // The receiver first: the sender's clock starts with its order.
        [to, from].into_iter().filter(|&rank| rank != 0).collect()
    }

    /// Exchanges messages with the other rank of the pair; rank 0 learns how long that took where it has no part.
    fn perform(&mut self, &Trial { contender, size, shape }: &Trial<Link>) -> Result<Timing> {
        let (Link { from, to, test, protocol }, me) = (contender, self.control.world().rank());
        let contender = Contender { test, protocol, payload: payload(test) };
        let mut lasted = Duration::ZERO;
        if [from, to].contains(&me) {
            lasted = messages::perform(self.of(from, to)?, &Trial { contender, size, shape })?;
        }
        if me == 0 && from != 0 {
            let [nanoseconds] = report(&self.control.receive(from)?)?;
            lasted = Duration::from_nanos(nanoseconds);
        } else if me == from && from != 0 {
            self.control.send(0, &[lasted.as_nanos() as u64])?;
        }
        Ok(lasted.into())
    }
}

/// Plays one rank's part.
pub fn play(stage: &JobStage<'_, '_>) -> Result<Option<Report>> {
    let (plan, ranks) = (stage.plan, stage.world().size());
    let latency = sizes_or(plan, &[SMALL]);
    let bandwidths: Vec<usize> = sizes_or(plan, &[LARGE]).into_iter().filter(|&size| size > 0).collect();
    let mut pairs = Pairs { control: stage.control, protocol: plan.protocol, open: BTreeMap::new() };
    let wanted = links(ranks, plan.protocol, &latency, &bandwidths);
    let Some(measured) = stage.run(wanted, &mut pairs)? else { return Ok(None) };
    let Measured { placement, results, machine } = measured;
    let table = |test, size| matrix(&results, ranks, plan.protocol, test, size);
    let latencies = latency.iter().map(|&size| table(Test::Latency, size));
    let tables: Vec<Table> =
        latencies.chain(bandwidths.iter().map(|&size| table(Test::Bandwidth, size))).collect();
    Ok(Some(Report {
        method: method(plan, placement, &results),
        noise: placement.noise(&results),
        command: "matrix",
        series: series(machine.network(), ranks, &results),
        body: Body::of_tables(&tables),
        findings: Vec::new(),
        machine,
    }))
}

fn method(plan: &JobsPlan, placement: &Placement, results: &Results<Link>) -> String {
    scheduling(plan.pace.iterations, results)
        + "a row is the rank that sends, a column the one that receives; one pair at a time, all others sleep\n"
        + LATENCY
        + &bandwidth(plan.pace.window)
        + &format!(
            "messages travel by {}; of latency nobody looks at the data, of bandwidth the sender writes every word and the \
             receiver sums them\n",
            plan.protocol
        )
        + &placement.raw_sentences(results)
}

/// Table of the medians.
fn matrix(results: &Results<Link>, ranks: usize, protocol: Protocol, test: Test, size: usize) -> Table {
    let cell = |from: usize, to: usize| {
        let [from, to] = if test == Test::Latency { [from.min(to), from.max(to)] } else { [from, to] };
        let series = results.of(Link { from, to, test, protocol }, size);
        Cell::Figure(series.and_then(|series| series.figure()).map(|figure| figure.p50))
    };
    let row = |from: usize| {
        let figures = (0..ranks).map(|to| cell(from, to));
        [Cell::Count(from as u64)].into_iter().chain(figures).collect()
    };
    let columns = ["from".to_owned()].into_iter().chain((0..ranks).map(|to| to.to_string()));
    Table {
        title: format!("{}, {} bytes", table::title(test), sizes::show(size)),
        name: format!("{}_{size}", test.name()),
        columns: columns.collect(),
        rows: (0..ranks).map(row).collect(),
    }
}

fn series(network: &str, ranks: usize, results: &Results<Link>) -> Vec<data::Series> {
    export::series_of(results, |Link { from, to, test, protocol }, size| data::Key {
        protocol: Some(protocol.to_string()),
        payload: Some(payload(test).name()),
        ranks: Some(ranks as u64),
        labels: [("from", from), ("to", to)].map(|(name, rank)| (name.to_owned(), rank.to_string())).into(),
        ..export::key(test, network, size)
    })
}
