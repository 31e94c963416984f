//! How a NIC is opened.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use udeck_session::{LEVELS_IN_FLIGHT, Levels, Source};
use udeck_via::auth::Keys;

/// How to open the device.
#[derive(Debug, Clone)]
pub struct Options {
    /// What this process proves by that it is of the job, and which of its ranks: only who does is let in.
    pub keys: Keys,
    /// Where messages are sent from, and where peers write.
    pub memory: Source,
    /// The address that it listens at, and that peers are given: of one interface, never of all. Port 0: a free one.
    pub bind: SocketAddr,
    /// How long a peer's host may be silent before it is taken for dead; from two seconds on.
    pub detect: Duration,
    /// The shares of service levels ([`udeck_via::ViAttributes::level`]); `None`: the kernel sends as it likes.
    pub levels: Option<Levels>,
    /// Where levels have shares: bytes that may be in flight at a time, of all connections. Less makes a high level wait less
    /// behind what was sent before; below rate times round trip, the link is not filled any more.
    pub in_flight: usize,
}

impl Options {
    /// Within this host, with memory of its own (1 GiB of address space each way); a silent host is dead after ten seconds.
    pub fn new(keys: impl Into<Keys>) -> Self {
        Options {
            keys: keys.into(),
            memory: Source::Fresh(1 << 30),
            bind: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            detect: Duration::from_secs(10),
            levels: None,
            in_flight: LEVELS_IN_FLIGHT,
        }
    }
}
