//! An opened NIC.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::attributes::{Caps, NicAttributes};
use crate::error::{Error, Result};
use crate::mem::{Ptag, Region, Rights, Window};
use crate::report::Alarm;
use crate::transport::Device;

/// An opened transport device. A cheap handle: clones are the same NIC, which closes with its last object.
#[derive(Clone, Debug)]
pub struct Nic {
    device: Arc<dyn Device>,
    ptags: Arc<AtomicU32>,
    alarm: Arc<Alarm>,
}

impl Nic {
    /// The NIC that a transport has opened. (Programs use `udeck::open_nic("shm0")`, which knows the transports.)
    pub fn new(device: Arc<dyn Device>) -> Self {
        Nic { device, ptags: Arc::new(AtomicU32::new(1)), alarm: Arc::default() }
    }

    /// Abilities and limits.
    pub fn attributes(&self) -> &NicAttributes {
        self.device.attributes()
    }

    /// Abilities.
    pub fn caps(&self) -> Caps {
        self.attributes().caps
    }

    /// A protection tag that no other memory or VI of this NIC has.
    pub fn ptag(&self) -> Ptag {
        Ptag(self.ptags.fetch_add(1, Ordering::Relaxed))
    }

    /// Registered memory of our own, zeroed.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn region(&self, len: usize, ptag: Ptag) -> Result<Region> {
        Region::new(&*self.device, len, ptag)
    }

    /// Registered memory that peers connected to VIs of tag `ptag` may RDMA-write.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without RDMA, [`Error::NoMemory`], [`Error::Full`].
    pub fn window(&self, len: usize, ptag: Ptag) -> Result<Window> {
        self.window_for(len, ptag, Rights::WRITE)
    }

    /// As [`Nic::window`], with the rights that peers shall have.
    ///
    /// # Errors
    /// As [`Nic::window`].
    pub fn window_for(&self, len: usize, ptag: Ptag, rights: Rights) -> Result<Window> {
        if rights.write {
            self.require("a window", Caps::RDMA_WRITE)?;
        }
        if rights.read {
            self.require("a readable window", Caps::RDMA_READ)?;
        }
        Window::new(self.device.clone(), len, ptag, rights)
    }

    pub(crate) fn require(&self, what: &'static str, needed: Caps) -> Result {
        if self.caps().has(needed) {
            return Ok(());
        }
        Err(Error::Unsupported { what, needed, have: self.caps() })
    }

    pub(crate) fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// The transport's side of it.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
}
