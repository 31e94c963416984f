//! The only list of transports.

use std::sync::Arc;

use udeck_sys::reactor::Reactor;
use udeck_via::{Error, Nic, Result};

/// The transports of this build, best first.
pub fn transports() -> &'static [&'static str] {
    &["shm", "tcp"]
}

/// Opens a transport's NIC: `shm0`, or `tcp0` within this host. `secret` is the job's: only peers that prove it can connect. `arena`: the bound of
/// its message memory in bytes, each way. `trusting`: see SAFETY.md.
///
/// # Errors
/// [`Error::InvalidParameter`] lists the NICs that exist; otherwise the operating system's.
pub fn open_nic(name: &str, secret: [u8; 32], arena: Option<usize>, trusting: bool) -> Result<Nic> {
    match name {
        "shm0" => {
            let reactor =
                Reactor::start("deck-reactor").map_err(|e| Error::os("starting the reactor's thread", e))?;
            let mut options = udeck_shm::Options::new(secret);
            options.trusting = trusting;
            options.arena_limit = arena.unwrap_or(options.arena_limit);
            udeck_shm::open(options, Arc::new(reactor))
        }
        "tcp0" => {
            let mut options = udeck_tcp::Options::new(secret);
            if let Some(limit) = arena {
                options.memory = udeck_tcp::Source::Fresh(limit);
            }
            udeck_tcp::open(options)
        }
        _ => {
            let nics: Vec<_> = transports().iter().map(|transport| format!("{transport}0")).collect();
            Err(Error::InvalidParameter(format!("no NIC is named {name:?}; there are: {}", nics.join(", "))))
        }
    }
}
