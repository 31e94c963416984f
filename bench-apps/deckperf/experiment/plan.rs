//! Plan of a measurement, which the command line, the schedule and the reports share.

use std::time::Duration;

use clap::ValueEnum;
use udeck::Protocol;

/// Every protocol that a user can choose.
pub const PROTOCOLS: [Protocol; 7] = [
    Protocol::Copy,
    Protocol::Eager,
    Protocol::RdmaWrite,
    Protocol::HandOff,
    Protocol::RdmaRead,
    Protocol::Handshake,
    Protocol::Auto,
];

/// Transports that a measurement of several takes by default: those that every host has.
pub const TRANSPORTS: [&str; 3] = ["shm", "tcp", "udp"];

/// Plan of a measurement of messages, between mailboxes or at a layer below them.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Tests, in the order of the tables.
    pub tests: Vec<Test>,
    /// Protocols, in the order of the columns.
    pub protocols: Vec<Protocol>,
    /// Message sizes, ascending, in bytes.
    pub sizes: Vec<usize>,
    /// Payload modes, in the order of the tables.
    pub payloads: Vec<Payload>,
    /// Numbers of the receiver's VIs in the tables by number, ascending; only for latencies of virtual interfaces.
    pub vi_counts: Vec<usize>,
    /// Time and portions of the measurement.
    pub pace: Pace,
    /// Format of the report.
    pub format: Format,
    /// Whether each rank runs on a core of its own.
    pub pin: bool,
    /// Whether only the copied bytes are shown.
    pub stats: bool,
    /// Whether every round trip is timed by itself.
    pub percentiles: bool,
    /// Whether each message lies in memory that no cache holds, and not in that of the last messages.
    pub off_cache: bool,
    /// Whether this is the run without a subcommand, which also measures what its closing ratios need.
    pub overview: bool,
    /// Artificial slowdown of all messages in percent, for tests of `compare`.
    pub handicap: Option<u32>,
}

impl Plan {
    /// Largest message size, in bytes.
    pub fn largest(&self) -> usize {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// Message sizes of a test: a throughput of empty messages is 0 by definition.
    pub fn sizes_of(&self, test: Test) -> impl Iterator<Item = usize> {
        self.sizes.iter().copied().filter(move |&size| size > 0 || test.quantity() == Quantity::Time)
    }

    /// A small plan for tests.
    #[cfg(test)]
    pub fn sample() -> Self {
        Plan {
            tests: vec![Test::Latency, Test::Bandwidth],
            protocols: vec![Protocol::Copy, Protocol::HandOff],
            sizes: vec![0, 8],
            payloads: vec![Payload::Untouched, Payload::WrittenRead],
            vi_counts: vec![1, 10],
            pace: Pace { iterations: None, time: Duration::from_secs(2), window: 64 },
            format: Format::Table,
            pin: true,
            stats: false,
            percentiles: false,
            off_cache: false,
            overview: true,
            handicap: None,
        }
    }
}

/// Plan of `deckperf verify`.
#[derive(Debug, PartialEq)]
pub struct Checks {
    /// Protocols of messages; each of them carries every size.
    pub protocols: Vec<Protocol>,
    /// Message sizes with their perturbations, ascending, in bytes.
    pub sizes: Vec<usize>,
    /// Whether each rank runs on a core of its own.
    pub pin: bool,
}

/// Measured quantity of a batch of messages.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// One-way time.
    Latency,
    /// Payload per second.
    Bandwidth,
    /// Payload per second of both directions together, with messages under way in both.
    #[value(name = "bibandwidth")]
    BiBandwidth,
}

/// Kind and unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Time in µs; less is better.
    Time,
    /// Throughput in MB/s; more is better.
    Throughput,
}

/// Payload mode: whether the data of a message are written and read.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Neither side touches the data: shows the gain of a program that forwards, filters or samples.
    Untouched,
    /// The sender writes every word, the receiver sums them all: shows the gain of any other program.
    #[value(name = "written+read")]
    WrittenRead,
}

/// Messages that are timed, or checked, together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// Protocol of the messages.
    pub protocol: Protocol,
    /// Whether both sides go through the data.
    pub payload: Payload,
    /// Bytes per message.
    pub size: usize,
    /// Iterations before the clock starts.
    pub warm_up: u64,
    /// Iterations under the clock.
    pub iterations: u64,
}

/// Time and portions of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Iterations per batch; `None`: calibrated.
    pub iterations: Option<u64>,
    /// Time for the whole run.
    pub time: Duration,
    /// Messages under way in the bandwidth test.
    pub window: u64,
}

/// Format of the report.
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
    /// Quantity of the test's figures.
    pub fn quantity(self) -> Quantity {
        match self {
            Test::Latency => Quantity::Time,
            Test::Bandwidth | Test::BiBandwidth => Quantity::Throughput,
        }
    }

    /// Unit of the test's figures; MB are 10⁶ bytes.
    pub fn unit(self) -> &'static str {
        self.quantity().unit()
    }
}

impl Quantity {
    /// Unit of the figures; MB are 10⁶ bytes.
    pub fn unit(self) -> &'static str {
        match self {
            Quantity::Time => "us",
            Quantity::Throughput => "MB/s",
        }
    }
}
