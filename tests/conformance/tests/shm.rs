//! The suite over shared memory: in trusting mode, the default of jobs, and in untrusting mode.

mod common;

use std::process::ExitCode;

use udeck_conformance::{Fabric, Options};
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
        common::shm(options, self.trusting)
    }
}

fn main() -> ExitCode {
    udeck_conformance::main(&[
        &Shm { name: "shm", trusting: true },
        &Shm { name: "shm-untrusting", trusting: false },
    ])
}
