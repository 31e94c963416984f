//! The command line.

use clap::{Parser, Subcommand, ValueEnum, ValueHint, builder::RangedU64ValueParser};
use std::path::PathBuf;
use udeck_cli::{Generate, units};
use udeck_qos::{opensm, vl_arbiter};

const MORE: &str = "\
Examples:
  deckqos plan --example > plan.toml
                                a plan to begin with: its comments say what can be in one
  deckqos plan plan.toml        whether it can be, its tables, and what they promise
  deckqos export plan.toml > qos.conf
                                the tables as lines for OpenSM's options file
  deckqos admit --example > network.toml && deckqos admit network.toml
                                connections along their routes: entries at each hop, longest delay,
                                or who refuses and what would be admitted
  deckqos admit network.toml --format toml | deckfabric play -
                                the admitted ones over a simulated network
  deckqos analyse /etc/opensm/opensm.conf --rate '10 Gb/s'
                                shares and longest waits of tables that are there
  deckqos plan --example=dtable
                                the same for a table with deficits (DTable)

Environment:
  DECK_...  none is read: they are settings of jobs

Exit code:
  0  there is a plan, or an answer
  1  the plan cannot be; standard error says what is missing, and what would fit
  2  a file or an option is wrong";

/// Plans service levels: which lane of a network gets which share, and how long its packets wait.
///
/// A plan is a TOML file: a link, and classes of traffic that have a bandwidth, a latency, both or neither. The classes become
/// InfiniBand's arbitration tables, which OpenSM writes into switches and adapters, or a table with deficits (DTable).
#[derive(Clone, Debug, Parser)]
#[command(name = "deckqos", version, after_help = MORE, max_term_width = 100, arg_required_else_help = true)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub generate: Generate,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Make a plan's tables, and say what they promise
    Plan {
        /// The plan; - is standard input
        #[arg(value_hint = ValueHint::FilePath, required_unless_present = "example")]
        file: Option<PathBuf>,
        /// Print a plan to begin with
        #[arg(long, value_enum, value_name = "KIND", num_args = 0..=1, require_equals = true, conflicts_with = "file",
              default_missing_value = "infiniband")]
        example: Option<Example>,
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
    /// Admit connections along their routes through a network, or say which port refuses, and what would be admitted
    ///
    /// Each connection gets entries in the table of every port of its route. The deadline is from end to end: the longest times at all
    /// hops, by equations (3.1) to (3.3) of Alfaro's thesis, and the time of the links.
    Admit {
        /// The network and its connections; - is standard input
        #[arg(value_hint = ValueHint::FilePath, required_unless_present = "example")]
        file: Option<PathBuf>,
        /// Print a file to begin with
        #[arg(long, value_enum, value_name = "NAME", num_args = 0..=1, require_equals = true, conflicts_with = "file",
              default_missing_value = "connections")]
        example: Option<AdmitExample>,
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: AdmitFormat,
    },
    /// Say what the tables in a file of OpenSM's options promise: shares where all lanes are busy, and longest waits
    Analyse {
        /// The file, for example /etc/opensm/opensm.conf; - is standard input
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Data rate of the link, for example '10 Gb/s'
        #[arg(long, value_parser = units::rate, default_value = "10 Gb/s")]
        rate: u64,
        /// Bytes of the largest packet
        #[arg(long, value_parser = RangedU64ValueParser::<u32>::new().range(256..=4096), default_value = "2048")]
        mtu: u32,
        /// Bytes of the packets by which shares are measured; the largest if not given
        #[arg(long, value_parser = RangedU64ValueParser::<u32>::new().range(1..=4096))]
        packet: Option<u32>,
        /// Turn of the low table when the high one has reached its limit
        #[arg(long, value_enum, default_value = "packet")]
        low_turn: LowTurn,
        /// Ports whose options are read
        #[arg(long, value_enum, default_value = "all")]
        ports: Ports,
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
    },
    /// Write a plan's tables as options of OpenSM, and check them by reading them again
    Export {
        /// The plan; - is standard input
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Ports whose options are written
        #[arg(long, value_enum, default_value = "all")]
        ports: Ports,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Example {
    /// InfiniBand's two tables
    Infiniband,
    /// A table with deficits
    Dtable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AdmitExample {
    /// Connections over a small network, one of which is refused
    Connections,
    /// The ten levels of Alfaro's table 6.2, and random connections until the network is full
    #[value(name = "chapter-6")]
    Chapter6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AdmitFormat {
    /// For people
    Text,
    /// For programs: also each port's table
    Json,
    /// The admitted connections as a file, for `deckfabric play`
    Toml,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LowTurn {
    /// One packet, as InfiniBand's specification has it
    Packet,
    /// A whole entry, as measured on switches
    Entry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ports {
    /// qos_...: all that have no options of their own
    All,
    /// qos_ca_...: adapters
    Ca,
    /// qos_sw0_...: switches' port 0
    Sw0,
    /// qos_swe_...: switches' other ports
    Swe,
    /// qos_rtr_...: routers
    Rtr,
}

impl From<Ports> for opensm::Ports {
    fn from(ports: Ports) -> Self {
        match ports {
            Ports::All => Self::All,
            Ports::Ca => Self::Ca,
            Ports::Sw0 => Self::Switch0,
            Ports::Swe => Self::SwitchExternal,
            Ports::Rtr => Self::Router,
        }
    }
}

impl From<LowTurn> for vl_arbiter::LowTurn {
    fn from(low_turn: LowTurn) -> Self {
        match low_turn {
            LowTurn::Packet => Self::Packet,
            LowTurn::Entry => Self::Entry,
        }
    }
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
    fn a_plan_is_a_file_or_an_example() {
        for good in
            [&["plan", "a"][..], &["plan", "--example"], &["plan", "--example=dtable"], &["plan", "-"]]
        {
            assert!(Options::try_parse_from([&["deckqos"], good].concat()).is_ok(), "{good:?}");
        }
        for bad in [
            &["plan"][..],
            &["plan", "a", "--example"],
            &[],
            &["analyse", "a", "--mtu", "0"],
            &["analyse", "a", "--rate", "nan"],
        ] {
            assert!(Options::try_parse_from([&["deckqos"], bad].concat()).is_err(), "{bad:?}");
        }
    }
}
