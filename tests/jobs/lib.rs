//! Common code for tests of whole jobs: finds the programs, runs them under a time limit, and looks for leftovers.
//!
//! The tests run the programs that users get, from outside: `cargo xtask test --only jobs` builds them in the
//! release profile and sets their folder in `DECK_BIN_DIR`. Without this variable the tests fail, because a
//! test that skips itself after a wrong set-up would prove nothing.

pub mod holdings;
mod job;
mod leftovers;
pub mod netns;
pub mod pairs;
pub mod soak;
pub mod trace_format;
pub mod traffic;
mod valgrind;

pub use job::{Ended, Job, Running};
pub use valgrind::memcheck;

use std::{
    env,
    path::{Path, PathBuf},
};

/// A program of the project, as built for users.
#[derive(Clone, Debug)]
pub struct Bin(PathBuf);

impl Bin {
    /// The launcher.
    ///
    /// # Panics
    /// This function and the other six panic if the program was not built, and name the command that builds
    /// it.
    #[must_use]
    pub fn deckrun() -> Self {
        Self::find("deckrun")
    }

    /// The latency and bandwidth benchmark.
    #[must_use]
    pub fn deckperf() -> Self {
        Self::find("deckperf")
    }

    /// The NAS FT benchmark.
    #[must_use]
    pub fn nas_ft() -> Self {
        Self::find("nas-ft")
    }

    /// The highly available database.
    #[must_use]
    pub fn hadb() -> Self {
        Self::find("hadb")
    }

    /// The simulator of networks.
    #[must_use]
    pub fn deckfabric() -> Self {
        Self::find("deckfabric")
    }

    /// The planner of arbitration tables.
    #[must_use]
    pub fn deckqos() -> Self {
        Self::find("deckqos")
    }

    /// The example of this name.
    #[must_use]
    pub fn example(name: &str) -> Self {
        Self::find(&format!("examples/{name}"))
    }

    /// Any other program, such as a test's own.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Path of the program.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A job of this program alone: a world of one rank, or a program that starts its ranks itself.
    #[must_use]
    pub fn alone(&self) -> Job {
        Job::new(&self.0)
    }

    /// A job of this program as `ranks` ranks under `deckrun`.
    #[must_use]
    pub fn ranks(&self, ranks: usize) -> Job {
        Job::new(&Self::deckrun().0).arg("-n").arg(ranks.to_string()).arg("--").arg(&self.0)
    }

    fn find(name: &str) -> Self {
        const ADVICE: &str =
            "run these tests by `cargo xtask test --only jobs` (or `kill`), which builds the programs";
        let folder =
            env::var_os("DECK_BIN_DIR").unwrap_or_else(|| panic!("DECK_BIN_DIR is not set: {ADVICE}"));
        let path = Path::new(&folder).join(name);
        assert!(path.is_absolute(), "DECK_BIN_DIR={} is not absolute: {ADVICE}", folder.display());
        assert!(path.is_file(), "no program at {}: {ADVICE}", path.display());
        Self(path)
    }
}
