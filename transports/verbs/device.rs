//! The verbs NIC.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use udeck_session::admission::{Admission, MAX_DISCRIMINATOR, MAX_PRIVATE, Protocol};
use udeck_session::completion_queue::{MAX_COMPLETION_QUEUES, QUEUES};
use udeck_session::{Memory, address};
use udeck_via::transport::{
    Connected, DROP_DELIVERY_TIMEOUT, Device, Hello, OnRequest, Owner, Queues, Waiter, wait_for_delivery,
};
use udeck_via::{Arena, Caps, Deadline, Error, MemHandle, NetAddress, NicAttributes, Ptag, Result, Rights};

use crate::completion_queue::take_slots;
use crate::connect_method::{self, ConnectMethod};
use crate::connection::MESSAGES;
use crate::core::{AgreedConnection, Core};
use crate::hca::Hca;
use crate::helper;
use crate::oob::{Oob, Word};
use crate::options::{Options, Source};
use crate::queue::elements;
use crate::waiter::VerbsWaiter;
use crate::wire::{MAX_HEAD, PARTS, VERSION};

const PROTOCOL: Protocol = Protocol::new("verbs", VERSION);
/// Upper bound of the segments in one post, if the device takes so many elements in a request: each segment may
/// cross a bound between chunks of the outbox.
const SEGMENTS: usize = 4;
/// Upper bound of the exposed windows.
const WINDOWS: usize = 1 << 14;
/// Longest message in bytes: each of its segments may begin and end inside a chunk of the outbox.
const LONGEST: usize = (PARTS - 2 * SEGMENTS) * udeck_sys::segment::CHUNK;

/// The verbs NIC of a process.
pub struct VerbsDevice {
    attributes: NicAttributes,
    core: Arc<Core>,
}

impl VerbsDevice {
    pub fn open(options: Options) -> Result<Arc<Self>> {
        address::check_bind(options.bind)?;
        let Options { keys, memory, bind, detect, settings } = options;
        connect_method::check(&settings)?;
        let hca = Hca::open(&settings, bind.ip())?;
        let connect_method =
            ConnectMethod::open(&settings, &hca, bind).map_err(|why| hca.unusable(&settings, &why))?;
        let memory = match memory {
            Source::Shared(memory) => memory,
            Source::Fresh(limit) => Memory::fresh(limit).map_err(|error| {
                Error::os(format!("reserving {limit} bytes of address space, twice"), error)
            })?,
        };
        let withdrawal = Word::Done.encode();
        let admission = Admission { keys, protocol: PROTOCOL, detect, withdrawal };
        let listener = admission.listen(bind)?;
        let max_transfer = memory.outbox.usage().limit.min(LONGEST);
        let windows = WINDOWS.min(hca.attributes.max_mr.max(2) as usize / 2);
        let mut attributes = NicAttributes::new("verbs0");
        let levels = Caps::UNRELIABLE | Caps::RELIABLE_DELIVERY | Caps::RELIABLE_RECEPTION;
        attributes.address = address::encode(listener.address());
        attributes.identity = admission.keys.rank();
        // The network orders packets by the levels with which the NIC marks them.
        attributes.caps = Caps::RDMA_WRITE | Caps::RDMA_READ | Caps::SERVICE_LEVELS | levels;
        attributes.max_descriptors_per_queue = MESSAGES as usize;
        attributes.max_segments = (elements(&hca.attributes) as usize / 2).clamp(1, SEGMENTS);
        attributes.max_transfer = max_transfer;
        attributes.max_inline = MAX_HEAD;
        attributes.max_head = MAX_HEAD;
        attributes.max_windows = windows;
        attributes.max_discriminator = MAX_DISCRIMINATOR;
        attributes.max_private_data = MAX_PRIVATE;
        attributes.max_queues_per_cq = QUEUES;
        attributes.max_cq = MAX_COMPLETION_QUEUES;
        attributes.max_cq_entries = QUEUES;
        let core = Core::new(hca, connect_method, settings, admission, memory, windows, max_transfer)
            .map_err(|error| Error::os("opening a NIC's descriptors", error))?;
        let device = Arc::new(VerbsDevice { attributes, core: core.clone() });
        helper::start(core, listener).map_err(|error| Error::os("starting a NIC's helper thread", error))?;
        Ok(device)
    }
}

// SAFETY: the arenas are fixed when the NIC opens. Peers' devices access the landing arena by regions that `Windows`
// registers for exposed memory, with its rights, and deregisters when it is revoked; the outbox by those for shared
// memory, and by regions that they can only read. Our requests access blocks of the outbox, for which a connection
// made them, and the targets with which a read was posted. Ports keep the rest. `open` gives out the NIC only.
unsafe impl Device for VerbsDevice {
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
        self.core.windows.expose(offset, len, ptag, rights, false)
    }

    fn expose_outbox(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.core.windows.expose(offset, len, ptag, Rights::READ, true)
    }

    /// Revokes a window. Waits only until the device has ended its access there.
    fn revoke(&self, handle: MemHandle, _: Deadline) -> Result {
        self.core.windows.revoke(handle);
        Ok(())
    }

    fn revoke_later(&self, handle: MemHandle, memory: Owner) {
        self.core.windows.revoke_later(handle, memory);
    }

    fn waiter(&self) -> Result<Box<dyn Waiter>> {
        Ok(Box::new(VerbsWaiter::open(&self.core)?))
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
        peer: Option<u32>,
        hello: &Hello,
        queues: Queues<'_>,
        deadline: Deadline,
    ) -> Result<Connected> {
        let core = &self.core;
        let slots = take_slots(core, &queues)?;
        let (number, mut queue) = core.queue(hello)?;
        queue.set_level(queues.level);
        let until = queues.until(deadline);
        let admitted = core.admission.call(to, peer, hello, &core.parameters(&queue), &until)?;
        if let Err(error) = core.meet(number, &mut queue, &admitted.parameters, deadline) {
            // The peer waits for us, and learns here why we do not come.
            Oob::new(admitted.socket).send(&Word::Broken(error.to_string()));
            return Err(error);
        }
        let theirs = admitted.theirs.clone();
        let made = AgreedConnection { number, queue, admitted, ours: hello, requested: true };
        Ok((core.establish(made, slots, &queues)?, theirs))
    }

    /// Takes completions: buffers of sends are given back when the sends have left.
    fn reclaim(&self) {
        self.core.completions.poll();
    }

    fn reclaim_recent(&self) {}

    /// Number of links with undelivered messages. If this process ends, its device forgets unsent messages, and
    /// peers can no longer read its memory.
    fn undelivered(&self) -> usize {
        self.core.completions.poll();
        self.core.completions.links().iter().filter(|link| !link.is_done()).count()
    }

    fn bytes_copied(&self) -> u64 {
        self.core.memory.copied()
    }

    fn messages_dropped(&self) -> u64 {
        self.core.dropped.load(Ordering::Relaxed)
    }

    fn failure(&self) -> Option<String> {
        self.core.listeners.failure().cloned()
    }

    fn count_copied(&self, bytes: usize) {
        self.core.memory.count_copied(bytes);
    }
}

impl Drop for VerbsDevice {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        wait_for_delivery(|| self.undelivered(), Deadline::after(DROP_DELIVERY_TIMEOUT));
        self.core.close();
    }
}

impl fmt::Debug for VerbsDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = String::from_utf8_lossy(&self.attributes.address);
        write!(f, "VerbsDevice({address}, {:?})", self.core)
    }
}
