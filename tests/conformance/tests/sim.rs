//! The suite over the simulated fabric: with perfect links, links that delay, reorder and duplicate, NICs that
//! copy, and NICs without RDMA read.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use udeck_conformance::{Fabric, Options};
use udeck_sim::{Link, When};
use udeck_via::{Caps, Nic};

struct Sim {
    name: &'static str,
    fabric: udeck_sim::Fabric,
    caps: Caps,
    opened: AtomicU64,
}

impl Sim {
    fn new(name: &'static str, link: Link, caps: Caps) -> Self {
        let fabric = udeck_sim::Fabric::new(1);
        fabric.set_default_link(link);
        Sim { name, fabric, caps, opened: AtomicU64::new(0) }
    }
}

impl Fabric for Sim {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, options: &Options) -> Nic {
        let name = format!("nic{}", self.opened.fetch_add(1, Ordering::Relaxed));
        let Options { keys, arena_limit, .. } = options.clone();
        let options = udeck_sim::Options { keys, arena_limit, caps: self.caps };
        self.fabric.nic(&name, options).expect("the NIC opens")
    }
}

fn main() -> ExitCode {
    let all = udeck_sim::Options::all_caps();
    let wild = Link {
        duplicate: When::Chance(0.1),
        reorder: When::Chance(0.1),
        delay: Duration::from_micros(1)..Duration::from_micros(50),
        ..Link::default()
    };
    udeck_conformance::main(&[
        &Sim::new("sim", Link::default(), all),
        &Sim::new("sim-wild", wild, all),
        &Sim::new("sim-copying", Link::default(), all.without(Caps::HAND_OFF | Caps::RDMA_WRITE)),
        &Sim::new("sim-no-read", Link::default(), all.without(Caps::RDMA_READ)),
    ])
}
