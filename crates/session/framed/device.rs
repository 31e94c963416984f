//! NIC whose VIs' connections are [`crate::Connection`]s, over any network.

#![allow(unsafe_code, reason = "it implements the transport contract")]

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use udeck_via::transport::{
    Connected, DROP_DELIVERY_TIMEOUT, Device, Hello, OnRequest, Owner, Queues, Waiter, wait_for_delivery,
};
use udeck_via::{Arena, Caps, Deadline, Error, MemHandle, NetAddress, NicAttributes, Ptag, Result, Rights};

use crate::completion_queue::{MAX_COMPLETION_QUEUES, QUEUES};
use crate::{Listeners, Memory, Windows, address, limit};

/// State that a NIC's objects share, and the operations that differ by network.
///
/// # Safety
/// [`Network::memory`] and [`Network::windows`] are the same as long as it lives, and every connection of the NIC is made of
/// them ([`crate::Settings`]). So peers' bytes go to three kinds of places only: to the landing arena by a window that is in
/// the table, to blocks of the outbox that a connection made for them, and to segments that a read was posted with; and the
/// table knows when no access is under way. Nobody else writes these arenas. A [`SessionDevice`] of it is handed to
/// [`udeck_via::Nic::new`], and to nobody else.
pub unsafe trait Network: Send + Sync + 'static {
    /// Arenas that messages are sent from, and that peers write.
    fn memory(&self) -> &Memory;

    /// Windows of these arenas that peers reach.
    fn windows(&self) -> &Windows;

    /// Listeners for connection requests.
    fn listeners(&self) -> &Listeners;

    /// Operation of [`Device::waiter`].
    ///
    /// # Errors
    /// Those of [`Device::waiter`].
    fn waiter(self: &Arc<Self>) -> Result<Box<dyn Waiter>>;

    /// Operation of [`Device::connect`]. Blocks until `deadline` at most.
    ///
    /// # Errors
    /// Those of [`Device::connect`].
    fn connect(
        self: &Arc<Self>,
        to: &NetAddress,
        peer: Option<u32>,
        hello: &Hello,
        queues: Queues<'_>,
        deadline: Deadline,
    ) -> Result<Connected>;

    /// Operation of [`Device::reclaim`].
    fn reclaim(self: &Arc<Self>);

    /// Operation of [`Device::undelivered`].
    fn undelivered(self: &Arc<Self>) -> usize;

    /// Operation of [`Device::messages_dropped`].
    fn messages_dropped(&self) -> u64 {
        0
    }

    /// Closes the network: the NIC's last object is gone. Queued frames are still to be sent, then everything is forgotten.
    fn close(&self);
}

/// A NIC of connections over a [`Network`].
pub struct SessionDevice<N: Network> {
    attributes: NicAttributes,
    network: Arc<N>,
}

impl<N: Network> SessionDevice<N> {
    /// The NIC of a network that is ready. When dropped, it [closes](Network::close) the network.
    pub fn new(attributes: NicAttributes, network: Arc<N>) -> Arc<Self> {
        Arc::new(SessionDevice { attributes, network })
    }

    /// The network.
    pub fn network(&self) -> &Arc<N> {
        &self.network
    }
}

/// Attributes of a NIC at `at` whose connections all are [`crate::Connection`]s. The transport sets the limits of
/// discriminators and private data.
pub fn attributes(name: &str, at: SocketAddr, max_transfer: usize) -> NicAttributes {
    let mut attributes = NicAttributes::new(name);
    limit(&mut attributes, max_transfer);
    let levels = Caps::UNRELIABLE | Caps::RELIABLE_DELIVERY | Caps::RELIABLE_RECEPTION;
    attributes.address = address::encode(at);
    attributes.caps = Caps::RDMA_WRITE | Caps::RDMA_READ | levels;
    attributes.max_queues_per_cq = QUEUES;
    attributes.max_cq = MAX_COMPLETION_QUEUES;
    attributes.max_cq_entries = QUEUES;
    attributes
}

/// Source of a NIC's memory.
#[derive(Debug, Clone)]
pub enum Source {
    /// Memory of its own: this many bytes of address space for messages, and as many that peers may write.
    Fresh(usize),
    /// The memory of another NIC of this process ([`Memory::of`]): a block can be posted by both.
    Shared(Memory),
}

impl Source {
    /// Returns the memory.
    ///
    /// # Errors
    /// Errors of the kernel: not so much address space is left.
    pub fn open(&self) -> Result<Memory> {
        match self {
            Source::Shared(memory) => Ok(memory.clone()),
            Source::Fresh(limit) => Memory::fresh(*limit).map_err(|error| {
                Error::os(format!("reserving {limit} bytes of address space, twice"), error)
            }),
        }
    }
}

// SAFETY: the arenas are fixed, and they are written only as `Network` promises. Endpoints are `udeck-session`'s, or promise the
// rest themselves.
unsafe impl<N: Network> Device for SessionDevice<N> {
    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn outbox(&self) -> &Arc<Arena> {
        &self.network.memory().outbox
    }

    fn landing(&self) -> &Arc<Arena> {
        &self.network.memory().landing
    }

    fn expose(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.expose_for(offset, len, ptag, Rights::WRITE)
    }

    fn expose_for(&self, offset: u64, len: usize, ptag: Ptag, rights: Rights) -> Result<MemHandle> {
        self.network.windows().expose(offset, len, ptag, rights)
    }

    fn expose_outbox(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.network.windows().expose_outbox(offset, len, ptag)
    }

    fn revoke(&self, handle: MemHandle, deadline: Deadline) -> Result {
        self.network.windows().revoke(handle, deadline)
    }

    fn revoke_later(&self, handle: MemHandle, memory: Owner) {
        self.network.windows().revoke_later(handle, memory);
    }

    fn waiter(&self) -> Result<Box<dyn Waiter>> {
        self.network.waiter()
    }

    fn listen(&self, discriminator: &[u8], on_request: OnRequest) -> Result {
        self.network.listeners().listen(discriminator, on_request)
    }

    fn unlisten(&self, discriminator: &[u8]) {
        self.network.listeners().unlisten(discriminator);
    }

    fn connect(
        &self,
        to: &NetAddress,
        peer: Option<u32>,
        hello: &Hello,
        queues: Queues<'_>,
        deadline: Deadline,
    ) -> Result<Connected> {
        self.network.connect(to, peer, hello, queues, deadline)
    }

    fn reclaim(&self) {
        self.network.reclaim();
    }

    fn reclaim_recent(&self) {}

    fn undelivered(&self) -> usize {
        self.network.undelivered()
    }

    fn bytes_copied(&self) -> u64 {
        self.network.memory().copied()
    }

    fn messages_dropped(&self) -> u64 {
        self.network.messages_dropped()
    }

    fn failure(&self) -> Option<String> {
        self.network.listeners().failure().cloned()
    }

    fn count_copied(&self, bytes: usize) {
        self.network.memory().count_copied(bytes);
    }
}

impl<N: Network> Drop for SessionDevice<N> {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        wait_for_delivery(|| self.network.undelivered(), Deadline::after(DROP_DELIVERY_TIMEOUT));
        self.network.close();
    }
}

impl<N: Network> fmt::Debug for SessionDevice<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NicAttributes { name, address, .. } = &self.attributes;
        write!(f, "{name}({})", String::from_utf8_lossy(address))
    }
}
