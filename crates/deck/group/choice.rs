//! Names of the algorithms, and the choice of one.

use std::fmt;
use std::str::FromStr;

/// Algorithm by which the members of a group compute a collective's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every member communicates with each member concerned. On one host it reads the others' data where they
    /// lie.
    Direct,
    /// Along a binomial tree.
    Binomial,
    /// Recursive doubling: in round k with the member at distance 2^k.
    Doubling,
    /// Rabenseifner's algorithm: reduce-scatter by halving, then all-gather by doubling.
    Rabenseifner,
    /// Around a ring, a piece at a time.
    Ring,
    /// Bruck's algorithm: ⌈log2 n⌉ messages, which also carry other members' data.
    Bruck,
    /// One partner after another, each pair in the same round ([`crate::exchange::tournament`]).
    Pairwise,
    /// Within each host, then between one member of each host, then within each host again.
    Hosts,
}

/// An algorithm, and why it is chosen.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AlgorithmChoice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The reason, in words.
    pub why: &'static str,
}

/// The names that `DECK_GROUP` takes, in the order of the variants.
const NAMES: [&str; 8] =
    ["direct", "binomial", "doubling", "rabenseifner", "ring", "bruck", "pairwise", "hosts"];

impl Algorithm {
    pub(crate) const ALL: [Algorithm; 8] = [
        Algorithm::Direct,
        Algorithm::Binomial,
        Algorithm::Doubling,
        Algorithm::Rabenseifner,
        Algorithm::Ring,
        Algorithm::Bruck,
        Algorithm::Pairwise,
        Algorithm::Hosts,
    ];
    pub(crate) const EXPECTED: &str =
        "auto, direct, binomial, doubling, rabenseifner, ring, bruck, pairwise or hosts";

    pub(crate) fn code(self) -> u8 {
        self as u8 + 1
    }

    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.code() == code)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES[*self as usize])
    }
}

impl FromStr for Algorithm {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|algorithm| NAMES[*algorithm as usize] == text).ok_or(())
    }
}

impl fmt::Display for AlgorithmChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.algorithm, self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_setting_takes() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
            assert!(Algorithm::EXPECTED.contains(&algorithm.to_string()));
            assert_eq!(Algorithm::of_code(algorithm.code()), Some(algorithm));
        }
        assert_eq!("fast".parse::<Algorithm>(), Err(()));
    }
}
