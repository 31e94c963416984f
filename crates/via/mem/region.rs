//! Regions: registered memory that only this process touches.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::arena::{Block, Fill};
use super::registrar::{Lease, OnRegionDrop};
use super::tags::{Carrier, TagUse};
use super::user::{Allocation, StableBuffer, UserMemory};
use super::{MemAttributes, Ptag, Rights};
use crate::error::{Error, Result};
use crate::nic::Nic;

/// Registered memory that only this process touches: send from it, receive into it. Posting moves it; the completion gives it
/// back.
///
/// [`Nic::region`] allocates one, [`Nic::register`] makes one of a buffer of the program's.
#[derive(Debug)]
pub struct Region {
    memory: Memory,
    tag: TagUse,
}

enum Memory {
    Block(Block),
    /// Memory of the program. Boxed: regions move with every post, and most are blocks.
    User(Box<Registered>),
}

/// Memory of the program, with its registration. The registration ends before its memory does: fields are dropped in this order.
struct Registered {
    lease: Lease,
    memory: Allocation,
}

impl Region {
    pub(crate) fn new(nic: &Nic, len: usize, ptag: Ptag) -> Result<Self> {
        let tag = nic.tags().take(ptag, Carrier::Region)?;
        Ok(Region { memory: Memory::Block(nic.device().outbox().block(len, Fill::Zero)?), tag })
    }

    #[allow(clippy::result_large_err, reason = "a refused buffer comes back by value; refusals are rare")]
    pub(crate) fn of<B: StableBuffer>(
        nic: &Nic,
        memory: UserMemory<B>,
        ptag: Ptag,
    ) -> Result<Self, (Error, UserMemory<B>)> {
        if let Err(error) = nic.check() {
            return Err((error, memory));
        }
        let tag = match nic.tags().take(ptag, Carrier::Region) {
            Ok(tag) => tag,
            Err(error) => return Err((error, memory)),
        };
        let registered =
            nic.registrar().register(memory.identity(), memory.place(), ptag, OnRegionDrop::Keep);
        match registered {
            Ok(lease) => {
                let mut memory = memory.into_allocation();
                memory.known_to(nic.registrar());
                Ok(Region { memory: Memory::User(Box::new(Registered { lease, memory })), tag })
            }
            Err(error) => Err((error, memory)),
        }
    }

    /// Makes a region of a block of the NIC's outbox; its bytes stay.
    pub(crate) fn of_block(nic: &Nic, block: Block, ptag: Ptag) -> Result<Self, (Error, Block)> {
        if !nic.device().outbox().owns(&block) {
            return Err((Error::InvalidParameter("the block belongs to another NIC".into()), block));
        }
        match nic.tags().take(ptag, Carrier::Region) {
            Ok(tag) => Ok(Region { memory: Memory::Block(block), tag }),
            Err(error) => Err((error, block)),
        }
    }

    /// The region's protection tag.
    #[inline]
    pub fn ptag(&self) -> Ptag {
        self.tag.ptag()
    }

    /// Attributes of the registration (VIA: `VipQueryMem`). Peers have no rights in a region: that takes a [`super::Window`].
    pub fn attributes(&self) -> MemAttributes {
        MemAttributes { ptag: self.ptag(), rights: Rights::NONE, len: self.len() }
    }

    /// Changes the protection tag (VIA: `VipSetMemAttributes`). The tag of posted memory cannot change: posting moves the region.
    ///
    /// # Errors
    /// [`Error::InvalidPtag`] when the NIC has no such tag; the region then keeps the old one.
    pub fn set_ptag(&mut self, ptag: Ptag) -> Result {
        self.tag = self.tag.other(ptag)?;
        if let Memory::User(registered) = &mut self.memory {
            registered.lease.set_ptag(ptag);
        }
        Ok(())
    }

    /// Deregisters (VIA: `VipDeregisterMem`) and gives the buffer back, with the bytes as they are now. The registration
    /// cache keeps nothing of it.
    ///
    /// # Errors
    /// The region itself, when it is not made of a `B`.
    pub fn into_buffer<B: StableBuffer>(self) -> Result<B, Region> {
        self.into_memory().map(UserMemory::into_inner)
    }

    /// The same as [`Region::into_buffer`], but the memory keeps its identity: when it is registered again, the cache still
    /// has it.
    ///
    /// # Errors
    /// Those of [`Region::into_buffer`].
    pub fn into_memory<B: StableBuffer>(self) -> Result<UserMemory<B>, Region> {
        let Region { memory, tag } = self;
        match memory {
            Memory::User(registered) => {
                let Registered { lease, memory } = *registered;
                let back = |memory| {
                    let memory = Memory::User(Box::new(Registered { lease, memory }));
                    Region { memory, tag }
                };
                UserMemory::from_allocation(memory).map_err(back)
            }
            block @ Memory::Block(_) => Err(Region { memory: block, tag }),
        }
    }

    /// Returns the block of which the region is made, with the bytes as they are now.
    ///
    /// # Errors
    /// The region itself, when it is made of the program's own memory.
    pub fn into_block(self) -> Result<Block, Region> {
        let Region { memory, tag } = self;
        match memory {
            Memory::Block(block) => Ok(block),
            user @ Memory::User(_) => Err(Region { memory: user, tag }),
        }
    }

    /// The block, if the library allocated it.
    #[inline]
    pub(crate) fn block(&self) -> Option<&Block> {
        match &self.memory {
            Memory::Block(block) => Some(block),
            Memory::User(_) => None,
        }
    }
}

impl Deref for Region {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Block(block) => block.bytes(),
            Memory::User(registered) => registered.memory.bytes(),
        }
    }
}

impl DerefMut for Region {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Block(block) => block.bytes_mut(),
            Memory::User(registered) => registered.memory.bytes_mut(),
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Block(block) => block.fmt(f),
            Memory::User(registered) => write!(f, "{:?} as {:?}", registered.memory, registered.lease),
        }
    }
}
