//! A trace beside background traffic in another level (chapter 4, §4.4.3).

use super::{Experiment, Place, System, chapter_4};
use crate::{
    input, network,
    papers::{Extent, Row, Section, falls},
};
use indicatif::ProgressBar;
use serde::Deserialize;
use std::{fmt::Write as _, path::Path};
use udeck_fabric::{
    beside::Beside,
    engine::Engine,
    topology::{Description, Routes},
    traffic::Traffic,
    vef::{self, Replay},
};

pub const FILE: &str = include_str!("../../published/beside-4.toml");

/// Titles, in the order of the file's networks.
pub const BESIDE: [&str; 2] = [
    "A trace beside background traffic, 8-ary 2-tree (chapter 4, figure 4.5)",
    "A trace beside background traffic, 4×4 torus (chapter 4, figure 4.6)",
];

/// Bytes of a flit in `published/omni-path-4.toml`.
const FLIT: u64 = 8;
/// Share below which the order of the levels is not checked.
const LITTLE: f64 = 0.1;
/// Cycles after which a run is given up.
const MOST_CYCLES: u64 = 10_000_000;

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    shares: Vec<f64>,
    levels: Vec<Levels>,
    trace: Program,
    place: Vec<Network>,
}

/// Classes of the trace and of the background.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Levels {
    trace: String,
    background: String,
}

/// Program of all tasks.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    rounds: u64,
    bytes: u64,
    reduced: u64,
    /// Nanoseconds of computation in a round.
    compute: u64,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    name: String,
    hosts: usize,
    topology: Description,
}

/// Number of runs: one without background, and two schedulers with two levels at each share. The quick form has two shares.
pub fn beside_runs(extent: Extent) -> u64 {
    match extent {
        Extent::Reduced => 1 + 2 * 2 * 4,
        Extent::Quick => 1 + 2 * 2 * 2,
    }
}

/// Plays the experiment of §4.4.3 in a network of the file. The quick form has the least and the largest share in a smaller one.
pub fn beside(extent: Extent, nth: usize, bar: &ProgressBar) -> Result<Section, String> {
    let mut setting: Setting = toml::from_str(FILE).map_err(|bad| bad.to_string())?;
    let experiment = Experiment::read(chapter_4::FILE)?;
    let mut place = setting.place.get(nth).cloned().ok_or("there is no such network")?;
    if extent == Extent::Quick {
        place = place.smaller();
        setting.shares =
            [setting.shares.first(), setting.shares.last()].into_iter().flatten().copied().collect();
    }
    let shares = &setting.shares;
    let trace = text(&setting.trace, place.hosts);
    let [deficits, _, turns] = &experiment.system[..] else { return Err("there are three arbiters".into()) };
    let alone = &setting.levels[0];
    let played = Played { experiment: &experiment, place: &place, trace: &trace };
    let without = played.run(turns, alone, None, bar)? as f64;
    let mut section = Section {
        how: format!(
            "Switches and traffic of published/omni-path-4.toml, trace and shares of published/beside-4.toml, {} of {} hosts. The claim about levels leaves shares below 10 percent out. The time of the \
             trace's run without background under round robin is {without} cycles of 64 bits.",
            place.name, place.hosts
        ),
        ..Section::default()
    };
    let mut bars = Vec::new();
    for system in [deficits, turns] {
        for levels in &setting.levels {
            let run =
                |share: &f64| Ok(100.0 * played.run(system, levels, Some(*share), bar)? as f64 / without);
            let times = shares.iter().map(run).collect::<Result<Vec<_>, String>>()?;
            section.rows.extend(shares.iter().zip(&times).map(|(share, time)| {
                let what = format!(
                    "{}, trace in {}, {} percent of background in {}: time, percent",
                    system.name,
                    levels.trace,
                    100.0 * share,
                    levels.background
                );
                Row::new(what, None, *time)
            }));
            bars.push(times);
        }
    }
    section.claims = claims(shares, &bars, extent)?;
    Ok(section)
}

/// Claims of §4.4.3.1 about the times of the trace, by scheduler and level.
fn claims(shares: &[f64], bars: &[Vec<f64>], extent: Extent) -> Result<Vec<(String, bool)>, String> {
    let [cl, bk, turns_cl, turns_bk] = bars else {
        return Err("there are two schedulers and two levels".into());
    };
    let claim = |what: &str, holds| (what.to_owned(), holds);
    let rises = |times: &[f64]| falls(&times.iter().rev().copied().collect::<Vec<_>>());
    let pairs = || cl.iter().zip(bk);
    let gaps: Vec<_> = pairs().map(|(cl, bk)| bk - cl).collect();
    let is_above = |turns: &[f64], table: &[f64]| turns.iter().zip(table).all(|(turns, table)| turns > table);
    let mut claims = vec![
        claim(
            "under DTable the trace takes longer with more background, in both levels",
            rises(cl) && rises(bk),
        ),
        claim(
            "under DTable it takes less time in CL than in BK where the background has 10 percent or more",
            shares.iter().zip(pairs()).all(|(share, (cl, bk))| *share < LITTLE || cl < bk),
        ),
        claim(
            "this difference is larger with the largest share than with the least",
            gaps.last() > gaps.first(),
        ),
    ];
    if extent == Extent::Reduced {
        claims.push(claim(
            "under round robin it takes longer than under DTable in the same level",
            is_above(turns_cl, cl) && is_above(turns_bk, bk),
        ));
    }
    Ok(claims)
}

impl Network {
    /// A network of 16 hosts and of the same kind.
    fn smaller(&self) -> Self {
        let (name, topology) = match &self.topology {
            Description::Torus { half_way, .. } => {
                let topology =
                    Description::Torus { dims: vec![4, 4], hosts: 1, trunk: 1, half_way: *half_way };
                ("4×4 torus, one host a switch", topology)
            }
            _ => ("4-ary 2-tree", Description::Tree { k: 4, n: 2, routes: Routes::Fixed }),
        };
        Self { name: name.into(), hosts: 16, topology }
    }
}

/// A network and a trace in it.
struct Played<'a> {
    experiment: &'a Experiment,
    place: &'a Network,
    trace: &'a str,
}

impl Played<'_> {
    /// Returns the cycles of the trace's run under a system, beside a share of background.
    fn run(
        &self,
        system: &System,
        levels: &Levels,
        share: Option<f64>,
        bar: &ProgressBar,
    ) -> Result<u64, String> {
        let class = |name: &str| {
            let traffic = self.experiment.traffic.iter().find(|traffic| traffic.name.get_ref() == name);
            traffic.cloned().ok_or_else(|| format!("there is no class {name}"))
        };
        let Network { name, hosts, topology } = self.place;
        let place =
            Place { name: name.clone(), hosts: *hosts, topology: topology.clone(), published: Vec::new() };
        let mut scenario = self.experiment.scenario(&place, system)?;
        let config = network::config(&scenario, input::Scheme::None).map_err(|bad| bad.reason)?;
        let built = network::build(&scenario, Path::new("")).map_err(|bad| bad.reason)?;
        scenario.traffic = match share {
            Some(load) => vec![input::Traffic { load, ..class(&levels.background)? }],
            None => Vec::new(),
        };
        scenario.lines.traffic = vec![0; scenario.traffic.len()];
        let streams = network::streams(&scenario, built.hosts(), 1.0).map_err(|bad| bad.reason)?;
        let traffic = Traffic::new(built.hosts(), streams, scenario.seed).map_err(|bad| bad.to_string())?;
        let cycle_ps = (1000.0 * self.experiment.cycle_ns) as u64;
        let replay = Replay::new(vef::parse(self.trace).map_err(|bad| bad.to_string())?, cycle_ps);
        let replay = replay.with_flits_of(FLIT).on_level(class(&levels.trace)?.level);
        let mut engine =
            Engine::new(&built, &config, Beside::new(replay, traffic)).map_err(|bad| bad.to_string())?;
        engine.run_until_enough(Some(MOST_CYCLES), Beside::is_done).map_err(|bad| bad.to_string())?;
        if !engine.workload().is_done() {
            return Err(format!("the trace has not ended after {MOST_CYCLES} cycles"));
        }
        bar.inc(1);
        Ok(engine.workload().ended())
    }
}

/// The trace of a program over `tasks` tasks, in VEF3.
fn text(program: &Program, tasks: usize) -> String {
    let Program { rounds, bytes, reduced, compute } = program;
    let messages = *rounds as usize * tasks * (tasks - 1);
    let operations = 2 * rounds;
    let parts = operations as usize * tasks;
    let mut text = format!("VEF3 {tasks} {messages} 1 {operations} {parts} 0 1000\nC0");
    (0..tasks).for_each(|task| _ = write!(text, " {task}"));
    text += "\n";
    let mut id = 0;
    for round in 0..*rounds {
        let (barrier, reduce) = (2 * round, 2 * round + 1);
        let mut last = vec![0; tasks];
        for (from, last) in last.iter_mut().enumerate() {
            for distance in 1..tasks {
                let to = (from + distance) % tasks;
                let start = match (distance, round) {
                    (1, 0) => format!("0 {compute} -1"),
                    (1, _) => format!("3 {compute} G{}", barrier - 1),
                    _ => format!("1 0 {}", id - 1),
                };
                _ = writeln!(text, "{id} {from} {to} {bytes} {start}");
                *last = id;
                id += 1;
            }
        }
        for (task, last) in last.iter().enumerate() {
            _ = writeln!(text, "G{barrier} 0 6 {task} 0 0 1 0 {last}");
        }
        for task in 0..tasks {
            _ = writeln!(text, "G{reduce} 0 2 {task} {reduced} {reduced} 3 0 G{barrier}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The networks have the published numbers of hosts and switches, and their traces can be read.
    #[test]
    fn the_published_setting_can_be_played() {
        let setting: Setting = toml::from_str(FILE).expect("a setting");
        let runs = 1 + 2 * setting.levels.len() * setting.shares.len();
        assert_eq!(runs as u64, beside_runs(Extent::Reduced));
        let built = |place: &Network| place.topology.build(Path::new("")).expect("a network");
        let sizes: Vec<_> =
            setting.place.iter().map(built).map(|network| (network.hosts(), network.switches())).collect();
        assert_eq!(sizes, [(64, 16), (128, 16)]);
        for place in setting.place.iter().chain(&[setting.place[1].smaller()]) {
            assert_eq!(built(place).hosts(), place.hosts, "{}", place.name);
            let trace = vef::parse(&text(&setting.trace, place.hosts)).expect("a trace");
            assert_eq!(trace.operations.len(), 2 * setting.trace.rounds as usize);
        }
    }
}
