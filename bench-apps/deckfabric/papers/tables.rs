//! Tables with deficits: shares, throughput beside SBT and round robin, and the latency of the class that needs it low.

use super::{Axis, Chart, Dot, Extent, Line, Row, Section, simulate, uniform};
use indicatif::ProgressBar;
use serde::Deserialize;
use udeck_fabric::{
    arbitration::{FLIT_BYTES, Scheme},
    config::{Config, Queues},
    measure::Measures,
    topology::{BadTopology, Network, torus, tree},
    traffic::{Pattern, Stream},
};
use udeck_qos::{
    dtable::{self, Class, Factors, Plan, PlannedClass, WhenStalled},
    table::LANES,
};

/// Published tables, in the form that `deckqos plan` reads. Both are played with packets of the MTUs.
pub const TABLE_5_4: &str = include_str!("../../deckqos/published/table-5.4.toml");
pub const TABLE_4_8: &str = include_str!("../../deckqos/published/table-4.8.toml");

/// Loads of the curves.
const CURVE: [f64; 5] = [0.8, 0.85, 0.9, 0.95, 1.0];

type Build = fn() -> Result<Network, BadTopology>;

/// Networks of chapter 4 with one host a switch, single links and flat switches. Published figures are those of `hierarchical`.
const MAXIMA: [Build; 4] = [|| torus(&[8, 8], 1), || torus(&[8, 8, 4], 1), || tree(8, 3), || tree(24, 2)];
/// Networks of chapter 5, in the same form.
const TIMES: [Build; 4] = [|| tree(4, 3), || tree(24, 2), || torus(&[8, 8], 1), || torus(&[8, 8, 8], 1)];

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
pub const LATENCY: &str = "Mean time of the class NC at 0.7 of the load, flat switches (DTable)";

/// A published table: its classes and their plan.
pub struct Published {
    names: Vec<String>,
    plan: Plan,
}

impl Published {
    pub fn read(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct File {
            dtable: Table,
            class: Vec<ClassKeys>,
        }
        #[derive(Deserialize)]
        struct Table {
            entries: usize,
            gmtu: u32,
            k: f64,
            w: f64,
        }
        #[derive(Deserialize)]
        struct ClassKeys {
            name: String,
            sl: u8,
            share: f64,
            distance: u32,
            mtu: u32,
        }
        let File { dtable: Table { entries, gmtu, k, w }, class } =
            toml::from_str(text).map_err(|bad| bad.to_string())?;
        let classes: Vec<_> = class
            .iter()
            .map(|&ClassKeys { sl, share, distance, mtu, .. }| Class {
                level: sl,
                distance,
                share,
                mtu: mtu / FLIT_BYTES,
            })
            .collect();
        let plan = dtable::plan_with(entries, gmtu / FLIT_BYTES, &classes, Factors { k, w });
        let names = class.into_iter().map(|class| class.name).collect();
        Ok(Self { names, plan: plan.map_err(|bad| bad.to_string())? })
    }

    /// Names and classes of the table. MTUs are in flits of 64 bytes.
    #[cfg(test)]
    pub fn classes(&self) -> impl Iterator<Item = (&str, &Class)> {
        self.names.iter().map(String::as_str).zip(self.plan.classes.iter().map(|planned| &planned.class))
    }

    /// Level and weight of each entry, in flits of 64 bytes.
    pub fn weights(&self) -> impl Iterator<Item = (u8, u32)> {
        self.plan.slots.iter().map(|slot| (slot.level, slot.weight))
    }

    /// The scheduler as published: a level that may not send loses its deficit.
    fn dtable(&self) -> Scheme {
        Scheme::DTable { slots: self.plan.slots.clone(), when_stalled: WhenStalled::Lose }
    }

    /// SBT's weights of table 4.9: percents of the link, as packets.
    fn sbt(&self) -> Scheme {
        let mut weights = [0; LANES];
        for PlannedClass { class, .. } in &self.plan.classes {
            weights[usize::from(class.level)] = (100.0 * class.share).round() as u32;
        }
        Scheme::Sbt { weights }
    }

    fn config(&self, arbitration: Scheme) -> Config {
        Config { levels: self.names.len() as u8, arbitration, packet: 32, buffer: 128, ..Config::default() }
    }

    /// Traffic of all classes by their shares, with packets of their MTUs and the load `load` in all.
    fn streams(&self, network: &Network, load: f64) -> Vec<Stream> {
        let classes = self.names.iter().zip(&self.plan.classes);
        let streams = classes.map(|(name, PlannedClass { class, .. })| Stream {
            level: class.level,
            ..uniform(network, name, load * class.share, class.mtu)
        });
        streams.collect()
    }
}

/// Measures each class's share of a link for which all classes want more than their share.
pub fn shares(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let network = tree(16, 1).map_err(|bad| bad.to_string())?;
    let cycles = if extent == Extent::Quick { 60_000 } else { 400_000 };
    let published = Published::read(TABLE_5_4)?;
    // Each class has two hosts, so that no class waits behind another at its host.
    let streams = |network: &Network| {
        (0u32..)
            .zip(published.streams(network, 1.0))
            .map(|(nth, stream)| Stream {
                from: vec![2 * nth, 2 * nth + 1],
                to: Pattern::Fixed(vec![15; 2]),
                load: 0.5,
                ..stream
            })
            .collect::<Vec<_>>()
    };
    let of = |scheme: Scheme| -> Result<Measures, String> {
        simulate(&network, &published.config(scheme), streams(&network), (10_000, cycles), bar)
    };
    let (deficits, turns) = (of(published.dtable())?.shares(), of(Scheme::RoundRobin)?.shares());
    let mut rows = Vec::new();
    let (mut near, mut far) = (true, 0.0f64);
    for ((name, planned), (ours, in_turn)) in
        published.names.iter().zip(&published.plan.classes).zip(deficits.iter().zip(&turns))
    {
        let share = planned.class.share;
        rows.push(Row::new(format!("{name}, percent"), 100.0 * share, 100.0 * ours));
        near &= (ours - share).abs() < 0.02;
        far = far.max((in_turn - share).abs());
    }
    Ok(Section {
        how: format!(
            "Packets of 2 to 32 flits from 14 hosts to one, {cycles} cycles. Published is φ of table 5.4, the share that was asked for."
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
fn arbiters(published: &Published) -> [(&'static str, Scheme); 3] {
    [("DTable", published.dtable()), ("SBT", published.sbt()), ("round robin", Scheme::RoundRobin)]
}

fn throughput_cycles(extent: Extent) -> (u64, u64) {
    if extent == Extent::Quick { (3000, 5000) } else { (5000, 8000) }
}

/// Load that hosts receive, as a part of what the routes allow; the offered `load` is in the same unit.
fn taken(
    published: &Published,
    network: &Network,
    arbitration: Scheme,
    queues: Queues,
    load: f64,
    cycles: (u64, u64),
    bar: &ProgressBar,
) -> Result<f64, String> {
    let bound = network.uniform_bound();
    let config = Config { queues, ..published.config(arbitration) };
    let measures = simulate(network, &config, published.streams(network, load * bound), cycles, bar)?;
    Ok(measures.throughput() / bound)
}

/// Curves of the load that is not received with queues in order of arrival.
fn left_over(cycles: (u64, u64), bar: &ProgressBar) -> Result<Chart, String> {
    let network = MAXIMA[0]().map_err(|bad| bad.to_string())?;
    let published = Published::read(TABLE_4_8)?;
    let mut lines = Vec::new();
    for (name, arbitration) in arbiters(&published) {
        let mut points = Vec::new();
        for load in CURVE {
            let taken = taken(&published, &network, arbitration.clone(), Queues::Fifo, load, cycles, bar)?;
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
    let (cycles, published) = (throughput_cycles(extent), Published::read(TABLE_4_8)?);
    let (mut rows, mut by_output, mut in_line) = (Vec::new(), true, true);
    for build in &MAXIMA[..networks(extent)] {
        let network = build().map_err(|bad| bad.to_string())?;
        for (queues, words) in [(Queues::ByOutput, "by output"), (Queues::Fifo, "in line")] {
            let mut of_queues = Vec::new();
            for (name, arbitration) in arbiters(&published) {
                let ours = taken(&published, &network, arbitration, queues, 1.0, cycles, bar)?;
                rows.push(Row::new(format!("{}, {words}, {name}", network.name), None, ours));
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
            "The classes of tables 4.8 and 4.9 from all to all, {} cycles of warm-up and {} measured.{} By output: a packet waits for none that \
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
    let published = Published::read(TABLE_5_4)?;
    let mut rows = Vec::new();
    let mut first = None;
    let mut ours = Vec::new();
    for build in &TIMES[..networks(extent)] {
        let network = build().map_err(|bad| bad.to_string())?;
        let streams = published.streams(&network, 0.7 * network.uniform_bound());
        let measures = simulate(&network, &published.config(published.dtable()), streams, cycles, bar)?;
        let time = measures.classes[0].latency.mean();
        let base = *first.get_or_insert(time);
        rows.push(Row::new(format!("{}, of the first", network.name), None, time / base));
        ours.push(time);
    }
    let network = tree(4, 2).map_err(|bad| bad.to_string())?;
    let loads = [0.1, 0.3, 0.5, 0.7, 0.9];
    let (mut urgent, mut large) = (Vec::new(), Vec::new());
    for (arbitration, name) in [(published.dtable(), "DTable"), (Scheme::RoundRobin, "round robin")] {
        let (mut of_nc, mut of_vi) = (Vec::new(), Vec::new());
        for load in loads {
            let measures = simulate(
                &network,
                &published.config(arbitration.clone()),
                published.streams(&network, load),
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
            "Ratios to the first network. The mix is table 5.4's φ, and routes are fixed. {} cycles of warm-up and {} measured.",
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries, weights of all entries of a class, and the different weights in the table's order.
    fn rows(text: &str) -> Vec<(u32, u64, Vec<u32>)> {
        let plan = Published::read(text).expect("a published table").plan;
        let of = |planned: &PlannedClass| {
            let own = plan.slots.iter().filter(|slot| slot.level == planned.class.level);
            let mut weights: Vec<_> = own.map(|slot| slot.weight).collect();
            weights.dedup();
            (planned.entries, planned.credits, weights)
        };
        plan.classes.iter().map(of).collect()
    }

    #[test]
    fn the_plan_that_is_played_is_the_published_one() {
        let table_5_4 = [
            (32, 101, vec![4, 3]),
            (16, 176, vec![11]),
            (8, 322, vec![40, 41]),
            (4, 375, vec![93, 94]),
            (2, 43, vec![21, 22]),
            (1, 39, vec![39]),
            (1, 17, vec![17]),
        ];
        assert_eq!(rows(TABLE_5_4), table_5_4);
        let table_4_9 = [
            (64, 416, vec![7, 6]),
            (32, 1248, vec![39]),
            (16, 2080, vec![130]),
            (8, 208, vec![26]),
            (8, 208, vec![26]),
        ];
        assert_eq!(rows(TABLE_4_8), table_4_9);
        let published = Published::read(TABLE_4_8).expect("a published table");
        let Scheme::Sbt { weights } = published.sbt() else { panic!("another scheme") };
        assert_eq!(weights[..5], [5, 5, 50, 30, 10]);
        assert!(matches!(published.dtable(), Scheme::DTable { when_stalled: WhenStalled::Lose, .. }));
    }
}
