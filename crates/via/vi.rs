//! Virtual interfaces ([`Vi`]).

mod limits;
mod peer_request;
mod queues;
mod rdma;
mod sends;
mod share;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

use crate::attributes::{NetAddress, Receive, ViAttributes};
use crate::caps::Caps;
use crate::cq::{CqHandle, CqReservation, CqReservations};
use crate::descriptor::{Completion, ReceiveInto, Status};
use crate::error::{Error, Result};
use crate::mem::{Arena, Block, Carrier, LentSlice, TagUse};
use crate::nic::Nic;
use crate::peer::Peering;
use crate::report::{ErrorCode, Reporter};
use crate::shared::SharedReceives;
use crate::state::State;
use crate::transport::{
    Arrival, Found, Inline, LinkReport, Owner, PostedBuffer, Queues, Refused, ShortArrival, ViEndpoint,
};
use crate::withdrawal::Withdrawal;
use limits::Limits;
pub(crate) use queues::Pieces;
use queues::{Staged, StandIn};
pub use rdma::{ReadDone, Reading};
use sends::{PostedSend, Sends};
use udeck_sys::Deadline;
use udeck_sys::process::is_forked;

/// An ended connection. Its send queue reports until the last of its sends is reported, so it keeps its entry.
struct Leaving {
    endpoint: Box<dyn ViEndpoint>,
    _place: CqReservation,
}

/// A virtual interface: a send queue and a receive queue, each FIFO, connected to exactly one other.
///
/// Belongs to one thread at a time. Dropping it disconnects; what was sent before still arrives.
pub struct Vi {
    nic: Nic,
    /// The NIC's outbox, close at hand: posted blocks are checked to be of it.
    outbox: Arc<Arena>,
    limits: Limits,
    attributes: ViAttributes,
    /// Use of the tag `attributes.ptag`.
    tag: TagUse,
    state: State,
    endpoint: Option<Box<dyn ViEndpoint>>,
    /// Reporter of the end of `endpoint`'s connection.
    reporter: Option<Arc<Reporter>>,
    /// Entries of its queues on their completion queues, while it is connected or asks a peer.
    places: Option<CqReservations>,
    /// A peer request in progress.
    peering: Option<Peering>,
    /// Ended connections over which a peer still reads sent data.
    leaving: Vec<Leaving>,
    sends: Sends,
    staged: Staged,
    next_send: u64,
    /// Posted receives, oldest first.
    receives: VecDeque<ReceiveInto>,
    /// Shared queue from which arrivals take their descriptors, instead of `receives`.
    shared_receives: Option<SharedReceives>,
    /// Receives that are over and not reported yet.
    received: VecDeque<Completion>,
}

impl Vi {
    /// An idle VI.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the NIC lacks the reliability level, RDMA write or RDMA read;
    /// [`Error::InvalidPtag`] when it has no such tag.
    pub fn new(nic: &Nic, attributes: ViAttributes) -> Result<Self> {
        check_attributes(nic, &attributes)?;
        Ok(Vi {
            nic: nic.clone(),
            outbox: nic.device().outbox().clone(),
            limits: Limits::of(nic.attributes()),
            attributes,
            tag: nic.tags().take(attributes.ptag, Carrier::Vi)?,
            state: State::Idle,
            endpoint: None,
            reporter: None,
            places: None,
            peering: None,
            leaving: Vec::new(),
            sends: Sends::default(),
            staged: Staged::default(),
            next_send: 0,
            receives: VecDeque::new(),
            shared_receives: None,
            received: VecDeque::new(),
        })
    }

    /// The NIC of this VI.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Settings of this VI.
    pub fn attributes(&self) -> &ViAttributes {
        &self.attributes
    }

    /// Changes the settings, while the VI is idle and has nothing posted or unreported: posted descriptors were checked
    /// against the old ones.
    ///
    /// # Errors
    /// The settings stay: [`Error::InvalidState`] unless idle, [`Error::InvalidParameter`] while something is posted, and
    /// those of [`Vi::new`].
    pub fn set_attributes(&mut self, attributes: ViAttributes) -> Result {
        self.require_idle("set_attributes")?;
        check_attributes(&self.nic, &attributes)?;
        if self.sends.len() + self.receives.len() + self.received.len() > 0 {
            return Err(Error::InvalidParameter("a VI with descriptors on it keeps its settings".into()));
        }
        if let Some(shared) = &self.shared_receives {
            check_shared(shared, &self.nic, &attributes)?;
        }
        self.tag = self.tag.other(attributes.ptag)?;
        self.attributes = attributes;
        Ok(())
    }

    /// Puts later arrivals into descriptors that are posted to `shared`, for good.
    ///
    /// # Errors
    /// [`Error::InvalidState`] unless idle; [`Error::InvalidParameter`] while receives are posted here, on a VI that
    /// receives lent, or for a queue of another NIC; [`Error::InvalidPtag`].
    pub fn share_receives(&mut self, shared: &SharedReceives) -> Result {
        self.require_idle("share_receives")?;
        check_shared(shared, &self.nic, &self.attributes)?;
        if !self.receives.is_empty() {
            return Err(Error::InvalidParameter("receives are posted on the VI itself".into()));
        }
        self.shared_receives = Some(shared.clone());
        Ok(())
    }

    /// State of the VI, as far as its calls have seen the connection (VIA: `VipQueryVi`, with the two lengths below and
    /// [`Vi::attributes`]).
    pub fn state(&self) -> State {
        self.state
    }

    /// Number of descriptors on the send queue: posted, and not reported by [`Vi::send_done`] yet.
    pub fn send_queue_len(&self) -> usize {
        self.sends.len()
    }

    /// Number of descriptors on the receive queue: posted, and not reported by [`Vi::receive_done`] yet. Those of a shared
    /// queue count from the moment a message took them.
    pub fn receive_queue_len(&self) -> usize {
        self.receives.len() + self.received.len()
    }

    /// Asks the listener at `to` for a connection and waits for the answer, until the deadline at most. Returns the other
    /// side's private data.
    ///
    /// # Errors
    /// [`Error::NoMatch`], [`Error::Rejected`], [`Error::InvalidReliability`], [`Error::Timeout`],
    /// [`Error::InvalidParameter`] (private data or discriminator too long, no keys for the
    /// [peer](ViAttributes::peer)), [`Error::InvalidState`] unless idle,
    /// [`Error::Full`] when a completion queue has no entry free, or the peer still uses too many connections that are closed
    /// here, or the operating system's. By [`Error::is_no_place`] the peer says that it may accept later.
    pub fn connect(
        &mut self,
        to: &NetAddress,
        send: &CqHandle,
        receive: &CqHandle,
        private_data: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>> {
        let reporter = self.nic.error_sink().reporter(self.attributes.context);
        self.ask(to, (send, receive), private_data, deadline, reporter)
    }

    /// Connects as [`Vi::connect`] does. The wait also ends soon after the request was withdrawn, as if the deadline had passed.
    ///
    /// # Errors
    /// Those of [`Vi::connect`].
    pub fn connect_unless(
        &mut self,
        withdrawn: &Withdrawal,
        to: &NetAddress,
        (send, receive): (&CqHandle, &CqHandle),
        private_data: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>> {
        let reporter = self.nic.error_sink().reporter_unless(self.attributes.context, withdrawn);
        self.ask(to, (send, receive), private_data, deadline, reporter)
    }

    fn ask(
        &mut self,
        to: &NetAddress,
        (send, receive): (&CqHandle, &CqHandle),
        private_data: &[u8],
        deadline: Deadline,
        reporter: Arc<Reporter>,
    ) -> Result<Vec<u8>> {
        self.require_idle("connect")?;
        self.nic.check()?;
        let limit = self.nic.attributes().max_discriminator;
        if to.discriminator.len() > limit {
            let what = format!("a discriminator of {} bytes, at most {limit}", to.discriminator.len());
            return Err(Error::InvalidParameter(what));
        }
        let hello = self.hello(private_data)?;
        let places = CqReservations::take(send, receive)?;
        let ViAttributes { context, level, .. } = self.attributes;
        let queues = Queues {
            send: send.notifier(),
            receive: receive.notifier(),
            context,
            level,
            reporter: &reporter,
        };
        self.state = State::ConnectPending;
        match self.nic.device().connect(to, self.attributes.peer, &hello, queues, deadline) {
            Ok((endpoint, theirs)) => {
                self.connected(endpoint, reporter, places);
                Ok(theirs.private_data)
            }
            Err(error) => {
                self.state = State::Idle;
                Err(error)
            }
        }
    }

    pub(crate) fn require_idle(&self, what: &'static str) -> Result {
        if is_forked() {
            return Err(Error::forked());
        }
        if self.state == State::Idle { Ok(()) } else { Err(Error::InvalidState { what, state: self.state }) }
    }

    #[inline]
    fn require_connected(&self, what: &'static str) -> Result {
        if self.state == State::Connected && !is_forked() {
            Ok(())
        } else {
            Err(not_connected(what, self.state))
        }
    }

    pub(crate) fn connected(
        &mut self,
        endpoint: Box<dyn ViEndpoint>,
        reporter: Arc<Reporter>,
        places: CqReservations,
    ) {
        self.places = Some(places);
        self.met(endpoint, reporter);
    }

    /// Takes over the connection to which a peer request has led.
    pub(crate) fn met(&mut self, endpoint: Box<dyn ViEndpoint>, reporter: Arc<Reporter>) {
        reporter.stands();
        self.reporter = Some(reporter);
        self.endpoint = Some(endpoint);
        self.peering = None;
        self.state = State::Connected;
    }

    pub(crate) fn pending(&mut self, peering: Peering, places: CqReservations) {
        self.peering = Some(peering);
        self.places = Some(places);
        self.state = State::ConnectPending;
    }

    pub(crate) fn peering(&self, what: &'static str) -> Result<&Peering> {
        self.peering.as_ref().ok_or_else(|| not_connected(what, self.state))
    }

    /// Ends the connection, or withdraws a peer request: sent messages still arrive, descriptors that are posted here are
    /// flushed. Leads to idle, also from the Error state. Sends whose memory the peer is still reading are reported when it
    /// is done: until then the send queue keeps its entry on its completion queue, and is named there.
    pub fn disconnect(&mut self) {
        if is_forked() {
            return;
        }
        self.peering = None;
        if let Some(reporter) = self.reporter.take() {
            reporter.ended();
        }
        self.flush_queues(Status::Flushed);
        if let (Some(endpoint), Some(places)) = (self.endpoint.take(), self.places.take()) {
            self.leave(endpoint, places);
        }
        self.state = State::Idle;
    }

    /// Leaves the owner of the memory posted under `number` with the endpoint over which it is still accessed.
    fn keep_leaving(&mut self, number: u64, mut owner: Owner) {
        for Leaving { endpoint, .. } in &mut self.leaving {
            match endpoint.keep(number, owner) {
                Ok(()) => return,
                Err(back) => owner = back,
            }
        }
    }

    fn leave(&mut self, mut endpoint: Box<dyn ViEndpoint>, places: CqReservations) {
        endpoint.leave();
        // This takes completions from before the endpoint began to report them.
        self.sends.settle(&mut *endpoint, self.attributes.reliability);
        if self.sends.all_over() {
            drop(endpoint); // before the entries, which are free only when nothing is attached any more
        } else {
            self.leaving.push(Leaving { endpoint, _place: places.send });
        }
    }

    // ---- the message layer's way: inline sends, lent receives ----

    /// Sends `head` + `body`, at most `max_inline` bytes together, copied before the call returns. No completion.
    ///
    /// # Errors
    /// [`Error::Full`] when the peer has to read first; final ones as for any connection.
    #[inline]
    pub fn send_inline(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result {
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !is_forked()) else {
            return Err(not_connected("send", self.state));
        };
        match endpoint.send(immediate, head, body) {
            Ok(()) => Ok(()),
            Err(refused) => Err(self.refused(refused)),
        }
    }

    /// Sends as [`Vi::send_inline`] does, with immediate data and a header of 8 bytes, by the shortest path. Returns `false`
    /// if the message was not sent; [`Vi::send_inline`] says why.
    #[inline]
    pub fn send_short(&mut self, immediate: u32, head: [u8; 8], body: &[u8]) -> bool {
        match &mut self.endpoint {
            Some(endpoint) if !is_forked() => endpoint.send_short(immediate, head, body),
            _ => false,
        }
    }

    /// Sends all bodies that lie one after another in `bodies`, `each` bytes long (not 0), as [`Vi::send_short`] does.
    /// Returns how many were sent.
    #[inline]
    pub fn send_short_run(&mut self, immediate: u32, head: [u8; 8], bodies: &[u8], each: usize) -> usize {
        match &mut self.endpoint {
            Some(endpoint) if !is_forked() => endpoint.send_short_run(immediate, head, bodies, each),
            _ => 0,
        }
    }

    /// Gives a block to the peer, which reads it in place; it is recycled when the peer drops it. `head` (at most `max_head`
    /// bytes) travels with it. No completion.
    ///
    /// # Errors
    /// The block comes back with [`Error::Full`] when the peer has to read or to give buffers back first,
    /// [`Error::InvalidParameter`] when it is of another NIC, or a final error.
    // Always inlined: otherwise the compiler's choice would depend on the other callers, and a call moves the block through
    // memory.
    #[inline(always)]
    pub fn hand_off(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        block: Block,
    ) -> Result<(), (Error, Block)> {
        if !self.outbox.owns(&block) {
            return Err((foreign_block(), block));
        }
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !is_forked()) else {
            return Err((not_connected("hand-off", self.state), block));
        };
        let segment = [(block.offset(), block.len())];
        match endpoint.lend(immediate, head, &segment, PostedBuffer::Block(block)) {
            Ok(()) => Ok(()),
            Err((refused, PostedBuffer::Block(block))) => Err((self.refused(refused), block)),
            Err((_, PostedBuffer::Caller(_) | PostedBuffer::Owner(_))) => {
                unreachable!("an endpoint returns what it was given")
            }
        }
    }

    /// The next arrival on a VI that receives lent.
    ///
    /// # Errors
    /// [`Error::Closed`] and [`Error::Lost`], after everything that came before.
    #[inline]
    pub fn arrival(&mut self) -> Result<Option<Arrival>> {
        debug_assert_eq!(self.attributes.receive, Receive::Lent);
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !is_forked()) else {
            return Err(not_connected("receive", self.state));
        };
        match endpoint.receive() {
            Ok(arrival) => Ok(arrival),
            Err(refused) => Err(self.refused(refused)),
        }
    }

    /// Takes a short message into `to`, on a VI that receives lent: the shortest path, for most messages. Otherwise nothing
    /// is taken; [`Found::Other`]: [`Vi::arrival`] tells what there is.
    #[inline]
    pub fn arrival_short(&mut self, to: &mut Inline) -> Found {
        debug_assert_eq!(self.attributes.receive, Receive::Lent);
        match &mut self.endpoint {
            Some(endpoint) if !is_forked() => endpoint.receive_short(to),
            _ => Found::Other,
        }
    }

    /// Takes several short messages in a row, as [`Vi::arrival_short`] does, whose header has 8 bytes and begins with the
    /// byte `first`. Returns how many lie in `to` now. 0 decides nothing.
    #[inline]
    pub fn arrival_short_run(&mut self, first: u8, to: &mut [ShortArrival]) -> usize {
        debug_assert_eq!(self.attributes.receive, Receive::Lent);
        match &mut self.endpoint {
            Some(endpoint) if !is_forked() => endpoint.receive_short_run(first, to),
            _ => 0,
        }
    }

    /// Takes a message that lies in the sender's memory, on a VI that receives lent, by the shortest path. Returns it with
    /// its immediate data, and puts its head into `head`. `None`: [`Vi::arrival`] tells what there is.
    #[inline]
    pub fn arrival_lent(&mut self, head: &mut Inline) -> Option<(Option<u32>, LentSlice)> {
        debug_assert_eq!(self.attributes.receive, Receive::Lent);
        self.endpoint.as_mut().filter(|_| !is_forked())?.receive_lent(head)
    }

    /// Requests notification: until the next post, the send queue's completion queue names this VI when there may be room
    /// again. After this call, poll the send queue once more, then wait.
    pub fn request_send_notify(&mut self) {
        if let Some(endpoint) = self.endpoint.as_mut().filter(|_| !is_forked()) {
            endpoint.request_send_notify();
        }
    }

    /// Takes back the buffers that the peer is done with; they return to their arena.
    pub fn reclaim(&mut self) {
        self.collect_sends();
    }

    /// A report of the current connection: memory of the outbox that the peer holds, and retransmissions. `None` if there is
    /// no connection, or if the transport has no report. It does not keep the connection alive.
    pub fn link_report(&self) -> Option<Weak<dyn LinkReport>> {
        self.endpoint.as_ref()?.link_report()
    }

    /// Number of messages that the peer has not read yet. The peer does not report each; a thread that waits for 0 asks again
    /// now and then.
    ///
    /// # Errors
    /// Those that are [final](Error::is_final).
    pub fn unread(&mut self) -> Result<u32> {
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !is_forked()) else {
            return Err(not_connected("flush", self.state));
        };
        endpoint.unread().map_err(|refused| self.refused(refused))
    }

    // ---- the end ----

    /// Translates a refusal into the program's error, and updates this VI's state.
    #[cold]
    fn refused(&mut self, refused: Refused) -> Error {
        match refused {
            Refused::Busy => Error::Full { what: "the connection", bound: "until the peer reads".into() },
            Refused::Protection => Error::RdmaProtection { handle: 0, offset: 0, len: 0 },
            Refused::Unsupported => {
                Error::Unsupported { what: "this operation", needed: Caps::default(), have: self.nic.caps() }
            }
            Refused::Closed => {
                self.state = State::Error;
                if let Some(reporter) = &self.reporter {
                    reporter.ended();
                }
                self.flush_queues(Status::Flushed);
                Error::Closed
            }
            Refused::Lost(why) => {
                self.state = State::Error;
                self.report(ErrorCode::ConnectionLost, &why);
                self.flush_queues(Status::TransportError);
                Error::Lost(why)
            }
        }
    }

    /// Breaks the connection: a message found no descriptor, or one too short.
    fn break_connection(&mut self, why: &str) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.close(Some(why));
        }
        self.state = State::Error;
        self.report(ErrorCode::ReceiveQueueEmpty, why);
        self.flush_queues(Status::Flushed);
    }

    #[cold]
    fn report(&self, code: ErrorCode, why: &str) {
        if let Some(reporter) = &self.reporter {
            reporter.failed(code, why);
        }
    }
}

fn check_attributes(nic: &Nic, attributes: &ViAttributes) -> Result {
    nic.require("this reliability level", attributes.reliability.cap())?;
    if attributes.enable_rdma_write {
        nic.require("RDMA into this VI's windows", Caps::RDMA_WRITE)?;
    }
    if attributes.enable_rdma_read {
        nic.require("RDMA out of this VI's windows", Caps::RDMA_READ)?;
    }
    Ok(())
}

fn check_shared(shared: &SharedReceives, nic: &Nic, attributes: &ViAttributes) -> Result {
    if attributes.receive != Receive::Posted {
        return Err(Error::InvalidParameter("a VI that receives lent takes no descriptors".into()));
    }
    shared.admit(nic, attributes.ptag)
}

#[cold]
fn foreign_block() -> Error {
    Error::InvalidParameter("the block belongs to another NIC: take one from the outbox of the VI's".into())
}

#[cold]
fn not_connected(what: &'static str, state: State) -> Error {
    if is_forked() {
        return Error::forked();
    }
    Error::InvalidState { what, state }
}

impl Drop for Vi {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.disconnect();
        let reads: Vec<_> = self.sends.reads.take_unfinished().collect();
        for (number, block) in reads {
            self.keep_leaving(number, Box::new(block));
        }
        let sends: Vec<_> = self.sends.take_unfinished().collect();
        for PostedSend { number, owner, .. } in sends {
            let (descriptor, staged) = (owner.ok(), self.staged.take(number));
            if descriptor.is_some() || staged.is_some() {
                self.keep_leaving(number, Box::new((descriptor, staged.map(StandIn::into_block))));
            }
        }
    }
}

impl fmt::Debug for Vi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vi")
            .field("state", &self.state)
            .field("endpoint", &self.endpoint)
            .field("sends", &self.sends.len())
            .field("receives", &self.receives.len())
            .finish()
    }
}
