//! InfiniBand's tables (Alfaro): how full they get, how much is admitted over a network, and whether packets meet
//! their deadlines.

use super::{Extent, Row, Section, simulate};
use indicatif::ProgressBar;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::{collections::BTreeMap, time::Duration};
use udeck_fabric::{
    arbitration::Scheme,
    config::Config,
    topology::{Network, irregular, tree},
    traffic::{Arrivals, Pattern, Stream},
};
use udeck_qos::{
    planner::{ConnectionId, Link, Planner, Request, Unpromised, low_table},
    sequences::Sequences,
    table::VlTables,
    vl_arbiter::LowTurn,
};

/// Entries of a table.
const ENTRIES: usize = 64;
/// Data rate of a link in bits per second: 1x at 2.5 Gb/s.
const RATE: u64 = 2_500_000_000;
const CAP: u8 = 80;

pub const UNTIL_FULL: &str =
    "InfiniBand's high table: entries that are free when a request is refused first (Alfaro)";
pub const ADMISSION: &str =
    "Admission over a network of 16 switches with 4 hosts each: percent of links that is promised (Alfaro)";
pub const DEADLINES: &str =
    "Percent of promised packets that keep their deadline where all lanes are busy (Alfaro)";

/// Counts the entries that are free when a request is refused for the first time.
pub fn until_full(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let trials = if extent == Extent::Quick { 500 } else { 20_000 };
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let distances: Vec<usize> = (1..=6).map(|bits| 1 << bits).collect();
    let total: usize = distances.iter().sum();
    let mut waste = |proportional: bool| {
        let mut free = 0;
        for _ in 0..trials {
            let mut table = Sequences::new(ENTRIES);
            loop {
                let distance = if proportional {
                    let mut at = random.random_range(0..total);
                    *distances
                        .iter()
                        .find(|d| at.checked_sub(**d).map(|rest| at = rest).is_none())
                        .unwrap_or(&64)
                } else {
                    distances[random.random_range(0..distances.len())]
                };
                if table.allocate(ENTRIES / distance).is_none() {
                    break;
                }
            }
            free += table.free();
        }
        f64::from(free as u32) / f64::from(trials)
    };
    let (uniform, proportional) = (waste(false), waste(true));
    let rows = vec![
        Row::new("distances 2 to 64 alike", 8.78, uniform),
        Row::new("distances by their size", 5.68, proportional),
    ];
    bar.inc(1);
    Ok(Section {
        how: format!(
            "Requests of 1 to 32 entries at equal distances until one does not fit, {trials} tables each."
        ),
        claims: vec![("small requests leave less over".into(), proportional < uniform)],
        rows,
        ..Section::default()
    })
}

/// Ports of a route: that of the host, and that of each switch.
fn ports(network: &Network, from: usize, to: usize) -> Vec<(usize, usize)> {
    let mut ports = vec![(network.host_node(from), 0)];
    ports.extend(
        network
            .path(from, to)
            .into_iter()
            .map(|switch| (switch, usize::from(network.route(switch, to).port))),
    );
    ports
}

/// Admits connections between random hosts until hardly any is admitted.
pub fn admission(_: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let network = irregular(16, 4, 4, 1).map_err(|bad| bad.to_string())?;
    let link = Link { rate: RATE, mtu: 256, high_limit: 255, cap: CAP };
    let mut planners: BTreeMap<(usize, usize), Planner> = BTreeMap::new();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let (mut refused, mut admitted) = (0, 0);
    while refused < 3000 {
        let from = random.random_range(0..network.hosts());
        let to = (from + random.random_range(1..network.hosts())) % network.hosts();
        let lane = random.random_range(0..6u8);
        let bandwidth = [1, 2, 4, 8, 16, 32][usize::from(lane)] * 1_000_000;
        let latency = Some(link.wait_at(64 >> (lane / 2)));
        if admit(&mut planners, link, &ports(&network, from, to), lane, Request { bandwidth, latency }) {
            admitted += 1;
            refused = 0;
        } else {
            refused += 1;
        }
    }
    let used = |of_hosts: bool| {
        let of = planners.iter().filter(|((node, port), _)| {
            let to_host = network.peers(*node)[*port].is_some_and(|peer| peer.node >= network.switches());
            (*node >= network.switches() || to_host) == of_hosts
        });
        let parts: Vec<_> = of.map(|(_, planner)| planner.promised() as f64 / RATE as f64).collect();
        (100.0 * parts.iter().sum::<f64>() / parts.len().max(1) as f64, parts.into_iter().fold(0.0, f64::max))
    };
    let ((hosts, most_hosts), (switches, most_switches)) = (used(true), used(false));
    bar.inc(1);
    let cap = f64::from(CAP) / 100.0;
    Ok(Section {
        how: format!(
            "Connections of 1 to 32 Mb/s between random hosts, planned at each port of their routes, until 3,000 in a row are refused \
             ({admitted} admitted). The network and the mix of classes are not those of the thesis, which also measures packets; here it \
             is what is promised, of 80 % that may be."
        ),
        rows: vec![
            Row::new("hosts' links", 72.58, hosts),
            Row::new("links between switches", 73.48, switches),
        ],
        claims: vec![
            (
                "no link is promised more than 80 %".into(),
                most_hosts <= cap + 1e-9 && most_switches <= cap + 1e-9,
            ),
            ("more than half of the links is promised".into(), hosts > 50.0 && switches > 50.0),
        ],
        ..Section::default()
    })
}

/// Admits a request at all ports, or at none.
fn admit(
    planners: &mut BTreeMap<(usize, usize), Planner>,
    link: Link,
    ports: &[(usize, usize)],
    lane: u8,
    request: Request,
) -> bool {
    let mut done: Vec<((usize, usize), ConnectionId)> = Vec::new();
    for &port in ports {
        match planners.entry(port).or_insert_with(|| Planner::new(link)).admit(lane, request) {
            Ok(id) => done.push((port, id)),
            Err(_) => {
                for (port, id) in done {
                    planners.get_mut(&port).map(|planner| planner.release(id));
                }
                return false;
            }
        }
    }
    true
}

/// Measures how long packets of promised lanes wait at a switch: three promised lanes and two that take the rest
/// send to one host.
pub fn deadlines(_: Extent, bar: &ProgressBar) -> Result<Section, String> {
    const FLITS: u32 = 4;
    let network = tree(12, 1).map_err(|bad| bad.to_string())?;
    let link = Link { rate: RATE, mtu: 64 * FLITS, high_limit: 4, cap: CAP };
    let mut planner = Planner::new(link);
    let distances = [8, 16, 32];
    let mut streams = Vec::new();
    let stream = |name: String, from: u32, level: u8, load: f64| Stream {
        name,
        from: vec![from],
        to: Pattern::Fixed(vec![11]),
        level,
        load,
        flits: (FLITS, FLITS),
        arrivals: Arrivals::Regular,
        during: (0, u64::MAX),
    };
    for (lane, distance) in (0u8..).zip(distances) {
        let request = Request { bandwidth: RATE / 20, latency: Some(link.wait_at(distance)) };
        planner.admit(lane, request).map_err(|bad| bad.to_string())?;
        streams.push(stream(format!("distance {distance}"), u32::from(lane), lane, 0.05));
    }
    for (lane, from) in [(3, 3), (4, 4)] {
        streams.push(stream(format!("the rest {lane}"), from, lane, 1.0));
    }
    let low = low_table(&[(3, Unpromised::Preferred), (4, Unpromised::BestEffort)]);
    let tables = VlTables { high: planner.table(), low, high_limit: link.high_limit };
    let config = Config {
        levels: 5,
        arbitration: Scheme::Vl { tables, low_turn: LowTurn::Packet },
        ..Config::default()
    };
    let measures = simulate(&network, &config, streams, (2000, 100_000), bar)?;
    let idle = u64::from(2 * config.link + config.switch + FLITS);
    // Flits of 64 bytes that a link carries in a time.
    let flits = |time: Duration| time.as_nanos() as f64 * RATE as f64 / 512e9;
    let (mut rows, mut all) = (Vec::new(), true);
    for (class, distance) in measures.classes.iter().zip(distances) {
        let bound = flits(link.wait_at(distance)) as u64;
        let kept = class.network.count_between(0, idle + bound) as f64 / class.network.len().max(1) as f64;
        all &= class.network.len() > 100 && kept == 1.0;
        rows.push(Row::new(format!("{}, within {bound} cycles", class.name), 100.0, 100.0 * kept));
    }
    Ok(Section {
        how: "Three promised lanes at distances 8 to 32 and two lanes without promises that send all they can, to one host; one hop.".into(),
        rows,
        claims: vec![("every packet keeps its deadline".into(), all)],
        ..Section::default()
    })
}
