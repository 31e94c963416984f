//! Modifications of LHRP: drops in other switches, long messages, and adaptive routes.

use super::{
    Extent, Row, Section,
    congestion::{BUFFER, Place, size},
    simulate, uniform,
};
use indicatif::ProgressBar;
use udeck_fabric::{
    config::Config,
    congestion::{Congestion, lhrp::Lhrp, srp::Speculation},
    measure::Measures,
    topology::{adaptive_dragonfly, dragonfly, tree},
    traffic::{Arrivals, Pattern, Stream},
};

pub const ELSEWHERE: &str =
    "LHRP with drops in all switches, to an overloaded hot spot (Jiang, Dennison, Dally)";
pub const LONG: &str = "LHRP, a higher threshold and SRP for messages of 192 flits (Jiang, Dennison, Dally)";

pub const ADAPTIVE: &str =
    "LHRP with adaptive routes, where each group of a dragonfly sends to the next (Jiang, Dennison, Dally)";
pub const ADAPTIVE_RUNS: u64 = 2;

/// Runs of the part with drops in all switches, and of that with long messages.
pub const ELSEWHERE_RUNS: u64 = 6;
pub const LONG_RUNS: u64 = 3;

/// Load of each receiver's link when each sender posts as much as its own link carries.
fn overload(place: &Place) -> f64 {
    place.senders.len() as f64 / place.receivers.len() as f64
}

fn play(
    place: &Place,
    congestion: Congestion,
    (load, flits): (f64, u32),
    bar: &ProgressBar,
) -> Result<Measures, String> {
    let config = Config { congestion, acks: true, buffer: BUFFER, link: 20, ..Config::default() };
    place.play(&config, vec![place.hot(load, flits, Arrivals::Random)], bar)
}

/// Each host of a group sends to one of the next group, to which a group has one link: minimal routes all take it.
pub fn adaptive(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    const LOAD: f64 = 0.2;
    const CYCLES: (u64, u64) = (1000, 3000);
    let [hosts, group, global] = size(extent);
    let (mut rows, mut found) = (Vec::new(), Vec::new());
    for (name, network) in [
        ("fixed routes", dragonfly(hosts, group, global)),
        ("adaptive routes", adaptive_dragonfly(hosts, group, global)),
    ] {
        let network = network.map_err(|bad| bad.to_string())?;
        let (all, next) = (network.hosts(), hosts * group);
        let to = (0..all).map(|host| ((host + next) % all) as u32).collect();
        let stream = Stream { to: Pattern::Fixed(to), ..uniform(&network, "next", LOAD, 4) };
        let congestion = Congestion::Lhrp(Lhrp::default());
        let config = Config { congestion, acks: true, buffer: BUFFER, link: 20, ..Config::default() };
        let measures = simulate(&network, &config, vec![stream], CYCLES, bar)?;
        let figures = (measures.classes[0].network.mean(), measures.throughput());
        rows.push(Row::new(format!("{name}: messages, flits a cycle of each host"), None, figures.1));
        rows.push(Row::new(format!("{name}: packets' time in the network, cycles, mean"), None, figures.0));
        found.push(figures);
    }
    Ok(Section {
        how: format!(
            "{hosts} hosts at a switch, {group} switches in a group, load {LOAD}; {} cycles of warm-up and {} measured. A group's link to \
             the next one carries {:.3} flits a cycle of each host.",
            CYCLES.0,
            CYCLES.1,
            1.0 / (hosts * group) as f64
        ),
        rows,
        claims: vec![(
            "with adaptive routes more messages arrive, and packets are a shorter time in the network".into(),
            found[1].1 > 1.25 * found[0].1 && found[1].0 < found[0].0,
        )],
        ..Section::default()
    })
}

/// Times of a run's packets in the network (mean), part of the receivers' links for messages, and dropped packets for each
/// packet that has arrived.
fn figures(place: &Place, measures: &Measures) -> (f64, f64, f64) {
    let class = &measures.classes[0];
    let arrived = class.network.len().max(1) as f64;
    (class.network.mean(), place.received(measures).0, measures.dropped() as f64 / arrived)
}

fn rows_of(name: &str, (time, part, dropped): (f64, f64, f64)) -> [Row; 3] {
    [
        Row::new(format!("{name}: packets' time in the network, cycles, mean"), None, time),
        Row::new(format!("{name}: messages, percent of the receivers' links"), None, 100.0 * part),
        Row::new(format!("{name}: dropped packets for each one that arrives"), None, dropped),
    ]
}

/// Ten senders in a tree with one way to their receiver, which is as fast as the receiver's link: packets queue before the last
/// switch.
fn one_way(cycles: (u64, u64)) -> Result<Place, String> {
    let network = tree(4, 2).map_err(|bad| bad.to_string())?;
    Ok(Place { network, senders: (4..14).collect(), receivers: vec![0], cycles })
}

/// Short messages to an overloaded hot spot: other switches drop, too.
pub fn elsewhere(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let dragonfly = Place::new(extent)?;
    let tree = one_way(dragonfly.cycles)?;
    let bounds = Speculation { patience: 60, ..Speculation::default() };
    // A patience that no packet reaches leaves the window alone.
    let patient = Speculation { patience: 1 << 20, ..bounds };
    let methods = [
        ("drops in the last switch", None),
        ("the same with the window", Some(patient)),
        ("drops in all switches", Some(bounds)),
    ];
    let (mut rows, mut times) = (Vec::new(), Vec::new());
    for (place, load) in [(&dragonfly, overload(&dragonfly)), (&tree, 3.0)] {
        for (method, elsewhere) in methods {
            let congestion = Congestion::Lhrp(Lhrp { elsewhere, ..Lhrp::default() });
            let found = figures(place, &play(place, congestion, (load, 4), bar)?);
            times.push(found.0);
            rows.extend(rows_of(&format!("{}, load {load}, {method}", place.network.name), found));
        }
    }
    let [.., window_of_tree, all_of_tree] = times[..] else {
        return Err("a run is missing".into());
    };
    Ok(Section {
        how: format!(
            "{} {} Messages of 4 flits. Drops in all switches: after {} cycles of waiting, with {} messages of a pair of hosts under way. \
             The tree has one way from its senders to the receiver.",
            dragonfly.words(),
            tree.words(),
            bounds.patience,
            bounds.window
        ),
        rows,
        claims: vec![
            (
                "with one way to the receiver and the same window, drops in all switches keep packets a shorter time in the network than drops in the last one"
                    .into(),
                all_of_tree < window_of_tree,
            ),
        ],
        ..Section::default()
    })
}

/// Long messages to a hot spot: LHRP with its threshold, with a higher one, and SRP in its place.
pub fn long(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let place = Place::new(extent)?;
    let lhrp = Lhrp::default();
    let higher = Lhrp { threshold: 10 * lhrp.threshold, ..lhrp };
    let by_size = Congestion::BySize { most: 16, lhrp, srp: Speculation::default() };
    let (mut rows, mut times) = (Vec::new(), Vec::new());
    for (name, congestion) in [
        (format!("LHRP, threshold {}", lhrp.threshold), Congestion::Lhrp(lhrp)),
        (format!("LHRP, threshold {}", higher.threshold), Congestion::Lhrp(higher)),
        ("by size, here SRP".into(), by_size),
    ] {
        let found = figures(&place, &play(&place, congestion, (2.0, 192), bar)?);
        times.push(found.0);
        rows.extend(rows_of(&name, found));
    }
    Ok(Section {
        how: format!("{} Twice what the receivers can take.", place.words()),
        rows,
        claims: vec![(
            "with SRP packets of long messages are a shorter time in the network than with LHRP and either threshold".into(),
            times[2] < times[0].min(times[1]),
        )],
        ..Section::default()
    })
}
