//! Windows: registered memory that peers reach by RDMA.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::arena::Block;
use super::tags::{Carrier, TagUse};
use super::{MemAttributes, MemHandle, Ptag, RemoteBuffer, Rights};
use crate::error::{Error, Result};
use crate::nic::Nic;
use crate::transport::Device;
use udeck_sys::Deadline;

/// Registered memory that peers may write or read by RDMA at any moment, so there is no slice of it, only copies.
pub struct Window {
    /// The memory; `None` only while the window is taken apart.
    block: Option<Block>,
    device: Arc<dyn Device>,
    tag: TagUse,
    rights: Rights,
    exposure: Exposure,
    /// Whether the memory was zeroed when the window was made.
    cleared: bool,
}

/// State of a window towards peers.
#[derive(Clone, Copy, Debug)]
enum Exposure {
    /// Peers reach the window by this handle.
    Open(MemHandle),
    /// The window is closed to new accesses, but some may still be in progress.
    Closing(MemHandle),
    /// No access is in progress.
    Closed,
}

/// A handle that no window has.
const NO_HANDLE: MemHandle = MemHandle(0);

impl Window {
    pub(crate) fn new(nic: &Nic, len: usize, ptag: Ptag, rights: Rights) -> Result<Self> {
        let tag = nic.tags().take(ptag, Carrier::Window)?;
        let device = nic.device().clone();
        let landing = device.landing();
        let block = match landing.raw(len) {
            Err(Error::NoMemory { .. }) => {
                device.reclaim();
                landing.raw(len)?
            }
            other => other?,
        };
        if rights.read {
            // Readers must not see the former content of the memory.
            // SAFETY: within the block, which is ours and not exposed yet.
            unsafe { block.base().as_ptr().write_bytes(0, len) };
        }
        let handle = device.expose_for(block.offset(), len, ptag, rights)?;
        let exposure = Exposure::Open(handle);
        Ok(Window { block: Some(block), device, tag, rights, exposure, cleared: rights.read })
    }

    fn block(&self) -> &Block {
        self.block.as_ref().expect("present until taken apart")
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.block().len()
    }

    /// Whether the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address by which a peer writes or reads the window. It changes with each [`Window::set_attributes`].
    pub fn remote(&self) -> RemoteBuffer {
        let handle = match self.exposure {
            Exposure::Open(handle) | Exposure::Closing(handle) => handle,
            Exposure::Closed => NO_HANDLE,
        };
        RemoteBuffer { handle, offset: 0, len: self.len() }
    }

    /// Attributes of the registration (VIA: `VipQueryMem`).
    pub fn attributes(&self) -> MemAttributes {
        let rights = if matches!(self.exposure, Exposure::Open(_)) { self.rights } else { Rights::NONE };
        MemAttributes { ptag: self.tag.ptag(), rights, len: self.len() }
    }

    /// Changes the tag and the peers' rights (VIA: `VipSetMemAttributes`); the bytes stay. The old handle ends at once, and
    /// accesses in progress are waited for, until the deadline at most. Then there is a *new* handle, which peers have to be
    /// told ([`Window::remote`]): so no access straddles the change, and none that was meant for the old attributes is let in
    /// by the new ones.
    ///
    /// # Errors
    /// [`Error::InvalidPtag`], [`Error::Unsupported`] (a right that the NIC lacks) and [`Error::InvalidParameter`] leave the
    /// attributes and the handle unchanged. `InvalidParameter` means no rights at all, which is [`Window::revoke`], or
    /// reading a window that was made without that right, and in which data of other peers may lie. After [`Error::Timeout`]
    /// (an access is still in progress) and [`Error::Full`] no peer has rights any more: call again, or drop the window.
    pub fn set_attributes(&mut self, ptag: Ptag, rights: Rights, deadline: Deadline) -> Result {
        rights.check(self.device.attributes().caps)?;
        if rights.read && !self.cleared {
            let what =
                "a window made without the right to read was not cleared: it cannot be given that right";
            return Err(Error::InvalidParameter(what.into()));
        }
        let tag = self.tag.other(ptag)?;
        self.close(deadline)?;
        let block = self.block();
        let handle = self.device.expose_for(block.offset(), block.len(), ptag, rights)?;
        (self.tag, self.rights, self.exposure) = (tag, rights, Exposure::Open(handle));
        Ok(())
    }

    /// Stops new accesses, and waits until none is in progress, until the deadline at most. After that, [`Window::revoke`]
    /// has nothing to wait for.
    ///
    /// # Errors
    /// [`Error::Timeout`] when an access is still in progress at the deadline. No access is let in any more; call again, or
    /// drop the window. Only accesses that were in progress at the first call are waited for.
    pub fn close(&mut self, deadline: Deadline) -> Result {
        if let Exposure::Open(handle) | Exposure::Closing(handle) = self.exposure {
            self.exposure = Exposure::Closing(handle);
            self.device.revoke(handle, deadline)?;
            self.exposure = Exposure::Closed;
        }
        Ok(())
    }

    /// Stops new accesses; the device keeps the memory until none is in progress.
    fn close_later(&self, block: Block) {
        if let Exposure::Open(handle) | Exposure::Closing(handle) = self.exposure {
            self.device.revoke_later(handle, Box::new(block));
        }
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

    /// Stops new accesses, waits until none is in progress, until the deadline at most, and gives the memory as a plain slice.
    ///
    /// # Errors
    /// [`Error::Timeout`] when a peer's access is still in progress at the deadline: the NIC takes the memory back when it
    /// has ended.
    pub fn revoke(mut self, deadline: Deadline) -> Result<Settled> {
        let block = self.block.take().expect("present until taken apart");
        match self.close(deadline) {
            Ok(()) => Ok(Settled { block }),
            Err(error) => {
                self.close_later(block);
                Err(error)
            }
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        // There is no time to wait here: a peer may be writing at this moment.
        if let Some(block) = self.block.take() {
            self.close_later(block);
        }
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({:?}, {:?})", self.block, self.exposure)
    }
}

/// Memory that peers wrote and no longer may: a read-only slice.
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
