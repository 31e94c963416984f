//! The command line.

use crate::classes::Class;
use clap::{Parser, ValueEnum};
use udeck::Protocol;
use udeck::exchange::{self, Step};

/// The NAS FT benchmark (NPB 3.3): a 3-D FFT whose transposes go through µDECK's mailboxes.
///
/// Run it alone, or with `deckrun -n N nas-ft` on N ranks (a power of two). Exits with 1 if the checksums are
/// not NPB's.
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Options {
    /// The problem's size
    #[arg(long, value_enum, ignore_case = true, default_value = "S")]
    pub class: Class,
    /// In which order ranks exchange their blocks
    #[arg(long, value_enum, default_value = "tournament")]
    pub order: Order,
    /// How blocks travel: auto, eager, copy, rdma-write or hand-off
    #[arg(long, default_value = "auto")]
    pub protocol: Protocol,
    /// The diffusion coefficient; the reference checksums are for NPB's own
    #[arg(long, default_value_t = 1e-6)]
    pub alpha: f64,
    /// Print also where rank 0's time went
    #[arg(long)]
    pub profile: bool,
}

/// One of the library's deadlock-free orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// The DECK/VIA thesis's rule: rows, then columns
    Triangle,
    /// Perfect rounds
    Tournament,
    /// Partners by exclusive or
    Hypercube,
}

impl Order {
    /// The steps of `rank`. FT runs on powers of two only, which every order serves.
    pub fn steps(self, rank: usize, ranks: usize) -> Vec<Step> {
        match self {
            Self::Triangle => exchange::triangle(rank, ranks).collect(),
            Self::Tournament => exchange::tournament(rank, ranks).collect(),
            Self::Hypercube => exchange::hypercube(rank, ranks).into_iter().flatten().collect(),
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
    fn defaults_are_npbs_and_classes_go_by_either_case() {
        let defaults = Options::parse_from(["nas-ft"]);
        assert_eq!((defaults.class, defaults.order), (Class::S, Order::Tournament));
        assert_eq!((defaults.protocol, defaults.alpha), (Protocol::Auto, 1e-6));
        let lower = Options::parse_from(["nas-ft", "--class", "b", "--protocol", "hand-off"]);
        assert_eq!((lower.class, lower.protocol), (Class::B, Protocol::HandOff));
        assert!(Options::try_parse_from(["nas-ft", "--class", "Z"]).is_err());
        assert!(Options::try_parse_from(["nas-ft", "--protocol", "pigeon"]).is_err());
    }

    #[test]
    fn every_order_meets_every_peer_on_every_power_of_two() {
        for ranks in [1, 2, 4, 8] {
            for order in Order::value_variants() {
                for rank in 0..ranks {
                    let mut peers: Vec<_> = order.steps(rank, ranks).iter().map(|step| step.peer).collect();
                    peers.sort_unstable();
                    peers.dedup();
                    assert!(peers.into_iter().eq((0..ranks).filter(|peer| *peer != rank)));
                }
            }
        }
    }
}
