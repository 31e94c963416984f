//! The UDP NIC: opening it, and its part of `Network`.

#![allow(unsafe_code, reason = "it implements the transport contract")]

use std::sync::Arc;

use udeck_session::admission::{MAX_DISCRIMINATOR, MAX_PRIVATE};
use udeck_session::{
    Driver, Listeners, Memory, Network, SessionDevice, Windows, address, start_order_thread,
};
use udeck_via::transport::{Connected, Hello, Queues, Waiter};
use udeck_via::{Caps, Deadline, Error, NetAddress, Result};

use crate::connect::connect;
use crate::core::{Core, ViLink};
use crate::helper;
use crate::options::Options;
use crate::path_mtu;
use crate::socket::Socket;
use crate::waiter::QuicWaiter;

/// Longest message in bytes: a fragment has 32 bits for its offset, and a header counts.
const LONGEST: usize = u32::MAX as usize - 63;

/// The UDP NIC of a process.
pub type QuicDevice = SessionDevice<Core>;

pub fn open(options: &Options) -> Result<Arc<QuicDevice>> {
    address::check_bind(options.bind)?;
    path_mtu::check_interface(options.bind)?;
    let memory = options.memory.open()?;
    let max_transfer = memory.outbox.usage().limit.min(LONGEST);
    let (socket, at) = Socket::bind(options.bind)
        .map_err(|error| Error::os(format!("opening a socket at {}", options.bind), error))?;
    let mut attributes = udeck_session::attributes("udp0", at, max_transfer);
    attributes.identity = options.keys.rank();
    attributes.encrypted = true;
    attributes.max_discriminator = MAX_DISCRIMINATOR;
    attributes.max_private_data = MAX_PRIVATE;
    attributes.shares_receive_buffer = true;
    if options.levels.is_some() {
        attributes.caps = attributes.caps | Caps::SERVICE_LEVELS;
    }
    let core = Core::new(options, memory, max_transfer, (socket, at))
        .map_err(|error| Error::os("opening a NIC's bell, or making its key", error))?;
    let device = SessionDevice::new(attributes, core.clone());
    start_order_thread(&core, "udp-order")
        .map_err(|error| Error::os("starting a NIC's thread that orders", error))?;
    helper::start(core).map_err(|error| Error::os("starting a NIC's helper thread", error))?;
    Ok(device)
}

// SAFETY: memory and windows are fields that are set once, and `Core::establish` gives them to each connection;
// nothing else of this crate writes the arenas, and `open` gives out the NIC only.
unsafe impl Network for Core {
    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn windows(&self) -> &Windows {
        &self.windows
    }

    fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    fn waiter(self: &Arc<Self>) -> Result<Box<dyn Waiter>> {
        Ok(Box::new(QuicWaiter::open(self)?))
    }

    fn connect(
        self: &Arc<Self>,
        to: &NetAddress,
        peer: Option<u32>,
        hello: &Hello,
        queues: Queues<'_>,
        deadline: Deadline,
    ) -> Result<Connected> {
        connect(self, to, peer, hello, &queues, deadline)
    }

    /// Polls: a buffer is free again when QUIC has its bytes, and acknowledgements make room for them in QUIC.
    fn reclaim(self: &Arc<Self>) {
        self.progress_all();
    }

    fn undelivered(self: &Arc<Self>) -> usize {
        self.progress_all();
        let is_done = |link: &ViLink| link.with(|connection, driver| driver.is_done(connection));
        self.links().iter().filter(|link| !is_done(link)).count()
    }

    fn messages_dropped(&self) -> u64 {
        self.dropped.messages()
    }

    fn close(&self) {
        self.shut();
    }
}
