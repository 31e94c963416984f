//! The suite over verbs: the devices of this host, or those of the library that `DECK_VERBS_LIBRARY` names (the stand-in, as
//! `cargo xtask test` builds it). Without either it says why not, and skips.

use std::process::ExitCode;
use std::sync::Arc;

use udeck_conformance::{Fabric, Options};
use udeck_sys::reactor::Reactor;
use udeck_verbs::{Memory, Source};
use udeck_via::{Error, Nic, Result};

struct Verbs {
    name: &'static str,
    /// Over the memory of a shared-memory NIC, as in a world that has both.
    shares: bool,
}

impl Verbs {
    fn try_open(&self, options: &Options) -> Result<Nic> {
        let mut ours = udeck_verbs::Options::new(options.secret)?;
        ours.memory = if self.shares {
            Source::Shared(Memory::of(&shm(options)))
        } else {
            Source::Fresh(options.arena_limit)
        };
        udeck_verbs::open(ours)
    }
}

impl Fabric for Verbs {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, options: &Options) -> Nic {
        self.try_open(options).expect("the NIC opens")
    }
}

fn shm(options: &Options) -> Nic {
    let reactor = Arc::new(Reactor::start("conformance").expect("a thread"));
    let Options { secret, arena_limit, .. } = *options;
    let options = udeck_shm::Options { arena_limit, ..udeck_shm::Options::new(secret) };
    udeck_shm::open(options, reactor).expect("the NIC opens")
}

fn main() -> ExitCode {
    let verbs = Verbs { name: "verbs", shares: false };
    let shares = Verbs { name: "verbs-shared-memory", shares: true };
    match verbs.try_open(&Options::default()) {
        Ok(_) => udeck_conformance::main(&[&verbs, &shares]),
        Err(error @ Error::Unavailable { .. }) => {
            println!("verbs: skipped, {error}; DECK_VERBS_LIBRARY may name the stand-in");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("verbs: the NIC does not open: {error}");
            ExitCode::FAILURE
        }
    }
}
