//! NICs for the tests of the suite, plain and wrapped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use udeck_conformance::{Fabric, Options};
use udeck_faults::{Interpose, wrapped};
use udeck_sys::reactor::Reactor;
use udeck_via::Nic;

/// Shared memory, unwrapped.
pub struct PlainShm;

impl Fabric for PlainShm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn open(&self, options: &Options) -> Nic {
        let reactor = Arc::new(Reactor::start("broken").expect("a thread"));
        let Options { keys, arena_limit, .. } = options.clone();
        udeck_shm::open(udeck_shm::Options { keys, arena_limit, arenas: None, trusting: true }, reactor)
            .expect("the NIC opens")
    }
}

/// The simulated fabric with perfect links, unwrapped.
pub struct PlainSim {
    fabric: udeck_sim::Fabric,
    opened: AtomicU64,
}

impl PlainSim {
    pub fn new() -> Self {
        PlainSim { fabric: udeck_sim::Fabric::new(1), opened: AtomicU64::new(0) }
    }
}

impl Fabric for PlainSim {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn open(&self, options: &Options) -> Nic {
        let name = format!("nic{}", self.opened.fetch_add(1, Ordering::Relaxed));
        let Options { keys, arena_limit, .. } = options.clone();
        let options = udeck_sim::Options { keys, arena_limit, ..udeck_sim::Options::default() };
        self.fabric.nic(&name, options).expect("the NIC opens")
    }
}

/// The NICs of another fabric, each with a wrapper around it.
pub struct Wrapping<'a, F> {
    name: &'static str,
    inner: &'a dyn Fabric,
    interpose: F,
}

impl<'a, I: Interpose + 'static, F: Fn() -> I + Sync> Wrapping<'a, F> {
    pub fn new(name: &'static str, inner: &'a dyn Fabric, interpose: F) -> Self {
        Wrapping { name, inner, interpose }
    }
}

impl<I: Interpose + 'static, F: Fn() -> I + Sync> Fabric for Wrapping<'_, F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&self, options: &Options) -> Nic {
        wrapped(&self.inner.open(options), (self.interpose)())
    }
}
