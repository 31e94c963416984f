//! The transports below uDAPL.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use udeck_conformance::{Fabric, Options};
use udeck_via::Nic;

use crate::common;

/// A transport by its name, with the function that opens its NICs.
struct Over(&'static str, fn(&Options) -> Nic);

impl Fabric for Over {
    fn name(&self) -> &'static str {
        self.0
    }

    fn open(&self, options: &Options) -> Nic {
        self.1(options)
    }
}

fn shm(options: &Options) -> Nic {
    common::shm(options, true)
}

fn tcp(options: &Options) -> Nic {
    let mut ours = udeck_tcp::Options::new(options.keys.clone());
    ours.bind = (Ipv4Addr::LOCALHOST, 0).into();
    ours.memory = udeck_tcp::Source::Fresh(options.arena_limit);
    udeck_tcp::open(ours).expect("the NIC opens")
}

fn udp(options: &Options) -> Nic {
    let mut ours = udeck_udp::Options::new(options.keys.clone());
    ours.bind = (Ipv4Addr::LOCALHOST, 0).into();
    ours.memory = udeck_udp::Source::Fresh(options.arena_limit);
    udeck_udp::open(&ours).expect("the NIC opens")
}

/// Runs over each transport.
pub fn with_all(run: impl Fn(&[&dyn Fabric]) -> ExitCode) -> ExitCode {
    run(&[&Over("dat-shm", shm), &Over("dat-tcp", tcp), &Over("dat-udp", udp)])
}
