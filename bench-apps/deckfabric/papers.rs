//! `deckfabric papers`: figures of the literature beside the simulator's own, reduced to minutes on one processor.

mod alfaro;
mod congestion;
mod evaluation;
mod hierarchical;
mod last_hop;
mod library;
mod page;
mod tables;

use hierarchical::{
    ALLOCATORS, BESIDE, SCHEDULERS, SINGLE, SWITCHES, TREES, allocators, allocators_runs, beside,
    beside_runs, schedulers, schedulers_runs, single, single_runs, switches, switches_runs, trees,
    trees_runs,
};
use indicatif::ProgressBar;
use serde::Serialize;
use udeck_cli::columns::{lines, row};
use udeck_cli::progress;
use udeck_fabric::{
    config::Config,
    engine::Engine,
    measure::Measures,
    topology::Network,
    traffic::{Arrivals, Pattern, Stream, Traffic},
};

pub use page::html;

/// Size of the simulated experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Networks of the literature, for fewer cycles.
    Reduced,
    /// Small networks, in seconds.
    Quick,
}

/// Results of a part of the literature.
#[derive(Debug, Default)]
pub struct Section {
    pub title: &'static str,
    /// Reason why the part has no figures.
    pub failed: Option<String>,
    /// Description of the simulation, and of what is reduced in it.
    pub how: String,
    pub rows: Vec<Row>,
    /// Claims that must hold, and whether each holds.
    pub claims: Vec<(String, bool)>,
    pub charts: Vec<Chart>,
}

/// A published figure and ours.
#[derive(Debug)]
pub struct Row {
    pub what: String,
    pub published: Option<f64>,
    pub ours: f64,
}

impl Row {
    fn new(what: impl Into<String>, published: impl Into<Option<f64>>, ours: f64) -> Self {
        Self { what: what.into(), published: published.into(), ours }
    }
}

/// Curves, in the form that the page's script reads.
#[derive(Debug, Serialize)]
pub struct Chart {
    pub title: String,
    pub sentence: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

#[derive(Debug, Serialize)]
pub struct Axis {
    pub title: String,
    pub unit: String,
    pub bytes: bool,
    pub log: bool,
}

impl Axis {
    fn new(title: &str, unit: &str, log: bool) -> Self {
        Self { title: title.into(), unit: unit.into(), bytes: false, log }
    }
}

#[derive(Debug, Serialize)]
pub struct Line {
    pub name: String,
    pub limit: bool,
    pub points: Vec<Dot>,
}

/// A figure of one run. It is the same for the same seed, so its bounds equal it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Dot {
    pub x: f64,
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub p10: f64,
    pub p90: f64,
    pub rounds: usize,
}

impl Dot {
    fn new(x: f64, y: f64) -> Self {
        Self { x, median: y, low: y, high: y, p10: y, p90: y, rounds: 1 }
    }
}

/// A part: its title, its steps of the progress bar, and the function that runs it.
type Experiment = (&'static str, fn(Extent) -> u64, fn(Extent, &ProgressBar) -> Result<Section, String>);

const EXPERIMENTS: [Experiment; 32] = [
    (alfaro::WASTE, |_| 1, alfaro::waste),
    (alfaro::DEADLINES, |_| 1, alfaro::deadlines),
    (evaluation::TOPOLOGIES, |_| 3, evaluation::topologies),
    (evaluation::SIZES, |_| 4, evaluation::sizes),
    (evaluation::PACKETS, |_| 4, evaluation::packets),
    (evaluation::SPEEDS, |_| 3, evaluation::speeds),
    (evaluation::BUFFERS, |_| 4, evaluation::buffers),
    (tables::SHARES, |_| 2, tables::shares),
    (tables::THROUGHPUT, tables::throughput_runs, tables::throughput),
    (tables::LATENCY, tables::latency_runs, tables::latency),
    (SINGLE[0], single_runs, |extent, bar| single(extent, 0, bar)),
    (SINGLE[1], single_runs, |extent, bar| single(extent, 1, bar)),
    (SCHEDULERS[0], |extent| schedulers_runs(extent, 0), |extent, bar| schedulers(extent, 0, bar)),
    (SCHEDULERS[1], |extent| schedulers_runs(extent, 1), |extent, bar| schedulers(extent, 1, bar)),
    (SCHEDULERS[2], |extent| schedulers_runs(extent, 2), |extent, bar| schedulers(extent, 2, bar)),
    (SCHEDULERS[3], |extent| schedulers_runs(extent, 3), |extent, bar| schedulers(extent, 3, bar)),
    (BESIDE[0], beside_runs, |extent, bar| beside(extent, 0, bar)),
    (BESIDE[1], beside_runs, |extent, bar| beside(extent, 1, bar)),
    (SWITCHES[0], |extent| switches_runs(extent, 0), |extent, bar| switches(extent, 0, bar)),
    (SWITCHES[1], |extent| switches_runs(extent, 1), |extent, bar| switches(extent, 1, bar)),
    (SWITCHES[2], |extent| switches_runs(extent, 2), |extent, bar| switches(extent, 2, bar)),
    (SWITCHES[3], |extent| switches_runs(extent, 3), |extent, bar| switches(extent, 3, bar)),
    (ALLOCATORS, allocators_runs, allocators),
    (TREES, trees_runs, trees),
    (congestion::STEADY, congestion::steady_runs, congestion::steady),
    (congestion::LONG, |_| congestion::RUNS, congestion::long),
    (congestion::BURSTS, |_| congestion::RUNS, congestion::bursts),
    (congestion::BENIGN, |_| congestion::BENIGN_RUNS, congestion::benign),
    (last_hop::ELSEWHERE, |_| last_hop::ELSEWHERE_RUNS, last_hop::elsewhere),
    (last_hop::LONG, |_| last_hop::LONG_RUNS, last_hop::long),
    (last_hop::ADAPTIVE, |_| last_hop::ADAPTIVE_RUNS, last_hop::adaptive),
    (library::TITLE, |_| library::RUNS, library::section),
];

/// Runs the parts whose titles contain `only`, and shows each as soon as it is complete. A part that fails does not stop
/// the others. Parts without runs of this extent are left out.
pub fn run(extent: Extent, only: &str, show: impl FnMut(&Section)) -> Vec<Section> {
    let is_played = |(title, runs, _): &Experiment| title.contains(only) && runs(extent) > 0;
    let parts: Vec<_> = EXPERIMENTS.into_iter().filter(is_played).collect();
    run_experiments(&parts, extent, show)
}

fn run_experiments(
    experiments: &[Experiment],
    extent: Extent,
    mut show: impl FnMut(&Section),
) -> Vec<Section> {
    let bar = progress::bar(experiments.iter().map(|(_, runs, _)| runs(extent)).sum(), "papers");
    let mut sections = Vec::new();
    for &(title, _, run) in experiments {
        let section = match run(extent, &bar) {
            Ok(section) => Section { title, ..section },
            Err(why) => Section { title, failed: Some(why), ..Section::default() },
        };
        bar.suspend(|| show(&section));
        sections.push(section);
    }
    bar.finish_and_clear();
    sections
}

/// Claims that must hold and do not, and parts that failed.
pub fn unmet(sections: &[Section]) -> Vec<String> {
    let of_section = |section: &Section| {
        let broken = section.claims.iter().filter(|(_, holds)| !holds).map(|(claim, _)| claim);
        let all = broken.chain(&section.failed).map(|what| format!("{}: {what}", section.title));
        all.collect::<Vec<_>>()
    };
    sections.iter().flat_map(of_section).collect()
}

/// Formats a section for a terminal.
pub fn text(section: &Section) -> String {
    let mut text = format!("{}\n", section.title);
    if let Some(why) = &section.failed {
        return text + &format!("  FAILED:  {why}\n\n");
    }
    text += &format!("{}\n\n", section.how);
    let mut rows = vec![row(["", "published", "here", "ratio"])];
    for Row { what, published, ours } in &section.rows {
        let of = |figure: Option<f64>| figure.map_or_else(|| "-".into(), shown);
        let ratio = published.map(|published| ours / published);
        rows.push(vec![what.clone(), of(*published), shown(*ours), of(ratio)]);
    }
    text += &lines(&rows);
    for (claim, holds) in &section.claims {
        text += &format!("  {}  {claim}\n", if *holds { "holds:" } else { "DOES NOT HOLD:" });
    }
    text + "\n"
}

fn shown(figure: f64) -> String {
    match figure.abs() {
        1000.0.. => format!("{figure:.0}"),
        100.0.. => format!("{figure:.1}"),
        10.0.. => format!("{figure:.2}"),
        _ => format!("{figure:.3}"),
    }
}

/// Runs a simulation, and returns its measures without the warm-up.
fn simulate(
    network: &Network,
    config: &Config,
    streams: Vec<Stream>,
    (warm_up, measured): (u64, u64),
    bar: &ProgressBar,
) -> Result<Measures, String> {
    let traffic = Traffic::new(network.hosts(), streams, 1).map_err(|bad| bad.to_string())?;
    let mut engine = Engine::new(network, config, traffic).map_err(|bad| bad.to_string())?;
    engine.run_until(warm_up).map_err(|bad| bad.to_string())?;
    engine.restart_measures();
    engine.run_until(warm_up + measured).map_err(|bad| bad.to_string())?;
    bar.inc(1);
    Ok(engine.measures())
}

/// Traffic of all hosts to all hosts.
fn uniform(network: &Network, name: &str, load: f64, flits: u32) -> Stream {
    Stream {
        name: name.into(),
        from: (0..network.hosts() as u32).collect(),
        to: Pattern::Uniform,
        level: 0,
        load,
        flits: (flits, flits),
        arrivals: Arrivals::Random,
        during: (0, u64::MAX),
    }
}

/// Whether each figure is less than the one before.
fn falls(figures: &[f64]) -> bool {
    figures.windows(2).all(|pair| pair[0] > pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_hold_is_said() {
        let claims = vec![("this".into(), true), ("that".into(), false)];
        let rows = vec![Row::new("a <b>", 2.0, 3.0), Row::new("c", None, 1234.5)];
        let section = Section { title: "T", how: "how".into(), rows, claims, ..Section::default() };
        let text = text(&section);
        let table = "       published   here  ratio\na <b>      2.000  3.000  1.500\nc              -   1234      -\n";
        assert!(
            text.contains(table) && text.contains("holds:  this") && text.contains("DOES NOT HOLD:  that"),
            "{text}"
        );
        let all = [section];
        assert_eq!(unmet(&all), ["T: that"]);
        let page = html(&all, "short");
        assert!(
            page.contains("a &lt;b&gt;")
                && page.contains("does not hold</span>: that")
                && !page.contains("{{"),
            "{page}"
        );
        assert_eq!(unmet(&[Section::default()]), [""; 0]);
    }

    #[test]
    fn a_part_that_fails_is_said_and_the_others_are_played() {
        let good = |_: Extent, _: &ProgressBar| Ok(Section { how: "how".into(), ..Section::default() });
        let experiments: [Experiment; 3] =
            [("one", |_| 1, good), ("two", |_| 1, |_, _| Err("no <room>".into())), ("three", |_| 1, good)];
        let mut shown = String::new();
        let sections = run_experiments(&experiments, Extent::Quick, |section| shown += &text(section));
        assert_eq!(unmet(&sections), ["two: no <room>"]);
        assert!(
            shown.contains("one\nhow\n")
                && shown.contains("two\n  FAILED:  no <room>\n")
                && shown.contains("three\nhow\n"),
            "{shown}"
        );
        assert!(html(&sections, "short").contains("no &lt;room&gt;"));
    }
}
