//! Loans of a peer that a program holds: a buffer that it reads, or a receipt that it owes.

#![allow(unsafe_code, reason = "memory that the NIC at the other end reads or writes")]

use std::ptr::NonNull;
use std::sync::Arc;

use udeck_via::mem::{Lender, Lent, LentSlice};
use udeck_via::transport::TransferStatus;

use crate::connection::Side;
use crate::frame::{copy_of, parts};
use crate::memory::Memory;
use crate::world::Shared;

/// Identity of a loan: its connection, its lender and its token.
pub struct LoanId {
    pub shared: Arc<Shared>,
    pub connection: u64,
    pub lender: Side,
    pub token: u16,
}

/// Bytes of a message or an RDMA write, in the sender's memory or in a copy.
pub enum Bytes {
    /// In the lender's memory, which is kept even if the lender's NIC goes away.
    InPlace(Arc<Memory>, Vec<(u64, usize)>),
    /// Copied in transit.
    Copied(LentSlice),
}

impl Bytes {
    pub fn len(&self) -> usize {
        match self {
            Bytes::InPlace(_, segments) => segments.iter().map(|segment| segment.1).sum(),
            Bytes::Copied(copy) => copy.len(),
        }
    }
}

struct LoanGuard {
    loan: LoanId,
    /// Keeps the bytes while the program reads them.
    _bytes: Option<Bytes>,
}

impl Lender for LoanGuard {
    fn give_back(&self, _: u16) {
        self.loan.ends_as(TransferStatus::Arrived);
    }

    fn refuse(&self, _: u16) {
        self.loan.ends_as(TransferStatus::Refused);
    }
}

impl LoanId {
    fn ends_as(&self, status: TransferStatus) {
        self.shared.with(|world| world.give_back(self.connection, self.lender, self.token, status));
    }

    /// Makes a message that the program reads in place. The loan ends when the program drops it.
    pub fn read(self, bytes: Bytes) -> Lent {
        let parts = match &bytes {
            Bytes::InPlace(memory, segments) => parts(memory, segments),
            Bytes::Copied(copy) => vec![(NonNull::from(&**copy).cast(), copy.len())],
        };
        self.lend(&parts, Some(bytes))
    }

    /// Makes a message that the program may keep as long as it likes. The loan ends at once.
    pub fn keep(self, bytes: Bytes) -> Lent {
        let copy = match bytes {
            Bytes::InPlace(memory, segments) => copy_of(&memory, &segments),
            Bytes::Copied(copy) => copy,
        };
        self.ends_as(TransferStatus::Arrived);
        copy.into()
    }

    /// Makes a message without bytes. Dropping it sends the receipt for a message that has been placed elsewhere.
    pub fn receipt(self) -> Lent {
        self.lend(&[], None)
    }

    fn lend(self, parts: &[(NonNull<u8>, usize)], bytes: Option<Bytes>) -> Lent {
        let token = self.token;
        let guard = LoanGuard { loan: self, _bytes: bytes };
        // SAFETY: the parts lie in memory that `guard` keeps, at stable addresses; the sender's loan, which ends
        // by `give_back` or `refuse`, keeps its blocks from being written, and nobody writes a copy.
        unsafe { Lent::new(parts, Arc::new(guard), token) }
    }
}
