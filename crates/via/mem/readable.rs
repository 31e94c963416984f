//! A message that peers fetch by themselves: outbox memory that its owner gave up until they have.
//!
//! A [`super::Window`] is landing memory, for which its owner has no slices; a message lies in the outbox already, and
//! copying it to a window first would be the copy that RDMA read is to save. Peers map the outbox read-only, so all
//! that is shared is the right to look. The block is inside the [`Readable`]: nobody writes it while peers read. Nor does
//! anybody write a block that has several owners, so several [`Readable`]s may share it, one for each peer.

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

/// How memory that peers read is owned: alone ([`Block`]), or with others who only read it too ([`SharedBytes`]).
///
/// Sealed: what is lent must stay where it is, and nobody may write it.
pub trait Ownership: sealed::Sealed + Send + 'static {}

mod sealed {
    use super::{Arena, Block, SharedBytes};

    pub trait Sealed {
        /// Where it lies in this arena, if it does.
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

/// A block of outbox memory that peers may RDMA-read, and nobody writes, until it is revoked.
pub struct Readable<B: Ownership = Block> {
    /// `None` only while it is taken apart.
    block: Option<B>,
    handle: MemHandle,
    device: Arc<dyn Device>,
    _tag: TagUse,
}

impl Nic {
    /// Lets peers connected to VIs of tag `ptag` RDMA-read the block where it lies. Takes an entry of the NIC's windows
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
    /// Bytes.
    pub fn len(&self) -> usize {
        self.block.as_ref().map_or(0, sealed::Sealed::bytes)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a peer needs to read it.
    pub fn remote(&self) -> RemoteBuffer {
        RemoteBuffer { handle: self.handle, offset: 0, len: self.len() }
    }

    /// Stops new reads and gives the block back at once, for an owner that has told nobody of it: a peer that reads at
    /// this moment all the same gets what is written there next.
    pub fn recall(mut self) -> B {
        let block = self.block.take().expect("present until taken apart");
        self.device.revoke_later(self.handle, Box::new(()));
        block
    }

    /// Stops new reads, waits until none is under way, and gives the block back.
    ///
    /// # Errors
    /// [`Error::Timeout`] when a peer is still reading at the deadline: the NIC takes the memory back when it has left.
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
        // Without a deadline to spend: a peer may be reading at this very moment.
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
