//! Targets of the comparisons: the rows, and the ratios that count as good. All of this is data, and no other code knows
//! a target.
//!
//! `docs/measuring.md`, section *Goals*, explains each [`Goal`]. Beside other libraries, large messages in shared memory have a
//! target only where they are written and read: a hand-off that nobody reads proves nothing.

mod collective;

use clap::ValueEnum;
use udeck::Protocol;

use super::request::{Column, Method, PeerTest};
use crate::experiment::plan::Payload::{self, Untouched, WrittenRead};

/// Kind of the ranks and of the links between them; each setting has rows of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Ranks that share memory.
    Memory,
    /// Ranks that use the network between hosts, here over the loopback device.
    Network(&'static str),
    /// Groups of ranks that share memory: collective operations instead of messages.
    Groups,
}

impl Setting {
    /// Rows, in the order of the table.
    pub fn rows(self) -> &'static [Row] {
        match self {
            Setting::Memory => MEMORY_ROWS,
            Setting::Network("tcp") => TCP_ROWS,
            Setting::Network(_) => UDP_ROWS,
            Setting::Groups => collective::ROWS,
        }
    }

    /// Name of the subcommand.
    pub fn command(self) -> &'static str {
        match self {
            Setting::Memory | Setting::Network(_) => "peers",
            Setting::Groups => "collectives",
        }
    }

    /// Whether ranks are kept off shared memory.
    pub fn is_network(self) -> bool {
        matches!(self, Setting::Network(_))
    }

    /// Numbers of ranks of the jobs, ascending.
    pub fn job_sizes(self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.rows().iter().map(|row| row.column.ranks).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Transport of µDECK.
    pub fn transport(self) -> &'static str {
        match self {
            Setting::Memory | Setting::Groups => "shm",
            Setting::Network(transport) => transport,
        }
    }
}

/// One line of the table.
#[derive(Debug)]
pub struct Row {
    /// Title, unique in its table.
    pub title: &'static str,
    /// Column of the comparison.
    pub column: Column,
    /// Method of µDECK.
    pub ours: Method,
    /// Method of an MPI; programs that are run whole take part wherever MPI sends.
    pub theirs: Method,
    /// Unit in which figures are shown.
    pub unit: Unit,
    /// Targets for ratios of µDECK's figure to another one.
    pub targets: &'static [Target],
}

/// Unit of a row's figures.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// µs; less is better.
    #[value(name = "us")]
    Micros,
    /// 10⁶ messages per second; more is better.
    #[value(name = "M/s")]
    Millions,
    /// 10⁹ bytes per second; more is better.
    #[value(name = "GB/s")]
    Gigabytes,
}

/// A ratio of figures, and its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Denominator of the ratio; the numerator is µDECK's figure.
    pub against: Against,
    /// Bound of the ratio.
    pub bound: Bound,
    /// Goal that the target serves.
    pub goal: Goal,
}

/// Benefit of a user where a target is met.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Faster than the user's alternatives.
    BeatPeers,
    /// The library adds little to the time that the machine itself takes.
    NearLimit,
    /// Giving a buffer away costs the same for any size.
    AnySize,
    /// Giving a buffer away is never slower than a copy.
    NoCopy,
}

/// Denominator of a target's ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Against {
    /// The limit of the machine.
    Limit,
    /// The floor, the least that a message needs.
    Floor,
    /// The best peer of this run.
    BestPeer,
    /// QUIC without a library.
    Quinn,
    /// µDECK, in the row of this title.
    Ours(&'static str),
}

/// Bound of a good ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Upper bound, for ratios of times.
    AtMost(f64),
    /// Lower bound, for ratios of rates.
    AtLeast(f64),
}

/// The best protocol with one copy; hand-off is compared with it.
const ONE_COPY: Protocol = Protocol::RdmaWrite;

const SMALL: usize = 8;
const PAGE: usize = 4 << 10;
const MIDDLE: usize = 64 << 10;
const LARGE: usize = 1 << 20;

/// Rows over TCP. The limit is a pair of sockets on which both sides spin.
const TCP_ROWS: &[Row] = &[
    latency("8 B", SMALL, Untouched, Protocol::Auto, &[near_limit(1.15)]),
    latency("4 KiB", PAGE, Untouched, Protocol::Auto, &[beat_peers_by(1.1)]),
    latency("64 KiB", MIDDLE, Untouched, Protocol::Auto, &[near_limit(1.3)]),
    latency("1 MiB", LARGE, Untouched, Protocol::Auto, &[near_limit(1.1)]),
    latency("1 MiB w+r", LARGE, WrittenRead, Protocol::Auto, &[]),
    rate(&[]),
    network_stream("1 MiB stream", &[]),
    barrier("barrier, 2 ranks", 2, &[]),
];

/// Rows over UDP. The peers are not encrypted, so QUIC without a library stands beside them.
const UDP_ROWS: &[Row] = &[
    latency("8 B", SMALL, Untouched, Protocol::Auto, &[at_most(1.3, Against::Quinn, Goal::NearLimit)]),
    latency("4 KiB", PAGE, Untouched, Protocol::Auto, &[]),
    latency("64 KiB", MIDDLE, Untouched, Protocol::Auto, &[]),
    latency("1 MiB", LARGE, Untouched, Protocol::Auto, &[]),
    latency("1 MiB w+r", LARGE, WrittenRead, Protocol::Auto, &[]),
    rate(&[]),
    network_stream("1 MiB stream", &[at_least(1.0, Against::Quinn, Goal::NearLimit)]),
    barrier("barrier, 2 ranks", 2, &[]),
];

const MEMORY_ROWS: &[Row] = &[
    latency("8 B", SMALL, Untouched, Protocol::Auto, &SMALL_TARGETS),
    latency("8 B w+r", SMALL, WrittenRead, Protocol::Auto, &SMALL_TARGETS),
    latency("4 KiB", PAGE, Untouched, Protocol::Auto, &[]),
    latency("4 KiB w+r", PAGE, WrittenRead, Protocol::Auto, &[beat_peers_by(0.7)]),
    latency("64 KiB", MIDDLE, Untouched, Protocol::Auto, &[]),
    latency("64 KiB w+r", MIDDLE, WrittenRead, Protocol::Auto, &[beat_peers_by(0.5)]),
    latency(ONE_COPY_MIDDLE, MIDDLE, WrittenRead, ONE_COPY, &[]),
    latency(
        "64 KiB w+r, hand-off",
        MIDDLE,
        WrittenRead,
        Protocol::HandOff,
        &[at_most(1.0, Against::Ours(ONE_COPY_MIDDLE), Goal::NoCopy), beat_peers_by(1.0)],
    ),
    shared_window("64 KiB w+r, MPI window", MIDDLE),
    latency("1 MiB, one copy", LARGE, Untouched, ONE_COPY, &[near_limit(1.3)]),
    latency(ONE_COPY_LARGE, LARGE, WrittenRead, ONE_COPY, &[beat_peers_by(0.4)]),
    latency(
        "1 MiB, hand-off",
        LARGE,
        Untouched,
        Protocol::HandOff,
        &[at_most(1.5, Against::Ours("8 B"), Goal::AnySize)],
    ),
    latency(
        "1 MiB w+r, hand-off",
        LARGE,
        WrittenRead,
        Protocol::HandOff,
        &[at_most(1.0, Against::Ours(ONE_COPY_LARGE), Goal::NoCopy), beat_peers_by(1.0)],
    ),
    shared_window("1 MiB w+r, MPI window", LARGE),
    rate(&[
        at_least(0.5, Against::Floor, Goal::NearLimit),
        at_least(2.0, Against::BestPeer, Goal::BeatPeers),
    ]),
    batches(&[
        at_least(0.5, Against::Floor, Goal::NearLimit),
        at_least(2.0, Against::BestPeer, Goal::BeatPeers),
    ]),
    stream("1 MiB stream", Untouched, &[]),
    stream("1 MiB stream w+r", WrittenRead, &[at_least(2.0, Against::BestPeer, Goal::BeatPeers)]),
    barrier("barrier, 2 ranks", 2, &[]),
    barrier("barrier, 4 ranks", 4, &[near_limit(1.3), beat_peers_by(0.6)]),
    barrier("barrier, 8 ranks", 8, &[near_limit(1.3), beat_peers_by(0.5)]),
    crowd("8 B, 4 ranks at once", 4),
    crowd("8 B, 8 ranks at once", 8),
];

const WINDOW_TARGETS: [Target; 1] = [beat_peers_by(1.0)];
const CROWD_TARGETS: [Target; 1] = [beat_peers_by(0.5)];
const SMALL_TARGETS: [Target; 2] = [near_limit(1.6), beat_peers_by(0.9)];
const ONE_COPY_MIDDLE: &str = "64 KiB w+r, one copy";
const ONE_COPY_LARGE: &str = "1 MiB w+r, one copy";

const fn latency(
    title: &'static str,
    bytes: usize,
    payload: Payload,
    protocol: Protocol,
    targets: &'static [Target],
) -> Row {
    let column = Column { test: PeerTest::Latency, ranks: 2, payload, bytes };
    Row { title, column, ours: Method::Mailbox(protocol), theirs: Method::Send, unit: Unit::Micros, targets }
}

const fn shared_window(title: &'static str, bytes: usize) -> Row {
    Row { theirs: Method::Window, ..latency(title, bytes, WrittenRead, Protocol::HandOff, &WINDOW_TARGETS) }
}

const fn rate(targets: &'static [Target]) -> Row {
    Row {
        title: "8 B rate",
        column: Column { test: PeerTest::Stream, ranks: 2, payload: Untouched, bytes: SMALL },
        ours: Method::Mailbox(Protocol::Auto),
        theirs: Method::Send,
        unit: Unit::Millions,
        targets,
    }
}

/// Row of µDECK's messages by one call for many, beside the peers' messages one by one, because their interfaces have no
/// such call.
const fn batches(targets: &'static [Target]) -> Row {
    Row { title: "8 B rate, in batches", ours: Method::Batches, ..rate(targets) }
}

const fn network_stream(title: &'static str, targets: &'static [Target]) -> Row {
    Row { ours: Method::Mailbox(Protocol::Auto), ..stream(title, Untouched, targets) }
}

const fn stream(title: &'static str, payload: Payload, targets: &'static [Target]) -> Row {
    Row {
        title,
        column: Column { test: PeerTest::Stream, ranks: 2, payload, bytes: LARGE },
        ours: Method::Mailbox(Protocol::HandOff),
        theirs: Method::Send,
        unit: Unit::Gigabytes,
        targets,
    }
}

const fn barrier(title: &'static str, ranks: usize, targets: &'static [Target]) -> Row {
    let column = Column { test: PeerTest::Barrier, ranks, payload: Untouched, bytes: 0 };
    Row { column, ..latency(title, 0, Untouched, Protocol::Auto, targets) }
}

/// Row in which every pair of ranks exchanges messages at once, with more ranks than processors.
const fn crowd(title: &'static str, ranks: usize) -> Row {
    let column = Column { test: PeerTest::Latency, ranks, payload: Untouched, bytes: SMALL };
    Row { column, ..latency(title, SMALL, Untouched, Protocol::Auto, &CROWD_TARGETS) }
}

const fn at_most(ratio: f64, against: Against, goal: Goal) -> Target {
    Target { against, bound: Bound::AtMost(ratio), goal }
}

const fn at_least(ratio: f64, against: Against, goal: Goal) -> Target {
    Target { against, bound: Bound::AtLeast(ratio), goal }
}

const fn near_limit(ratio: f64) -> Target {
    at_most(ratio, Against::Limit, Goal::NearLimit)
}

const fn beat_peers_by(ratio: f64) -> Target {
    at_most(ratio, Against::BestPeer, Goal::BeatPeers)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::named::Named;

    const SETTINGS: [Setting; 4] =
        [Setting::Memory, Setting::Network("tcp"), Setting::Network("udp"), Setting::Groups];

    #[test]
    fn rows_have_titles_of_their_own_and_targets_name_rows() {
        for rows in SETTINGS.map(Setting::rows) {
            let titles: HashSet<&str> = rows.iter().map(|row| row.title).collect();
            assert_eq!(titles.len(), rows.len());
            for target in rows.iter().flat_map(|row| row.targets) {
                if let Against::Ours(title) = target.against {
                    assert!(titles.contains(title), "{title}");
                }
            }
        }
    }

    #[test]
    fn times_have_upper_bounds_and_rates_lower_ones() {
        for row in SETTINGS.iter().flat_map(|setting| setting.rows()) {
            let upper = |target: &Target| matches!(target.bound, Bound::AtMost(_));
            assert!(
                row.targets.iter().all(|target| upper(target) == (row.unit == Unit::Micros)),
                "{}",
                row.title
            );
        }
    }

    #[test]
    fn the_book_explains_every_goal() {
        let book = include_str!("../../../../docs/measuring.md");
        let goals = book.split("\n## ").find(|section| section.starts_with("Goals\n")).expect("a section");
        for row in SETTINGS.iter().flat_map(|setting| setting.rows()) {
            for target in row.targets {
                let name = target.goal.name();
                assert!(goals.contains(&format!("| `{name}` |")), "{}: {name}", row.title);
            }
        }
    }

    #[test]
    fn jobs_have_two_four_and_eight_ranks() {
        assert_eq!(Setting::Memory.job_sizes(), [2, 4, 8]);
        assert_eq!(Setting::Groups.job_sizes(), [2, 4, 8]);
        assert_eq!(Setting::Network("tcp").job_sizes(), [2]);
    }
}
