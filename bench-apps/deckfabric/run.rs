//! Runs of a scenario: an engine for each scheme and load.

use crate::{
    input::{Scenario, Scheme},
    network,
};
use std::path::Path;
use udeck_cli::Problem;
use udeck_cli::progress;
use udeck_fabric::{
    engine::Engine,
    measure::{Kind, Measures},
    traffic::Traffic,
};

/// Steps of the progress bar for each run.
const STEPS: u64 = 20;

/// Results of a scenario.
#[derive(Debug)]
pub struct Outcome {
    pub network: String,
    pub hosts: usize,
    pub points: Vec<Point>,
}

/// Results of a run.
#[derive(Debug)]
pub struct Point {
    pub scheme: Scheme,
    pub load: f64,
    pub classes: Vec<ClassPoint>,
    /// Number of speculative packets that were dropped.
    pub dropped: u64,
    pub marked: u64,
    /// Part of reservations and answers in what the hosts' links have carried to the hosts.
    pub control: f64,
}

/// Results of a class in a run. Flits are per cycle and sender, times in cycles.
#[derive(Debug)]
pub struct ClassPoint {
    pub name: String,
    pub offered: f64,
    pub accepted: f64,
    pub messages: u64,
    pub mean: f64,
    pub median: u64,
    pub p99: u64,
    /// Mean time of packets from the host's link on.
    pub network: f64,
    /// Ratio of the flits delivered for the sender that had the most to those for the sender that had the least.
    pub fairness: f64,
}

/// Runs the scenario under all schemes and loads.
pub fn all(scenario: &Scenario, folder: &Path) -> Result<Outcome, Problem> {
    let network = network::build(scenario, folder)?;
    let one = [1.0];
    let loads = scenario.loads.as_ref().map_or(&one[..], |loads| loads.get_ref());
    let schemes = &scenario.congestion.get_ref().schemes;
    let schemes = if schemes.is_empty() { &[Scheme::None][..] } else { schemes };
    let bar = progress::bar((schemes.len() * loads.len()) as u64 * STEPS, "runs");
    let mut points = Vec::new();
    for &scheme in schemes {
        for &load in loads {
            let config = network::config(scenario, scheme)?;
            let streams = network::streams(scenario, network.hosts(), load)?;
            let senders = Senders::of(&streams);
            let traffic = Traffic::new(network.hosts(), streams, scenario.seed)
                .map_err(|bad| Problem::wrong(line_of_stream(scenario, &bad.stream), bad))?;
            let mut engine = Engine::new(&network, &config, traffic)
                .map_err(|bad| Problem::wrong(network::line_of_engine(scenario, &bad), bad))?;
            let (warm_up, measured) = (*scenario.warm_up.get_ref(), *scenario.measured.get_ref());
            engine.run_until(warm_up).map_err(|why| Problem::cannot(None, why))?;
            engine.restart_measures();
            for step in 1..=STEPS {
                let until = warm_up
                    + u64::try_from(u128::from(measured) * u128::from(step) / u128::from(STEPS))
                        .unwrap_or(measured);
                engine.run_until(until).map_err(|why| Problem::cannot(None, why))?;
                bar.inc(1);
            }
            points.push(point(scheme, load, &engine.measures(), &senders));
        }
    }
    bar.finish_and_clear();
    Ok(Outcome { network: network.name.clone(), hosts: network.hosts(), points })
}

pub fn line_of_stream(scenario: &Scenario, name: &str) -> Option<usize> {
    let nth = scenario.traffic.iter().position(|traffic| traffic.name.get_ref() == name)?;
    scenario.lines.traffic.get(nth).copied()
}

/// Sending hosts by class.
struct Senders(Vec<(String, Vec<u32>)>);

impl Senders {
    fn of(streams: &[udeck_fabric::traffic::Stream]) -> Self {
        let mut all: Vec<(String, Vec<u32>)> = Vec::new();
        for stream in streams {
            match all.iter_mut().find(|(name, _)| *name == stream.name) {
                Some((_, hosts)) => hosts.extend(&stream.from),
                None => all.push((stream.name.clone(), stream.from.clone())),
            }
        }
        for (_, hosts) in &mut all {
            hosts.sort_unstable();
            hosts.dedup();
        }
        Self(all)
    }
}

fn point(scheme: Scheme, load: f64, measures: &Measures, senders: &Senders) -> Point {
    let classes = measures.classes.iter().zip(&senders.0).map(|(class, (name, hosts))| {
        let cycles = measures.cycles.max(1) as f64 * hosts.len().max(1) as f64;
        let sent = hosts.iter().map(|host| class.by_sender[*host as usize]);
        let (least, most) = (sent.clone().min().unwrap_or(0), sent.max().unwrap_or(0));
        ClassPoint {
            name: name.clone(),
            offered: class.posted.1 as f64 / cycles,
            accepted: class.delivered.1 as f64 / cycles,
            messages: class.delivered.0,
            mean: class.latency.mean(),
            median: class.latency.value_at_quantile(0.5),
            p99: class.latency.value_at_quantile(0.99),
            network: class.network.mean(),
            fairness: most as f64 / least as f64,
        }
    });
    let of = |kind: Kind| measures.taken.iter().map(|kinds| kinds[kind as usize]).sum::<u64>();
    let payload = of(Kind::Data) + of(Kind::Speculative);
    let all: u64 = measures.taken.iter().flatten().sum();
    Point {
        scheme,
        load,
        classes: classes.collect(),
        dropped: measures.dropped(),
        marked: measures.marked,
        control: (all - payload) as f64 / all.max(1) as f64,
    }
}
