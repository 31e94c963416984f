//! Options of a verbs NIC.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use udeck_session::Memory;
use udeck_via::Result;
use udeck_via::auth::Keys;

use crate::settings::Settings;

/// Options of [`crate::open`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Keys by which this process proves that it belongs to the job, and which rank it is. Only peers that can do
    /// the same are admitted.
    pub keys: Keys,
    /// Memory of the outbox and of the landing arena.
    pub memory: Source,
    /// Address at which the NIC accepts connection requests. It is one interface's address, never the wildcard
    /// address. Port 0 takes a free port. The address also selects the device's GID that matches it.
    pub bind: SocketAddr,
    /// How long a peer's host may be silent before it counts as dead. At least two seconds.
    pub detect: Duration,
    /// Device, port and address to use, and further settings.
    pub settings: Settings,
}

/// Source of a NIC's memory.
#[derive(Debug, Clone)]
pub enum Source {
    /// Memory of its own: so many bytes of address space for the outbox, and as many for the landing arena.
    Fresh(usize),
    /// Memory of another NIC of this process ([`Memory::of`]), so that a block can be posted by both.
    Shared(Memory),
}

impl Options {
    /// Options for use within this host: memory of its own (1 GiB of address space each way) and the environment's
    /// settings; a silent host counts as dead after ten seconds.
    ///
    /// # Errors
    /// [`udeck_via::Error::InvalidParameter`] names a variable whose value is invalid.
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
