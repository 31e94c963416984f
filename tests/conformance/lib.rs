//! The suite that every transport passes: VIA's promises, tested on any [`Fabric`].
//!
//! # Adding a transport
//! Write `tests/NAME.rs`, with `harness = false` in `Cargo.toml`:
//! ```text
//! struct Tcp;
//! impl Fabric for Tcp {
//!     fn name(&self) -> &'static str { "tcp" }
//!     fn open(&self, options: &Options) -> Nic { udeck_tcp::open(/* ... */).unwrap() }
//! }
//! fn main() -> ExitCode { udeck_conformance::main(&[&Tcp]) }
//! ```
//! No code here names a transport. A case that needs an ability says so ([`Case::needs`]), and is skipped, with
//! the missing [`Caps`] printed, if the NIC lacks it; there is no other reason to skip. A limit of the NIC is
//! read from its attributes.
//!
//! # Adding a case
//! Write a function `fn(&dyn Fabric)` in the file of its topic under `cases/`, and a line in that file's table.
//! The function opens its own NICs, panics when the promise is broken, and waits for events with [`kit::soon`] as
//! a safety net only. Cases run one after another, so that one may count the descriptors of the process.
//!
//! # Rules and the cases that test them
//! [`rules`] lists them, with the cases of each; `cargo test --test shm -- --rules` prints the list.
//!
//! `tests/broken.rs` proves, over NICs that lie (`BrokenPromises` of `udeck-faults`), that the suite notices a broken
//! promise.

pub mod both;
pub mod cases;
pub mod counting;
pub mod kit;
pub mod lent;
pub mod rules;
mod runner;

use udeck_via::auth::Keys;
use udeck_via::{Caps, Nic};

pub use runner::{main, main_of, main_of_one};

/// A transport under test: opens NICs that behave as if they belonged to different processes of a job, all in
/// this process.
pub trait Fabric: Sync {
    /// Name of the transport in the output.
    fn name(&self) -> &'static str;

    /// Opens one more NIC. NICs with keys of the same secret belong to one job.
    fn open(&self, options: &Options) -> Nic;
}

/// A case's options for its NIC.
#[derive(Clone, Debug)]
pub struct Options {
    /// Keys that prove that the NIC belongs to the job, or to which of its ranks.
    pub keys: Keys,
    /// Upper bound in bytes of the memory for messages, and of the memory for windows.
    pub arena_limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { keys: Keys::from([0x5a; 32]), arena_limit: 64 << 20 }
    }
}

/// A promise, and the function that tests it.
#[derive(Clone, Copy)]
pub struct Case {
    /// Name of the file that has the case.
    pub topic: &'static str,
    /// The promise.
    pub name: &'static str,
    /// Abilities without which the promise is not made.
    pub needs: &'static [Caps],
    /// The test, which panics when the promise is broken.
    pub run: fn(&dyn Fabric),
}
