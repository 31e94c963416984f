//! The suite that every transport passes: what VIA promises, asked of whatever [`Fabric`] it is given.
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
//! Nothing in here names a transport. A case that needs an ability says so ([`Case::needs`]) and is skipped, with
//! the missing [`Caps`] printed, where the NIC does not have it; nothing else is a reason to skip. A limit of the
//! NIC is read from its attributes.
//!
//! # Adding a case
//! A function `fn(&dyn Fabric)` in the file of its topic under `cases/`, and a line in that file's table. It opens
//! its own NICs, panics when the promise is broken, and waits for events with [`kit::soon`] as a safety net only.
//! Cases run one after another, so that one may count the descriptors of the process.
//!
//! # Rules and the cases that hold transports to them
//! [`rules`] has them one by one, with the cases of each; `cargo test --test shm -- --rules` prints it.
//!
//! That the suite notices when a promise is broken is proved by `tests/broken.rs`, over NICs that lie
//! (`Lies` of `udeck-faults`).

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

/// A transport under test: opens NICs that behave as those of different processes of a job, all in this process.
pub trait Fabric: Sync {
    /// Names the transport in the output.
    fn name(&self) -> &'static str;

    /// Opens one more NIC. NICs with keys of the same secret are of one job.
    fn open(&self, options: &Options) -> Nic;
}

/// How a case wants its NIC.
#[derive(Clone, Debug)]
pub struct Options {
    /// By what it proves to be of the job, or which of its ranks.
    pub keys: Keys,
    /// Bytes of memory that messages may take, and that windows may take.
    pub arena_limit: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { keys: Keys::from([0x5a; 32]), arena_limit: 64 << 20 }
    }
}

/// One promise.
#[derive(Clone, Copy)]
pub struct Case {
    /// The file that it is in.
    pub topic: &'static str,
    /// What is promised.
    pub name: &'static str,
    /// Abilities without which the promise is not made.
    pub needs: &'static [Caps],
    /// Panics when it is broken.
    pub run: fn(&dyn Fabric),
}
