//! End points.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use udeck::via::is_forked;
use udeck_directory::address::ip_of;

use super::error::{Error, Result};
use super::evd::Evd;
use super::ia::{Ia, MAX_PRIVATE_DATA, Pz, ServiceAddress};
use super::id::{self, EpId};
use super::memory::{Iov, RemoteMemory, Triplets, take_posted};
use super::request::ConnectionRequest;
use crate::core::code::{self, Code};
use crate::core::ep::{self, EPS, MAX_DTOS, MAX_SEGMENTS, Settings};
use crate::core::event::flags;
use crate::core::service;
use crate::core::slot::Slot;
use crate::core::state::EpState;

/// What an end point is made with (`DAT_EP_ATTR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpAttributes {
    /// Receives that may be posted at a time: 1 to 8192.
    pub max_receives: usize,
    /// Sends, reads, writes and binds that may be posted at a time: 1 to 8192.
    pub max_requests: usize,
}

impl Default for EpAttributes {
    /// 256 of each.
    fn default() -> Self {
        EpAttributes { max_receives: 256, max_requests: 256 }
    }
}

/// How work is done (`DAT_COMPLETION_FLAGS`). Every completion is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// It begins when all RDMA reads that were posted before are over (`DAT_COMPLETION_BARRIER_FENCE_FLAG`).
    pub fence: bool,
}

impl Flags {
    /// None.
    pub const NONE: Flags = Flags { fence: false };
    /// Behind the reads.
    pub const FENCE: Flags = Flags { fence: true };

    fn bits(self) -> u32 {
        if self.fence { flags::BARRIER_FENCE } else { 0 }
    }
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Where it says that it is.
    pub address: IpAddr,
    /// What it sent along with its answer: of an end point that has asked, also of a refusal.
    pub private_data: Vec<u8>,
}

/// One end of a connection: a queue of requests and a queue of receives (`DAT_EP`).
///
/// Work moves its memory here, and the dispatcher gives it back in a [`Completion`](super::Completion). Dropped, an end point disconnects abruptly, and what
/// is posted is flushed.
pub struct Ep {
    id: EpId,
    slot: &'static Slot<ep::Ep>,
    pz: Pz,
    // Events of it are taken from these when nobody else has them.
    _requests: Evd,
    _receives: Evd,
    _connections: Evd,
}

/// What a rejected post gives back.
pub type Refused = (Error, Iov);

impl Ep {
    /// An end point of that zone, whose requests, receives and connection tell these dispatchers (`dat_ep_create`). They may be one.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`]: a dispatcher is of another adapter, or a number is out of range.
    pub fn new(
        pz: &Pz,
        requests: &Evd,
        receives: &Evd,
        connections: &Evd,
        attributes: EpAttributes,
    ) -> Result<Ep> {
        const CALL: &str = "dat_ep_create";
        if ![requests, receives, connections].iter().all(|evd| evd.ia().is(pz.ia())) {
            return Err(Error::parameter(CALL, "zone and dispatchers are of several adapters"));
        }
        let EpAttributes { max_receives, max_requests } = attributes;
        if ![max_receives, max_requests].iter().all(|max| (1..=MAX_DTOS).contains(max)) {
            return Err(Error::parameter(
                CALL,
                format!("a queue of 0 or of more than {MAX_DTOS}: {attributes:?}"),
            ));
        }
        let settings = Settings {
            pz: Some(pz.core().clone()),
            receive_evd: Some(receives.core()),
            request_evd: Some(requests.core()),
            connect_evd: Some(connections.core()),
            srq: None,
            max_receives,
            max_requests,
            max_receive_segments: MAX_SEGMENTS,
            max_request_segments: MAX_SEGMENTS,
        };
        let number = id::next();
        let core = pz.ia().core().clone();
        let slot = EPS.insert(0, |slot| ep::Ep::new(slot.id(), number as usize, core, settings));
        Ok(Ep {
            id: EpId(number),
            slot,
            pz: pz.clone(),
            _requests: requests.clone(),
            _receives: receives.clone(),
            _connections: connections.clone(),
        })
    }

    /// Which one it is.
    pub fn id(&self) -> EpId {
        self.id
    }

    /// Its adapter.
    pub fn ia(&self) -> &Ia {
        self.pz.ia()
    }

    /// Its state (`dat_ep_get_status`).
    pub fn state(&self) -> EpState {
        self.slot.lock().as_ref().map_or(EpState::Disconnected, ep::Ep::state)
    }

    /// The other end, as far as it is known (`dat_ep_query`).
    pub fn peer(&self) -> Option<Peer> {
        let held = self.slot.lock();
        let peer = held.as_ref()?.peer.as_ref()?;
        let (host, _) = peer.asked_at.unwrap_or_default();
        let address = crate::core::address::SockAddr::host_of(&peer.address).unwrap_or(host);
        Some(Peer { address: ip_of(&address), private_data: peer.private_data.to_vec() })
    }

    #[inline(always)]
    fn with<R>(&self, with: impl FnOnce(&mut ep::Ep) -> code::Result<R>) -> code::Result<R> {
        match &mut *self.slot.lock() {
            Some(ep) => with(ep),
            None => Err(Code::INTERNAL_ERROR),
        }
    }

    #[cold]
    fn error(&self, call: &'static str, code: Code) -> Error {
        Error::of(call, code, "the end point's queue", self.state())
    }

    // ---- the connection ----

    /// Asks for a connection (`dat_ep_connect`). Does not wait: a [`Connection`](super::Connection) event tells how it went, in about `limit` at most.
    /// Up to [`MAX_PRIVATE_DATA`] bytes go along.
    ///
    /// # Errors
    /// [`Error::InvalidState`] unless unconnected; [`Error::Length`]; [`Error::InvalidParameter`]: a host's qualifier, and the adapter
    /// has no directory; [`Error::Full`]: no thread to be had.
    pub fn connect(&self, to: &ServiceAddress, limit: Duration, private_data: &[u8]) -> Result {
        const CALL: &str = "dat_ep_connect";
        check_private(CALL, private_data)?;
        let ia = self.ia();
        if matches!(to, ServiceAddress::Host { .. }) && !ia.has_directory() {
            return Err(Error::parameter(
                CALL,
                "an adapter that was made of a NIC connects to ServiceAddress::Nic",
            ));
        }
        let host = ia.host_of(to);
        service::connect(self.slot, host, to.qualifier(), limit, private_data)
            .map_err(|code| self.error(CALL, code))
    }

    /// Accepts a connection request, with data for the asker (`dat_cr_accept`). Does not wait: [`Connection::Established`](super::Connection::Established) or
    /// [`Connection::AcceptFailed`](super::Connection::AcceptFailed) follows.
    ///
    /// # Errors
    /// The request comes back with [`Error::InvalidState`] unless unconnected, and with [`Error::Length`].
    #[allow(clippy::result_large_err, reason = "a request that was not answered comes back")]
    pub fn accept(
        &self,
        request: ConnectionRequest,
        private_data: &[u8],
    ) -> Result<(), (Error, ConnectionRequest)> {
        const CALL: &str = "dat_cr_accept";
        if let Err(error) = check_private(CALL, private_data) {
            return Err((error, request));
        }
        let Some(cr) = request.slot() else {
            return Err((Error::parameter(CALL, "the request was answered"), request));
        };
        match service::accept(cr, Some(self.slot), private_data) {
            Ok(()) => {
                request.answered();
                Ok(())
            }
            Err(code) => Err((self.error(CALL, code), request)),
        }
    }

    /// Ends the connection (`dat_ep_disconnect`): in order, when what is posted has been sent, or at once. What is left is flushed.
    /// Does not wait.
    ///
    /// # Errors
    /// [`Error::InvalidState`]: it was never connected.
    pub fn disconnect(&self, graceful: bool) -> Result {
        self.with(|ep| ep.disconnect(graceful)).map_err(|code| self.error("dat_ep_disconnect", code))
    }

    /// Makes a disconnected end point unconnected (`dat_ep_reset`).
    ///
    /// # Errors
    /// [`Error::InvalidState`] in other states.
    pub fn reset(&self) -> Result {
        self.with(ep::Ep::reset).map_err(|code| self.error("dat_ep_reset", code))
    }

    // ---- work ----

    /// Sends the selected parts as one message (`dat_ep_post_send`). Does not wait. Posted to an end point that is disconnected, it is flushed.
    ///
    /// # Errors
    /// The memory comes back with [`Error::InvalidState`], [`Error::Full`], [`Error::Length`] or [`Error::Protection`].
    #[inline]
    pub fn post_send(&self, iov: impl Into<Iov>, cookie: u64) -> Result<(), Refused> {
        let iov = iov.into();
        let Some(segment) = iov.single() else {
            return self.post("dat_ep_post_send", ep::Operation::Send, iov, cookie, Flags::NONE, usize::MAX);
        };
        let posted = iov.into_cookie(self.id, cookie);
        match self.with(|ep| ep.post_send(segment, posted, 0)) {
            Ok(()) => Ok(()),
            Err(code) => Err(self.refused("dat_ep_post_send", code, posted)),
        }
    }

    /// As [`Ep::post_send`], with flags.
    ///
    /// # Errors
    /// As [`Ep::post_send`].
    pub fn post_send_with(&self, iov: impl Into<Iov>, cookie: u64, flags: Flags) -> Result<(), Refused> {
        self.post("dat_ep_post_send", ep::Operation::Send, iov.into(), cookie, flags, usize::MAX)
    }

    /// Sends a message that ends an RMR context of the peer's (`dat_ep_post_send_with_invalidate`).
    ///
    /// # Errors
    /// As [`Ep::post_send`].
    pub fn post_send_with_invalidate(
        &self,
        iov: impl Into<Iov>,
        cookie: u64,
        context: u32,
        flags: Flags,
    ) -> Result<(), Refused> {
        let operation = ep::Operation::SendAndInvalidate(context);
        self.post("dat_ep_post_send_with_invalidate", operation, iov.into(), cookie, flags, usize::MAX)
    }

    /// A place for a message (`dat_ep_post_recv`). A message that is longer breaks the connection.
    ///
    /// # Errors
    /// The memory comes back with [`Error::Full`] or [`Error::InvalidParameter`].
    #[inline]
    pub fn post_receive(&self, iov: impl Into<Iov>, cookie: u64) -> Result<(), Refused> {
        let iov = iov.into();
        let single = iov.single();
        let several = if single.is_none() { iov.triplets() } else { Triplets::new() };
        let posted = iov.into_cookie(self.id, cookie);
        let posting = self.with(|ep| match single {
            Some(segment) => ep.post_receive_one(segment, posted),
            None => ep.post_receive(&several, posted),
        });
        match posting {
            Ok(()) => Ok(()),
            Err(code) => Err(self.refused("dat_ep_post_recv", code, posted)),
        }
    }

    /// Writes the selected parts to the beginning of the peer's memory (`dat_ep_post_rdma_write`). A message that is posted behind it
    /// arrives when the data are in place.
    ///
    /// # Errors
    /// As [`Ep::post_send`]; [`Error::Length`] also if the remote memory is shorter.
    pub fn post_rdma_write(
        &self,
        iov: impl Into<Iov>,
        to: RemoteMemory,
        cookie: u64,
        flags: Flags,
    ) -> Result<(), Refused> {
        let operation = ep::Operation::Write(to.address, to.context);
        self.post("dat_ep_post_rdma_write", operation, iov.into(), cookie, flags, to.len as usize)
    }

    /// Reads the beginning of the peer's memory, as much as is selected (`dat_ep_post_rdma_read`).
    ///
    /// # Errors
    /// As [`Ep::post_rdma_write`].
    pub fn post_rdma_read(
        &self,
        iov: impl Into<Iov>,
        from: RemoteMemory,
        cookie: u64,
        flags: Flags,
    ) -> Result<(), Refused> {
        let operation = ep::Operation::Read(from.address, from.context);
        self.post("dat_ep_post_rdma_read", operation, iov.into(), cookie, flags, from.len as usize)
    }

    fn post(
        &self,
        call: &'static str,
        operation: ep::Operation,
        iov: Iov,
        cookie: u64,
        flags: Flags,
        remote: usize,
    ) -> Result<(), Refused> {
        let segments = iov.triplets();
        let (len, room) = (iov.len(), self.ia().max_transfer().min(remote));
        if len > room {
            return Err((Error::Length { call, len, room }, iov));
        }
        let posted = iov.into_cookie(self.id, cookie);
        match self.with(|ep| ep.post_request(operation, &segments, posted, flags.bits())) {
            Ok(()) => Ok(()),
            Err(code) => Err(self.refused(call, code, posted)),
        }
    }

    /// What was refused has not been posted: it is the program's again.
    #[cold]
    fn refused(&self, call: &'static str, code: Code, posted: u64) -> Refused {
        (self.error(call, code), take_posted(posted).0)
    }
}

fn check_private(call: &'static str, private_data: &[u8]) -> Result {
    let (len, room) = (private_data.len(), MAX_PRIVATE_DATA);
    if len > room { Err(Error::Length { call, len, room }) } else { Ok(()) }
}

impl Drop for Ep {
    fn drop(&mut self) {
        if !is_forked() {
            let _ = service::free_ep(self.slot, true); // nobody else frees it
        }
    }
}

impl fmt::Debug for Ep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ep({:?}, {:?})", self.id, self.state())
    }
}
