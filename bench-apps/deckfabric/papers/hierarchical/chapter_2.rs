//! SBT and round robin in one hierarchical switch, with random destinations and without contention.

use super::{Axis, Experiment, Figures, curves};
use crate::{
    input::Pattern,
    papers::{Extent, Row, Section},
};
use indicatif::ProgressBar;

pub const FILE: &str = include_str!("../../published/sbt-2.toml");

pub const SINGLE: &str = "SBT and round robin in one switch of 48 ports (chapter 2, figure 2.4, table 2.2)";

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

/// Plays configuration A.
pub fn single(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let mut experiment = Experiment::read(FILE)?;
    let (loads, cycles) = size(extent);
    let mut section = Section {
        how: format!(
            "Switch and traffic of published/sbt-2.toml: {} cycles of 64 bits of warm-up and {} measured. Figures without a load are those at \
             an injection of {} flits a cycle of each host.",
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
        for system in &experiment.system {
            let runs = experiment.play(place, system, loads, cycles, bar)?;
            let name = format!("{}, {traffic}", system.name);
            let Some(last) = runs.last() else { continue };
            let is_sbt = system.name == "SBT";
            let all = (is_sbt && is_random).then_some(LEVEL_0 * 100.0 / place.published[0]);
            section.rows.push(Row::new(format!("{name}: throughput"), all, last.throughput));
            for (class, published) in last.classes.iter().zip(&place.published) {
                let what = format!("{name}: {}, percent of the throughput", class.name);
                let published = is_sbt.then_some(*published);
                section.rows.push(Row::new(what, published, 100.0 * class.throughput / last.throughput));
            }
            section.claims.push(if is_sbt {
                let what =
                    format!("{name}: levels have their weights' shares, within 2 percent of the throughput");
                (what, largest_difference(last, &place.published) < 2.0)
            } else {
                let what = format!("{name}: level 0 has less than its weight's share");
                (what, last.classes[0].throughput / last.throughput < place.published[0] / 100.0)
            });
            section.charts.push(curves(
                format!("Throughput by level: {name}"),
                "Flits a cycle that each host receives.",
                Axis::new("throughput", "flits a cycle of each host", false),
                &runs,
                |class| class.throughput,
            ));
        }
    }
    Ok(section)
}

/// Largest difference of a class's share from the published one, in percent of the throughput.
fn largest_difference(run: &Figures, published: &[f64]) -> f64 {
    let shares = run.classes.iter().map(|class| 100.0 * class.throughput / run.throughput);
    shares.zip(published).map(|(share, published)| (share - published).abs()).fold(0.0, f64::max)
}
