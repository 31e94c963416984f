//! Parts that the programs of instruction counts share, and the floor, which `deckperf peers` measures as well.
//!
//! `cargo xtask counts` runs the programs under callgrind: `fast-paths` over shared memory and TCP, `verbs-paths` over verbs
//! beside bare calls of its library, `dat-paths` through uDAPL's calls. The counted functions are in each program's module
//! `counted`.

pub mod floor;
pub mod pair;

/// Result of these programs' functions.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Default of [`rounds`]. One-time work, or work once per lap of a ring, falls below a tenth of an instruction for each
/// run, or is spread evenly.
const ROUNDS: usize = 4096;

/// Number of runs of each path: the program's argument, which tests give, or 4096.
///
/// # Errors
/// The argument is no number.
pub fn rounds() -> Result<usize> {
    Ok(std::env::args().nth(1).map_or(Ok(ROUNDS), |rounds| rounds.parse())?)
}
