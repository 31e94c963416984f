//! Tables with deficits: shares, throughput beside SBT and round robin, and the latency of the class that needs it low.

use super::{Axis, Chart, Dot, Extent, Line, Row, Section, simulate, uniform};
use indicatif::ProgressBar;
use udeck_fabric::{
    arbitration::Scheme,
    config::{Config, Queues},
    measure::Measures,
    topology::{BadTopology, Network, torus, tree},
    traffic::{Pattern, Stream},
};
use udeck_qos::{
    dtable::{self, Class, WhenStalled},
    table::LANES,
};

/// Names, distances, shares and flits of a packet, from the highest level to the lowest: table 5.4 of the thesis.
/// EE, BE and BK share the rest there.
const CLASSES: [(&str, u32, f64, u32); 7] = [
    ("NC", 2, 0.094, 3),
    ("VO", 4, 0.164, 10),
    ("VI", 8, 0.30, 32),
    ("CL", 16, 0.35, 32),
    ("EE", 32, 0.04, 32),
    ("BE", 64, 0.036, 32),
    ("BK", 64, 0.016, 32),
];

/// Loads of the curves.
const CURVE: [f64; 5] = [0.8, 0.85, 0.9, 0.95, 1.0];

type Build = fn() -> Result<Network, BadTopology>;

/// Networks, with the published maximum of DTable and that of the two other arbiters.
const MAXIMA: [(Build, f64, f64); 4] = [
    (|| torus(&[8, 8], 1), 0.94, 0.80),
    (|| torus(&[8, 8, 4], 1), 0.78, 0.68),
    (|| tree(8, 3), 0.95, 0.85),
    (|| tree(24, 2), 0.95, 0.80),
];
/// Networks, with the published latency of NC at 0.7 of the load, for InfiniBand, in nanoseconds.
const TIMES: [(Build, f64); 4] = [
    (|| tree(4, 3), 780.0),
    (|| tree(24, 2), 604.0),
    (|| torus(&[8, 8], 1), 841.0),
    (|| torus(&[8, 8, 8], 1), 1330.0),
];

fn networks(extent: Extent) -> usize {
    if extent == Extent::Quick { 1 } else { 4 }
}

pub fn throughput_runs(extent: Extent) -> u64 {
    (2 * 3 * networks(extent) + 3 * CURVE.len()) as u64
}

pub fn latency_runs(extent: Extent) -> u64 {
    networks(extent) as u64 + 10
}

pub const SHARES: &str =
    "Shares of a table with deficits where all classes are saturated (DTable, table 5.4)";
pub const THROUGHPUT: &str = "Throughput at a load of 1, as a part of what the routes let through (DTable)";
pub const LATENCY: &str =
    "Mean time of the class NC at 0.7 of the load (DTable; published in ns for InfiniBand's links)";

/// Makes DTable's table of table 5.4.
fn dtable() -> Result<Scheme, String> {
    let classes = (0u8..).zip(CLASSES).map(|(level, (_, distance, share, mtu))| Class {
        level: 6 - level,
        distance,
        share,
        mtu,
    });
    let plan = dtable::plan(64, 32, &classes.collect::<Vec<_>>()).map_err(|bad| bad.to_string())?;
    Ok(Scheme::DTable { slots: plan.slots, when_stalled: WhenStalled::Keep })
}

/// Makes SBT's table with one entry for each class: packets by share and size.
fn sbt() -> Scheme {
    let mut weights = [0; LANES];
    for (level, (_, _, share, flits)) in CLASSES.iter().enumerate() {
        weights[6 - level] = (share * 1000.0 / f64::from(*flits)).ceil() as u32;
    }
    Scheme::Sbt { weights }
}

fn config(arbitration: Scheme) -> Config {
    Config { levels: 7, arbitration, packet: 32, buffer: 128, ..Config::default() }
}

/// Traffic of all classes by their shares, with the load `load` in all.
fn streams(network: &Network, load: f64) -> Vec<Stream> {
    let streams = (0u8..).zip(CLASSES).map(|(level, (name, _, share, flits))| Stream {
        level: 6 - level,
        ..uniform(network, name, load * share, flits)
    });
    streams.collect()
}

/// Measures each class's share of a link for which all classes want more than their share.
pub fn shares(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let network = tree(16, 1).map_err(|bad| bad.to_string())?;
    let cycles = if extent == Extent::Quick { 60_000 } else { 400_000 };
    // Each class has two hosts, so that no class waits behind another at its host.
    let streams = |network: &Network| {
        (0u32..)
            .zip(streams(network, 1.0))
            .map(|(nth, stream)| Stream {
                from: vec![2 * nth, 2 * nth + 1],
                to: Pattern::Fixed(vec![15; 2]),
                load: 0.5,
                ..stream
            })
            .collect::<Vec<_>>()
    };
    let of = |scheme: Scheme| -> Result<Measures, String> {
        simulate(&network, &config(scheme), streams(&network), (10_000, cycles), bar)
    };
    let (deficits, turns) = (of(dtable()?)?.shares(), of(Scheme::RoundRobin)?.shares());
    let mut rows = Vec::new();
    let (mut near, mut far) = (true, 0.0f64);
    for ((name, _, share, _), (ours, in_turn)) in CLASSES.iter().zip(deficits.iter().zip(&turns)) {
        rows.push(Row::new(format!("{name}, percent"), 100.0 * share, 100.0 * ours));
        near &= (ours - share).abs() < 0.02;
        far = far.max((in_turn - share).abs());
    }
    Ok(Section {
        how: format!(
            "Packets of 3 to 32 flits from 14 hosts to one, {cycles} cycles. Published: within 2 percent of what was asked for."
        ),
        rows,
        claims: vec![
            ("each class has its share within 2 percent of the link".into(), near),
            ("round robin gives some class more than 5 percent too much or too little".into(), far > 0.05),
        ],
        ..Section::default()
    })
}

/// The three arbiters that are compared.
fn arbiters() -> Result<[(&'static str, Scheme); 3], String> {
    Ok([("DTable", dtable()?), ("SBT", sbt()), ("round robin", Scheme::RoundRobin)])
}

fn throughput_cycles(extent: Extent) -> (u64, u64) {
    if extent == Extent::Quick { (3000, 5000) } else { (5000, 8000) }
}

/// Load that hosts receive, as a part of what the routes allow; the offered `load` is in the same unit.
fn taken(
    network: &Network,
    arbitration: Scheme,
    queues: Queues,
    load: f64,
    cycles: (u64, u64),
    bar: &ProgressBar,
) -> Result<f64, String> {
    let bound = network.uniform_bound();
    let config = Config { queues, ..config(arbitration) };
    let measures = simulate(network, &config, streams(network, load * bound), cycles, bar)?;
    Ok(measures.throughput() / bound)
}

/// Curves of the load that is not received with queues in order of arrival.
fn left_over(cycles: (u64, u64), bar: &ProgressBar) -> Result<Chart, String> {
    let network = MAXIMA[0].0().map_err(|bad| bad.to_string())?;
    let mut lines = Vec::new();
    for (name, arbitration) in arbiters()? {
        let mut points = Vec::new();
        for load in CURVE {
            let taken = taken(&network, arbitration.clone(), Queues::Fifo, load, cycles, bar)?;
            points.push(Dot::new(load, 100.0 * (1.0 - taken / load)));
        }
        lines.push(Line { name: name.into(), limit: false, points });
    }
    Ok(Chart {
        title: format!("What is left over, by arbiter, {}, packets in line", network.name),
        sentence:
            "The part of what is offered that is not taken; lower is better. Load is a part of what the routes let through."
                .into(),
        x: Axis::new("load", "", false),
        y: Axis::new("left over, %", "%", false),
        lines,
    })
}

/// Measures what is received under overload: by switches where packets do not wait for packets to other outputs, and
/// by switches with a queue for each input and level.
pub fn throughput(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let cycles = throughput_cycles(extent);
    let (mut rows, mut by_output, mut in_line) = (Vec::new(), true, true);
    for (build, of_dtable, of_others) in &MAXIMA[..networks(extent)] {
        let network = build().map_err(|bad| bad.to_string())?;
        for (queues, words) in [(Queues::ByOutput, "by output"), (Queues::Fifo, "in line")] {
            let mut of_queues = Vec::new();
            for (name, arbitration) in arbiters()? {
                let ours = taken(&network, arbitration, queues, 1.0, cycles, bar)?;
                let published = if name == "DTable" { of_dtable } else { of_others };
                rows.push(Row::new(format!("{}, {words}, {name}", network.name), *published, ours));
                of_queues.push(ours);
            }
            let [deficits, sbt, turns] = of_queues[..] else { return Err("an arbiter is missing".into()) };
            match queues {
                Queues::ByOutput => by_output &= deficits >= 0.95 * sbt.max(turns),
                _ => in_line &= deficits > sbt.max(turns),
            }
        }
    }
    Ok(Section {
        how: format!(
            "Seven classes of table 5.4 from all to all, {} cycles of warm-up and {} measured.{} By output: a packet waits for none that \
             goes elsewhere. In line: it waits for all that came before it by the same input in its level.",
            cycles.0,
            cycles.1,
            if extent == Extent::Quick { " The first network only." } else { "" }
        ),
        rows,
        claims: vec![
            ("in line, DTable takes more than SBT and round robin".into(), in_line),
            (
                "by output, the arbiter makes little difference: DTable takes 0.95 of the others, or more"
                    .into(),
                by_output,
            ),
        ],
        charts: vec![left_over(cycles, bar)?],
        ..Section::default()
    })
}

/// Measures the mean latency of NC at 0.7 of the load, and its curve in the first torus.
pub fn latency(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let cycles = if extent == Extent::Quick { (2000, 4000) } else { (3000, 6000) };
    let mut rows = Vec::new();
    let mut first = None;
    let mut ours = Vec::new();
    for (build, published) in &TIMES[..networks(extent)] {
        let network = build().map_err(|bad| bad.to_string())?;
        let streams = streams(&network, 0.7 * network.uniform_bound());
        let measures = simulate(&network, &config(dtable()?), streams, cycles, bar)?;
        let time = measures.classes[0].latency.mean();
        let (base, base_published) = *first.get_or_insert((time, *published));
        rows.push(Row::new(
            format!("{}, of the first", network.name),
            published / base_published,
            time / base,
        ));
        ours.push(time);
    }
    let network = tree(4, 2).map_err(|bad| bad.to_string())?;
    let loads = [0.1, 0.3, 0.5, 0.7, 0.9];
    let (mut urgent, mut large) = (Vec::new(), Vec::new());
    for (arbitration, name) in [(dtable()?, "DTable"), (Scheme::RoundRobin, "round robin")] {
        let (mut of_nc, mut of_vi) = (Vec::new(), Vec::new());
        for load in loads {
            let measures = simulate(
                &network,
                &config(arbitration.clone()),
                streams(&network, load),
                (2000, 10_000),
                bar,
            )?;
            of_nc.push(Dot::new(load, measures.classes[0].latency.mean()));
            of_vi.push(Dot::new(load, measures.classes[2].latency.mean()));
        }
        urgent.push(Line { name: format!("NC, {name}"), limit: false, points: of_nc });
        large.push(Line { name: format!("VI, {name}"), limit: false, points: of_vi });
    }
    let at_most = |line: &Line, other: &Line| {
        line.points.iter().zip(&other.points).all(|(one, other)| one.median < other.median)
    };
    let mut claims = vec![("NC is faster than VI at each load".into(), at_most(&urgent[0], &large[0]))];
    if let [tree_4, tree_24, torus_2, torus_3] = ours[..] {
        let order = tree_24 < tree_4 && tree_4 < torus_2 && torus_2 < torus_3;
        claims.push(("the order of the networks is the published one".into(), order));
    }
    let lines = urgent.into_iter().chain(large).collect();
    Ok(Section {
        how: format!(
            "Ratios to the first network: our links and switches have other delays. {} cycles of warm-up and {} measured.",
            cycles.0, cycles.1
        ),
        rows,
        claims,
        charts: vec![Chart {
            title: "Time of messages by class, 4-ary 2-tree".into(),
            sentence: "From the post to the last flit, mean; lower is better.".into(),
            x: Axis::new("load", "", false),
            y: Axis::new("cycles", "cycles", true),
            lines,
        }],
        ..Section::default()
    })
}
