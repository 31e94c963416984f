//! Registered memory: arenas, and the blocks cut from them. The only `unsafe` blocks of this crate are in here.
//!
//! Messages are born registered: the transport maps one *outbox* arena (peers read it) and one *landing* arena (peers write
//! it by RDMA), and everything that the library allocates is cut from these. Buffers of the program's own are registered one
//! by one. Ownership decides which side may touch which bytes:
//!
//! * [`Block`], [`Region`]: outbox memory that we own: plain slices.
//! * [`UserMemory`]: a buffer of the program's, which becomes a [`Region`], too ([`crate::Nic::register`]).
//! * [`Lent`]: a peer's outbox memory that the peer handed over: a read-only slice until dropped.
//! * [`SharedBytes`]: outbox memory with several owners and no writer: read-only slices.
//! * [`Readable`]: outbox memory that its owner gave up, for peers to fetch by RDMA: no slice until it is revoked.
//! * [`Window`]: landing memory that peers may be writing or reading: copies in and out only, no slice.
//! * [`Settled`]: landing memory after [`Window::revoke`], without writers: a read-only slice.

#![allow(unsafe_code, reason = "memory that peers read and write, registered or lent")]

pub(crate) mod arena;
mod cache;
pub(crate) mod lent;
mod raw;
mod readable;
mod region;
mod registrar;
mod shared;
mod tags;
mod user;
mod window;

pub use arena::{Arena, ArenaUse, Backing, Block, Fill, Filling};
pub use cache::CacheUse;
pub use lent::{Lender, Lent, LentSlice, PrivateCopy};
pub(crate) use raw::scatter_raw;
pub use raw::{RawRegion, RawSegment};
pub use readable::{Ownership, Readable};
pub use region::Region;
pub(crate) use registrar::Registrar;
pub use shared::SharedBytes;
pub(crate) use tags::{Carrier, TagUse, Tags};
pub use user::{StableBuffer, UserMemory};
pub use window::{Settled, Window};

use crate::caps::Caps;
use crate::error::{Error, Result};

/// Protection tag: memory and VI must carry the same one. Numbers are unique within a process, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ptag(pub u32);

/// Handle by which peers name an exposed [`Window`] or [`Readable`]; not guessable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemHandle(pub u32);

/// Rights of peers in a window, by RDMA (VIA: `EnableRdmaWrite` and `EnableRdmaRead` of the memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Whether peers may write it.
    pub write: bool,
    /// Whether peers may read it.
    pub read: bool,
}

impl Rights {
    /// No access.
    pub const NONE: Rights = Rights { write: false, read: false };
    /// Writing only.
    pub const WRITE: Rights = Rights { write: true, read: false };
    /// Reading only.
    pub const READ: Rights = Rights { write: false, read: true };
    /// Writing and reading.
    pub const BOTH: Rights = Rights { write: true, read: true };

    /// Checks that a NIC with these abilities can have a window with these rights.
    pub(crate) fn check(self, have: Caps) -> Result {
        let lacking = |right: bool, needed: Caps| right && !have.has(needed);
        if self == Rights::NONE {
            return Err(Error::InvalidParameter("a window without any rights".into()));
        }
        if lacking(self.write, Caps::RDMA_WRITE) {
            return Err(Error::Unsupported { what: "a window", needed: Caps::RDMA_WRITE, have });
        }
        if lacking(self.read, Caps::RDMA_READ) {
            return Err(Error::Unsupported { what: "a readable window", needed: Caps::RDMA_READ, have });
        }
        Ok(())
    }
}

/// Attributes of registered memory (VIA: `VIP_MEM_ATTRIBUTES`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemAttributes {
    /// The memory's protection tag.
    pub ptag: Ptag,
    /// Rights of peers.
    pub rights: Rights,
    /// Length in bytes.
    pub len: usize,
}

/// A place in a peer's window, for RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// The peer's handle.
    pub handle: MemHandle,
    /// Byte offset from the window's start.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}
