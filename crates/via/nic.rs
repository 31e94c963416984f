//! NICs: opened transport devices.

use std::sync::Arc;
use std::time::Instant;

use udeck_sys::Deadline;
use udeck_sys::process::is_forked;

use crate::attributes::NicAttributes;
use crate::caps::Caps;
use crate::connection_quota::ConnectionQuota;
use crate::error::{Error, Result};
use crate::mem::{
    Arena, Block, CacheUse, Ptag, Region, Registrar, Rights, StableBuffer, Tags, UserMemory, Window,
};
use crate::report::ErrorSink;
use crate::transport::{Device, wait_for_delivery};

/// An opened transport device. A cheap handle: clones are the same NIC, which closes with its last object.
#[derive(Clone, Debug)]
pub struct Nic {
    device: Arc<dyn Device>,
    tags: Arc<Tags>,
    registrar: Arc<Registrar>,
    error_sink: Arc<ErrorSink>,
    connection_quota: Arc<ConnectionQuota>,
}

impl Nic {
    /// Makes the NIC of a device that a transport has opened. (Programs use `udeck::open_nic("shm0")`, which knows the
    /// transports.)
    pub fn new(device: Arc<dyn Device>) -> Self {
        let registrar = Registrar::new(device.clone());
        let connection_quota = Arc::new(ConnectionQuota::new(device.attributes()));
        Nic { registrar, device, tags: Arc::default(), error_sink: Arc::default(), connection_quota }
    }

    /// Abilities and limits.
    pub fn attributes(&self) -> &NicAttributes {
        self.device.attributes()
    }

    /// Abilities.
    pub fn caps(&self) -> Caps {
        self.attributes().caps
    }

    /// A protection tag that no other memory or VI has (VIA: `VipCreatePtag`). It lives until [`Nic::destroy_ptag`], or
    /// as long as the NIC.
    ///
    /// # Panics
    /// When this process has drawn 2^32 of them.
    pub fn ptag(&self) -> Ptag {
        self.tags.create()
    }

    /// Ends a protection tag (VIA: `VipDestroyPtag`): nothing new can carry it.
    ///
    /// # Errors
    /// [`Error::InUse`] tells how many VIs, regions and windows carry it; [`Error::InvalidPtag`] when this NIC has no
    /// such tag.
    pub fn destroy_ptag(&self, ptag: Ptag) -> Result {
        self.tags.destroy(ptag)
    }

    /// Allocates registered memory, zeroed.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; [`Error::InvalidPtag`] when this NIC has no such tag.
    pub fn region(&self, len: usize, ptag: Ptag) -> Result<Region> {
        Region::new(self, len, ptag)
    }

    /// Makes a region of an existing block: its bytes stay, and [`Region::into_block`] gives it back.
    ///
    /// # Errors
    /// The block comes back with [`Error::InvalidPtag`] when this NIC has no such tag, [`Error::InvalidParameter`] when
    /// it is another NIC's.
    pub fn region_of(&self, block: Block, ptag: Ptag) -> Result<Region, (Error, Block)> {
        Region::of_block(self, block, ptag)
    }

    /// Registers a buffer of the program's (VIA: `VipRegisterMem`): it becomes a region like any other, and
    /// [`Region::into_buffer`] gives it back. May block in the kernel, where the NIC pins memory.
    ///
    /// Where the hardware cannot reach the buffer (on all software NICs), bytes that are sent from it are copied once when
    /// they are posted; received bytes are placed in it directly.
    ///
    /// # Errors
    /// The buffer comes back with [`Error::InvalidPtag`] when this NIC has no such tag; [`Error::Full`] when registrations in
    /// use leave no room, by the NIC's bounds or the kernel's; or the device's.
    pub fn register<B: StableBuffer>(&self, buffer: B, ptag: Ptag) -> Result<Region, (Error, B)> {
        self.register_memory(UserMemory::new(buffer), ptag)
            .map_err(|(error, memory)| (error, memory.into_inner()))
    }

    /// Registers memory that is registered more than once: the registration outlives the region, in a bounded cache, until
    /// the memory is dropped or taken back, or until it is the longest unused when others need the room.
    ///
    /// # Errors
    /// Those of [`Nic::register`].
    #[allow(clippy::result_large_err, reason = "a refused buffer comes back by value; refusals are rare")]
    pub fn register_memory<B: StableBuffer>(
        &self,
        memory: UserMemory<B>,
        ptag: Ptag,
    ) -> Result<Region, (Error, UserMemory<B>)> {
        Region::of(self, memory, ptag)
    }

    /// Ends the registration that the cache keeps of this memory. Returns whether there was one.
    pub fn invalidate<B: StableBuffer>(&self, memory: &UserMemory<B>) -> bool {
        self.registrar.invalidate(memory.identity())
    }

    /// Counts of registrations of the program's own memory.
    pub fn registrations(&self) -> CacheUse {
        self.registrar.usage()
    }

    /// Allocates registered memory that peers connected to VIs of tag `ptag` may RDMA-write.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without RDMA, [`Error::NoMemory`], [`Error::Full`]; [`Error::InvalidPtag`] when this NIC
    /// has no such tag.
    pub fn window(&self, len: usize, ptag: Ptag) -> Result<Window> {
        self.window_for(len, ptag, Rights::WRITE)
    }

    /// Allocates a window, with the rights that peers shall have.
    ///
    /// # Errors
    /// Those of [`Nic::window`]; [`Error::InvalidParameter`] without any rights.
    pub fn window_for(&self, len: usize, ptag: Ptag, rights: Rights) -> Result<Window> {
        rights.check(self.caps())?;
        Window::new(self, len, ptag, rights)
    }

    /// Arena that messages are sent from. (Its usage includes [`Region`]s and [`crate::Block`]s.)
    pub fn outbox(&self) -> &Arc<Arena> {
        self.device.outbox()
    }

    /// Arena that [`Window`]s are cut from.
    pub fn landing(&self) -> &Arc<Arena> {
        self.device.landing()
    }

    /// Collects memory that peers have given back or left, after an arena ran dry. Does not block.
    pub fn reclaim(&self) {
        if is_forked() {
            return;
        }
        self.device.reclaim();
    }

    /// Collects memory as [`Nic::reclaim`] does, from the few peers to whom memory was lent most recently: cheap enough
    /// before every large allocation, so that the same few blocks go to and fro and stay in the caches.
    pub fn reclaim_recent(&self) {
        if is_forked() {
            return;
        }
        self.device.reclaim_recent();
    }

    /// Waits until everything that was posted on this NIC's connections, also by VIs that are gone, can reach the peers
    /// without this process: the process may end then, and they still read it. A peer that could take it in and does not is
    /// waited for; a connection that is over or lost is not. (Messages of an unreliable VI are done once they are sent.)
    ///
    /// When a NIC's last object is dropped, it waits in the same way, for a second at most.
    ///
    /// # Errors
    /// [`Error::Timeout`] says on how many connections something is left.
    pub fn drain(&self, deadline: Deadline) -> Result {
        let start = Instant::now();
        if is_forked() {
            return Err(Error::forked());
        }
        match wait_for_delivery(|| self.device.undelivered(), deadline) {
            0 => Ok(()),
            left => {
                let name = &self.attributes().name;
                let what = format!("peers to take the posts of {name}, on {left} of its connections");
                Err(Error::Timeout { what, waited: start.elapsed() })
            }
        }
    }

    /// Payload bytes that were copied in software for this NIC so far (inline messages not counted).
    pub fn bytes_copied(&self) -> u64 {
        self.device.bytes_copied()
    }

    /// Messages and RDMA writes that peers sent to unreliable VIs of this NIC and that did not arrive, as far as it knows:
    /// the network lost a part, or there was no place for it. Messages that arrived and found no descriptor are not counted.
    pub fn messages_dropped(&self) -> u64 {
        self.device.messages_dropped()
    }

    /// Checks that the NIC works. It does not work in a child made by `fork()`, nor once a thread of its own has panicked,
    /// which is a mistake in this library. Its connections are lost then, and nothing comes any more.
    ///
    /// # Errors
    /// [`Error::Lost`] with the cause in words; [`Error::Os`] in a forked child.
    pub fn check(&self) -> Result {
        if is_forked() {
            return Err(Error::forked());
        }
        self.device.failure().map_or(Ok(()), |why| Err(Error::Lost(why)))
    }

    pub(crate) fn require(&self, what: &'static str, needed: Caps) -> Result {
        if self.caps().has(needed) {
            return Ok(());
        }
        Err(Error::Unsupported { what, needed, have: self.caps() })
    }

    /// Quota of the connections that peers have made to it.
    pub(crate) fn connection_quota(&self) -> &Arc<ConnectionQuota> {
        &self.connection_quota
    }

    pub(crate) fn error_sink(&self) -> &Arc<ErrorSink> {
        &self.error_sink
    }

    /// The transport's device. For this crate only: its operations are sound when the VI layer asks for them
    /// ([`crate::transport`]).
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(crate) fn tags(&self) -> &Arc<Tags> {
        &self.tags
    }

    pub(crate) fn registrar(&self) -> &Arc<Registrar> {
        &self.registrar
    }
}
