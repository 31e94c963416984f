//! File of an admission: TOML with a network, its links and switches, levels, and connections.

use super::{Plan, Request};
use crate::topology::{Description, Network};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::Path,
    time::Duration,
};
use toml::Spanned;
use udeck_cli::{Problem, line_of, units};
use udeck_qos::{
    analysis, planner,
    route::{self, Demand, Lane},
    table::{ENTRIES, Entry, LANES, UNIT, VlTables},
    vl_arbiter::LowTurn,
};

/// A network, and the connections that ask for admission.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The network.
    pub topology: Spanned<Description>,
    /// All of its links.
    pub link: Link,
    /// All of its switches.
    #[serde(default = "default_switches")]
    pub network: Spanned<Switches>,
    /// Service levels. None: each connection names its lane.
    #[serde(default)]
    pub level: Vec<Level>,
    /// Random connections after the listed ones.
    pub fill: Option<Spanned<Fill>>,
    /// Listed connections.
    #[serde(default)]
    pub connection: Vec<Connection>,
}

/// `[link]`: a port of InfiniBand.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Rate in bits a second.
    #[serde(deserialize_with = "rate", serialize_with = "rate_text")]
    pub rate: u64,
    /// Size of the largest packet in bytes.
    pub mtu: Spanned<u32>,
    /// Number of data lanes.
    pub vls: Spanned<u8>,
    /// LimitOfHighPriority.
    #[serde(default = "default_high_limit")]
    pub high_limit: Spanned<u8>,
    /// Part of the rate that may be promised, in percent.
    #[serde(default = "default_cap")]
    pub cap: Spanned<u8>,
}

/// `[network]`: properties of all switches.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Switches {
    /// Way of packets through a switch.
    pub crossbar: Crossbar,
    /// Size of a lane's buffer in packets, at an input and at an output.
    pub buffer: u32,
    /// Time of flight over a link.
    #[serde(deserialize_with = "time", serialize_with = "time_text")]
    pub flight: Duration,
}

impl Default for Switches {
    fn default() -> Self {
        Self { crossbar: Crossbar::default(), buffer: 4, flight: Duration::ZERO }
    }
}

/// `network.crossbar`: the equation of a switch's longest time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Crossbar {
    /// Equation (3.1).
    #[default]
    Multiplexed,
    /// Equation (3.2).
    ByLane,
    /// Equation (3.3).
    None,
}

impl From<Crossbar> for route::Crossbar {
    fn from(crossbar: Crossbar) -> Self {
        match crossbar {
            Crossbar::Multiplexed => Self::Multiplexed,
            Crossbar::ByLane => Self::ByLane,
            Crossbar::None => Self::None,
        }
    }
}

/// `[[level]]`: a service level, which has the lane of the same number.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Number of the level and of its lane.
    pub sl: Spanned<u8>,
    /// Largest distance of its entries; it is rounded down to a power of two.
    pub distance: usize,
    /// Range of its connections' bandwidth in Mb/s.
    pub mbps: Option<(f64, f64)>,
}

/// `[fill]`: random connections of all levels, until none is admitted.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Fill {
    /// Random pairs of hosts that a level tries before it is full.
    pub tries: u32,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// `[[connection]]`: a connection that asks for admission.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// Name of the sending host.
    pub from: Spanned<String>,
    /// Name of the receiving host.
    pub to: String,
    /// Service level. None: the first level that has room and keeps the deadline, from the largest distance on.
    pub sl: Option<u8>,
    /// Mean bandwidth in bits a second. None: the most that its level has.
    #[serde(default, deserialize_with = "optional_rate", serialize_with = "optional_rate_text")]
    pub bandwidth: Option<u64>,
    /// Upper bound of the delay from end to end. None: what the level's distance guarantees.
    #[serde(default, deserialize_with = "optional_time", serialize_with = "optional_time_text")]
    pub deadline: Option<Duration>,
}

impl Link {
    /// Checks that InfiniBand has such links. `line` finds the line of a place in the file.
    ///
    /// # Errors
    /// A number is not one of InfiniBand's.
    pub fn check(&self, line: impl Fn(Range<usize>) -> usize) -> Result<(), Problem> {
        let (mtu, vls, cap) = (self.mtu.get_ref(), self.vls.get_ref(), self.cap.get_ref());
        if ![256, 512, 1024, 2048, 4096].contains(mtu) {
            return Err(Problem::wrong(
                line(self.mtu.span()),
                format!("mtu is {mtu}: InfiniBand has 256, 512, 1024, 2048 and 4096"),
            ));
        }
        if ![1, 2, 4, 8, 15].contains(vls) {
            return Err(Problem::wrong(
                line(self.vls.span()),
                format!("vls is {vls}: InfiniBand has 1, 2, 4, 8 and 15 data lanes"),
            ));
        }
        if !(1..=100).contains(cap) {
            return Err(Problem::wrong(
                line(self.cap.span()),
                format!("cap is {cap}: it is a percentage from 1 to 100"),
            ));
        }
        Ok(())
    }

    /// Properties of each port.
    pub fn port(&self) -> planner::Link {
        let (mtu, high_limit, cap) = (*self.mtu.get_ref(), *self.high_limit.get_ref(), *self.cap.get_ref());
        planner::Link { rate: self.rate, mtu, high_limit, cap }
    }
}

impl Level {
    /// Lane of the level.
    pub fn lane(&self) -> Lane {
        Lane { vl: *self.sl.get_ref(), distance: Some(ENTRIES / planner::entries_at_distance(self.distance)) }
    }

    fn takes(&self, bandwidth: u64) -> bool {
        self.mbps.is_none_or(|(least, most)| (least..=most).contains(&(bandwidth as f64 / 1e6)))
    }
}

/// Reads a file and builds its network. Names of files are relative to `folder`; in the plan they are absolute, since its
/// answers are read elsewhere.
///
/// # Errors
/// The file is wrong: the line, the reason, and what would be right.
pub fn read(text: &str, folder: &Path) -> Result<Plan, Problem> {
    let mut file: File = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| line_of(text, span.start));
        Problem::wrong(line, error.message().replace('\n', "; "))
    })?;
    let line = |span: Range<usize>| line_of(text, span.start);
    file.link.check(line)?;
    let of_switches = line(file.network.span());
    check_high_limit(&file.link, line)?;
    if !(1..=1024).contains(&file.network.get_ref().buffer) {
        let reason = format!("buffer is {} packets: take 1 to 1024", file.network.get_ref().buffer);
        return Err(Problem::wrong(of_switches, reason));
    }
    check_levels(&file, line)?;
    let built = file.topology.get_ref().build(folder);
    let network = built.map_err(|why| Problem::wrong(line(file.topology.span()), why))?;
    if network.has_choices() {
        let reason = "a packet takes any link of a trunk, any way up, or a detour, so a connection has no single route: leave `trunk` and `routes` out";
        return Err(Problem::wrong(line(file.topology.span()), reason));
    }
    if network.channels() > 1 {
        let reason = format!(
            "against deadlock the routes of a {} need {} lanes of each level, and the mapping of levels to lanes gives it one (§3.3.2): take a mesh, a hypercube, a tree, an irregular network or a file",
            network.name,
            network.channels()
        );
        return Err(Problem::wrong(line(file.topology.span()), reason));
    }
    let names: BTreeMap<_, _> =
        (0..network.hosts()).map(|host| (network.node_name(network.host_node(host)), host)).collect();
    let request = |connection: &Connection| {
        request(&file, &network, &names, connection)
            .map_err(|reason| Problem::wrong(line(connection.from.span()), reason))
    };
    let requests = file.connection.iter().map(request).collect::<Result<Vec<_>, _>>()?;
    if requests.is_empty() && file.fill.is_none() {
        let reason = "there is no [[connection]] and no [fill], so there is nothing to admit; `deckqos admit --example` prints a file to begin with";
        return Err(Problem::wrong(None, reason));
    }
    file.topology.get_mut().make_absolute(folder);
    Ok(Plan { file, network, requests, line_of_switches: of_switches })
}

/// Checks that the equations have a high limit, and that it leaves what may be promised while the low table has packets,
/// too (§3.2).
fn check_high_limit(link: &Link, line: impl Fn(Range<usize>) -> usize) -> Result<(), Problem> {
    let (high_limit, cap) = (*link.high_limit.get_ref(), *link.cap.get_ref());
    if high_limit == 0 {
        let reason = "high_limit is 0: equations (3.1) to (3.3) divide by it; take 1 to 255";
        return Err(Problem::wrong(line(link.high_limit.span()), reason));
    }
    let left = high_share(link.port());
    if f64::from(cap) / 100.0 <= left {
        return Ok(());
    }
    // A default has no place in the file.
    let key = if link.cap.span().is_empty() { &link.high_limit } else { &link.cap };
    let most = (100.0 * left).floor();
    let reason = format!(
        "{cap} % may be promised (cap), and high_limit {high_limit} leaves {most} % while the low table has packets of {} bytes, too: take a cap of at most {most}, or a larger high_limit",
        link.mtu.get_ref()
    );
    Err(Problem::wrong(line(key.span()), reason))
}

/// Part of the link that the high table has while both tables always have packets of the MTU.
fn high_share(link: planner::Link) -> f64 {
    // An entry is a packet: MTUs are multiples of a unit, and at most 64 of them.
    let table = |vl| vec![Entry { vl, weight: (u64::from(link.mtu) / UNIT) as u8 }];
    let tables = VlTables { high: table(0), low: table(1), high_limit: link.high_limit };
    let mut packets = [None; LANES];
    packets[..2].fill(Some(link.mtu));
    analysis::saturate(&tables, LowTurn::Packet, &packets).shares[0]
}

fn check_levels(file: &File, line: impl Fn(Range<usize>) -> usize) -> Result<(), Problem> {
    let (vls, mut seen) = (*file.link.vls.get_ref(), BTreeSet::new());
    for Level { sl, distance, mbps } in &file.level {
        let (at, sl) = (line(sl.span()), *sl.get_ref());
        let wrong = |reason: String| Err(Problem::wrong(at, format!("level {sl}: {reason}")));
        if !seen.insert(sl) {
            return wrong("it is there already: give each level one [[level]]".into());
        }
        if sl >= vls {
            return wrong(format!("it has the lane of its number, and the lanes are 0 to {}", vls - 1));
        }
        if !(1..=ENTRIES).contains(distance) {
            return wrong(format!("distance is {distance}: take 1 to {ENTRIES} entries"));
        }
        if mbps.is_some_and(|(least, most)| !(0.0 < least && least <= most && most <= 1e6)) {
            return wrong("mbps is not the least and the most in Mb/s, above 0, as [0.064, 1.55] is".into());
        }
        if file.fill.is_some() && mbps.is_none() {
            return wrong("[fill] draws bandwidths from mbps: give mbps = [0.064, 1.55]".into());
        }
    }
    let Some(fill) = &file.fill else { return Ok(()) };
    let wrong = |reason: &str| Err(Problem::wrong(line(fill.span()), reason));
    if file.level.is_empty() {
        return wrong("[fill] draws connections of each [[level]], and there is none");
    }
    if fill.get_ref().tries == 0 {
        return wrong("[fill]: tries is 0: take 1 or more");
    }
    Ok(())
}

fn request(
    file: &File,
    network: &Network,
    names: &BTreeMap<String, usize>,
    connection: &Connection,
) -> Result<Request, String> {
    let host = |name: &str| {
        let last = network.node_name(network.host_node(network.hosts() - 1));
        let unknown = || format!("there is no host {name:?}: the last one is {last:?}");
        names.get(name).copied().ok_or_else(unknown)
    };
    let (from, to) = (host(connection.from.get_ref())?, host(&connection.to)?);
    if from == to {
        return Err(format!("{:?} would send to itself: name another host", connection.to));
    }
    let own = |sl: u8| {
        let found = file.level.iter().find(|level| *level.sl.get_ref() == sl);
        found.ok_or_else(|| format!("sl is {sl}, and no [[level]] has it"))
    };
    let of_sl = connection.sl.filter(|_| !file.level.is_empty()).map(own).transpose()?;
    let most = of_sl.and_then(|level| level.mbps).map(|(_, most)| (1e6 * most) as u64);
    let bandwidth = connection
        .bandwidth
        .or(most)
        .ok_or("there is no bandwidth: give bandwidth = \"64 kb/s\", or an sl whose [[level]] has mbps")?;
    if bandwidth > file.link.rate {
        return Err(format!("{} is more than the link has", planner::Bits(bandwidth)));
    }
    let lanes = match (connection.sl, of_sl) {
        (Some(_), Some(level)) => vec![level.lane()],
        (Some(sl), None) if sl < *file.link.vls.get_ref() => vec![Lane { vl: sl, distance: None }],
        (Some(sl), None) => {
            return Err(format!("sl is {sl}, and the lanes are 0 to {}", file.link.vls.get_ref() - 1));
        }
        (None, _) => {
            let mut levels: Vec<_> = file.level.iter().filter(|level| level.takes(bandwidth)).collect();
            levels.sort_by_key(|level| (std::cmp::Reverse(level.distance), *level.sl.get_ref()));
            levels.into_iter().map(Level::lane).collect()
        }
    };
    if lanes.is_empty() {
        let bits = planner::Bits(bandwidth);
        return Err(format!("no [[level]] takes {bits}: give an sl, or a [[level]] whose mbps has it"));
    }
    if connection.sl.is_none() && connection.deadline.is_none() {
        return Err("there is neither an sl nor a deadline: one of them decides on the entries".into());
    }
    let demand = Demand { bandwidth, deadline: connection.deadline };
    Ok(Request { from, to, lanes, demand })
}

impl File {
    /// Writes the file, a line for each connection.
    pub fn to_toml(&self) -> String {
        let Ok(Value::Object(parts)) = serde_json::to_value(self) else { return String::new() };
        let part = |(key, value): (String, Value)| match value {
            Value::Array(rows) if rows.is_empty() => String::new(),
            Value::Array(rows) => {
                let rows: String = rows.iter().map(|row| format!("    {},\n", inline(row))).collect();
                format!("{key} = [\n{rows}]\n")
            }
            Value::Null => String::new(),
            value => format!("{key} = {}\n", inline(&value)),
        };
        parts.into_iter().map(part).collect()
    }
}

/// Writes a value of JSON as one of TOML. TOML has no null: such keys are left out.
fn inline(value: &Value) -> String {
    match value {
        Value::Object(parts) => {
            let parts = parts.iter().filter(|(_, value)| !value.is_null());
            let parts: Vec<_> = parts.map(|(key, value)| format!("{key} = {}", inline(value))).collect();
            format!("{{ {} }}", parts.join(", "))
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(inline).collect();
            format!("[{}]", items.join(", "))
        }
        other => other.to_string(),
    }
}

fn default_switches() -> Spanned<Switches> {
    Spanned::new(0..0, Switches::default())
}

fn default_high_limit() -> Spanned<u8> {
    Spanned::new(0..0, 10)
}

fn default_cap() -> Spanned<u8> {
    Spanned::new(0..0, 80)
}

fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    units::rate(&String::deserialize(from)?).map_err(D::Error::custom)
}

fn optional_rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    rate(from).map(Some)
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    units::time(&String::deserialize(from)?).map_err(D::Error::custom)
}

fn optional_time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    time(from).map(Some)
}

fn rate_text<S: Serializer>(rate: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format!("{rate} b/s"))
}

fn optional_rate_text<S: Serializer>(rate: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    rate.map(|rate| format!("{rate} b/s")).serialize(to)
}

fn time_text<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&format!("{} ns", time.as_nanos()))
}

fn optional_time_text<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    time.map(|time| format!("{} ns", time.as_nanos())).serialize(to)
}
