//! How a NIC is opened.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use udeck_session::Memory;
use udeck_via::Result;
use udeck_via::auth::Keys;

use crate::settings::Settings;

/// How to open the device.
#[derive(Debug, Clone)]
pub struct Options {
    /// What this process proves by that it is of the job, and which of its ranks: only who does is let in.
    pub keys: Keys,
    /// Where messages are sent from, and where peers write.
    pub memory: Source,
    /// The address that it is asked for connections at: of one interface, never of all. Port 0: a free one. Of a device's
    /// addresses, the one that this is belongs to is used.
    pub bind: SocketAddr,
    /// How long a peer's host may be silent before it is taken for dead; from two seconds on.
    pub detect: Duration,
    /// Which device, and how.
    pub settings: Settings,
}

/// Where a NIC's memory comes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// Its own: so many bytes of address space for messages, and as many that peers may write.
    Fresh(usize),
    /// That of another NIC of this process ([`Memory::of`]): a block can be posted by both.
    Shared(Memory),
}

impl Options {
    /// Within this host, with memory of its own (1 GiB of address space each way) and the environment's settings; a silent
    /// host is dead after ten seconds.
    ///
    /// # Errors
    /// [`udeck_via::Error::InvalidParameter`] names a variable that makes no sense.
    pub fn new(keys: impl Into<Keys>) -> Result<Self> {
        Ok(Options {
            keys: keys.into(),
            memory: Source::Fresh(1 << 30),
            bind: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
            detect: Duration::from_secs(10),
            settings: Settings::from_env()?,
        })
    }
}
