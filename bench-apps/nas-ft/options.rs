//! The command line.

use crate::classes::Class;
use crate::layout::LayoutKind;
use clap::{Parser, ValueEnum};
use udeck::Protocol;
use udeck::exchange::{self, Step};
use udeck_cli::Generate;

const MORE: &str = "\
Examples:
  nas-ft                            class S in one process, a second or less
  deckrun -n 4 nas-ft --class A     four ranks on this host
  deckrun --hosts a:8,b:8 nas-ft --class B --profile
                                    16 ranks on two hosts, and where each one's time went
  deckrun -n 8 nas-ft --layout pencil --order group
                                    lines instead of planes, exchanged by a group's all-to-all
  deckrun -n 4 nas-ft --transforms 10
                                    no benchmark: ten transforms there and back, timed and compared

Environment:
  DECK_TRANSPORT  what messages travel over: shm, verbs, tcp, udp
  DECK_...        the ranks have every setting of the library

Exit code:
  0  the checksums are NPB's
  1  they are not
  2  there is no result, and standard error says why; or wrong usage";

/// The NAS FT benchmark (NPB 3.3): a 3-D FFT whose transposes go through µDECK's mailboxes.
///
/// Run it alone, or with `deckrun -n N nas-ft` on N ranks. Slabs take any number up to the smaller of the grid's y and z (64
/// for class S, 32 for W, 128 for A, 256 for B, 512 for C); pencils take more. Work is even if the number divides the grid.
#[derive(Clone, Debug, Parser)]
#[command(name = "nas-ft", version, after_help = MORE, max_term_width = 100)]
pub struct Options {
    /// The problem's size
    #[arg(long, value_enum, ignore_case = true, default_value = "S")]
    pub class: Class,
    /// Division of the grid among the ranks
    #[arg(long, value_enum, default_value = "auto")]
    pub layout: LayoutKind,
    /// Order in which ranks exchange their blocks
    #[arg(long, value_enum, default_value = "tournament")]
    pub order: Order,
    /// Protocol of the blocks: auto, eager, copy, rdma-write, rdma-read, handshake or hand-off
    #[arg(long, default_value = "auto")]
    pub protocol: Protocol,
    /// The diffusion coefficient; the reference checksums are for NPB's own
    #[arg(long, default_value_t = 1e-6)]
    pub alpha: f64,
    /// Run N forward and N inverse transforms instead of the benchmark; time each, and compare the result with the
    /// input
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub transforms: Option<u32>,
    /// Print also the time of each rank's phases, and the speed of its memory
    #[arg(long)]
    pub profile: bool,
    #[command(flatten)]
    pub generate: Generate,
}

/// Order of the exchanges: one of the library's deadlock-free orders, or a collective call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// The DECK/VIA thesis's rule: rows, then columns; any number of ranks
    Triangle,
    /// Perfect rounds; any number of ranks
    Tournament,
    /// Partners by exclusive or; a power of two of ranks only
    Hypercube,
    /// A group's all-to-all, by the protocol that it takes; any number of ranks
    Group,
}

/// Error: the order of exchanges does not suit this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOrder {
    #[error(
        "--order hypercube needs a power of two of ranks in each transpose, and there are {ranks}: take --order tournament or \
         triangle, which serve any number"
    )]
    Ranks { ranks: usize },
    #[error(
        "--order group takes its own protocol: leave out --protocol {protocol}, or take --order tournament"
    )]
    Protocol { protocol: Protocol },
}

impl Order {
    /// Steps of `rank`: one or two with each other rank; none for a collective call.
    pub fn steps(self, rank: usize, ranks: usize) -> Result<Vec<Step>, BadOrder> {
        Ok(match self {
            Self::Triangle => exchange::triangle(rank, ranks).collect(),
            Self::Tournament => exchange::tournament(rank, ranks).collect(),
            Self::Hypercube => exchange::hypercube(rank, ranks).ok_or(BadOrder::Ranks { ranks })?.collect(),
            Self::Group => Vec::new(),
        })
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
    fn defaults_are_npbs_and_classes_go_by_either_case() {
        let defaults = Options::parse_from(["nas-ft"]);
        assert_eq!(
            (defaults.class, defaults.layout, defaults.order),
            (Class::S, LayoutKind::Auto, Order::Tournament)
        );
        assert_eq!((defaults.protocol, defaults.alpha), (Protocol::Auto, 1e-6));
        let lower = Options::parse_from(["nas-ft", "--class", "b", "--protocol", "hand-off"]);
        assert_eq!((lower.class, lower.protocol), (Class::B, Protocol::HandOff));
        assert!(Options::try_parse_from(["nas-ft", "--class", "Z"]).is_err());
        assert!(Options::try_parse_from(["nas-ft", "--protocol", "pigeon"]).is_err());
        assert!(Options::try_parse_from(["nas-ft", "--transforms", "0"]).is_err());
    }

    fn meets_every_peer(order: Order, ranks: usize) {
        for rank in 0..ranks {
            let steps = order.steps(rank, ranks).expect("the order serves this number of ranks");
            let mut peers: Vec<_> = steps.iter().map(|step| step.peer).collect();
            peers.sort_unstable();
            peers.dedup();
            assert!(peers.into_iter().eq((0..ranks).filter(|peer| *peer != rank)), "{order:?} on {ranks}");
        }
    }

    #[test]
    fn triangle_and_tournament_meet_every_peer_on_any_number_of_ranks() {
        for ranks in 1..=9 {
            meets_every_peer(Order::Triangle, ranks);
            meets_every_peer(Order::Tournament, ranks);
        }
    }

    #[test]
    fn hypercube_meets_every_peer_on_powers_of_two_and_refuses_other_numbers() {
        for ranks in [1, 2, 4, 8] {
            meets_every_peer(Order::Hypercube, ranks);
        }
        for ranks in [3, 5, 6, 7, 9] {
            let error = Order::Hypercube.steps(0, ranks).expect_err("no power of two").to_string();
            let parts = ["power of two", &format!("there are {ranks}"), "--order tournament"];
            assert!(parts.into_iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
