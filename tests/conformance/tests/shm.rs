//! The suite over shared memory: trusting, as jobs run by default, and not.

use std::process::ExitCode;
use std::sync::Arc;

use udeck_conformance::{Fabric, Options};
use udeck_sys::reactor::Reactor;
use udeck_via::Nic;

struct Shm {
    name: &'static str,
    trusting: bool,
}

impl Fabric for Shm {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, options: &Options) -> Nic {
        let reactor = Arc::new(Reactor::start("conformance").expect("a thread"));
        let options = udeck_shm::Options {
            keys: options.keys.clone(),
            arena_limit: options.arena_limit,
            arenas: None,
            trusting: self.trusting,
        };
        udeck_shm::open(options, reactor).expect("the NIC opens")
    }
}

fn main() -> ExitCode {
    udeck_conformance::main(&[
        &Shm { name: "shm", trusting: true },
        &Shm { name: "shm-untrusting", trusting: false },
    ])
}
