//! Registered memory as VIA's programs see it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::arena::{Block, Fill};
use super::{MemHandle, Ptag, RemoteBuffer, Rights};
use crate::error::{Error, Result};
use crate::transport::Device;
use udeck_sys::Deadline;

/// Registered memory that only we touch: send from it, receive into it. Posting moves it; the completion gives
/// it back.
#[derive(Debug)]
pub struct Region {
    block: Block,
    ptag: Ptag,
}

impl Region {
    pub(crate) fn new(device: &dyn Device, len: usize, ptag: Ptag) -> Result<Self> {
        Ok(Region { block: device.outbox().block(len, Fill::Zero)?, ptag })
    }

    /// The tag it carries.
    #[inline]
    pub fn ptag(&self) -> Ptag {
        self.ptag
    }

    #[inline]
    pub(crate) fn block(&self) -> &Block {
        &self.block
    }
}

impl Deref for Region {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        self.block.bytes()
    }
}

impl DerefMut for Region {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.block.bytes_mut()
    }
}

/// Registered memory that peers may write or read by RDMA, at any moment: so there is no slice of it, only copies.
pub struct Window {
    /// `None` only while it is taken apart.
    block: Option<Block>,
    device: Arc<dyn Device>,
    handle: MemHandle,
}

impl Window {
    pub(crate) fn new(device: Arc<dyn Device>, len: usize, ptag: Ptag, rights: Rights) -> Result<Self> {
        let landing = device.landing();
        let block = match landing.raw(len) {
            Err(Error::NoMemory { .. }) => {
                device.reclaim();
                landing.raw(len)?
            }
            other => other?,
        };
        if rights.read {
            // What lay there before is not the readers' business.
            // SAFETY: within the block, which is ours and not exposed yet.
            unsafe { block.base().as_ptr().write_bytes(0, len) };
        }
        let handle = device.expose_for(block.offset(), len, ptag, rights)?;
        Ok(Window { block: Some(block), device, handle })
    }

    fn block(&self) -> &Block {
        self.block.as_ref().expect("present until taken apart")
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.block().len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a peer needs to write or read here.
    pub fn remote(&self) -> RemoteBuffer {
        RemoteBuffer { handle: self.handle, offset: 0, len: self.len() }
    }

    /// Copies `to.len()` bytes out, as they are at this moment.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] past the end.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result {
        if offset.checked_add(to.len()).is_none_or(|end| end > self.len()) {
            let what = format!("reading {} bytes at {offset} of a window of {}", to.len(), self.len());
            return Err(Error::InvalidParameter(what));
        }
        // SAFETY: within the block, which we own; peers may be writing, which `copy_in` allows for.
        unsafe { udeck_sys::copy_in(to, self.block().base().add(offset)) };
        Ok(())
    }

    /// Copies `from` in, for peers to read. A peer that reads at this moment may see a part of it.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] past the end.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result {
        if offset.checked_add(from.len()).is_none_or(|end| end > self.len()) {
            let what = format!("writing {} bytes at {offset} of a window of {}", from.len(), self.len());
            return Err(Error::InvalidParameter(what));
        }
        // SAFETY: within the block, which we own, and nobody in this process has a slice of it; `from` is ours and
        // lies elsewhere. Peers that read or write there at the same time get or leave plain bytes.
        unsafe {
            let to = self.block().base().add(offset).as_ptr();
            std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
        }
        Ok(())
    }

    /// Stops new writes and reads, waits until none is under way, and gives the memory as a plain slice.
    ///
    /// # Errors
    /// [`Error::Timeout`] when a peer is still inside at the deadline: the NIC takes the memory back when it has left.
    pub fn revoke(mut self, deadline: Deadline) -> Result<Settled> {
        let block = self.block.take().expect("present until taken apart");
        match self.device.conceal(self.handle, deadline) {
            Ok(()) => Ok(Settled { block }),
            Err(error) => {
                self.device.conceal_later(self.handle, Box::new(block));
                Err(error)
            }
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // Without a deadline to spend: a peer may be writing at this very moment.
        if let Some(block) = self.block.take() {
            self.device.conceal_later(self.handle, Box::new(block));
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:?}, {:?})", self.block, self.handle)
    }
}

/// Memory that peers wrote and no longer may: readable where it lies.
#[derive(Debug)]
pub struct Settled {
    block: Block,
}

impl Deref for Settled {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.block.bytes()
    }
}
