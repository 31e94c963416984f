//! An end point: the program's two work queues, over a virtual interface.
//!
//! The interface below takes messages as they come (`Receive::Lent`); work queues and RDMA are `udeck-rdma`'s,
//! because uDAPL's reach any registered memory of the program's, in order with its messages. A thread that polls an
//! end point moves it on: it takes what has arrived, places it, answers it, and sends what had found no room.
//!
//! An end point's lock is that of its slot. It is never held while anybody waits, nor while a transport makes a connection.

mod connection;
mod face;
mod sends;

use std::sync::Arc;

use udeck::via::Withdrawal;
use udeck_rdma::frame::Reason;
use udeck_rdma::{End, Outcome, QueuePair};

use super::address::SharedSockAddr;
use super::code::{Code, Result, Sub};
use super::evd::Evd;
use super::event::{Dto, Event, Status, flags, number};
use super::ia::Ia;
use super::memory::{Pz, Triplet};
use super::qos::Qos;
use super::slot::Pool;
use super::srq::{Receive, Srq};
use super::state::{EpCall, EpEvent, EpState};
pub use connection::{Attempt, Peer};
use face::DatFace;
pub use face::Operation;

/// `DAT_HANDLE_TYPE_EP` + 1.
pub static EPS: Pool<Ep> = Pool::new(2);

/// Most DTOs in one queue.
pub const MAX_DTOS: usize = 8192;
/// Most segments of a DTO.
pub const MAX_SEGMENTS: usize = 64;

/// Moves the end point of that number on.
pub fn move_on(id: u64) {
    if let Some(slot) = EPS.by_id(id)
        && let Some(ep) = &mut *slot.lock()
    {
        ep.move_on();
    }
}

/// Settings of an end point, which the program may change while it is not connected.
#[derive(Clone)]
pub struct Settings {
    pub pz: Option<Arc<Pz>>,
    pub receive_evd: Option<Arc<Evd>>,
    pub request_evd: Option<Arc<Evd>>,
    pub connect_evd: Option<Arc<Evd>>,
    pub srq: Option<Arc<Srq>>,
    pub max_receives: usize,
    pub max_requests: usize,
    pub max_receive_segments: usize,
    pub max_request_segments: usize,
    /// The quality of connections that are asked for without a quality of their own.
    pub qos: Qos,
}

pub struct Ep {
    id: u64,
    pub face: DatFace,
    queues: QueuePair<DatFace>,
    state: EpState,
    /// The quality that its connection asks for.
    qos: Qos,
    /// Number of the latest attempt to connect, unique also among end points that had this slot before; 0: none yet.
    attempt: u64,
    /// Ends that attempt.
    asking: Option<Withdrawal>,
    /// Number of the latest reservation by a service point, unique in this process; 0: none yet.
    reservation: u64,
    pub port: u64,
    /// Address of the latest peer. The program has a pointer to it as long as the end point exists.
    pub remote: Arc<SharedSockAddr>,
    is_stuck: bool,
}

impl Ep {
    pub fn new(id: u64, handle: usize, ia: Arc<Ia>, settings: Settings) -> Ep {
        let state = if settings.pz.is_some() { EpState::Unconnected } else { EpState::Unconfigured };
        let pz = settings.pz.as_ref().map_or(0, |pz| pz.id);
        let qos = settings.qos;
        Ep {
            id,
            face: DatFace { handle, ia, settings, pz, peer: None },
            queues: QueuePair::new(None),
            state,
            qos,
            attempt: 0,
            asking: None,
            reservation: 0,
            port: 0,
            remote: Arc::default(),
            is_stuck: false,
        }
    }

    pub fn state(&self) -> EpState {
        self.state
    }

    /// The quality of service that its connection has, or will have.
    pub fn qos(&self) -> Qos {
        self.face.ia.quality(self.qos)
    }

    pub fn pz(&self) -> u32 {
        self.face.pz
    }

    /// The level that the interface below sends at, if there is one.
    #[cfg(test)]
    pub fn level_below(&self) -> Option<udeck::via::ServiceLevel> {
        self.queues.vi.as_ref().map(|vi| vi.attributes().level)
    }

    /// Whether nothing is posted to receive, and whether nothing is to be sent.
    pub fn idle(&self) -> (bool, bool) {
        (self.queues.receives.is_empty(), self.queues.posted() == 0)
    }

    /// Number of posted receives, those of the shared queue if there is one.
    pub fn receives_posted(&self) -> usize {
        self.face.settings.srq.as_ref().map_or(self.queues.receives.len(), |srq| srq.counts().0)
    }

    /// Changes the settings.
    ///
    /// # Errors
    /// The state forbids it.
    pub fn modify(&mut self, settings: Settings) -> Result {
        self.state.check(EpCall::Modify)?;
        self.face.pz = settings.pz.as_ref().map_or(0, |pz| pz.id);
        self.qos = settings.qos;
        self.face.settings = settings;
        if self.face.pz != 0 {
            self.enter(EpEvent::Configured);
        }
        Ok(())
    }

    fn enter(&mut self, event: EpEvent) -> bool {
        match self.state.after(event) {
            Some(state) => {
                let was_connected = self.is_linked();
                self.state = state;
                let is_connected = self.is_linked();
                if was_connected != is_connected {
                    self.face.ia.count_connected(is_connected);
                }
                true
            }
            None => false,
        }
    }

    fn is_linked(&self) -> bool {
        matches!(self.state, EpState::Connected | EpState::DisconnectPending)
    }

    // ---- receives ----

    /// `dat_ep_post_recv` into one segment: the shortest way for most.
    ///
    /// # Errors
    /// As [`Ep::post_receive`].
    #[inline(always)]
    pub fn post_receive_one(&mut self, segment: Triplet, cookie: u64) -> Result {
        if self.state == EpState::Connected
            && self.face.settings.srq.is_none()
            && self.queues.receives.len() < self.face.settings.max_receives
            && !self.queues.is_holding()
        {
            self.queues.receives.push_back(Receive::into_one(segment, cookie));
            return Ok(());
        }
        self.post_receive(&[segment], cookie)
    }

    /// `dat_ep_post_recv`.
    ///
    /// # Errors
    /// The state forbids it, or the queue is full.
    #[inline(never)]
    pub fn post_receive(&mut self, segments: &[Triplet], cookie: u64) -> Result {
        self.state.check(EpCall::PostRecv)?;
        if self.face.settings.srq.is_some() {
            return Err(Code::INVALID_HANDLE.of(Sub::HandleEp));
        }
        if segments.len() > self.face.settings.max_receive_segments {
            return Err(Code::argument(2));
        }
        if self.state == EpState::Disconnected {
            self.face.receive_over(cookie, Status::Flushed, 0, Dto::Receive, 0);
            return Ok(());
        }
        if self.queues.receives.len() >= self.face.settings.max_receives {
            return Err(Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceMemory));
        }
        self.queues.receives.push_back(Receive::new(segments, cookie));
        if self.queues.is_holding() {
            self.move_on();
        }
        Ok(())
    }

    // ---- moving on ----

    /// Takes what has arrived, and sends what waits.
    pub fn move_on(&mut self) {
        if !self.is_linked() {
            return;
        }
        if let Err(end) = self.queues.move_on(&mut self.face, |_| false) {
            self.end_by(end);
        }
        self.note_stuck();
        if self.state == EpState::DisconnectPending && self.queues.posted() == 0 {
            self.end(Outcome::Flushed, number::DISCONNECTED);
        }
    }

    fn note_stuck(&mut self) {
        let is_stuck = self.is_linked() && (self.queues.has_unsent() || self.queues.is_holding());
        if is_stuck != self.is_stuck {
            self.is_stuck = is_stuck;
            self.face.ia.progress.set_stalled(self.id, is_stuck);
        }
    }

    // ---- the end ----

    /// Ends the connection: the oldest request under way gets the status `first`, all others are flushed; then event `told` is put.
    fn end(&mut self, first: Outcome, told: u32) {
        if let Some(mut vi) = self.queues.vi.take() {
            vi.disconnect();
        }
        self.stop_accepting();
        if !self.enter(EpEvent::Ended) {
            return;
        }
        self.queues.flush(&mut self.face, first);
        self.note_stuck();
        if self.face.settings.srq.is_none() {
            return self.tell(told);
        }
        // Several end points may end at the same time: both dispatchers get their ends in the same order (dtestsrq compares them).
        let ia = self.face.ia.clone();
        let _in_order = ia.ends.lock();
        self.tell(told);
        // The end point takes no more from the shared queue, as with hardware.
        if let Some(asynchronous) = ia.asynchronous().upgrade() {
            let broken = Event::asynchronous(number::ASYNC_EP_BROKEN, self.face.handle, 0);
            asynchronous.push_from(broken, || self.face.process());
        }
    }

    /// Ends the connection by what the engine has met.
    #[cold]
    fn end_by(&mut self, end: End) {
        match end {
            End::Local => self.queues.say_broken(Reason::BadReceive),
            End::Refused => self.queues.say_broken(Reason::Own), // none of the peer's requests is at fault
            End::Arrival(reason) => self.queues.say_broken(reason),
            End::Nonsense => {
                udeck::via::say!(
                    "uDAPL: the peer says what this provider does not understand: is it of another version?"
                );
                self.queues.say_broken(Reason::BadReceive);
            }
            End::Broken(_) | End::Closed | End::Lost => {}
        }
        let told = if end == End::Closed { number::DISCONNECTED } else { number::BROKEN };
        self.end(end.outcome(), told);
    }

    fn tell(&self, number: u32) {
        if let Some(evd) = &self.face.settings.connect_evd {
            evd.push_from(Event::connection(number, self.face.handle, &[]), || self.face.process());
        }
    }

    /// Ends the end point: whatever is posted is flushed.
    pub fn retire(&mut self) {
        if let Some(mut vi) = self.queues.vi.take() {
            vi.disconnect();
        }
        self.stop_accepting();
        self.attempt += 1;
        self.withdraw();
        if self.is_linked() {
            self.face.ia.count_connected(false);
        }
        self.state = EpState::Disconnected;
        self.queues.flush(&mut self.face, Outcome::Flushed);
        self.note_stuck();
    }
}

/// Whether a completion makes an event.
#[inline]
fn is_told(bits: u32, status: Status) -> bool {
    bits & flags::SUPPRESS == 0 || status != Status::Success
}
