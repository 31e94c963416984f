//! End points: creation, attributes, and connections. `ep/posts.rs` posts work to them.

mod posts;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use udeck::names::address::{Host, ip_of};
use udeck::via::is_forked;

use super::error::{Error, Result};
use super::evd::Evd;
use super::ia::{Ia, MAX_PRIVATE_DATA, Pz, ServiceAddress};
use super::id::{self, EpId};
use super::request::ConnectionRequest;
use super::srq::Srq;
use crate::core::code::{self, Code, Sub};
use crate::core::ep::{self, EPS, MAX_DTOS, MAX_SEGMENTS, Settings};
use crate::core::event::flags;
use crate::core::qos::Qos;
use crate::core::service;
use crate::core::slot::Slot;
use crate::core::state::{EpEvent, EpState};

/// Attributes of an end point (`DAT_EP_ATTR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpAttributes {
    /// Receives that may be posted at a time: 1 to 8192.
    pub max_receives: usize,
    /// Sends, reads, writes and binds that may be posted at a time: 1 to 8192.
    pub max_requests: usize,
    /// The quality of service that this end asks for its outgoing data. [`Ep::qos`] returns the one in effect.
    pub qos: Qos,
}

impl Default for EpAttributes {
    /// 256 receives, 256 requests, best effort.
    fn default() -> Self {
        EpAttributes { max_receives: 256, max_requests: 256, qos: Qos::BestEffort }
    }
}

impl EpAttributes {
    /// Sets how many receives may be posted at a time.
    #[must_use]
    pub fn max_receives(self, max_receives: usize) -> Self {
        EpAttributes { max_receives, ..self }
    }

    /// Sets how many sends, reads, writes and binds may be posted at a time.
    #[must_use]
    pub fn max_requests(self, max_requests: usize) -> Self {
        EpAttributes { max_requests, ..self }
    }

    /// Sets the quality of service of the outgoing data.
    #[must_use]
    pub fn qos(self, qos: Qos) -> Self {
        EpAttributes { qos, ..self }
    }

    fn check(self, call: &'static str) -> Result {
        if [self.max_receives, self.max_requests].iter().all(|max| (1..=MAX_DTOS).contains(max)) {
            return Ok(());
        }
        Err(Error::parameter(call, format!("a queue of 0 or of more than {MAX_DTOS}: {self:?}")))
    }
}

/// Options of a posted request (`DAT_COMPLETION_FLAGS`). Every completion makes an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// The request begins when all RDMA reads posted before it are over (`DAT_COMPLETION_BARRIER_FENCE_FLAG`).
    pub fence: bool,
}

impl Flags {
    /// No option.
    pub const NONE: Flags = Flags { fence: false };
    /// Only [`fence`](Flags::fence).
    pub const FENCE: Flags = Flags { fence: true };

    fn bits(self) -> u32 {
        if self.fence { flags::BARRIER_FENCE } else { 0 }
    }
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address that the peer gives as its own.
    pub address: IpAddr,
    /// Private data of the peer's acceptance or refusal. Empty at the end that accepted: there the request has them.
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
    // Keep the dispatchers: events of this end point are taken from them when nobody else has them.
    _requests: Evd,
    _receives: Evd,
    _connections: Evd,
    srq: Option<Srq>,
}

impl Ep {
    /// Creates an end point of this zone (`dat_ep_create`). Completions of its requests and receives, and its connection events, go to
    /// these dispatchers; one dispatcher may serve as all three.
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
        Ep::make("dat_ep_create", pz, [requests, receives, connections], None, attributes)
    }

    /// Like [`Ep::new`], but the end point takes its receives from a shared queue (`dat_ep_create_with_srq`).
    ///
    /// # Errors
    /// As [`Ep::new`].
    pub fn with_srq(
        pz: &Pz,
        requests: &Evd,
        receives: &Evd,
        connections: &Evd,
        srq: &Srq,
        attributes: EpAttributes,
    ) -> Result<Ep> {
        const CALL: &str = "dat_ep_create_with_srq";
        if !srq.pz().ia().is(pz.ia()) {
            return Err(Error::parameter(CALL, "end point and shared receive queue are of two adapters"));
        }
        Ep::make(CALL, pz, [requests, receives, connections], Some(srq), attributes)
    }

    fn make(
        call: &'static str,
        pz: &Pz,
        [requests, receives, connections]: [&Evd; 3],
        srq: Option<&Srq>,
        attributes: EpAttributes,
    ) -> Result<Ep> {
        if ![requests, receives, connections].iter().all(|evd| evd.ia().is(pz.ia())) {
            return Err(Error::parameter(call, "zone and dispatchers are of several adapters"));
        }
        attributes.check(call)?;
        let EpAttributes { max_receives, max_requests, qos } = attributes;
        let settings = Settings {
            pz: Some(pz.core().clone()),
            receive_evd: Some(receives.core()),
            request_evd: Some(requests.core()),
            connect_evd: Some(connections.core()),
            srq: srq.map(Srq::core),
            max_receives,
            max_requests,
            max_receive_segments: MAX_SEGMENTS,
            max_request_segments: MAX_SEGMENTS,
            qos,
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
            srq: srq.cloned(),
        })
    }

    /// The number of this end point, unique in this process.
    pub fn id(&self) -> EpId {
        self.id
    }

    /// Its adapter.
    pub fn ia(&self) -> &Ia {
        self.pz.ia()
    }

    /// The state of the end point (`dat_ep_get_status`).
    pub fn state(&self) -> EpState {
        self.slot.lock().as_ref().map_or(EpState::Disconnected, ep::Ep::state)
    }

    /// The attributes that the end point was made with, or was last [modified](Ep::modify) to (`dat_ep_query`).
    pub fn attributes(&self) -> EpAttributes {
        let held = self.slot.lock();
        let settings = held.as_ref().map(|ep| &ep.face.settings);
        settings.map_or_else(EpAttributes::default, |settings| EpAttributes {
            max_receives: settings.max_receives,
            max_requests: settings.max_requests,
            qos: settings.qos,
        })
    }

    /// Changes the attributes of an end point without a connection (`dat_ep_modify`). Zone and dispatchers stay.
    ///
    /// # Errors
    /// [`Error::InvalidState`]; [`Error::InvalidParameter`]: a number is out of range.
    pub fn modify(&self, attributes: EpAttributes) -> Result {
        const CALL: &str = "dat_ep_modify";
        attributes.check(CALL)?;
        let EpAttributes { max_receives, max_requests, qos } = attributes;
        let change = |ep: &mut ep::Ep| {
            ep.modify(Settings { max_receives, max_requests, qos, ..ep.face.settings.clone() })
        };
        self.with(change).map_err(|code| self.error(CALL, code))
    }

    /// The quality of service that its connection has, or will have: what its attributes ask for, or [`Qos::BestEffort`] where the NIC
    /// knows no service levels ([`Ia::quality`]).
    pub fn qos(&self) -> Qos {
        self.slot.lock().as_ref().map_or(Qos::BestEffort, ep::Ep::qos)
    }

    /// The shared queue that the end point takes its receives from. `None`: it has receives of its own.
    pub fn srq(&self) -> Option<&Srq> {
        self.srq.as_ref()
    }

    /// Number of posted receives, those of the shared queue if it has one (`dat_ep_recv_query`).
    pub fn receives_posted(&self) -> usize {
        self.slot.lock().as_ref().map_or(0, ep::Ep::receives_posted)
    }

    /// Whether no request of this end point is in flight (`dat_ep_get_status`).
    pub fn is_idle(&self) -> bool {
        self.slot.lock().as_ref().is_none_or(|ep| ep.idle().1)
    }

    /// Applies a reserved service point's event to the end point's state.
    pub(super) fn reserve(&self, call: &'static str, event: EpEvent) -> Result {
        self.with(|ep| ep.reserve(event)).map_err(|code| self.error(call, code))
    }

    pub(super) fn slot(&self) -> &'static Slot<ep::Ep> {
        self.slot
    }

    /// The other end, as far as it is known (`dat_ep_query`).
    pub fn peer(&self) -> Option<Peer> {
        let held = self.slot.lock();
        let peer = held.as_ref()?.face.peer.as_ref()?;
        Some(Peer { address: ip_of(&peer.host), private_data: peer.private_data.to_vec() })
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
        match code {
            code if code == Code::INVALID_HANDLE.of(Sub::HandleEp) => Error::parameter(call, MISPLACED),
            code if code == Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceTep) => {
                Error::unavailable(call, NO_INTERFACE)
            }
            code => Error::of(call, code, "the end point's queue", self.state()),
        }
    }

    // ---- the connection ----

    /// Asks for a connection (`dat_ep_connect`). Does not wait: a [`Connection`](super::Connection) event tells how it went, in about `limit` at most.
    /// Up to [`MAX_PRIVATE_DATA`] bytes go along.
    ///
    /// # Errors
    /// [`Error::InvalidState`] unless unconnected; [`Error::Length`]; [`Error::InvalidParameter`]: a host's qualifier, and the adapter
    /// has no directory; [`Error::Unavailable`]: the system has no thread left, or the NIC no virtual interface. The end point is as before.
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
        self.ask(CALL, ia.host_of(to), to.qualifier(), limit, private_data)
    }

    /// Asks for a connection to the address that `other` has asked last (`dat_ep_dup_connect`); otherwise as [`Ep::connect`].
    ///
    /// # Errors
    /// As [`Ep::connect`]; [`Error::InvalidParameter`]: the other one is of another adapter, or has asked for no connection since it was
    /// made or [reset](Ep::reset).
    pub fn dup_connect(&self, other: &Ep, limit: Duration, private_data: &[u8]) -> Result {
        const CALL: &str = "dat_ep_dup_connect";
        check_private(CALL, private_data)?;
        if !other.ia().is(self.ia()) {
            return Err(Error::parameter(CALL, "the end points are of two adapters"));
        }
        let asked_at = other.slot.lock().as_ref().and_then(|ep| ep.face.peer.as_ref()?.asked_at);
        let Some((host, qualifier)) = asked_at else {
            return Err(Error::parameter(CALL, "the other end point has asked for no connection"));
        };
        self.ask(CALL, host, qualifier, limit, private_data)
    }

    fn ask(
        &self,
        call: &'static str,
        host: Host,
        qualifier: u64,
        limit: Duration,
        private_data: &[u8],
    ) -> Result {
        match service::connect(self.slot, host, qualifier, limit, None, private_data) {
            Err(service::NO_THREAD) => Err(Error::unavailable(call, NO_THREAD)),
            other => other.map_err(|code| self.error(call, code)),
        }
    }

    /// Accepts a connection request, with data for the asker (`dat_cr_accept`). Does not wait: [`Connection::Established`](super::Connection::Established) or
    /// [`Connection::AcceptFailed`](super::Connection::AcceptFailed) follows.
    ///
    /// # Errors
    /// The request comes back with [`Error::InvalidState`] unless unconnected, with [`Error::Length`], with
    /// [`Error::InvalidParameter`] if it came to a reserved service point for another end point, and with [`Error::Unavailable`] if
    /// the NIC has no virtual interface left.
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
}

/// Explains `DAT_INVALID_HANDLE` to Rust programs, which have objects in place of handles.
const MISPLACED: &str = "that is not this end point's: receives go to its shared queue, if it has one, and \
                         the request of a reserved service point to its end point";

const NO_INTERFACE: &str = "the NIC has no virtual interface for the connection; stderr says why";
const NO_THREAD: &str = "no thread to be had that asks: end some, or raise the limit (ulimit -u, a container's pids); \
                         the end point is as before";

fn check_private(call: &'static str, private_data: &[u8]) -> Result {
    let (len, room) = (private_data.len(), MAX_PRIVATE_DATA);
    if len > room { Err(Error::Length { call, len, room }) } else { Ok(()) }
}

impl Drop for Ep {
    fn drop(&mut self) {
        if !is_forked() {
            let _ = service::free_ep(self.slot, true); // cannot fail: nobody else frees it
        }
    }
}

impl fmt::Debug for Ep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ep({:?}, {:?})", self.id, self.state())
    }
}
