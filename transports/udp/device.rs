//! The NIC.

use std::fmt;
use std::sync::Arc;

use udeck_via::transport::{Connected, Device, Hello, OnRequest, Owner, Queues, Waiter};
use udeck_via::{Arena, Caps, Deadline, Error, MemHandle, NetAddress, NicAttributes, Ptag, Result, Rights};
use udeck_wired::Memory;
use udeck_wired::address;
use udeck_wired::station::{QUEUES, STATIONS};

use crate::calls::connect;
use crate::core::Core;
use crate::socket::Socket;
use crate::waiter::UdpWaiter;
use crate::wire::greeting::{MAX_DISCRIMINATOR, MAX_PRIVATE};
use crate::{Options, Source, helper};

/// The UDP NIC of a process.
pub struct UdpDevice {
    attributes: NicAttributes,
    core: Arc<Core>,
}

impl UdpDevice {
    pub fn open(options: &Options) -> Result<Arc<Self>> {
        address::check_bind(options.bind)?;
        let memory = match &options.memory {
            Source::Shared(memory) => memory.clone(),
            Source::Fresh(limit) => Memory::fresh(*limit).map_err(|error| {
                Error::os(format!("reserving {limit} bytes of address space, twice"), error)
            })?,
        };
        let max_transfer = memory.outbox.usage().limit;
        let (socket, at) = Socket::bind(options.bind)
            .map_err(|error| Error::os(format!("opening a socket at {}", options.bind), error))?;
        let core = Core::new(options, memory, max_transfer, socket)
            .map_err(|error| Error::os("opening a NIC's bell", error))?;
        let mut attributes = NicAttributes::new("udp0");
        udeck_wired::limit(&mut attributes, max_transfer);
        let levels = Caps::UNRELIABLE | Caps::RELIABLE_DELIVERY | Caps::RELIABLE_RECEPTION;
        attributes.address = address::encode(at);
        attributes.caps = Caps::RDMA_WRITE | Caps::RDMA_READ | levels;
        attributes.max_discriminator = MAX_DISCRIMINATOR;
        attributes.max_private_data = MAX_PRIVATE;
        attributes.max_queues_per_cq = QUEUES;
        attributes.max_cq = STATIONS;
        attributes.max_cq_entries = QUEUES;
        let device = Arc::new(UdpDevice { attributes, core: core.clone() });
        helper::start(core).map_err(|error| Error::os("starting a NIC's helper thread", error))?;
        Ok(device)
    }
}

// SAFETY: the arenas are fixed when it opens; peers' bytes go to the landing arena by a window that `Windows` lists, to
// blocks of the outbox that a connection made for them, and to what a read was posted with; `Windows` tells when nobody is
// inside. Ports are `udeck-wired`'s, which keep the rest. `open` gives out the NIC only.
unsafe impl Device for UdpDevice {
    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn outbox(&self) -> &Arc<Arena> {
        &self.core.memory.outbox
    }

    fn landing(&self) -> &Arc<Arena> {
        &self.core.memory.landing
    }

    fn expose(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.expose_for(offset, len, ptag, Rights::WRITE)
    }

    fn expose_for(&self, offset: u64, len: usize, ptag: Ptag, rights: Rights) -> Result<MemHandle> {
        self.core.windows.expose(offset, len, ptag, rights)
    }

    fn share(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.core.windows.share(offset, len, ptag)
    }

    fn conceal(&self, handle: MemHandle, deadline: Deadline) -> Result {
        self.core.windows.conceal(handle, deadline)
    }

    fn conceal_later(&self, handle: MemHandle, memory: Owner) {
        self.core.windows.conceal_later(handle, memory);
    }

    fn waiter(&self) -> Result<Box<dyn Waiter>> {
        Ok(Box::new(UdpWaiter::open(&self.core)?))
    }

    fn listen(&self, discriminator: &[u8], on_request: OnRequest) -> Result {
        self.core.listeners.listen(discriminator, on_request)
    }

    fn unlisten(&self, discriminator: &[u8]) {
        self.core.listeners.unlisten(discriminator);
    }

    fn connect(
        &self,
        to: &NetAddress,
        hello: &Hello,
        queues: Queues<'_>,
        deadline: Deadline,
    ) -> Result<Connected> {
        connect(&self.core, to, hello, &queues, deadline)
    }

    /// What was sent is given back when the peer has it: whoever reads the socket learns that.
    fn reclaim(&self) {
        self.core.serve();
    }

    fn reclaim_recent(&self) {}

    fn bytes_copied(&self) -> u64 {
        self.core.memory.copied()
    }

    fn count_copied(&self, bytes: usize) {
        self.core.memory.count_copied(bytes);
    }
}

impl Drop for UdpDevice {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl fmt::Debug for UdpDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UdpDevice({})", String::from_utf8_lossy(&self.attributes.address))
    }
}
