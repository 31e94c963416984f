//! Registered memory: arenas, and what is cut from them. The only `unsafe` of this crate is in here.
//!
//! Messages are born registered: the transport maps one *outbox* arena (peers read it) and one *landing* arena
//! (peers write it by RDMA), and everything is cut from these. Ownership decides who may touch which bytes:
//!
//! * [`Block`], [`Region`]: outbox memory that we own: plain slices.
//! * [`Lent`]: a peer's outbox memory that it handed over: a read-only slice until dropped.
//! * [`Window`]: landing memory that peers may be writing or reading: copies in and out only, no slice.
//! * [`Settled`]: landing memory after [`Window::revoke`]: nobody writes it any more, a read-only slice.

pub(crate) mod arena;
pub(crate) mod lent;
mod raw;
mod region;

pub use arena::{Arena, ArenaUse, Backing, Block, Fill};
pub use lent::{Lender, Lent, PrivateCopy};
pub use raw::RawSegment;
pub(crate) use raw::scatter_raw;
pub use region::{Region, Settled, Window};

/// Protection tag: memory and VI must carry the same one. Numbers are unique within a NIC, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ptag(pub u32);

/// Names an exposed [`Window`] to peers; not guessable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemHandle(pub u32);

/// What peers may do with a window by RDMA (VIA: `EnableRdmaWrite` and `EnableRdmaRead` of the memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Write it.
    pub write: bool,
    /// Read it.
    pub read: bool,
}

impl Rights {
    /// To write only.
    pub const WRITE: Rights = Rights { write: true, read: false };
    /// To read only.
    pub const READ: Rights = Rights { write: false, read: true };
    /// Both.
    pub const BOTH: Rights = Rights { write: true, read: true };
}

/// A place in a peer's window, for RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// The peer's handle.
    pub handle: MemHandle,
    /// Bytes from the window's start.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}
