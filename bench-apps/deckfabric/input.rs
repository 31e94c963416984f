//! Parser of a scenario's file.

use serde::{Deserialize, Deserializer, de};
use std::{num::NonZeroU64, path::PathBuf};
use toml::Spanned;
use udeck::IncastControl;
use udeck_cli::{Problem, line_of};
use udeck_fabric::topology::Description;

/// Upper bound of a run's cycles, for the warm-up and for the measured part.
pub const MOST_CYCLES: u64 = 1_000_000_000;
/// Upper bound of a scenario's runs.
const MOST_RUNS: usize = 1000;
/// Upper bound of a name's characters, so that tables stay readable.
const LONGEST_NAME: usize = 32;

/// A scenario, as its file describes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// Seed of the random numbers: the same seed gives the same figures.
    #[serde(default = "one")]
    pub seed: u64,
    /// Cycles of the warm-up, which is not measured.
    #[serde(default = "nowhere")]
    pub warm_up: Spanned<u64>,
    /// Cycles that are measured.
    pub measured: Spanned<u64>,
    /// Factors of the traffic's loads: one run for each.
    pub loads: Option<Spanned<Vec<f64>>>,
    pub topology: Spanned<Description>,
    #[serde(default = "nowhere")]
    pub network: Spanned<Network>,
    pub switch: Option<Spanned<Switch>>,
    pub lanes: Option<Spanned<Lanes>>,
    pub arbitration: Option<Spanned<Arbitration>>,
    #[serde(default = "nowhere")]
    pub congestion: Spanned<Congestion>,
    #[serde(default)]
    pub traffic: Vec<Traffic>,
    /// Trace to replay, in place of `traffic` or beside it.
    pub trace: Option<TraceKeys>,
    /// Collective operation to run, in place of `traffic`.
    pub collective: Option<Collective>,
    /// Lines of the fields above.
    #[serde(skip)]
    pub lines: Lines,
}

/// Lines of a scenario's parts in the file, from 1.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    pub topology: usize,
    pub network: usize,
    pub switch: Option<usize>,
    pub lanes: Option<usize>,
    pub arbitration: Option<usize>,
    pub congestion: usize,
    pub traffic: Vec<usize>,
    /// Line of `trace` or `collective`.
    pub work: usize,
}

/// `[network]`: properties of switches and adapters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Network {
    pub levels: Option<u8>,
    pub packet: Option<u16>,
    pub buffer: Option<u32>,
    pub link: Option<u32>,
    pub switch: Option<u32>,
    #[serde(default)]
    pub queues: Queues,
    #[serde(default)]
    pub passing_first: bool,
    /// Whether all packets are acknowledged. Default: only with congestion control.
    pub acks: Option<bool>,
}

/// `network.queues`: how switches queue packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Queues {
    #[default]
    ByOutput,
    Crossbar,
    Fifo,
    FifoCrossbar,
}

/// `[switch]`: stages of the switches, in place of `network.queues` and `network.switch`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Switch {
    /// Cycles of routing.
    pub routing: u32,
    /// Cycles of storing in an input or output buffer.
    pub store: u32,
    /// Cycles of an allocation.
    pub allocation: u32,
    /// Cycles of crossing a crossbar.
    pub crossing: u32,
    /// Flits a cycle out of an input buffer.
    pub speed: u16,
    /// Flits of an output buffer.
    pub output: u32,
    /// Flits that each lane has for itself in each buffer.
    pub least: u32,
    /// Cycles after a packet in which its buffer takes part in no allocation.
    #[serde(default)]
    pub pause: u32,
    #[serde(default)]
    pub allocator: Allocator,
    /// Central crossbar of a hierarchical switch.
    pub central: Option<Central>,
}

/// `switch.allocator`: lanes whose first packets an input offers to the outputs.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Allocator {
    /// All lanes, at any time.
    #[default]
    AllLanes,
    /// One lane in each allocation, in turn.
    OneLane {
        /// Cycles from an allocation to the next one.
        every: u32,
    },
}

/// `[switch.central]`: the central crossbar of a hierarchical switch.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Central {
    /// Ports of an MPort.
    pub ports: u8,
    /// Links from an MPort to the central crossbar.
    pub links: u8,
    /// Flits a cycle out of a central buffer.
    pub speed: u16,
    /// Flits of the central buffers of an MPort.
    pub buffer: u32,
}

/// `[lanes]`: service channels of levels, and lanes of service channels.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Lanes {
    /// Service channels by level, from level 0; with congestion control, also those of speculative and of control packets.
    pub sl2sc: Vec<Vec<u8>>,
    /// Lane by service channel, from channel 0.
    pub sc2vl: Vec<u8>,
}

/// `[arbitration]`: how a port chooses the level that sends next.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum Arbitration {
    RoundRobin,
    Priority,
    Sbt {
        /// Packets by level.
        weights: Vec<u32>,
    },
    Wrr {
        /// Packets by level.
        weights: Vec<u32>,
    },
    Dtable {
        /// Levels and weights, in the form of `table` in the output of `deckqos plan --format json`.
        table: Vec<(u8, u32)>,
        #[serde(default, rename = "keep-when-stalled")]
        keep: bool,
    },
    Vl {
        /// Lanes and weights of the high table.
        #[serde(default)]
        high: Vec<(u8, u8)>,
        low: Vec<(u8, u8)>,
        #[serde(default, rename = "high-limit")]
        high_limit: u8,
    },
}

/// `[congestion]`: schemes, each with runs of its own, and their parameters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Congestion {
    pub schemes: Vec<Scheme>,
    pub ecn: EcnKeys,
    /// Cycles that speculative packets may wait.
    pub patience: Option<u32>,
    /// Messages in flight of a pair of hosts, if their packets have a patience.
    pub window: Option<u32>,
    /// Threshold of LHRP, in flits.
    pub threshold: Option<u32>,
    /// Cycles that LHRP's speculative packets may wait before the last switch. Without it, only the last switch drops.
    pub lhrp_patience: Option<u32>,
    /// Longest message for which `by-size` uses LHRP, in flits.
    pub most: Option<u32>,
}

/// `congestion.ecn`: parameters of ECN.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct EcnKeys {
    pub threshold: Option<u32>,
    pub step: Option<u32>,
    pub decay: Option<u32>,
    pub largest: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    None,
    /// No control, and an acknowledgement of each packet: the other schemes cost more than this one by their control alone.
    NoneAcknowledged,
    Ecn,
    Srp,
    Smsrp,
    Lhrp,
    BySize,
}

impl Scheme {
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::NoneAcknowledged => "none-acknowledged",
            Self::Ecn => "ecn",
            Self::Srp => "srp",
            Self::Smsrp => "smsrp",
            Self::Lhrp => "lhrp",
            Self::BySize => "by-size",
        }
    }
}

/// `[[traffic]]`: a class of messages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Traffic {
    pub name: Spanned<String>,
    pub pattern: Pattern,
    /// Number of senders of a hot spot.
    pub senders: Option<usize>,
    /// Number of receivers of a hot spot.
    pub receivers: Option<usize>,
    #[serde(default)]
    pub level: u8,
    /// Flits in a cycle: from each sender, or, for a hot spot, to each receiver.
    pub load: f64,
    /// Whether the factors of `loads` apply to this class.
    #[serde(default = "yes")]
    pub sweep: bool,
    pub flits: Flits,
    #[serde(default)]
    pub arrivals: Arrivals,
    /// Messages in a burst.
    pub burst: Option<u32>,
    /// Cycle in which the class begins.
    #[serde(default)]
    pub from: u64,
    pub until: Option<u64>,
}

/// `[trace]`: a trace to replay.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TraceKeys {
    pub path: Spanned<PathBuf>,
    /// File of the names of the trace's nodes: nodes of a tile are on one host.
    pub names: Option<PathBuf>,
    /// Picoseconds in which a link carries a flit.
    pub cycle_ps: u64,
    /// Bytes of a flit.
    #[serde(default = "flit")]
    pub flit: NonZeroU64,
    /// Service level of the trace's messages.
    #[serde(default)]
    pub level: u8,
}

/// `[collective]`: a collective operation.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Collective {
    pub operation: Spanned<Operation>,
    pub ranks: usize,
    /// Bytes from each rank to each other one; 0 for a barrier.
    #[serde(default)]
    pub bytes: u64,
    #[serde(default)]
    pub order: Order,
    /// Repetitions, one after another.
    #[serde(default = "once")]
    pub times: u16,
    /// Cycles of computation before each repetition.
    #[serde(default)]
    pub compute: u32,
    /// Whether the library itself runs the operation, too.
    #[serde(default)]
    pub library: bool,
    /// Congestion control of an incast's mailbox in the library (`DECK_INCAST`).
    #[serde(default, deserialize_with = "incast_control")]
    pub incast: Option<IncastControl>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Barrier,
    AllToAll,
    Transpose,
    /// Both transposes of a grid that is divided along two axes: ranks exchange within their row, and then within
    /// their column.
    #[serde(rename = "transpose-2d")]
    Transpose2d,
    /// Posts of all other ranks to the first one: `times` messages each, retrieved in the order of arrival.
    Incast,
}

fn incast_control<'de, D: Deserializer<'de>>(from: D) -> Result<Option<IncastControl>, D::Error> {
    String::deserialize(from)?.parse().map(Some).map_err(de::Error::custom)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    #[default]
    Tournament,
    Hypercube,
    Triangle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// All hosts send to all hosts.
    Uniform,
    /// Each host sends to one other host, and receives from one.
    Permutation,
    /// Each host sends to the one whose number has its bits in reverse order; a host whose own number that is sends nothing.
    BitReversal,
    /// Each host sends to the one whose number has all bits inverted.
    BitComplement,
    /// Each host sends to the one with the next number, and the last one to host 0.
    NextNeighbour,
    /// Some hosts send to a few others.
    HotSpot,
}

/// Length of messages.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub enum Flits {
    All(u32),
    /// Any length between the two.
    Between([u32; 2]),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    #[default]
    Random,
    Regular,
    Bursts,
}

fn flit() -> NonZeroU64 {
    NonZeroU64::new(64).expect("64 is not 0")
}

fn one() -> u64 {
    1
}

fn once() -> u16 {
    1
}

fn yes() -> bool {
    true
}

fn nowhere<Value: Default>() -> Spanned<Value> {
    Spanned::new(0..0, Value::default())
}

/// Reads a scenario. `seed` replaces the scenario's own seed.
pub fn read(text: &str, seed: Option<u64>) -> Result<Scenario, Problem> {
    let mut scenario: Scenario = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| line_of(text, span.start));
        Problem::wrong(line, error.message().replace('\n', "; "))
    })?;
    scenario.seed = seed.unwrap_or(scenario.seed);
    let line = |span: std::ops::Range<usize>| line_of(text, span.start);
    scenario.lines = Lines {
        topology: line(scenario.topology.span()),
        network: line(scenario.network.span()),
        switch: scenario.switch.as_ref().map(|spanned| line(spanned.span())),
        lanes: scenario.lanes.as_ref().map(|spanned| line(spanned.span())),
        arbitration: scenario.arbitration.as_ref().map(|spanned| line(spanned.span())),
        congestion: line(scenario.congestion.span()),
        work: match (&scenario.trace, &scenario.collective) {
            (Some(trace), _) => line(trace.path.span()),
            (None, Some(collective)) => line(collective.operation.span()),
            (None, None) => 0,
        },
        traffic: scenario.traffic.iter().map(|traffic| line(traffic.name.span())).collect(),
    };
    for (what, cycles, least) in [("warm-up", &scenario.warm_up, 0), ("measured", &scenario.measured, 1)] {
        let count = *cycles.get_ref();
        if !(least..=MOST_CYCLES).contains(&count) {
            let reason = format!("{what} is {count} cycles: take {least} to {MOST_CYCLES}");
            return Err(Problem::wrong(line(cycles.span()), reason));
        }
    }
    check_loads(&scenario, line)?;
    check_traffic(&scenario, line)?;
    Ok(scenario)
}

fn check_loads(scenario: &Scenario, line: impl Fn(std::ops::Range<usize>) -> usize) -> Result<(), Problem> {
    let Some(spanned) = &scenario.loads else { return Ok(()) };
    let (loads, at) = (spanned.get_ref(), line(spanned.span()));
    if loads.is_empty() || loads.len() * scenario.congestion.get_ref().schemes.len().max(1) > MOST_RUNS {
        return Err(Problem::wrong(
            at,
            format!("loads has {} factors: there can be {MOST_RUNS} runs", loads.len()),
        ));
    }
    match loads.iter().find(|load| !(**load > 0.0 && load.is_finite())) {
        Some(bad) => Err(Problem::wrong(at, format!("loads has {bad}: factors are above 0"))),
        None => Ok(()),
    }
}

fn check_traffic(scenario: &Scenario, line: impl Fn(std::ops::Range<usize>) -> usize) -> Result<(), Problem> {
    let is_background = scenario.trace.is_some() && scenario.collective.is_none();
    let has_own_traffic = !scenario.traffic.is_empty() && !is_background;
    let kinds = [has_own_traffic, scenario.trace.is_some(), scenario.collective.is_some()];
    match kinds.iter().filter(|is_there| **is_there).count() {
        1 => {}
        0 => {
            return Err(Problem::wrong(
                None,
                "there is no [[traffic]], [trace] or [collective]; `deckfabric run --example` prints a scenario to begin with",
            ));
        }
        _ => {
            let reason = "there is more than one of [[traffic]], [trace] and [collective]: only a [trace] can have [[traffic]] beside it";
            return Err(Problem::wrong(None, reason));
        }
    }
    if let (Some(loads), true) = (&scenario.loads, scenario.traffic.is_empty()) {
        return Err(Problem::wrong(line(loads.span()), "loads is for [[traffic]]"));
    }
    let warm_up = scenario.warm_up.get_ref();
    if *warm_up > 0 && (scenario.trace.is_some() || scenario.collective.is_some()) {
        let reason = format!(
            "warm-up is {warm_up} cycles, and a [trace] or [collective] is measured from cycle 0 to its end: leave warm-up out"
        );
        return Err(Problem::wrong(line(scenario.warm_up.span()), reason));
    }
    for (traffic, &line) in scenario.traffic.iter().zip(&scenario.lines.traffic) {
        let name = traffic.name.get_ref();
        let wrong = |reason: String| Err(Problem::wrong(line, format!("traffic {name:?}: {reason}")));
        if name.is_empty() || name.chars().count() > LONGEST_NAME || name.chars().any(char::is_control) {
            return Err(Problem::wrong(
                line,
                format!("a name has 1 to {LONGEST_NAME} characters that can be printed"),
            ));
        }
        let is_hot = traffic.pattern == Pattern::HotSpot;
        for (key, is_there) in
            [("senders", traffic.senders.is_some()), ("receivers", traffic.receivers.is_some())]
        {
            if is_there != is_hot {
                let verb = if is_hot { "needs" } else { "has no" };
                return wrong(format!("this pattern {verb} {key}"));
            }
        }
        if (traffic.arrivals == Arrivals::Bursts) != traffic.burst.is_some() {
            return wrong("bursts have a number of messages: arrivals = \"bursts\" with burst = 20".into());
        }
        if traffic.until.is_some_and(|until| until <= traffic.from) {
            return wrong("it ends before it begins".into());
        }
    }
    Ok(())
}
