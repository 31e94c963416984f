//! How a NIC is opened.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use udeck_session::{LEVELS_IN_FLIGHT, Levels, Source};
use udeck_via::auth::Keys;

use crate::dropped::Dropped;

/// How to open the device.
#[derive(Debug, Clone)]
pub struct Options {
    /// What this process proves by that it is of the job, and which of its ranks: only who does is let in.
    pub keys: Keys,
    /// Where messages are sent from, and where peers write.
    pub memory: Source,
    /// The address of its socket, which peers are given: of one interface, never of all. Port 0: a free one.
    pub bind: SocketAddr,
    /// How long a peer may be silent before it is taken for dead.
    pub detect: Duration,
    /// Longest datagram to try to another host, as UDP payload in bytes; QUIC finds out what the path carries. Within a host
    /// the loopback device's MTU counts.
    pub max_datagram: usize,
    /// The shares of service levels ([`udeck_via::ViAttributes::level`]); `None`: QUIC sends as it likes.
    pub levels: Option<Levels>,
    /// Where levels have shares: bytes that may be in flight at a time, of all connections. Less makes a high level wait less
    /// behind what was sent before; below rate times round trip, the link is not filled any more.
    pub in_flight: usize,
    /// Counts what is dropped of unreliable messages.
    pub dropped: Arc<Dropped>,
}

impl Options {
    /// Within this host, with memory of its own (1 GiB of address space each way); a silent peer is dead after ten seconds;
    /// datagrams as long as jumbo frames carry.
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
