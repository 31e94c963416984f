//! Conversion of a scenario to a network, a configuration and streams.

use crate::input::{self, Arbitration, Flits, Pattern, Scenario, Scheme};
use rand::{SeedableRng, seq::SliceRandom};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::path::Path;
use toml::Spanned;
use udeck_cli::Problem;
use udeck_fabric::{
    arbitration,
    config::{BadConfig, Config, Lanes, Queues},
    congestion::{Congestion, OutOfRange, ecn::Ecn, lhrp::Lhrp, srp::Speculation},
    engine::CannotRun,
    stages::{Allocator, Centre, Stages},
    topology::Network,
    traffic::{self, Arrivals, Stream},
};
use udeck_qos::{
    dtable::{Slot, WhenStalled},
    table::{Entry, LANES, VlTables},
    vl_arbiter::LowTurn,
};

/// Upper bound of the cycles of a part of a switch.
const MOST_CYCLES: u32 = 256;

/// Builds a scenario's network. Names of files are relative to `folder`.
pub fn build(scenario: &Scenario, folder: &Path) -> Result<Network, Problem> {
    let built = scenario.topology.get_ref().build(folder);
    built.map_err(|why| Problem::wrong(scenario.lines.topology, why))
}

/// Makes the configuration for a scheme of congestion control.
pub fn config(scenario: &Scenario, scheme: Scheme) -> Result<Config, Problem> {
    let (default, own) = (Config::default(), scenario.network.get_ref());
    let levels = scenario.traffic.iter().map(|traffic| traffic.level);
    let used = levels.chain(scenario.trace.as_ref().map(|trace| trace.level)).max().unwrap_or(0);
    let buffer = own.buffer.unwrap_or(default.buffer);
    let switch = scenario.switch.as_ref().map(Spanned::get_ref);
    if let Some(levels) = own.levels.filter(|levels| used >= *levels) {
        let reason = format!(
            "`levels` is {levels}, and traffic or the trace has the level {used}: levels count from 0, so say {} or more",
            u16::from(used) + 1
        );
        return Err(Problem::wrong(scenario.lines.network, reason));
    }
    if let (Some(_), Some(_)) = (switch, own.switch) {
        let reason = "[network] has `switch`, the cycles of a switch without stages, and [switch] has those of each stage: take one";
        return Err(Problem::wrong(scenario.lines.network, reason));
    }
    if let Some(too_long) = switch.and_then(too_long) {
        return Err(Problem::wrong(scenario.lines.switch.unwrap_or(scenario.lines.network), too_long));
    }
    if (scheme, own.acks) == (Scheme::NoneAcknowledged, Some(false)) {
        let reason = "`acks` is false, and [congestion] has the scheme \"none-acknowledged\": leave `acks` out, or take \"none\"";
        return Err(Problem::wrong(scenario.lines.network, reason));
    }
    let wrong = |bad| Problem::wrong(line_of(scenario, &bad), bad);
    let levels = own.levels.unwrap_or(used.saturating_add(1));
    let arbitration =
        scenario.arbitration.as_ref().map(|spanned| tables(spanned.get_ref(), levels)).transpose();
    let config = Config {
        levels,
        arbitration: arbitration.map_err(wrong)?.unwrap_or(arbitration::Scheme::RoundRobin),
        packet: own.packet.unwrap_or(default.packet),
        buffer,
        link: own.link.unwrap_or(default.link),
        switch: switch.map_or(own.switch.unwrap_or(default.switch), until_allocated),
        stages: switch.map(stages),
        lanes: scenario.lanes.as_ref().map(|spanned| lanes(spanned.get_ref())),
        queues: match own.queues {
            input::Queues::ByOutput => Queues::ByOutput,
            input::Queues::Crossbar => Queues::Crossbar,
            input::Queues::Fifo => Queues::Fifo,
            input::Queues::FifoCrossbar => Queues::FifoCrossbar,
        },
        passing_first: own.passing_first,
        congestion: congestion(scenario.congestion.get_ref(), scheme, buffer),
        acks: own.acks.unwrap_or(scheme != Scheme::None),
        ..default
    };
    config.check().map_err(wrong)?;
    Ok(config)
}

/// Line of the part of a scenario because of which an engine cannot run.
pub fn line_of_engine(scenario: &Scenario, bad: &CannotRun) -> usize {
    let lines = &scenario.lines;
    match bad {
        CannotRun::Adaptive => lines.topology,
        CannotRun::Config(bad) => line_of(scenario, bad),
        CannotRun::Stages(_) => lines.switch.unwrap_or(lines.network),
        CannotRun::Channels { .. } | CannotRun::Lanes { .. } => lines.lanes.unwrap_or(lines.network),
    }
}

fn line_of(scenario: &Scenario, bad: &BadConfig) -> usize {
    let lines = &scenario.lines;
    let of_network = ["levels", "packet", "buffer", "link", "switch"];
    match bad {
        BadConfig::Queues => lines.network,
        BadConfig::Stages | BadConfig::Stage(_) => lines.switch.unwrap_or(lines.network),
        BadConfig::Lanes { .. } => lines.lanes.unwrap_or(lines.network),
        BadConfig::Range(range) if of_network.contains(&range.what) => lines.network,
        BadConfig::Range(_) => lines.congestion,
        BadConfig::Level { .. } | BadConfig::NoLevel { .. } | BadConfig::Table(_) => {
            lines.arbitration.unwrap_or(lines.network)
        }
    }
}

/// The first of a switch's parts that takes more cycles than [`MOST_CYCLES`].
fn too_long(switch: &input::Switch) -> Option<OutOfRange> {
    let &input::Switch { routing, store, allocation, crossing, pause, .. } = switch;
    let parts = [
        ("routing", routing),
        ("store", store),
        ("allocation", allocation),
        ("crossing", crossing),
        ("pause", pause),
    ];
    let (what, cycles) = parts.into_iter().find(|(_, cycles)| *cycles > MOST_CYCLES)?;
    Some(OutOfRange { what, value: cycles.into(), least: 0, most: MOST_CYCLES.into() })
}

/// Cycles of a head from a switch's input to the end of the first allocation.
pub fn until_allocated(switch: &input::Switch) -> u32 {
    switch.store + switch.routing + switch.allocation
}

/// Stages of a switch.
pub fn stages(switch: &input::Switch) -> Stages {
    let &input::Switch { store, allocation, crossing, speed, output, least, pause, ref central, .. } = switch;
    let allocator = match switch.allocator {
        input::Allocator::AllLanes => Allocator::AllLanes,
        input::Allocator::OneLane { every } => Allocator::OneLane { every },
    };
    let central = central.as_ref().map(|&input::Central { ports, links, speed, buffer }| Centre {
        ports,
        links,
        speed,
        cross: crossing + allocation,
        buffer: buffer / u32::from(links.max(1)),
    });
    Stages { speed, store: crossing + store, output, least, pause, allocator, centre: central }
}

/// Lanes of levels.
pub fn lanes(lanes: &input::Lanes) -> Lanes {
    Lanes { sl2sc: lanes.sl2sc.clone(), sc2vl: lanes.sc2vl.clone() }
}

fn tables(arbitration: &Arbitration, levels: u8) -> Result<arbitration::Scheme, BadConfig> {
    let entries = |pairs: &[(u8, u8)]| pairs.iter().map(|&(vl, weight)| Entry { vl, weight }).collect();
    Ok(match arbitration {
        Arbitration::RoundRobin => arbitration::Scheme::RoundRobin,
        Arbitration::Priority => arbitration::Scheme::Priority,
        Arbitration::Sbt { weights } => arbitration::Scheme::Sbt { weights: by_level(weights, levels)? },
        Arbitration::Wrr { weights } => arbitration::Scheme::Wrr { weights: by_level(weights, levels)? },
        Arbitration::Dtable { table, keep } => arbitration::Scheme::DTable {
            slots: table.iter().map(|&(level, weight)| Slot { level, weight }).collect(),
            when_stalled: if *keep { WhenStalled::Keep } else { WhenStalled::Lose },
        },
        Arbitration::Vl { high, low, high_limit } => {
            let tables = VlTables { high: entries(high), low: entries(low), high_limit: *high_limit };
            arbitration::Scheme::Vl { tables, low_turn: LowTurn::Packet }
        }
    })
}

/// Weights by level. Weights above 0 of levels for which there is no place are refused.
fn by_level(weights: &[u32], levels: u8) -> Result<[u32; LANES], BadConfig> {
    if let Some(beyond) = weights.iter().skip(LANES).position(|weight| *weight > 0) {
        return Err(BadConfig::NoLevel { level: LANES + beyond, levels });
    }
    let mut all = [0; LANES];
    all.iter_mut().zip(weights).for_each(|(all, weight)| *all = *weight);
    Ok(all)
}

fn congestion(keys: &input::Congestion, scheme: Scheme, buffer: u32) -> Congestion {
    let (ecn, srp, lhrp) = (Ecn::default(), Speculation::default(), Lhrp::default());
    let ecn = Ecn {
        // Half of a buffer.
        threshold: keys.ecn.threshold.unwrap_or((buffer / 2).max(1)),
        step: keys.ecn.step.unwrap_or(ecn.step),
        decay: keys.ecn.decay.unwrap_or(ecn.decay),
        largest: keys.ecn.largest.unwrap_or(ecn.largest),
    };
    let srp = Speculation {
        patience: keys.patience.unwrap_or(srp.patience),
        window: keys.window.unwrap_or(srp.window),
    };
    let lhrp = Lhrp {
        threshold: keys.threshold.unwrap_or(lhrp.threshold),
        elsewhere: keys.lhrp_patience.map(|patience| Speculation { patience, ..srp }),
    };
    match scheme {
        Scheme::None | Scheme::NoneAcknowledged => Congestion::None,
        Scheme::Ecn => Congestion::Ecn(ecn),
        Scheme::Srp => Congestion::Srp(srp),
        Scheme::Smsrp => Congestion::Smsrp(srp),
        Scheme::Lhrp => Congestion::Lhrp(lhrp),
        Scheme::BySize => Congestion::BySize { most: keys.most.unwrap_or(16), lhrp, srp },
    }
}

/// Makes the streams at a load.
pub fn streams(scenario: &Scenario, hosts: usize, load: f64) -> Result<Vec<Stream>, Problem> {
    let all = scenario.traffic.iter().zip(&scenario.lines.traffic).enumerate();
    let streams = all.map(|(nth, (traffic, &line))| {
        let name = traffic.name.get_ref();
        let seed = scenario.seed.wrapping_add(1000 * nth as u64);
        let (from, to, share) = match traffic.pattern {
            Pattern::Uniform => ((0..hosts as u32).collect(), traffic::Pattern::Uniform, 1.0),
            Pattern::Permutation => {
                let (from, to) = permutation(hosts, seed);
                (from, traffic::Pattern::Fixed(to), 1.0)
            }
            Pattern::BitReversal | Pattern::BitComplement | Pattern::NextNeighbour => {
                let (from, to) = numbered(traffic.pattern, hosts)
                    .map_err(|why| Problem::wrong(line, format!("traffic {name:?}: {why}")))?;
                (from, traffic::Pattern::Fixed(to), 1.0)
            }
            Pattern::HotSpot => {
                let (senders, receivers) = (traffic.senders.unwrap_or(0), traffic.receivers.unwrap_or(0));
                let bad = || {
                    let reason = format!(
                        "traffic {name:?}: {senders} senders and {receivers} receivers of {hosts} hosts"
                    );
                    Problem::wrong(line, reason + ": take at least one of each, and no more than there are")
                };
                if senders == 0 || receivers == 0 || senders.saturating_add(receivers) > hosts {
                    return Err(bad());
                }
                let (from, to) = traffic::hot_spot(hosts, senders, receivers, seed).ok_or_else(bad)?;
                let fixed = (0..senders).map(|nth| to[nth % receivers]).collect();
                (from, traffic::Pattern::Fixed(fixed), receivers as f64 / senders as f64)
            }
        };
        Ok(Stream {
            name: name.clone(),
            from,
            to,
            level: traffic.level,
            load: traffic.load * share * if traffic.sweep { load } else { 1.0 },
            flits: match traffic.flits {
                Flits::All(flits) => (flits, flits),
                Flits::Between([least, most]) => (least, most),
            },
            arrivals: match traffic.arrivals {
                input::Arrivals::Random => Arrivals::Random,
                input::Arrivals::Regular => Arrivals::Regular,
                input::Arrivals::Bursts => Arrivals::Bursts(traffic.burst.unwrap_or(1)),
            },
            during: (traffic.from, traffic.until.unwrap_or(u64::MAX)),
        })
    });
    streams.collect()
}

/// Senders and their destinations in a pattern of the hosts' numbers. A host that would send to itself is left out.
fn numbered(pattern: Pattern, hosts: usize) -> Result<(Vec<u32>, Vec<u32>), String> {
    let (name, least) = match pattern {
        Pattern::BitReversal => ("bit-reversal", 4),
        Pattern::BitComplement => ("bit-complement", 2),
        _ => ("next-neighbour", 2),
    };
    if hosts < least {
        return Err(format!("pattern {name:?} needs {least} hosts, and there are {hosts}"));
    }
    if pattern != Pattern::NextNeighbour && !hosts.is_power_of_two() {
        let (below, above) = (hosts.next_power_of_two() / 2, hosts.next_power_of_two());
        return Err(format!(
            "pattern {name:?} turns the bits of a host's number, and needs a power of two of hosts: there are {hosts}. Take \
             a network of {below} or {above}, or \"permutation\""
        ));
    }
    let (count, bits) = (hosts as u32, hosts.trailing_zeros());
    let to = |from: u32| match pattern {
        Pattern::BitReversal => from.reverse_bits() >> (u32::BITS - bits),
        Pattern::BitComplement => count - 1 - from,
        _ => (from + 1) % count,
    };
    Ok((0..count).map(|from| (from, to(from))).filter(|(from, to)| from != to).unzip())
}

/// A random permutation in which no host sends to itself: hosts in a random order, each to the next one.
fn permutation(hosts: usize, seed: u64) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..hosts as u32).collect();
    order.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(seed));
    let mut to = order.clone();
    to.rotate_left(1);
    (order, to)
}
