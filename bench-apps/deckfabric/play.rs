//! `deckfabric play`: the connections that `deckqos admit` admits, over the simulated network, with the tables that they
//! got at each port.

use crate::options::Format;
use serde_json::{Value, json};
use std::time::Duration;
use udeck_cli::{
    Problem,
    columns::{lines, row},
};
use udeck_fabric::{
    admission::{Answers, Crossbar, Plan, Request, Switches},
    arbitration::Scheme,
    config::{Config, LONGEST_LINK},
    connections::{Connection, Connections, JITTER, PARTS, Quality},
    engine::Engine,
    stages::Stages,
    topology::Network,
};
use udeck_qos::{table::VlTables, vl_arbiter::LowTurn};

/// Bytes that a link carries in a cycle.
pub const FLIT_BYTES: u32 = 16;
/// Flits a cycle over a switch's crossbar (§6.2.1 of Alfaro's thesis).
const CROSSBAR_SPEED: u16 = 2;

/// Cycles of the warm-up and of the measured part.
pub type Cycles = (u64, u64);

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Played {
    pub asked: usize,
    pub connections: usize,
    /// Flits that each host has posted, and taken, in a cycle.
    pub injected: f64,
    pub delivered: f64,
    pub hosts: Ports,
    pub switches: Ports,
    /// Quality by service level.
    pub levels: Vec<Quality>,
}

/// Figures of the ports of hosts' links (both ends), or of those between switches.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    /// Time in which a port sends, in percent of all time: mean and largest.
    pub used: (f64, f64),
    /// Promised bandwidth in Mb/s: mean and largest.
    pub reserved: (f64, f64),
}

impl Played {
    /// Number of packets that came after their deadline.
    pub fn late(&self) -> u64 {
        self.levels.iter().map(Quality::late).sum()
    }
}

/// Plays admitted connections: each sends packets of the MTU at its bandwidth.
pub fn play(plan: &Plan, answers: &Answers, (warm_up, measured): Cycles) -> Result<Played, Problem> {
    let (network, link) = (&plan.network, plan.file.link.port());
    if plan.file.network.get_ref().crossbar == Crossbar::None {
        let reason = "network.crossbar is \"none\": equation (3.3) counts the packets of one buffer, and the simulated switches have one for each input, so D would be no bound; take \"by-lane\" or \"multiplexed\"";
        return Err(Problem::wrong(plan.line_of_switches, reason));
    }
    let packet = (link.mtu / FLIT_BYTES) as u16;
    let cycles = |time: Duration| time.as_nanos() as f64 * link.rate as f64 / f64::from(8 * FLIT_BYTES) / 1e9;
    let constant = answers.admitted().map(|(answer, admitted)| {
        let Request { from, to, demand, .. } = &answer.request;
        Connection {
            from: *from as u32,
            to: *to as u32,
            level: admitted.vl,
            gap: f64::from(packet) * link.rate as f64 / demand.bandwidth as f64,
            deadline: cycles(Plan::deadline(&answer.request, admitted)),
        }
    });
    let buffer = plan.file.network.get_ref().buffer;
    let workload = Connections::new(constant.collect(), u32::from(packet), buffer as usize, 1);
    let own = answers.admission.planners().map(|(port, planner)| {
        let tables = VlTables { high: planner.table(), low: Vec::new(), high_limit: link.high_limit };
        (port, Scheme::Vl { tables, low_turn: LowTurn::Packet })
    });
    let flight = plan.file.network.get_ref().flight;
    let link = cycles(flight).ceil().max(1.0);
    if link > f64::from(LONGEST_LINK) {
        let reason = format!(
            "network.flight is {flight:?}, or {link} cycles of {FLIT_BYTES} bytes: the simulated links have up to {LONGEST_LINK}"
        );
        return Err(Problem::wrong(plan.line_of_switches, reason));
    }
    let common = Config {
        levels: workload.levels(),
        own_arbitration: own.collect(),
        flit_bytes: FLIT_BYTES,
        packet,
        link: link as u32,
        switch: 1,
        ..Config::default()
    };
    let config = with_switches(common, plan);
    let mut engine = Engine::new(network, &config, workload).map_err(|bad| Problem::wrong(None, bad))?;
    engine.run_until(warm_up).map_err(|why| Problem::cannot(None, why))?;
    engine.restart_measures();
    engine.workload_mut().restart();
    engine.run_until(warm_up + measured).map_err(|why| Problem::cannot(None, why))?;
    let measures = engine.measures();
    let all = network.hosts() as f64 * measures.cycles.max(1) as f64;
    let nodes = 0..network.switches() + network.hosts();
    let ports: Vec<_> =
        nodes.flat_map(|node| (0..network.peers(node).len()).map(move |port| (node, port))).collect();
    let figures = |of_hosts: bool| {
        let own = |&(node, port): &(usize, usize)| {
            network.peers(node)[port].is_some() && is_of_host(network, node, port) == of_hosts
        };
        let used = ports.iter().zip(&measures.carried).filter(|(port, _)| own(port));
        let reserved = ports.iter().filter(|port| own(port)).map(|port| answers.admission.planner(*port));
        Ports {
            used: mean_and_most(used.map(|(_, flits)| 100.0 * *flits as f64 / measures.cycles.max(1) as f64)),
            reserved: mean_and_most(
                reserved.map(|planner| planner.map_or(0.0, |planner| planner.promised() as f64 / 1e6)),
            ),
        }
    };
    Ok(Played {
        asked: answers.answers.len(),
        connections: answers.admitted().count(),
        injected: measures.classes.iter().map(|class| class.posted.1).sum::<u64>() as f64 / all,
        delivered: measures.classes.iter().map(|class| class.delivered.1).sum::<u64>() as f64 / all,
        hosts: figures(true),
        switches: figures(false),
        levels: engine.workload().quality(),
    })
}

/// Gives a configuration the plan's switches: with buffers at inputs and outputs, and a crossbar that a port's lanes share, or
/// with queues at the outputs alone.
fn with_switches(config: Config, plan: &Plan) -> Config {
    let Switches { crossbar, buffer, .. } = *plan.file.network.get_ref();
    let buffer = buffer * u32::from(config.packet);
    if crossbar != Crossbar::Multiplexed {
        return Config { buffer, ..config };
    }
    let lanes = u32::from(config.levels) * plan.network.channels() as u32;
    let stages = Some(Stages::lanes_apart(CROSSBAR_SPEED, 1, lanes, buffer));
    Config { buffer: lanes * buffer, stages, ..config }
}

/// Whether a port is one end of a host's link.
fn is_of_host(network: &Network, node: usize, port: usize) -> bool {
    let is_host = |node: usize| node >= network.switches();
    is_host(node) || network.peers(node)[port].is_some_and(|peer| is_host(peer.node))
}

/// Mean and largest of some figures.
fn mean_and_most(figures: impl Iterator<Item = f64>) -> (f64, f64) {
    let (count, sum, most) = figures
        .fold((0u32, 0.0, 0.0f64), |(count, sum, most), figure| (count + 1, sum + figure, most.max(figure)));
    (sum / f64::from(count.max(1)), most)
}

/// Formats the results.
pub fn print(plan: &Plan, played: &Played, cycles: Cycles, format: Format) -> String {
    match format {
        Format::Text => text(plan, played, cycles),
        Format::Json => format!("{:#}\n", to_json(plan, played, cycles)),
        Format::Csv => csv(played),
    }
}

/// Names of the columns for each level.
fn heads() -> Vec<String> {
    let fixed = ["level", "connections", "packets", "late", "mean, cycles", "longest ÷ deadline"];
    let within = PARTS.map(|part| if part > 1.0 { format!("≤ D/{part}") } else { "≤ D".into() });
    let ends = JITTER.map(|bound| format!("≤ {bound} IAT"));
    let both = [format!("worst ≤ D/{}", PARTS[0]), format!("best ≤ D/{}", PARTS[0])];
    let last = format!("> {} IAT", JITTER[JITTER.len() - 1]);
    fixed.map(String::from).into_iter().chain(within).chain(both).chain(ends).chain([last]).collect()
}

/// Cells of a level, in the order of the heads. Parts are in percent.
fn cells(level: usize, quality: &Quality) -> Vec<String> {
    let percent = |count: u64, of: u64| format!("{:.2}", 100.0 * count as f64 / of.max(1) as f64);
    let changes: u64 = quality.jitter.iter().sum();
    let of_connection = |part: Option<f64>| part.map_or("-".into(), |part| format!("{:.2}", 100.0 * part));
    let fixed = [
        level.to_string(),
        quality.connections.to_string(),
        quality.packets.to_string(),
        quality.late().to_string(),
        format!("{:.1}", quality.cycles / quality.packets.max(1) as f64),
        format!("{:.6}", quality.longest),
    ];
    let within = quality.within.map(|count| percent(count, quality.packets));
    let both = [quality.worst_and_best.map(|both| both.0), quality.worst_and_best.map(|both| both.1)];
    let jitter = quality.jitter.map(|count| percent(count, changes));
    fixed.into_iter().chain(within).chain(both.map(of_connection)).chain(jitter).collect()
}

fn used(played: &Played) -> impl Iterator<Item = (usize, &Quality)> {
    played.levels.iter().enumerate().filter(|(_, quality)| quality.connections > 0)
}

fn text(plan: &Plan, played: &Played, (warm_up, measured): Cycles) -> String {
    let Played { asked, connections, injected, delivered, hosts, switches, .. } = played;
    let mut text = format!(
        "{}, {} hosts; {connections} of {asked} connections are admitted; {warm_up} cycles of warm-up, {measured} measured\n\
         injected {injected:.4} and delivered {delivered:.4} flits a cycle of each host; {} packets came after their deadline D\n\n",
        plan.network.name,
        plan.network.hosts(),
        played.late(),
    );
    let ports = [("hosts' links", hosts), ("between switches", switches)].map(|(name, ports)| {
        let (used, reserved) = (ports.used, ports.reserved);
        let figures = [used.0, used.1, reserved.0, reserved.1].map(|figure| format!("{figure:.2}"));
        [vec![name.to_owned()], figures.to_vec()].concat()
    });
    let heads_of_ports = row(["ports", "use, %: mean", "most", "reserved, Mb/s: mean", "most"]);
    text += &lines(&[vec![heads_of_ports], ports.to_vec()].concat());
    // Two tables: delays, and jitter.
    let jitter = heads().len() - JITTER.len() - 1;
    let rows: Vec<_> =
        [heads()].into_iter().chain(used(played).map(|(level, quality)| cells(level, quality))).collect();
    let delays: Vec<_> = rows.iter().map(|row| row[..jitter].to_vec()).collect();
    let jitter: Vec<_> = rows.iter().map(|row| [&row[..1], &row[jitter..]].concat()).collect();
    text += &format!("\npackets in percent, by delay\n{}", lines(&delays));
    text + &format!("\npackets in percent, by jitter\n{}", lines(&jitter))
}

fn csv(played: &Played) -> String {
    let quoted = |cells: Vec<String>| format!("\"{}\"\n", cells.join("\",\""));
    quoted(heads()) + &used(played).map(|(level, quality)| quoted(cells(level, quality))).collect::<String>()
}

fn to_json(plan: &Plan, played: &Played, (warm_up, measured): Cycles) -> Value {
    let ports = |ports: Ports| {
        json!({
            "used_percent_mean": ports.used.0, "used_percent_most": ports.used.1,
            "reserved_mbps_mean": ports.reserved.0, "reserved_mbps_most": ports.reserved.1,
        })
    };
    let levels = used(played).map(|(level, quality)| {
        json!({
            "sl": level, "connections": quality.connections, "packets": quality.packets, "late": quality.late(),
            "mean_cycles": quality.cycles / quality.packets.max(1) as f64, "longest_over_deadline": quality.longest,
            "packets_within": quality.within, "packets_by_jitter": quality.jitter,
            "worst_connection": quality.worst_and_best.map(|both| both.0),
            "best_connection": quality.worst_and_best.map(|both| both.1),
        })
    });
    json!({
        "network": plan.network.name, "hosts": plan.network.hosts(), "asked": played.asked, "connections": played.connections,
        "warm_up_cycles": warm_up, "measured_cycles": measured, "injected_flits_per_cycle": played.injected,
        "delivered_flits_per_cycle": played.delivered, "late_packets": played.late(), "host_links": ports(played.hosts),
        "switch_links": ports(played.switches), "deadline_parts": PARTS, "jitter_bounds": JITTER, "levels": levels.collect::<Value>(),
    })
}
