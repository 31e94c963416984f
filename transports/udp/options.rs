//! How a NIC is opened.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use udeck_session::Source;
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
            dropped: Arc::default(),
        }
    }
}
