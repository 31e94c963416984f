//! Readable messages: outbox memory that its owner gave up until peers have fetched it by RDMA read.
//!
//! A [`super::Window`] is landing memory, of which its owner has no slices. A message lies in the outbox already, and copying
//! it to a window first would be the copy that RDMA read is to save. Peers map the outbox read-only, so only the right to
//! read is shared. The block is inside the [`Readable`]: it has no writer while peers read. A block with several owners has
//! no writer either, so several [`Readable`]s may share it, one for each peer.

use std::fmt;
use std::sync::Arc;

use super::arena::{Arena, Block};
use super::shared::SharedBytes;
use super::tags::{Carrier, TagUse};
use super::{MemHandle, Ptag, RemoteBuffer};
use crate::caps::Caps;
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::transport::Device;
use udeck_sys::Deadline;

/// Ownership of memory that peers read: alone ([`Block`]), or with others who only read it, too ([`SharedBytes`]).
///
/// Sealed: lent memory must stay in place and have no writer.
pub trait Ownership: sealed::Sealed + Send + 'static {}

mod sealed {
    use super::{Arena, Block, SharedBytes};

    pub trait Sealed {
        /// The memory's offset in this arena, if it lies there.
        fn offset_in(&self, arena: &Arena) -> Option<u64>;
        fn bytes(&self) -> usize;
    }

    impl Sealed for Block {
        fn offset_in(&self, arena: &Arena) -> Option<u64> {
            arena.owns(self).then(|| self.offset())
        }
        fn bytes(&self) -> usize {
            self.len()
        }
    }

    impl Sealed for SharedBytes {
        fn offset_in(&self, arena: &Arena) -> Option<u64> {
            SharedBytes::offset_in(self, arena)
        }
        fn bytes(&self) -> usize {
            self.len()
        }
    }
}

impl Ownership for Block {}
impl Ownership for SharedBytes {}

/// A block of outbox memory that peers may RDMA-read, and that has no writer until it is revoked.
pub struct Readable<B: Ownership = Block> {
    /// The block; `None` only while this is taken apart.
    block: Option<B>,
    handle: MemHandle,
    device: Arc<dyn Device>,
    _tag: TagUse,
}

impl Nic {
    /// Lets peers connected to VIs of tag `ptag` RDMA-read the block in place. Takes an entry of the NIC's windows
    /// ([`crate::NicAttributes::max_windows`]). Does not block.
    ///
    /// # Errors
    /// The block comes back with [`Error::Unsupported`] without RDMA read, [`Error::InvalidPtag`] when this NIC has no
    /// such tag, [`Error::InvalidParameter`] when the block is another NIC's, or [`Error::Full`] when all windows are
    /// taken.
    pub fn readable<B: Ownership>(&self, block: B, ptag: Ptag) -> Result<Readable<B>, (Error, B)> {
        match self.share(&block, ptag) {
            Ok((handle, tag)) => {
                Ok(Readable { block: Some(block), handle, device: self.device().clone(), _tag: tag })
            }
            Err(error) => Err((error, block)),
        }
    }

    fn share<B: Ownership>(&self, block: &B, ptag: Ptag) -> Result<(MemHandle, TagUse)> {
        self.require("a message that peers read", Caps::RDMA_READ)?;
        let Some(offset) = block.offset_in(self.device().outbox()) else {
            return Err(Error::InvalidParameter("the block belongs to another NIC".into()));
        };
        let tag = self.tags().take(ptag, Carrier::Window)?;
        Ok((self.device().expose_outbox(offset, block.bytes(), ptag)?, tag))
    }
}

impl<B: Ownership> Readable<B> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.block.as_ref().map_or(0, sealed::Sealed::bytes)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address by which a peer reads it.
    pub fn remote(&self) -> RemoteBuffer {
        RemoteBuffer { handle: self.handle, offset: 0, len: self.len() }
    }

    /// Stops new reads and gives the block back at once. This is for an owner that has told no peer of it: a peer that reads
    /// at this moment all the same gets the bytes that are written there next.
    pub fn recall(mut self) -> B {
        let block = self.block.take().expect("present until taken apart");
        self.device.revoke_later(self.handle, Box::new(()));
        block
    }

    /// Stops new reads, waits until none is in progress or the deadline passes, and gives the block back.
    ///
    /// # Errors
    /// [`Error::Timeout`] when a peer is still reading at the deadline: the NIC takes the memory back when the peer has left.
    pub fn revoke(mut self, deadline: Deadline) -> Result<B> {
        let block = self.block.take().expect("present until taken apart");
        match self.device.revoke(self.handle, deadline) {
            Ok(()) => Ok(block),
            Err(error) => {
                self.device.revoke_later(self.handle, Box::new(block));
                Err(error)
            }
        }
    }
}

impl<B: Ownership> Drop for Readable<B> {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        // There is no time to wait here: a peer may be reading at this moment.
        if let Some(block) = self.block.take() {
            self.device.revoke_later(self.handle, Box::new(block));
        }
    }
}

impl<B: Ownership> fmt::Debug for Readable<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Readable({} bytes, {:?})", self.len(), self.handle)
    }
}
