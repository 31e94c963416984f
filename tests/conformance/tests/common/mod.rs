//! Code that the test programs of several transports share.

use std::sync::Arc;

use udeck_conformance::Options;
use udeck_sys::reactor::Reactor;
use udeck_via::Nic;

/// Opens a shared-memory NIC, used alone or to share its memory with a network NIC.
pub fn shm(options: &Options, trusting: bool) -> Nic {
    let reactor = Arc::new(Reactor::start("suite").expect("a thread"));
    let Options { keys, arena_limit, .. } = options.clone();
    let options = udeck_shm::Options { arena_limit, trusting, ..udeck_shm::Options::new(keys) };
    udeck_shm::open(options, reactor).expect("the NIC opens")
}
