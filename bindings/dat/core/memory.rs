//! Local and remote memory regions, which are `udeck-rdma`'s registered memory, with uDAPL's codes.

use std::sync::atomic::{AtomicU32, Ordering};

use udeck_rdma::memory::Unregistered;
pub use udeck_rdma::memory::{
    ALL_RIGHTS, MAX, Piece, Refusal, Right, Segment as Triplet, access, add, find, gather, invalidate, open,
    read, remove, remove_with_parts, remove_without_parts, reserve, scatter, write,
};

use super::code::{Code, Sub};

/// A protection zone.
#[derive(Debug)]
pub struct Pz {
    /// Number of the zone, unique in this process; never 0.
    pub id: u32,
    pub handle: usize,
}

/// Returns the number of a new zone. The highest bit is set: protection tags of VIPL, which the table of registered memory knows, too, in a
/// process with both, count from 1.
pub fn next_zone() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    NUMBER.fetch_add(1, Ordering::Relaxed) | 1 << 31
}

impl From<Unregistered> for Code {
    fn from(why: Unregistered) -> Code {
        match why {
            Unregistered::Full => Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceMemoryRegion),
            Unregistered::NoWhole => Code::INVALID_HANDLE.of(Sub::HandleLmr),
        }
    }
}

/// Returns the code of a refused access by that right.
#[cold]
pub fn refused(why: Refusal, right: Right) -> Code {
    match why {
        Refusal::Protection => Code::PROTECTION_VIOLATION.of(match right {
            Right::LocalRead => Sub::ProtectionRead,
            Right::LocalWrite => Sub::ProtectionWrite,
            Right::RemoteRead => Sub::ProtectionRdmaRead,
            Right::RemoteWrite => Sub::ProtectionRdmaWrite,
        }),
        Refusal::Privileges => Code::PRIVILEGES_VIOLATION.of(match right {
            Right::LocalRead => Sub::PrivilegesRead,
            Right::LocalWrite => Sub::PrivilegesWrite,
            Right::RemoteRead => Sub::PrivilegesRdmaRead,
            Right::RemoteWrite => Sub::PrivilegesRdmaWrite,
        }),
    }
}
