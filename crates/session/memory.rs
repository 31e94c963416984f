//! Arenas of a NIC, places in them, and the memory of received bodies.
//!
//! All of this crate's `unsafe` code that touches memory is in here.

#![allow(unsafe_code, reason = "memory that peers read and write")]

mod body;
mod fresh;
mod place;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use udeck_via::{Arena, Nic};

pub use body::{Acknowledge, ForDevice, Store, receipt};
pub(crate) use place::Place;

/// Memory of a NIC: that of another NIC of this process, or its own. Clones share it.
#[derive(Clone)]
pub struct Memory {
    /// Arena that messages are sent from, and that received bodies lie in: only this process writes it.
    pub outbox: Arc<Arena>,
    /// Arena that peers write by RDMA.
    pub landing: Arc<Arena>,
    copied: Arc<AtomicU64>,
}

impl Memory {
    /// The arenas of a NIC that is open in this process: a block can then be posted by both.
    pub fn of(nic: &Nic) -> Self {
        Self::new(nic.outbox().clone(), nic.landing().clone())
    }

    /// Memory of these arenas.
    pub fn new(outbox: Arc<Arena>, landing: Arc<Arena>) -> Self {
        Memory { outbox, landing, copied: Arc::default() }
    }

    /// Fresh anonymous memory, `limit` bytes of address space for each arena; the kernel gives memory on first use.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn fresh(limit: usize) -> std::io::Result<Self> {
        Ok(Self::new(fresh::outbox(limit)?, fresh::landing(limit)?))
    }

    /// Payload bytes that were copied in software so far ([`udeck_via::transport::Device::bytes_copied`]), by all
    /// connections over this memory.
    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Adds to [`Memory::copied`].
    pub fn count_copied(&self, bytes: usize) {
        self.copied.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:?}, {:?})", self.outbox, self.landing)
    }
}
