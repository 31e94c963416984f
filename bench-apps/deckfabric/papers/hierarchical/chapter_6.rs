//! Shares of InfiniBand's two tables in trees of many sizes: each is played, and compared with the shares that the analysis of
//! one port gives.

use crate::papers::{Extent, Row, Section};
use indicatif::ProgressBar;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use udeck_fabric::{
    arbitration::Scheme,
    config::Config,
    engine::Engine,
    stages::Stages,
    topology::valiant_tree,
    workload::{Actions, Post, Workload},
};
use udeck_qos::{analysis::saturate, opensm, table::LANES, vl_arbiter::LowTurn};

/// Configuration A of table 6.1.
const FILE: &str = include_str!("../../../deckqos/published/table-6.1-a.conf");

pub const TREES: &str = "Shares of InfiniBand's two tables in trees of many sizes (chapter 6, figure 6.4)";

/// Levels of the configuration, which have the lanes of their numbers.
const LEVELS: u8 = 4;
/// Flits of 16 bytes of a packet, and of a port's buffer (§6.5.2).
const PACKET: u16 = 4;
const BUFFER: u32 = 7168;
/// Messages of a level that wait at a host.
const WAITING: usize = 8;
/// Published bound of the differences, in percent of the link.
const PUBLISHED: f64 = 0.045;
/// Bound of the claim: a run ends in the middle of a table.
const BOUND: f64 = 0.2;

/// Arity and levels of the trees.
fn size(extent: Extent) -> (&'static [(usize, usize)], (u64, u64)) {
    match extent {
        Extent::Quick => (&[(2, 2), (4, 2)], (5000, 50_000)),
        Extent::Reduced => (&[(2, 2), (4, 2), (6, 2), (8, 2), (2, 3), (4, 3)], (20_000, 100_000)),
    }
}

pub fn trees_runs(extent: Extent) -> u64 {
    size(extent).0.len() as u64
}

/// Plays the trees.
pub fn trees(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let tables = opensm::parse(FILE, opensm::Ports::All).map_err(|bad| bad.to_string())?.tables;
    let mut packets = [None; LANES];
    packets[..usize::from(LEVELS)].fill(Some(64));
    let expected = saturate(&tables, LowTurn::Entry, &packets).shares;
    let (sizes, cycles) = size(extent);
    let config = Config {
        levels: LEVELS,
        arbitration: Scheme::Vl { tables, low_turn: LowTurn::Entry },
        flit_bytes: 16,
        packet: PACKET,
        buffer: BUFFER,
        link: 1,
        switch: 1,
        stages: Some(Stages::lanes_apart(2, 1, LEVELS.into(), BUFFER / u32::from(LEVELS))),
        ..Config::default()
    };
    let mut section = Section {
        how: format!(
            "Configuration A of table 6.1 at all ports, packets of 64 bytes, buffers of 7,168 flits of 16 bytes at each input and output, \
             divided among the four lanes. Each host always has messages of each level to random hosts: {} cycles of warm-up and {} \
             measured. A difference is that of a level's part of all arrived flits from its part of one port, in percent; the largest of the levels.",
            cycles.0, cycles.1
        ),
        ..Section::default()
    };
    for &(k, n) in sizes {
        let network = valiant_tree(k, n).map_err(|bad| bad.to_string())?;
        let workload = Backlog::new(network.hosts());
        let mut engine = Engine::new(&network, &config, workload).map_err(|bad| bad.to_string())?;
        engine.run_until(cycles.0).map_err(|bad| bad.to_string())?;
        engine.restart_measures();
        engine.run_until(cycles.0 + cycles.1).map_err(|bad| bad.to_string())?;
        bar.inc(1);
        let measures = engine.measures();
        let differences =
            measures.shares().into_iter().zip(expected).map(|(own, one)| 100.0 * (own - one).abs());
        let difference = differences.fold(0.0, f64::max);
        let name = format!("{k}-ary {n}-tree");
        section.rows.push(Row::new(format!("{name}: throughput"), None, measures.throughput()));
        section.rows.push(Row::new(format!("{name}: largest difference"), PUBLISHED, difference));
        let what = format!("{name}: each level has its share, within {BOUND} percent");
        section.claims.push((what, difference <= BOUND));
    }
    Ok(section)
}

/// Messages of one packet, of which each host always has some of each level waiting.
struct Backlog {
    hosts: u32,
    random: Xoshiro256PlusPlus,
}

impl Backlog {
    fn new(hosts: usize) -> Self {
        Self { hosts: hosts as u32, random: Xoshiro256PlusPlus::seed_from_u64(1) }
    }

    /// Posts a message of a host's level: the number of both is the token.
    fn post(&mut self, token: u32, actions: &mut Actions) {
        let (from, level) = (token / u32::from(LEVELS), (token % u32::from(LEVELS)) as u8);
        let to = (from + self.random.random_range(1..self.hosts)) % self.hosts;
        actions.post(Post { from, to, flits: PACKET.into(), level, class: level, token });
    }
}

impl Workload for Backlog {
    fn classes(&self) -> Vec<String> {
        (0..LEVELS).map(|level| format!("SL {level}")).collect()
    }

    fn begin(&mut self, actions: &mut Actions) {
        for token in 0..self.hosts * u32::from(LEVELS) {
            (0..WAITING).for_each(|_| self.post(token, actions));
        }
    }

    fn timer(&mut self, _: u64, _: u32, _: &mut Actions) {}

    fn sent(&mut self, _: u64, token: u32, actions: &mut Actions) {
        self.post(token, actions);
    }
}
