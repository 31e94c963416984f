//! The suite over verbs: over the devices of this host, or those of the library that `DECK_VERBS_LIBRARY` names; on a host
//! without any, over those of the stand-in that cargo has built beside this program (`tests/mock-verbs`). Queue pairs are
//! joined by the bootstrap, and through rdma_cm if there is one; and over iWARP if there is a device, as the stand-in has
//! one.

mod common;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use udeck_conformance::{Fabric, Options};
use udeck_verbs::{Connect, Memory, Source};
use udeck_via::{Error, Nic, Result};

struct Verbs {
    name: &'static str,
    /// Whether it uses the memory of a shared-memory NIC, as in a world that has both.
    shares: bool,
    connect: Connect,
    /// Name of the device; otherwise the first one.
    device: Option<&'static str>,
    /// Whether receive buffers are pooled as the environment says; otherwise each connection has buffers of its
    /// own.
    pools: bool,
}

/// The stand-in's devices; the second is an iWARP device.
const DEVICES: &str = "standin0,iwarp0:transport=iwarp";
const IWARP: &str = "iwarp0";
const IWARP_AT: (Ipv4Addr, u16) = (Ipv4Addr::new(127, 0, 0, 2), 0);

impl Verbs {
    fn try_open(&self, options: &Options) -> Result<Nic> {
        let mut ours = udeck_verbs::Options::new(options.keys.clone())?;
        ours.memory = if self.shares {
            Source::Shared(Memory::of(&common::shm(options, true)))
        } else {
            Source::Fresh(options.arena_limit)
        };
        ours.settings.connect = self.connect;
        if !self.pools {
            ours.settings.receives = 0;
        }
        if let Some(device) = self.device {
            ours.settings.device = Some(device.to_owned());
            ours.bind = IWARP_AT.into();
        }
        udeck_verbs::open(ours)
    }

    /// Whether this host has what the fabric needs; if not, the reason is printed.
    fn is_there(&self) -> bool {
        let tried = self.try_open(&Options::default());
        if let Err(error) = &tried {
            println!("{}: skipped, {error}", self.name);
        }
        tried.is_ok()
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

fn main() -> ExitCode {
    let verbs = Verbs { name: "verbs", shares: false, connect: Connect::Auto, device: None, pools: true };
    let own = Verbs { name: "verbs-own-receives", pools: false, ..verbs };
    let shares = Verbs { name: "verbs-shared-memory", shares: true, ..verbs };
    let cm = Verbs { name: "verbs-cm", connect: Connect::Cm, ..verbs };
    let iwarp = Verbs { name: "verbs-iwarp", device: Some(IWARP), ..verbs };
    match verbs.try_open(&Options::default()) {
        Ok(_) => {
            let mut fabrics: Vec<&dyn Fabric> = vec![&verbs, &shares, &own];
            for more in [&cm, &iwarp].into_iter().filter(|more| more.is_there()) {
                fabrics.push(more);
            }
            udeck_conformance::main(&fabrics)
        }
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

/// The stand-in's library, unless the environment names another one.
fn standin() -> Option<PathBuf> {
    let library = std::env::current_exe().ok()?.with_file_name("libudeck_mock_verbs.so");
    (std::env::var_os("DECK_VERBS_LIBRARY").is_none() && library.exists()).then_some(library)
}

/// Runs this program once more with another library: a process loads one library only.
fn over(library: &PathBuf) -> ExitCode {
    let program = std::env::current_exe().expect("it runs");
    let mut again = Command::new(program);
    again.args(std::env::args_os().skip(1)).env("DECK_VERBS_LIBRARY", library);
    again.env("DECK_VERBS_CM_LIBRARY", library).env("STANDIN_DEVICES", DEVICES);
    match again.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            println!("verbs: this program cannot be run over the stand-in: {error}");
            ExitCode::FAILURE
        }
    }
}
