//! The NIC.

use std::fmt;
use std::sync::Arc;

use udeck_via::transport::{Connected, Device, Hello, OnRequest, Owner, Queues, Waiter};
use udeck_via::{Arena, Caps, Deadline, Error, MemHandle, NetAddress, NicAttributes, Ptag, Result, Rights};
use udeck_wired::admission::{Admission, MAX_DISCRIMINATOR, MAX_PRIVATE};
use udeck_wired::station::{QUEUES, STATIONS};
use udeck_wired::{Memory, Side, address};

use crate::core::{Core, PROTOCOL};
use crate::station::take_seats;
use crate::waiter::TcpWaiter;
use crate::{Options, Source, helper};

/// The TCP NIC of a process.
pub struct TcpDevice {
    attributes: NicAttributes,
    core: Arc<Core>,
}

impl TcpDevice {
    pub fn open(options: Options) -> Result<Arc<Self>> {
        address::check_bind(options.bind)?;
        let memory = match options.memory {
            Source::Shared(memory) => memory,
            Source::Fresh(limit) => Memory::fresh(limit).map_err(|error| {
                Error::os(format!("reserving {limit} bytes of address space, twice"), error)
            })?,
        };
        let max_transfer = memory.outbox.usage().limit;
        let Options { secret, detect, .. } = options;
        let admission = Admission { secret, protocol: PROTOCOL, detect };
        let door = admission.listen(options.bind)?;
        let at = door.address();
        let core = Core::new(admission, memory, max_transfer)
            .map_err(|error| Error::os("opening a NIC's epoll", error))?;
        let mut attributes = NicAttributes::new("tcp0");
        udeck_wired::limit(&mut attributes, max_transfer);
        let levels = Caps::UNRELIABLE | Caps::RELIABLE_DELIVERY | Caps::RELIABLE_RECEPTION;
        attributes.address = address::encode(at);
        attributes.caps = Caps::RDMA_WRITE | Caps::RDMA_READ | levels;
        attributes.max_discriminator = MAX_DISCRIMINATOR;
        attributes.max_private_data = MAX_PRIVATE;
        attributes.max_queues_per_cq = QUEUES;
        attributes.max_cq = STATIONS;
        attributes.max_cq_entries = QUEUES;
        let device = Arc::new(TcpDevice { attributes, core: core.clone() });
        helper::start(core, door).map_err(|error| Error::os("starting a NIC's helper thread", error))?;
        Ok(device)
    }
}

// SAFETY: the arenas are fixed when it opens; peers' bytes go to the landing arena by a window that `Windows` lists, to
// blocks of the outbox that a connection made for them, and to what a read was posted with; `Windows` tells when nobody is
// inside. Ports are `udeck-wired`'s, which keep the rest. `open` gives out the NIC only.
unsafe impl Device for TcpDevice {
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
        Ok(Box::new(TcpWaiter::open(&self.core)?))
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
        let seats = take_seats(&self.core, &queues)?;
        let admitted = self.core.admission.call(to, hello, &[], deadline)?;
        self.core.establish(admitted, hello, Side::Asked, seats, &queues)
    }

    /// What was sent is given back when the kernel has it, by whoever looks at the link.
    fn reclaim(&self) {
        for link in self.core.links() {
            link.try_with(|connection, driver| driver.serve(connection));
        }
    }

    fn reclaim_recent(&self) {}

    fn bytes_copied(&self) -> u64 {
        self.core.memory.copied()
    }

    fn count_copied(&self, bytes: usize) {
        self.core.memory.count_copied(bytes);
    }
}

impl Drop for TcpDevice {
    fn drop(&mut self) {
        self.core.close();
    }
}

impl fmt::Debug for TcpDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpDevice({})", String::from_utf8_lossy(&self.attributes.address))
    }
}
