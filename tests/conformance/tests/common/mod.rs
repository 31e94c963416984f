//! What the programs of several transports share.

use std::sync::Arc;

use udeck_conformance::Options;
use udeck_sys::reactor::Reactor;
use udeck_via::Nic;

/// A shared-memory NIC, by itself or for a network NIC to share its memory.
pub fn shm(options: &Options, trusting: bool) -> Nic {
    let reactor = Arc::new(Reactor::start("conformance").expect("a thread"));
    let Options { keys, arena_limit, .. } = options.clone();
    let options = udeck_shm::Options { arena_limit, trusting, ..udeck_shm::Options::new(keys) };
    udeck_shm::open(options, reactor).expect("the NIC opens")
}
