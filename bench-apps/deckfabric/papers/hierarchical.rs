//! Hierarchical switches: SBT and round robin in one of Omni-Path's switches (chapter 2 of the thesis on them), DTable beside
//! both in networks (chapter 4), a trace beside background traffic (§4.4.3), Omni-Path's switches beside InfiniBand's (chapter 5),
//! and the shares of InfiniBand's tables (chapter 6).

mod beside;
mod chapter_2;
mod chapter_4;
mod chapter_5;
mod chapter_6;

pub use beside::{BESIDE, beside, beside_runs};
pub use chapter_2::{SINGLE, single, single_runs};
pub use chapter_4::{SCHEDULERS, schedulers, schedulers_runs};
pub use chapter_5::{ALLOCATORS, SWITCHES, allocators, allocators_runs, switches, switches_runs};
pub use chapter_6::{TREES, trees, trees_runs};

use super::{
    Axis, Chart, Dot, Line, simulate,
    tables::{Published, TABLE_4_8, TABLE_5_4},
};
use crate::{input, network};
use indicatif::ProgressBar;
use serde::Deserialize;
use std::path::Path;
use toml::Spanned;
use udeck_fabric::{measure::Measures, topology::Description};

/// A published experiment: switches and traffic as in a scenario, the networks in which they were played, and the compared
/// systems.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Experiment {
    /// Nanoseconds in which a link carries a flit.
    cycle_ns: f64,
    /// Flits of 64 bytes, the unit of the weights of the table with deficits.
    credit: u32,
    network: input::Network,
    switch: input::Switch,
    lanes: Option<input::Lanes>,
    traffic: Vec<input::Traffic>,
    system: Vec<System>,
    place: Vec<Place>,
}

/// One of the compared systems.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct System {
    name: String,
    /// Longest packet in flits.
    packet: u16,
    arbitration: Arbitration,
    /// Flits a cycle out of an input buffer, where it is not that of the others.
    speed: Option<u16>,
    /// Allocator of the crossbars, where it is not that of the others.
    allocator: Option<input::Allocator>,
    central: Option<input::Central>,
}

/// Schedulers of the links.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Arbitration {
    /// The published table of this number.
    Table(String),
    /// A scheduler as in a scenario.
    Scheduler(input::Arbitration),
}

/// A network, and a published figure of each system in it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    name: String,
    /// Published number of end points.
    hosts: usize,
    topology: Description,
    published: Vec<f64>,
}

/// Figures of a run, by class.
struct Figures {
    load: f64,
    /// Flits a cycle of each host, of all classes.
    throughput: f64,
    classes: Vec<ClassFigures>,
}

impl Figures {
    /// Mean latency of all messages.
    fn latency(&self) -> f64 {
        let messages: u64 = self.classes.iter().map(|class| class.messages).sum();
        let times: f64 = self.classes.iter().map(|class| class.messages as f64 * class.latency).sum();
        times / messages as f64
    }
}

struct ClassFigures {
    name: String,
    /// Flits a cycle that each host posts and receives.
    injected: f64,
    throughput: f64,
    messages: u64,
    /// Nanoseconds from the post to the last flit, mean.
    latency: f64,
}

impl Experiment {
    fn read(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|bad| bad.to_string())
    }

    /// Scenario of a system in a network, as `deckfabric run` would read it.
    fn scenario(&self, place: &Place, system: &System) -> Result<input::Scenario, String> {
        let arbitration = match &system.arbitration {
            Arbitration::Scheduler(scheduler) => scheduler.clone(),
            Arbitration::Table(number) => {
                let published = Published::read(if number == "4.8" { TABLE_4_8 } else { TABLE_5_4 })?;
                let entries = published.weights().map(|(level, weight)| (level, weight * self.credit));
                input::Arbitration::Dtable { table: entries.collect(), keep: false }
            }
        };
        let network = input::Network { packet: Some(system.packet), ..self.network.clone() };
        let switch = input::Switch {
            speed: system.speed.unwrap_or(self.switch.speed),
            allocator: system.allocator.unwrap_or(self.switch.allocator),
            central: system.central.clone().or_else(|| self.switch.central.clone()),
            ..self.switch.clone()
        };
        Ok(input::Scenario {
            seed: 1,
            warm_up: unread(0),
            measured: unread(1),
            loads: None,
            topology: unread(place.topology.clone()),
            network: unread(network),
            switch: Some(unread(switch)),
            lanes: self.lanes.clone().map(unread),
            arbitration: Some(unread(arbitration)),
            congestion: unread(input::Congestion::default()),
            traffic: self.traffic.clone(),
            trace: None,
            collective: None,
            lines: input::Lines { traffic: vec![0; self.traffic.len()], ..input::Lines::default() },
        })
    }

    /// Plays a system in a network at each load of `loads`, factors of the traffic that is swept.
    fn play(
        &self,
        place: &Place,
        system: &System,
        loads: &[f64],
        cycles: (u64, u64),
        bar: &ProgressBar,
    ) -> Result<Vec<Figures>, String> {
        let scenario = self.scenario(place, system)?;
        let config = network::config(&scenario, input::Scheme::None).map_err(|bad| bad.reason)?;
        let network = network::build(&scenario, Path::new("")).map_err(|bad| bad.reason)?;
        let run = |factor: &f64| {
            let streams = network::streams(&scenario, network.hosts(), *factor).map_err(|bad| bad.reason)?;
            let loads: Vec<_> = streams.iter().map(|stream| stream.load).collect();
            Ok(self.figures(&loads, &simulate(&network, &config, streams, cycles, bar)?))
        };
        loads.iter().map(run).collect()
    }

    fn figures(&self, loads: &[f64], measures: &Measures) -> Figures {
        let classes = measures.classes.iter().zip(loads).enumerate();
        let classes = classes.map(|(nth, (class, load))| ClassFigures {
            name: class.name.clone(),
            injected: *load,
            throughput: measures.class_throughput(nth),
            messages: class.delivered.0,
            latency: self.cycle_ns * class.latency.mean(),
        });
        Figures { load: loads.iter().sum(), throughput: measures.throughput(), classes: classes.collect() }
    }
}

/// A part of a scenario that has no line in a scenario's file.
fn unread<Part>(part: Part) -> Spanned<Part> {
    Spanned::new(0..0, part)
}

/// Curves of all classes by load.
fn curves(
    title: String,
    sentence: &str,
    y: Axis,
    runs: &[Figures],
    of: impl Fn(&ClassFigures) -> f64,
) -> Chart {
    let names = runs.first().map_or(&[][..], |first| &first.classes);
    let lines = names.iter().enumerate().map(|(nth, class)| Line {
        name: class.name.clone(),
        limit: false,
        points: runs.iter().map(|run| Dot::new(run.load, of(&run.classes[nth]))).collect(),
    });
    Chart { title, sentence: sentence.into(), x: load_axis(), y, lines: lines.collect() }
}

fn load_axis() -> Axis {
    Axis::new("load", "flits a cycle of each host", false)
}

fn latency_axis() -> Axis {
    Axis::new("mean latency", "ns", true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_switches_are_those_of_table_2_2() {
        let expected = [([0.5, 0.4, 0.1], [1, 1, 1]), ([0.4, 0.5, 0.1], [2, 1, 1])];
        for (file, (loads, channels)) in chapter_2::FILES.into_iter().zip(expected) {
            let experiment = Experiment::read(file).expect("a published configuration");
            assert!(experiment.traffic.iter().map(|class| class.load).eq(loads));
            let lists = experiment.lanes.iter().flat_map(|lanes| lanes.sl2sc.iter().map(Vec::len));
            assert!(lists.eq(channels.into_iter().filter(|_| experiment.lanes.is_some())));
            for system in &experiment.system {
                let scenario = experiment.scenario(&experiment.place[0], system).expect("a scenario");
                let network = network::build(&scenario, Path::new("")).expect("a network");
                assert_eq!((network.hosts(), network.switches()), (48, 1));
                let config = network::config(&scenario, input::Scheme::None).expect("a configuration");
                config.check().expect("valid");
            }
        }
    }

    /// Both files have the classes, messages and loads of the tables with deficits, and can be played in all networks.
    #[test]
    fn the_published_configurations_are_those_of_their_tables() {
        let files = [(chapter_4::FILE, TABLE_4_8, 5, 3), (chapter_5::FILE, TABLE_5_4, 7, 2)];
        for (text, table, classes, systems) in files {
            let experiment = Experiment::read(text).expect("a published configuration");
            let published = Published::read(table).expect("a published table");
            assert_eq!((experiment.traffic.len(), experiment.system.len()), (classes, systems));
            for (traffic, (name, class)) in experiment.traffic.iter().zip(published.classes()) {
                let input::Flits::All(flits) = traffic.flits else { panic!("messages of one length") };
                let own = (traffic.name.get_ref().as_str(), traffic.level, flits);
                assert_eq!(own, (name, class.level, class.mtu * experiment.credit));
            }
            for place in &experiment.place {
                assert_eq!(place.published.len(), systems, "{}", place.name);
                let scenario =
                    experiment.scenario(place, &experiment.system[systems - 1]).expect("a scenario");
                let network = network::build(&scenario, Path::new("")).expect("a network");
                assert_eq!(network.hosts(), place.hosts, "{}", place.name);
                let config = network::config(&scenario, input::Scheme::None).expect("a configuration");
                assert!(
                    config.stages.is_some_and(|stages| stages.centre.is_some()),
                    "Omni-Path is the last system"
                );
                assert_eq!(
                    network::streams(&scenario, network.hosts(), 1.0).expect("streams").len(),
                    classes
                );
            }
        }
    }
}
