//! The suite over UDP: within this host, by IPv4, by IPv6 where service levels have shares, and over the memory of another NIC.

mod common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::ExitCode;

use udeck_conformance::{Fabric, Options};
use udeck_udp::{Memory, Source};
use udeck_via::Nic;

struct Udp {
    name: &'static str,
    interface: IpAddr,
    /// Whether it uses the memory of a shared-memory NIC, as in a world that has both.
    shares: bool,
    /// Whether it sends in the order of service levels.
    levels: bool,
}

impl Fabric for Udp {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, options: &Options) -> Nic {
        let mut ours = udeck_udp::Options::new(options.keys.clone());
        ours.bind = SocketAddr::new(self.interface, 0);
        ours.levels = self.levels.then(|| "5:50,0:50".parse().expect("shares"));
        ours.memory = if self.shares {
            Source::Shared(Memory::of(&common::shm(options, true)))
        } else {
            Source::Fresh(options.arena_limit)
        };
        udeck_udp::open(&ours).expect("the NIC opens")
    }
}

fn main() -> ExitCode {
    let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    let udp = Udp { name: "udp", interface: v4, shares: false, levels: false };
    let shares = Udp { name: "udp-shared-memory", interface: v4, shares: true, levels: false };
    let over_v6 = Udp { name: "udp-v6-levels", interface: v6, shares: false, levels: true };
    match UdpSocket::bind((v6, 0)) {
        Ok(_) => udeck_conformance::main(&[&udp, &shares, &over_v6]),
        Err(error) => {
            println!("udp-v6-levels: skipped, no socket can be bound to ::1 here ({error})");
            udeck_conformance::main(&[&udp, &shares])
        }
    }
}
