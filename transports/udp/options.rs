//! Options of a UDP NIC.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use udeck_session::{LEVELS_IN_FLIGHT, Levels, Source};
use udeck_via::auth::Keys;

use crate::dropped::Dropped;

/// Options of [`crate::open`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Keys by which this process proves that it belongs to the job, and which rank it is. Only peers that can do
    /// the same are admitted.
    pub keys: Keys,
    /// Memory of the outbox and of the landing arena.
    pub memory: Source,
    /// Address of the NIC's socket, which peers are given. It is one interface's address, never the wildcard
    /// address. Port 0 takes a free port.
    pub bind: SocketAddr,
    /// How long a peer may be silent before it counts as dead.
    pub detect: Duration,
    /// Longest datagram that is tried to another host, as UDP payload in bytes; QUIC finds out what the path
    /// carries. Within a host the loopback device's MTU counts.
    pub max_datagram: usize,
    /// Shares of the service levels ([`udeck_via::ViAttributes::level`]). With `None` QUIC decides the order.
    pub levels: Option<Levels>,
    /// Upper bound of the bytes in flight over all connections, used where levels have shares. With less, a high
    /// level waits less behind data that were sent before. Below rate times round trip, the link is no longer
    /// filled.
    pub in_flight: usize,
    /// Counters of dropped unreliable messages.
    pub dropped: Arc<Dropped>,
}

impl Options {
    /// Options for use within this host: memory of its own (1 GiB of address space each way); a silent peer counts
    /// as dead after ten seconds; datagrams as long as jumbo frames carry.
    pub fn new(keys: impl Into<Keys>) -> Self {
        Options {
            keys: keys.into(),
            memory: Source::Fresh(1 << 30),
            bind: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            detect: Duration::from_secs(10),
            max_datagram: 8952,
            levels: None,
            in_flight: LEVELS_IN_FLIGHT,
            dropped: Arc::default(),
        }
    }
}
