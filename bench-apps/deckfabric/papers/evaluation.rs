//! Evaluation of InfiniBand's tables over whole networks (Alfaro, chapter 6): connections of ten levels until a network is
//! full, each port with the table of its connections, and whether any packet comes after its deadline.

use super::{Axis, Chart, Dot, Extent, Line, Row, Section};
use crate::play::{Played, play};
use indicatif::ProgressBar;
use serde::Deserialize;
use std::{collections::BTreeMap, path::Path, sync::OnceLock};
use toml::Spanned;
use udeck_fabric::{
    admission::{self, CHAPTER_6},
    connections::{JITTER, PARTS, Quality},
    topology::Description,
};

/// Published figures, and what differs from the common configuration.
const TABLES: &str = include_str!("tables-6.3-to-6.7.toml");

pub const TOPOLOGIES: &str =
    "Ten levels over an irregular network, a hypercube and a mesh (Alfaro, table 6.3, figures 6.3 and 6.4)";
pub const SIZES: &str =
    "Ten levels over irregular networks of 8 to 64 switches (Alfaro, table 6.4, figures 6.6 to 6.8)";
pub const PACKETS: &str =
    "Ten levels with packets of 256 to 4,096 bytes (Alfaro, table 6.5, figures 6.10 to 6.12)";
pub const SPEEDS: &str =
    "Ten levels over links of 2.5, 10 and 30 Gb/s (Alfaro, table 6.6, figures 6.14 and 6.15)";
pub const BUFFERS: &str =
    "Ten levels with buffers of one to four packets (Alfaro, table 6.7, figures 6.17 to 6.19)";

#[derive(Deserialize)]
struct Tables {
    tables: BTreeMap<String, Vec<Column>>,
}

/// A column of a table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Column {
    column: String,
    topology: Option<Description>,
    mtu: Option<u32>,
    gbps: Option<f64>,
    buffer: Option<u32>,
    injected: f64,
    delivered: f64,
    hosts: f64,
    switches: f64,
    host_mbps: f64,
    switch_mbps: f64,
    connections: Option<f64>,
}

pub fn topologies(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    table("6.3", extent, bar)
}

pub fn sizes(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    table("6.4", extent, bar)
}

pub fn packets(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    table("6.5", extent, bar)
}

pub fn speeds(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    table("6.6", extent, bar)
}

pub fn buffers(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    table("6.7", extent, bar)
}

/// Plays the columns of a table.
fn table(name: &str, extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let mut tables = toml::from_str::<Tables>(TABLES).map_err(|bad| bad.to_string())?.tables;
    let columns = tables.remove(name).ok_or_else(|| format!("there is no table {name}"))?;
    let cycles = match extent {
        Extent::Quick => (4000, 16_000),
        Extent::Reduced => (80_000, 1_600_000),
    };
    let mut section = Section {
        how: format!(
            "Connections of the ten levels of table 6.2 between random hosts, until no level is admitted in a number of tries that the \
             thesis does not print; then each sends packets at its rate: {} cycles of 16 bytes of warm-up and {} measured. Use is the time in which a \
             port sends, of all time; figures are means of the ports. A deadline is the sum of the longest times by equations (3.1) and, \
             for the host, (3.3); a delay begins in the host's output buffer.",
            cycles.0, cycles.1
        ),
        ..Section::default()
    };
    for column in columns {
        let played = column.play(extent, cycles)?;
        bar.inc(1);
        section.rows.extend(column.rows(&played));
        section.claims.extend(column.claims(&played));
        section.charts.extend([delays(&column.column, &played), jitter(&column.column, &played)]);
    }
    Ok(section)
}

impl Column {
    /// Plays the column. Columns that differ in nothing share a run.
    fn play(&self, extent: Extent, cycles: (u64, u64)) -> Result<Played, String> {
        static COMMON: OnceLock<Played> = OnceLock::new();
        let is_common =
            self.topology.is_none() && self.mtu.is_none() && self.gbps.is_none() && self.buffer.is_none();
        if let (true, Some(played)) = (is_common, COMMON.get()) {
            return Ok(played.clone());
        }
        let played = self.play_alone(extent, cycles)?;
        if is_common {
            return Ok(COMMON.get_or_init(|| played).clone());
        }
        Ok(played)
    }

    fn play_alone(&self, extent: Extent, cycles: (u64, u64)) -> Result<Played, String> {
        let mut plan = admission::read(CHAPTER_6, Path::new("")).map_err(|bad| bad.reason)?;
        let file = &mut plan.file;
        if let Some(topology) = &self.topology {
            plan.network = topology.build(Path::new(""))?;
        }
        if let Some(gbps) = self.gbps {
            file.link.rate = (1e9 * gbps) as u64;
        }
        if let Some(mtu) = self.mtu {
            file.link.mtu = Spanned::new(0..0, mtu);
        }
        if let Some(buffer) = self.buffer {
            file.network.get_mut().buffer = buffer;
        }
        if let (Extent::Quick, Some(fill)) = (extent, &mut file.fill) {
            fill.get_mut().tries = 20;
        }
        play(&plan, &plan.admit(), cycles).map_err(|bad| bad.reason)
    }

    /// Claims of chapter 6 about the column.
    fn claims(&self, played: &Played) -> Vec<(String, bool)> {
        let claim = |what: &str, holds| (format!("{}: {what}", self.column), holds);
        let most = played.hosts.reserved.1.max(played.switches.reserved.1);
        let mut claims = vec![claim(
            "no link has more than 80 % reserved",
            most <= 800.0 * self.gbps.unwrap_or(2.5) + 1e-6,
        )];
        let early = |level: &Quality| level.within[0] as f64 / level.packets as f64;
        let (strictest, others) = (&played.levels[0], &played.levels[1..]);
        if strictest.packets > 0 {
            let mut others = others.iter().filter(|level| level.packets > 0);
            claims.push(claim(
                "the strictest level comes latest within its deadline",
                others.all(|level| early(strictest) <= early(level)),
            ));
        }
        claims.push(claim("no packet comes after its deadline", played.late() == 0));
        let carried = played.delivered / played.injected;
        // With one place a lane waits for credits, and packets wait at the hosts, if the load is high.
        if self.buffer == Some(1) {
            claims.push(claim("hosts receive less than is sent", carried < 0.99 || played.injected < 0.7));
        } else {
            let changes = |level: &Quality| level.jitter.iter().sum::<u64>();
            let is_even =
                |level: &Quality| level.jitter[JITTER.len() / 2] as f64 >= 0.999 * changes(level) as f64;
            let even = &played.levels[..5];
            // In a short run most connections have one packet, and a level may have no difference of two.
            if even.iter().all(|level| changes(level) > 0) {
                let what = "the jitter of levels 0 to 4 is in the middle interval (99.9 %)";
                claims.push(claim(what, even.iter().all(is_even)));
            }
            claims.push(claim("hosts receive what is sent, within a percent", (carried - 1.0).abs() < 0.01));
        }
        claims
    }

    fn rows(&self, played: &Played) -> Vec<Row> {
        let Self { injected, delivered, hosts, switches, host_mbps, switch_mbps, .. } = *self;
        let row = |what: &str, published: Option<f64>, ours| {
            Row::new(format!("{}: {what}", self.column), published, ours)
        };
        let longest = played.levels.iter().map(|level| level.longest).fold(0.0, f64::max);
        vec![
            row("injected, bytes a cycle of each host", Some(injected), played.injected),
            row("delivered", Some(delivered), played.delivered),
            row("use of hosts' links, percent", Some(hosts), played.hosts.used.0),
            row("use of links between switches, percent", Some(switches), played.switches.used.0),
            row("use of the busiest link, percent", None, played.hosts.used.1.max(played.switches.used.1)),
            row("reserved at hosts' links, Mb/s", Some(host_mbps), played.hosts.reserved.0),
            row("reserved between switches, Mb/s", Some(switch_mbps), played.switches.reserved.0),
            row("connections", self.connections, played.connections as f64),
            row("packets after their deadline", None, played.late() as f64),
            row("longest delay ÷ deadline", None, longest),
        ]
    }
}

/// Lines of some levels over the bounds of their intervals.
fn lines(played: &Played, points: impl Fn(&Quality) -> Vec<Dot>) -> Vec<Line> {
    let levels = (0..).zip(&played.levels).filter(|(_, quality)| quality.packets > 0);
    let line = |(level, quality): (usize, &Quality)| Line {
        name: format!("SL {level}"),
        limit: false,
        points: points(quality),
    };
    levels.map(line).collect()
}

fn delays(column: &str, played: &Played) -> Chart {
    let points = |quality: &Quality| {
        let parts = PARTS.iter().zip(quality.within);
        parts
            .map(|(part, count)| Dot::new(1.0 / part, 100.0 * count as f64 / quality.packets as f64))
            .collect()
    };
    Chart {
        title: format!("Delay by deadline: {column}"),
        sentence: "Packets that have arrived within a part of their connection's deadline.".into(),
        x: Axis::new("part of the deadline", "", true),
        y: Axis::new("packets", "%", false),
        lines: lines(played, points),
    }
}

fn jitter(column: &str, played: &Played) -> Chart {
    let points = |quality: &Quality| {
        let all: u64 = quality.jitter.iter().sum();
        let mut sum = 0;
        let share = JITTER.iter().zip(quality.jitter).map(|(bound, count)| {
            sum += count;
            Dot::new(*bound, 100.0 * sum as f64 / all.max(1) as f64)
        });
        share.collect()
    };
    Chart {
        title: format!("Jitter: {column}"),
        sentence: "Packets whose delay differs from that of the packet before by at most so many times between packets.".into(),
        x: Axis::new("difference ÷ time between packets", "", false),
        y: Axis::new("packets", "%", false),
        lines: lines(played, points),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_columns_of_the_published_tables_can_be_played() {
        let tables = toml::from_str::<Tables>(TABLES).expect("tables").tables;
        let columns: Vec<_> = tables.iter().map(|(name, columns)| (name.as_str(), columns.len())).collect();
        assert_eq!(columns, [("6.3", 3), ("6.4", 4), ("6.5", 4), ("6.6", 3), ("6.7", 4)]);
        admission::read(CHAPTER_6, Path::new("")).expect("a plan");
    }
}
