//! DTable, SBT and round robin in hierarchical switches.

use super::{ClassFigures, Experiment, Figures, Place, curves, latency_axis, load_axis};
use crate::papers::{Axis, Chart, Dot, Extent, Line, Row, Section};
use indicatif::ProgressBar;
use udeck_fabric::topology::{Description, Routes};

pub const FILE: &str = include_str!("../../published/omni-path-4.toml");

/// Titles, in the order of the file's networks.
pub const SCHEDULERS: [&str; 4] = [
    "DTable, SBT and round robin in hierarchical switches, 8×8 torus (chapter 4, figures 4.3a, b and e)",
    "DTable, SBT and round robin in hierarchical switches, 8×8×4 torus (chapter 4, figures 4.3c, d and f)",
    "DTable, SBT and round robin in hierarchical switches, 8-ary 3-tree (chapter 4, figures 4.4a, b and e)",
    "DTable, SBT and round robin in hierarchical switches, 24-ary 2-tree (chapter 4, figures 4.4c, d and f)",
];

/// Loads of the curves. The largest throughput is looked for among them.
const LOADS: [f64; 3] = [0.5, 0.8, 1.0];
/// Part whose network is smaller in the quick form: two levels of the 8-ary tree in place of three.
const SMALL: usize = 2;

/// Classes by their place in the file.
const VO: usize = 0;
const CL: usize = 2;

/// Loads and cycles of a network. The quick form has one part, with a smaller network.
fn size(extent: Extent, nth: usize) -> (&'static [f64], (u64, u64)) {
    match (extent, nth) {
        (Extent::Quick, SMALL) => (&LOADS, (6000, 6000)),
        (Extent::Quick, _) => (&[], (0, 0)),
        (Extent::Reduced, _) => (&LOADS, (8000, 3000)),
    }
}

pub fn schedulers_runs(extent: Extent, nth: usize) -> u64 {
    3 * size(extent, nth).0.len() as u64
}

/// Plays a network of chapter 4.
pub fn schedulers(extent: Extent, nth: usize, bar: &ProgressBar) -> Result<Section, String> {
    let mut experiment = Experiment::read(FILE)?;
    let (loads, cycles) = size(extent, nth);
    let mut place = experiment.place.swap_remove(nth);
    if extent == Extent::Quick {
        let topology = Description::Tree { k: 8, n: 2, routes: Routes::Fixed };
        place = Place { name: "8-ary 2-tree".into(), hosts: 64, topology, ..place };
    }
    let runs = experiment.system.iter().map(|system| experiment.play(&place, system, loads, cycles, bar));
    let runs = runs.collect::<Result<Vec<_>, _>>()?;
    let [deficits, sbt, turns] = &runs[..] else { return Err("there are three arbiters".into()) };
    let mut rows = Vec::new();
    for ((system, runs), published) in experiment.system.iter().zip(&runs).zip(&place.published) {
        let published = (extent == Extent::Reduced).then_some(*published);
        rows.push(Row::new(format!("{}: largest throughput", system.name), published, largest(runs)));
        for class in runs.last().map_or(&[][..], |run| &run.classes) {
            let what = format!("{}: {} at a load of 1, percent of the throughput", system.name, class.name);
            let all = runs.last().map_or(f64::NAN, |run| run.throughput);
            rows.push(Row::new(what, None, 100.0 * class.throughput / all));
        }
    }
    Ok(Section {
        how: format!(
            "Switches and traffic of published/omni-path-4.toml, {} of {} hosts: {} cycles of 64 bits of warm-up and {} measured. Throughput is that of \
             all classes, in flits a cycle of each host, the largest of the loads {loads:?}.",
            place.name, place.hosts, cycles.0, cycles.1
        ),
        rows,
        claims: claims(&place, deficits, sbt, turns, extent),
        charts: charts(&place.name, deficits, sbt, turns).into(),
        ..Section::default()
    })
}

fn largest(runs: &[Figures]) -> f64 {
    runs.iter().map(|run| run.throughput).fold(0.0, f64::max)
}

/// Claims of §4.4.2.3 about a network. A quick form is too short for those that need a saturated network.
fn claims(
    place: &Place,
    deficits: &[Figures],
    sbt: &[Figures],
    turns: &[Figures],
    extent: Extent,
) -> Vec<(String, bool)> {
    let last =
        |runs: &[Figures], class: usize| runs.last().map_or(f64::NAN, |run| run.classes[class].latency);
    let mut claims = vec![
        (
            "DTable takes more than SBT and round robin".to_owned(),
            largest(deficits) > largest(sbt).max(largest(turns)),
        ),
        (
            "at a load of 1 CL takes less time under DTable than under SBT and round robin, and VO takes more".into(),
            last(deficits, CL) < last(sbt, CL).min(last(turns, CL))
                && last(deficits, VO) > last(sbt, VO).max(last(turns, VO)),
        ),
    ];
    if extent == Extent::Reduced {
        let near = |(runs, published): (&[Figures], &f64)| (largest(runs) / published - 1.0).abs() <= 0.1;
        let is_near = [deficits, sbt, turns].into_iter().zip(&place.published).all(near);
        claims.push(("the largest throughputs are the published ones, within 10 percent".into(), is_near));
        let off = |run: &Figures| {
            let off = run
                .classes
                .iter()
                .map(|class| (class.throughput / run.throughput - class.injected / run.load).abs());
            off.fold(0.0, f64::max)
        };
        let off = deficits.iter().map(off).fold(0.0, f64::max);
        claims.push((
            "under DTable each class has its share within 3 percent of the throughput at each load".into(),
            off <= 0.03,
        ));
    }
    claims
}

fn charts(place: &str, deficits: &[Figures], sbt: &[Figures], turns: &[Figures]) -> [Chart; 3] {
    let arbiters = [("DTable", deficits), ("SBT", sbt), ("round robin", turns)];
    let line = |name: &str, runs: &[Figures], class: usize, of: fn(&Figures, &ClassFigures) -> f64| Line {
        name: format!("{}, {name}", runs.first().map_or("", |run| &run.classes[class].name)),
        limit: false,
        points: runs.iter().map(|run| Dot::new(run.load, of(run, &run.classes[class]))).collect(),
    };
    let lines = |of: fn(&Figures, &ClassFigures) -> f64| {
        let of_class = |class: usize| arbiters.map(|(name, runs)| line(name, runs, class, of));
        [VO, CL].into_iter().flat_map(of_class).collect()
    };
    let chart = |title: String, sentence: &str, y: Axis, lines: Vec<Line>| Chart {
        title,
        sentence: sentence.into(),
        x: load_axis(),
        y,
        lines,
    };
    [
        chart(
            format!("Latency of VO and CL: {place}"),
            "From the post to the last flit, mean; lower is better.",
            latency_axis(),
            lines(|_, class| class.latency),
        ),
        chart(
            format!("Part of VO and CL in the throughput: {place}"),
            "Injected are 10 and 50 percent.",
            Axis::new("part", "%", false),
            lines(|run, class| 100.0 * class.throughput / run.throughput),
        ),
        curves(
            format!("Latency by class under DTable: {place}"),
            "From the post to the last flit, mean; lower is better.",
            latency_axis(),
            deficits,
            |class| class.latency,
        ),
    ]
}
