//! Connection requests.

use std::fmt;
use std::net::IpAddr;

use udeck::names::address::ip_of;

use super::error::{Error, Result};
use super::ia::MAX_PRIVATE_DATA;
use super::id::ServiceId;
use crate::core::service::{self, Cr};
use crate::core::slot::Slot;

/// A peer's request for a connection (`DAT_CR`). [`Ep::accept`](super::Ep::accept) answers it, or [`ConnectionRequest::reject`].
/// A dropped request is rejected.
pub struct ConnectionRequest {
    /// `None` only while it is answered.
    slot: Option<&'static Slot<Cr>>,
    service: ServiceId,
    qualifier: u64,
    peer: IpAddr,
    private_data: Vec<u8>,
}

impl ConnectionRequest {
    /// `None`: the asker's adapter has closed meanwhile.
    pub(super) fn new(
        slot: &'static Slot<Cr>,
        service: ServiceId,
        qualifier: u64,
    ) -> Option<ConnectionRequest> {
        let held = slot.lock();
        let theirs = &held.as_ref()?.theirs;
        let (peer, private_data) = (ip_of(&theirs.host), theirs.private_data.clone());
        drop(held);
        Some(ConnectionRequest { slot: Some(slot), service, qualifier, peer, private_data })
    }

    /// The service point that it came to.
    pub fn service(&self) -> ServiceId {
        self.service
    }

    /// The connection qualifier that it came to.
    pub fn qualifier(&self) -> u64 {
        self.qualifier
    }

    /// The address that the asker gives as its own (`remote_ia_address`).
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// The asker's private data: up to [`MAX_PRIVATE_DATA`] bytes (`dat_cr_query`).
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Rejects the request, with data for the asker (`dat_cr_reject`). Does not block.
    ///
    /// # Errors
    /// [`Error::Length`]: more than [`MAX_PRIVATE_DATA`] bytes. Then the asker gets none of them.
    pub fn reject(mut self, private_data: &[u8]) -> Result {
        let (len, room) = (private_data.len(), MAX_PRIVATE_DATA);
        let fits = len <= room;
        if let Some(slot) = self.slot.take() {
            let _ = service::reject(slot, if fits { private_data } else { &[] }); // fails only if the request has gone
        }
        if fits { Ok(()) } else { Err(Error::Length { call: "dat_cr_reject", len, room }) }
    }

    /// The slot of the request, which an answer needs. `None`: it was answered.
    pub(super) fn slot(&self) -> Option<&'static Slot<Cr>> {
        self.slot
    }

    /// Marks the request as answered, so that dropping it rejects nothing.
    pub(super) fn answered(mut self) {
        self.slot = None;
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            let _ = service::reject(slot, &[]); // fails only if the request has gone
        }
    }
}

impl fmt::Debug for ConnectionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionRequest(qualifier {}, from {})", self.qualifier, self.peer)
    }
}
