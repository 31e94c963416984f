//! What is measured, and how: what the command line, the schedule and the reports all speak of.

use std::time::Duration;

use clap::ValueEnum;
use udeck::Protocol;

/// Every protocol that can be asked for. Its order is what travels in an [`Order`](crate::order::Order).
pub const PROTOCOLS: [Protocol; 7] = [
    Protocol::Copy,
    Protocol::Eager,
    Protocol::RdmaWrite,
    Protocol::HandOff,
    Protocol::RdmaRead,
    Protocol::Handshake,
    Protocol::Auto,
];

/// What is measured, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// In the order of the tables.
    pub tests: Vec<Test>,
    /// In the order of the columns.
    pub protocols: Vec<Protocol>,
    /// Ascending, in bytes.
    pub sizes: Vec<usize>,
    /// In the order of the tables.
    pub payloads: Vec<Payload>,
    /// Per batch; `None`: calibrated.
    pub iterations: Option<u64>,
    /// For the whole run.
    pub time: Duration,
    /// Messages under way in the bandwidth test.
    pub window: u64,
    /// How the result is written.
    pub format: Format,
    /// Each rank on a core of its own.
    pub pin: bool,
    /// Only what was copied is shown.
    pub stats: bool,
    /// Every round trip is timed by itself.
    pub percentiles: bool,
    /// Messages lie in other memory than the last ones, which no cache holds.
    pub off_cache: bool,
    /// The run without a subcommand: what its closing ratios need is measured too.
    pub overview: bool,
    /// In percent: all messages take that much longer, for tests of `compare`.
    pub handicap: Option<u32>,
}

impl Plan {
    /// How long, and in which portions.
    pub fn pace(&self) -> Pace {
        Pace { iterations: self.iterations, time: self.time, window: self.window }
    }
}

/// What is verified.
#[derive(Debug, PartialEq)]
pub struct Checks {
    /// Each of them carries every size.
    pub protocols: Vec<Protocol>,
    /// Ascending, in bytes, perturbations included.
    pub sizes: Vec<usize>,
    /// Each rank on a core of its own.
    pub pin: bool,
}

/// What a batch of messages is timed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// One-way time.
    Latency,
    /// Payload per second.
    Bandwidth,
    /// Payload per second of both directions together, both under way at once.
    BiBandwidth,
}

/// What a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// µs; less is better.
    Time,
    /// MB/s; more is better.
    Throughput,
}

/// What happens to the data of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Neither side looks at the data: what a program gains that forwards, filters or samples.
    Untouched,
    /// The sender writes every word, the receiver sums them all: what any other program gains.
    WrittenRead,
}

/// How long, and in which portions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Per batch; `None`: calibrated.
    pub iterations: Option<u64>,
    /// For the whole run.
    pub time: Duration,
    /// Messages under way in the bandwidth test.
    pub window: u64,
}

/// How the result is written.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Aligned text in the manner of the OSU benchmarks
    Table,
    /// A header line, then a row per size, protocol and test
    Csv,
    /// One object with the machine, the method and every figure
    Json,
}

impl Test {
    /// As in the CSV and JSON output.
    pub fn name(self) -> &'static str {
        match self {
            Test::Latency => "latency",
            Test::Bandwidth => "bandwidth",
            Test::BiBandwidth => "bibandwidth",
        }
    }

    /// Of the test's figures.
    pub fn quantity(self) -> Quantity {
        match self {
            Test::Latency => Quantity::Time,
            Test::Bandwidth | Test::BiBandwidth => Quantity::Throughput,
        }
    }

    /// Of the test's figures; MB are 10⁶ bytes.
    pub fn unit(self) -> &'static str {
        self.quantity().unit()
    }
}

impl Quantity {
    /// MB are 10⁶ bytes.
    pub fn unit(self) -> &'static str {
        match self {
            Quantity::Time => "us",
            Quantity::Throughput => "MB/s",
        }
    }
}

impl Payload {
    /// As in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Payload::Untouched => "untouched",
            Payload::WrittenRead => "written+read",
        }
    }
}
