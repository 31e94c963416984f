//! `deckperf matrix`: measures every pair of the job's ranks, one at a time, and shows which are near and which are far.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use udeck::{Protocol, World};

use super::{Control, JobsPlan, Placement, machine, sizes_or};
use crate::{
    experiment::{
        baseline::{BaselineSample, Baselines},
        conduct, follow_one,
        order::{Batch, Order},
        plan::{Payload, Quantity, Test},
        rank_pair::RankPair,
        rounds::{self, Contend, Results, Runner, SMALL, Sample, Shape},
        sizes,
    },
    failure::{PerfError, Result},
    report::{
        LATENCY, bandwidth, data, export, scheduling, table,
        table_report::{Cell, Table, TableReport},
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

struct LinkOrder {
    from: usize,
    to: usize,
    order: Order,
}

impl Contend for Link {
    type Order = LinkOrder;

    fn quantity(&self) -> Quantity {
        self.test.quantity()
    }

    fn order(&self, size: usize, shape: Shape) -> LinkOrder {
        let &Link { from, to, test, protocol } = self;
        let payload = payload(test);
        let Shape { warm_up, iterations, messages: window } = shape;
        let batch = Batch { protocol, payload, size, warm_up, iterations };
        let order = match test {
            Test::Latency => Order::PingPong(batch),
            Test::Bandwidth => Order::Stream { batch, window },
            Test::BiBandwidth => Order::StreamBoth { batch, window },
        };
        LinkOrder { from, to, order }
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
struct Pairs<'w> {
    world: &'w World,
    protocol: Protocol,
    open: BTreeMap<[usize; 2], RankPair<'w>>,
}

impl<'w> Pairs<'w> {
    fn new(world: &'w World, protocol: Protocol) -> Self {
        Pairs { world, protocol, open: BTreeMap::new() }
    }

    fn of(&mut self, leader: usize, follower: usize) -> Result<&RankPair<'w>> {
        let key = [leader, follower];
        if !self.open.contains_key(&key) {
            let leads = self.world.rank() == leader;
            let peer = if leads { follower } else { leader };
            let name = format!("pair.{leader}.{follower}");
            let pair = RankPair::between(self.world, peer, leads, &name, &[self.protocol])?;
            self.open.insert(key, pair);
        }
        self.open
            .get(&key)
            .ok_or_else(|| PerfError::Internal("a pair that was just opened is missing".into()))
    }
}

const STOP: u64 = 0;
const LEAD: u64 = 1;
const FOLLOW: u64 = 2;

/// Rank 0's role: it lets two ranks, perhaps itself, exchange messages.
struct PairConductor<'l, 'w> {
    control: &'l Control<'w>,
    pairs: Pairs<'w>,
    raw: Option<Baselines>,
}

impl Runner for PairConductor<'_, '_> {
    type Contender = Link;

    fn post(&mut self, order: LinkOrder) -> Result<Sample> {
        let LinkOrder { from, to, order } = order;
        if to != 0 {
            self.control.send(to, &[FOLLOW, from as u64])?;
        }
        if from == 0 {
            return conduct(self.pairs.of(0, to)?, order).map(|(sample, _)| sample);
        }
        self.control.send(from, &[&[LEAD, to as u64][..], &order.encode()?].concat())?;
        if to == 0 {
            follow_one(self.pairs.of(from, 0)?)?;
        }
        let report = self.control.receive(from)?;
        let &[nanoseconds] = &report[..] else { return Err(PerfError::BadReport(report.len())) };
        let elapsed = Duration::from_nanos(nanoseconds);
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
    placement: &Placement,
    progress: impl FnMut(Duration),
) -> Result<TableReport> {
    let latency = sizes_or(plan, &[SMALL]);
    let bandwidths: Vec<usize> = sizes_or(plan, &[LARGE]).into_iter().filter(|&size| size > 0).collect();
    let ranks = control.world().size();
    let largest = latency.iter().chain(&bandwidths).copied().max().unwrap_or(0);
    let pairs = Pairs::new(control.world(), plan.protocol);
    let mut runner = PairConductor { control, pairs, raw: placement.raw_limits(largest) };
    let wanted = links(ranks, plan.protocol, &latency, &bandwidths);
    let results = rounds::measure(plan.pace, wanted, &mut runner, progress)?;
    control.send_all(&[STOP])?;
    let machine = machine(control, placement);
    let mut tables: Vec<Table> = Vec::new();
    tables.extend(latency.iter().map(|&size| matrix(&results, ranks, plan.protocol, Test::Latency, size)));
    tables
        .extend(bandwidths.iter().map(|&size| matrix(&results, ranks, plan.protocol, Test::Bandwidth, size)));
    Ok(TableReport {
        method: method(plan, placement, &results),
        noise: placement.noise(&results),
        command: "matrix",
        series: series(machine.network(), ranks, &results),
        tables,
        findings: Vec::new(),
        machine,
    })
}

/// Follows orders, as any rank but 0.
pub fn follow(control: &Control<'_>, protocol: Protocol) -> Result {
    let world = control.world();
    let mut pairs = Pairs::new(world, protocol);
    loop {
        let words = control.receive(0)?;
        match &words[..] {
            [STOP] => return Ok(()),
            &[FOLLOW, leader] => {
                follow_one(pairs.of(leader as usize, world.rank())?)?;
            }
            [LEAD, follower, order @ ..] => {
                let order = Order::decode(order)?;
                let (sample, _) = conduct(pairs.of(world.rank(), *follower as usize)?, order)?;
                control.send(0, &[sample.elapsed.as_nanos() as u64])?;
            }
            _ => return Err(PerfError::BadOrder(format!("neither leading nor following in {words:?}"))),
        }
    }
}

fn method(plan: &JobsPlan, placement: &Placement, results: &Results<Link>) -> Vec<Cow<'static, str>> {
    let mut sentences = scheduling(plan.pace.iterations, results);
    sentences.extend([
        "a row is the rank that sends, a column the one that receives; one pair at a time, all others sleep"
            .into(),
        Cow::from(LATENCY),
        bandwidth(plan.pace.window),
        format!(
            "messages travel by {}; of latency nobody looks at the data, of bandwidth the sender writes every word and the \
             receiver sums them",
            plan.protocol
        )
        .into(),
    ]);
    sentences.extend(placement.raw_sentences(results));
    sentences
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
    let columns = [Cow::from("from")].into_iter().chain((0..ranks).map(|to| Cow::from(to.to_string())));
    Table {
        title: format!("{}, {} bytes", table::title(test), sizes::show(size)),
        name: format!("{}_{size}", test.name()).into(),
        columns: columns.collect(),
        rows: (0..ranks).map(row).collect(),
    }
}

fn series(network: &str, ranks: usize, results: &Results<Link>) -> Vec<data::Series> {
    let ours = results.posts.iter().map(|series| {
        let Link { from, to, test, protocol } = series.contender;
        let mut key = export::key(test, network, series.size);
        key.protocol = Some(protocol.to_string());
        key.payload = Some(payload(test).name().to_owned());
        key.ranks = Some(ranks as u64);
        key.labels.insert("from".to_owned(), from.to_string());
        key.labels.insert("to".to_owned(), to.to_string());
        export::of_rounds(key, test.quantity(), &series.figures)
    });
    ours.chain(export::raw_series(results)).collect()
}
