//! SBT and round robin in one hierarchical switch, with random destinations and without contention: both configurations of
//! table 2.2.

use super::{Axis, Experiment, Figures, curves};
use crate::{
    input::Pattern,
    papers::{Extent, Row, Section},
};
use indicatif::ProgressBar;

/// Configurations A and B.
pub const FILES: [&str; 2] =
    [include_str!("../../published/sbt-2.toml"), include_str!("../../published/sbt-2-b.toml")];

/// Titles, in the order of the files.
pub const SINGLE: [&str; 2] = [
    "SBT and round robin in one switch of 48 ports (chapter 2, figure 2.4, table 2.2 A)",
    "SBT and round robin in one switch of 48 ports, SL 0 with two channels (chapter 2, figure 2.5, table 2.2 B)",
];

/// Place of configuration A in the files.
const A: usize = 0;

/// Injections of the curves, in flits a cycle of each host. The last one is the largest published.
const LOADS: [f64; 5] = [0.4, 0.7, 1.0, 1.3, 1.6];
/// Published throughput of level 0 under SBT with random destinations, in flits a cycle of each host.
const LEVEL_0: f64 = 0.45;

fn size(extent: Extent) -> (&'static [f64], (u64, u64)) {
    match extent {
        Extent::Quick => (&LOADS[4..], (4000, 6000)),
        Extent::Reduced => (&LOADS, (20_000, 40_000)),
    }
}

pub fn single_runs(extent: Extent) -> u64 {
    4 * size(extent).0.len() as u64
}

/// Plays a configuration.
pub fn single(extent: Extent, nth: usize, bar: &ProgressBar) -> Result<Section, String> {
    let mut experiment = Experiment::read(FILES[nth])?;
    let (loads, cycles) = size(extent);
    let mut section = Section {
        how: format!(
            "Switch and traffic of published/{}: {} cycles of 64 bits of warm-up and {} measured. Figures without a load are those at \
             an injection of {} flits a cycle of each host.",
            ["sbt-2.toml", "sbt-2-b.toml"][nth],
            cycles.0,
            cycles.1,
            LOADS[LOADS.len() - 1]
        ),
        ..Section::default()
    };
    for (traffic, pattern) in
        [("random destinations", Pattern::Uniform), ("no contention", Pattern::NextNeighbour)]
    {
        experiment.traffic.iter_mut().for_each(|class| class.pattern = pattern);
        let (place, is_random) = (&experiment.place[0], pattern == Pattern::Uniform);
        let mut of_systems = Vec::new();
        for system in &experiment.system {
            let runs = experiment.play(place, system, loads, cycles, bar)?;
            let name = format!("{}, {traffic}", system.name);
            let Some(last) = runs.last() else { continue };
            let is_sbt = system.name == "SBT";
            let all = (is_sbt && is_random && nth == A).then_some(LEVEL_0 * 100.0 / place.published[0]);
            section.rows.push(Row::new(format!("{name}: throughput"), all, last.throughput));
            for (class, published) in last.classes.iter().zip(&place.published) {
                let what = format!("{name}: {}, percent of the throughput", class.name);
                let published = is_sbt.then_some(*published);
                section.rows.push(Row::new(what, published, 100.0 * class.throughput / last.throughput));
            }
            section.charts.push(curves(
                format!("Throughput by level: {name}"),
                "Flits a cycle that each host receives.",
                Axis::new("throughput", "flits a cycle of each host", false),
                &runs,
                |class| class.throughput,
            ));
            of_systems.extend(runs.into_iter().last());
        }
        let [sbt, turns] = &of_systems[..] else { return Err("there are two arbiters".into()) };
        section.claims.extend(claims(traffic, sbt, turns, nth, &place.published));
    }
    Ok(section)
}

/// Claims of §2.4 about the figures at the largest injection, of SBT and of round robin.
fn claims(traffic: &str, sbt: &Figures, turns: &Figures, nth: usize, weights: &[f64]) -> [(String, bool); 2] {
    let share = |run: &Figures, level: usize| run.classes[level].throughput / run.throughput;
    let of_weights = if nth == A {
        let what = "levels have their weights' shares, within 2 percent of the throughput";
        (what, largest_difference(sbt, weights) < 2.0)
    } else {
        let ratio = share(sbt, 0) / share(sbt, 1) * weights[1] / weights[0];
        ("SL 0 and SL 1 share as their weights, within 3 percent", (ratio - 1.0).abs() < 0.03)
    };
    let penalized = ("SL 1 has less than under round robin", share(sbt, 1) < share(turns, 1));
    [of_weights, penalized].map(|(what, holds)| (format!("SBT, {traffic}: {what}"), holds))
}

/// Largest difference of a class's share from the published one, in percent of the throughput.
fn largest_difference(run: &Figures, published: &[f64]) -> f64 {
    let shares = run.classes.iter().map(|class| 100.0 * class.throughput / run.throughput);
    shares.zip(published).map(|(share, published)| (share - published).abs()).fold(0.0, f64::max)
}
