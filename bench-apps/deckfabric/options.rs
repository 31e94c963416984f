//! The command line.

use clap::{Parser, Subcommand, ValueEnum, ValueHint, builder::RangedU64ValueParser};
use std::path::PathBuf;
use udeck_cli::Generate;

use crate::input::MOST_CYCLES;

const MORE: &str = "\
Examples:
  deckfabric run --example=hot-spot > hot-spot.toml
                                a scenario to begin with: its comments say what can be in one
  deckfabric run hot-spot.toml  latencies, throughput and drops, by scheme, load and class
  deckfabric run hot-spot.toml --format csv > hot-spot.csv
                                the same for programs
  deckqos admit --example=chapter-6 | deckfabric play -
                                connections that are admitted, with the tables that they got: none is late
  deckfabric papers -o papers.html
                                the literature's figures beside ours; --quick for seconds
  deckfabric topologies         networks: hosts, links, distances, what they can carry

Environment:
  DECK_...  none is read: they are settings of jobs

Exit code:
  0  there is an answer
  1  a run came to a stop, or something that must hold does not: standard error says which
  2  a file or an option is wrong";

/// Simulates networks of switches: virtual lanes, credits, arbitration tables, congestion control.
///
/// A scenario is a TOML file: a topology, what switches are like, and traffic. Time is counted in cycles, in each of which a link moves a
/// flit of 64 bytes. The same file and seed give the same figures on every machine.
#[derive(Clone, Debug, Parser)]
#[command(name = "deckfabric", version, after_help = MORE, max_term_width = 100, arg_required_else_help = true)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub generate: Generate,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Run a scenario, and print what arrived, how long it took and what was dropped
    Run {
        /// The scenario; - is standard input
        #[arg(value_hint = ValueHint::FilePath, required_unless_present = "example")]
        file: Option<PathBuf>,
        /// Print a scenario to begin with
        #[arg(long, value_enum, value_name = "NAME", num_args = 0..=1, require_equals = true, conflicts_with = "file",
              default_missing_value = "uniform")]
        example: Option<Example>,
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
        /// Seed that replaces the scenario's
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Play connections that `deckqos admit` admits, and print delays, jitter, and the use of ports
    ///
    /// The file is that of `deckqos admit`, or its answer (`--format toml`). Each admitted connection sends packets of the MTU at its
    /// bandwidth, and each port has the table of its connections. A cycle is the time of 16 bytes on a link.
    Play {
        /// The network and its connections; - is standard input
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Cycles before the measurement
        #[arg(long, default_value_t = 80_000, value_parser = RangedU64ValueParser::<u64>::new().range(..=MOST_CYCLES))]
        warm_up: u64,
        /// Cycles of the measurement
        #[arg(long, default_value_t = 200_000, value_parser = RangedU64ValueParser::<u64>::new().range(1..=MOST_CYCLES))]
        measured: u64,
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
    /// Repeat what the literature has published, and print its figures beside what comes out here
    ///
    /// Admission and deadlines of InfiniBand's tables (Alfaro), shares, throughput and times of tables with deficits (DTable), and a
    /// dragonfly with a hot spot under ECN, SRP, SMSRP and LHRP (Jiang, Dennison, Dally). Each part states what it reduces. Orderings
    /// that must hold are checked.
    Papers {
        /// Small networks, in seconds
        #[arg(long)]
        quick: bool,
        /// Only the parts whose titles contain this, for example "Ten levels" or "Alfaro"
        #[arg(long, value_name = "TEXT", default_value = "")]
        only: String,
        /// Write a page for a browser, with curves
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Print facts on networks: those of the literature, or that of a scenario
    Topologies {
        /// A scenario
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Example {
    /// All send to all, over a torus, at several loads
    Uniform,
    /// 60 send to 4 of 1,056, under each scheme of congestion control
    HotSpot,
    /// Five classes with shares in a table
    Classes,
    /// Hierarchical switches in a torus with trunks, under SBT
    OmniPath,
    /// Long and short messages, a permutation, and bursts
    Mix,
    /// NAS FT's transpose over 1,024 ranks
    Transpose,
    /// 255 ranks post to one mailbox, by the library under incast control
    Incast,
    /// A trace in the format VEF3 or VEF2
    Trace,
    /// Trace that the example `trace` replays
    Vef,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs
    Json,
    /// For spreadsheets
    Csv,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn a_scenario_is_a_file_or_an_example() {
        for good in [&["run", "a"][..], &["run", "--example"], &["run", "--example=mix"], &["topologies"]] {
            assert!(Options::try_parse_from([&["deckfabric"], good].concat()).is_ok(), "{good:?}");
        }
        for bad in [&["run"][..], &["run", "a", "--example"], &[], &["run", "a", "--seed", "-1"]] {
            assert!(Options::try_parse_from([&["deckfabric"], bad].concat()).is_err(), "{bad:?}");
        }
    }
}
