//! The suite over verbs: the devices of this host, or those of the library that `DECK_VERBS_LIBRARY` names; on a host without
//! any, those of the stand-in that cargo has built beside this program (`transports/verbs/standin`).

use std::path::PathBuf;
use std::process::{Command, ExitCode};
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
        Err(error @ Error::Unavailable { .. }) => match standin() {
            Some(library) => over(&library),
            None => {
                println!("verbs: skipped, {error}; and there is no stand-in beside this program");
                ExitCode::SUCCESS
            }
        },
        Err(error) => {
            println!("verbs: the NIC does not open: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The stand-in's library, unless another one was wanted.
fn standin() -> Option<PathBuf> {
    let library = std::env::current_exe().ok()?.with_file_name("libudeck_verbs_standin.so");
    (std::env::var_os("DECK_VERBS_LIBRARY").is_none() && library.exists()).then_some(library)
}

/// Runs this program once more: a process loads one library only.
fn over(library: &PathBuf) -> ExitCode {
    let program = std::env::current_exe().expect("it runs");
    let mut again = Command::new(program);
    again.args(std::env::args_os().skip(1)).env("DECK_VERBS_LIBRARY", library);
    match again.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("verbs: this program cannot be run over the stand-in: {error}");
            ExitCode::FAILURE
        }
    }
}
