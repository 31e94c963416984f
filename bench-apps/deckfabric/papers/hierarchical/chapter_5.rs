//! Omni-Path's hierarchical switches beside InfiniBand's, under DTable.

use super::{Experiment, Figures, Place, System, curves, latency_axis};
use crate::{
    input::Allocator,
    papers::{Axis, Chart, Extent, Row, Section},
};
use indicatif::ProgressBar;

pub const FILE: &str = include_str!("../../published/switches-5.toml");

/// Titles, in the order of the file's networks.
pub const SWITCHES: [&str; 4] = [
    "Omni-Path's switches beside InfiniBand's, 4-ary 3-tree (chapter 5, figures 5.4a to d)",
    "Omni-Path's switches beside InfiniBand's, 24-ary 2-tree (chapter 5, figures 5.4e to h)",
    "Omni-Path's switches beside InfiniBand's, 8×8 torus (chapter 5, figures 5.5a to d)",
    "Omni-Path's switches beside InfiniBand's, 8×8×8 torus (chapter 5, figures 5.5e to h)",
];

pub const ALLOCATORS: &str = "Inputs that offer one lane or all lanes, 4-ary 3-tree (chapter 5, §5.2.1)";

/// Allocators of both kinds of switches, and their names. A flit of 64 bytes, which the thesis counts cycles by, takes 8 cycles.
const OFFERS: [(&str, Allocator); 4] = [
    ("all lanes", Allocator::AllLanes),
    ("one lane a cycle", Allocator::OneLane { every: 1 }),
    ("one lane every 4 cycles", Allocator::OneLane { every: 4 }),
    ("one lane every 8 cycles", Allocator::OneLane { every: 8 }),
];

/// Injections of the curves, in flits a cycle of each host: the least and the largest of table 5.4, and that for which the
/// thesis prints the latency of NC.
const LOADS: [f64; 3] = [0.5735, AT, 0.9935];
const AT: f64 = 0.7;
/// Injection of NC, VO, VI and CL in all, which does not change (table 5.4).
const FIXED: f64 = 0.536;
/// Least injection of EE, BE and BK in all.
const SWEPT: f64 = 0.0375;
/// Classes by their place in the file.
const NC: usize = 0;
const VI: usize = 2;

/// Loads and cycles of a network: the larger it is, the more messages it has in a cycle. The quick form has the first one only.
fn size(extent: Extent, nth: usize) -> (&'static [f64], (u64, u64)) {
    match (extent, nth) {
        (Extent::Quick, 0) => (&LOADS[1..2], (3000, 6000)),
        (Extent::Quick, _) => (&[], (0, 0)),
        (Extent::Reduced, 0) => (&LOADS, (8000, 40_000)),
        (Extent::Reduced, 1 | 2) => (&LOADS, (4000, 5000)),
        (Extent::Reduced, _) => (&LOADS[1..2], (4000, 3000)),
    }
}

pub fn switches_runs(extent: Extent, nth: usize) -> u64 {
    2 * size(extent, nth).0.len() as u64
}

/// Plays a network of chapter 5.
pub fn switches(extent: Extent, nth: usize, bar: &ProgressBar) -> Result<Section, String> {
    let experiment = Experiment::read(FILE)?;
    let (loads, cycles) = size(extent, nth);
    let place = &experiment.place[nth];
    let factors: Vec<_> = loads.iter().map(|load| (load - FIXED) / SWEPT).collect();
    let mut section = Section {
        how: format!(
            "Switches and traffic of published/switches-5.toml, {} of {} hosts: {} cycles of 64 bits of warm-up and {} measured. The mean of all \
             classes is that of all messages. The speed of InfiniBand's crossbar is assumed: twice that of the links.",
            place.name, place.hosts, cycles.0, cycles.1
        ),
        ..Section::default()
    };
    let mut of_systems = Vec::new();
    for (system, published) in experiment.system.iter().zip(&place.published) {
        let runs = experiment.play(place, system, &factors, cycles, bar)?;
        for (run, load) in runs.iter().zip(loads) {
            let row = |what: &str, published, ours| {
                Row::new(format!("{} at {load}: {what}", system.name), published, ours)
            };
            section.rows.extend([
                row("latency of NC, ns", (*load == AT).then_some(*published), run.classes[NC].latency),
                row("mean latency of all classes, ns", None, run.latency()),
                row("throughput", None, run.throughput),
            ]);
        }
        if loads.len() > 1 {
            section.charts.extend(charts(&format!("{}, {}", place.name, system.name), &runs));
        }
        of_systems.push(runs);
    }
    let [infiniband, omni_path] = &of_systems[..] else { return Err("there are two systems".into()) };
    section.claims = claims(place, infiniband, omni_path);
    Ok(section)
}

pub fn allocators_runs(extent: Extent) -> u64 {
    match extent {
        Extent::Quick => 4,
        Extent::Reduced => 8,
    }
}

/// Plays both kinds of switches with each allocator at the injection for which the thesis prints latencies, in its first network.
/// The quick form has the first two allocators.
pub fn allocators(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let experiment = Experiment::read(FILE)?;
    let (_, cycles) = size(extent, 0);
    let place = &experiment.place[0];
    let mut section = Section {
        how: format!(
            "Switches and traffic of published/switches-5.toml, {} of {} hosts, at {AT}: {} cycles of 64 bits of warm-up and {} measured. Inputs \
             offer all lanes, or one lane in turn, as in the thesis. A lane that is not granted loses its turn: our reading, since the thesis \
             does not say it.",
            place.name, place.hosts, cycles.0, cycles.1
        ),
        ..Section::default()
    };
    for (offers, allocator) in &OFFERS[..allocators_runs(extent) as usize / 2] {
        for (system, published) in experiment.system.iter().zip(&place.published) {
            let system = System { allocator: Some(*allocator), ..system.clone() };
            let runs = experiment.play(place, &system, &[(AT - FIXED) / SWEPT], cycles, bar)?;
            let [run] = &runs[..] else { return Err("there is one load".into()) };
            let name = format!("{}, {offers}", system.name);
            section.rows.push(Row::new(
                format!("{name}: latency of NC, ns"),
                *published,
                run.classes[NC].latency,
            ));
            section.rows.push(Row::new(format!("{name}: throughput"), None, run.throughput));
            let what = format!("{name}: what is injected is taken, within 10 percent");
            if !matches!(allocator, Allocator::OneLane { every: 8 }) {
                section.claims.push((what, (run.throughput / run.load - 1.0).abs() < 0.1));
            }
        }
    }
    Ok(section)
}

/// Claims of §5.6 about a network.
fn claims(place: &Place, infiniband: &[Figures], omni_path: &[Figures]) -> Vec<(String, bool)> {
    let claim = |what: &str, holds| (what.to_owned(), holds);
    let at = omni_path.iter().find(|run| (run.load - AT).abs() < 0.01);
    let near = at.is_some_and(|run| (run.classes[NC].latency / place.published[1] - 1.0).abs() < 0.2);
    let pairs = || infiniband.iter().zip(omni_path);
    let fastest = |run: &Figures| {
        let others = run.classes[VI..].iter();
        others.into_iter().all(|class| class.latency > run.classes[NC].latency)
    };
    vec![
        claim(
            "both take what is injected at 0.7, within 10 percent",
            pairs().all(|(one, other)| {
                [one, other]
                    .iter()
                    .all(|run| run.load > AT + 0.01 || (run.throughput / run.load - 1.0).abs() < 0.1)
            }),
        ),
        claim(
            "Omni-Path takes at least as much as InfiniBand at each load, within 2 percent",
            pairs().all(|(one, other)| other.throughput >= 0.98 * one.throughput),
        ),
        claim(
            "NC takes less time than VI and all below it, at each load",
            infiniband.iter().chain(omni_path).all(fastest),
        ),
        claim("NC's latency over Omni-Path is the published one, within 20 percent", near),
    ]
}

fn charts(name: &str, runs: &[Figures]) -> [Chart; 2] {
    [
        curves(
            format!("Latency by class: {name}"),
            "From the post to the last flit, mean; lower is better.",
            latency_axis(),
            runs,
            |class| class.latency,
        ),
        curves(
            format!("Throughput by class: {name}"),
            "NC, VO, VI and CL inject as much at each load; EE, BE and BK share the rest.",
            Axis::new("throughput", "flits a cycle of each host", false),
            runs,
            |class| class.throughput,
        ),
    ]
}
