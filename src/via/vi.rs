//! Virtual interfaces.

use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use crate::attributes::{Caps, NetAddress, Receive, ViAttributes};
use crate::cq::CqHandle;
use crate::descriptor::{Completion, Descriptor, RawId, ReceiveInto, Status};
use crate::error::{Error, Result};
use crate::mem::{Block, RemoteBuffer};
use crate::nic::Nic;
use crate::transport::{Arrival, Body, Held, Owner, Port, Queues, Refused};
use udeck_sys::{Deadline, Pause, Spinner};

/// VIA's states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not connected. Receives may be posted, sends not.
    Idle,
    /// A connection was asked for and not answered yet.
    ConnectPending,
    /// Connected.
    Connected,
    /// The connection broke; everything posted has been flushed. [`Vi::disconnect`] leads back to idle.
    Error,
}

/// A virtual interface: a send queue and a receive queue, each FIFO, connected to exactly one other.
///
/// Belongs to one thread at a time. Dropping it disconnects; what was sent before still arrives.
pub struct Vi {
    nic: Nic,
    attributes: ViAttributes,
    state: State,
    port: Option<Box<dyn Port>>,
    /// Ports of ended connections, over which a peer still reads what was sent.
    leaving: Vec<Box<dyn Port>>,
    /// Posted sends that are not reported yet, oldest first.
    sends: VecDeque<PostedSend>,
    next_send: u64,
    /// Posted receives, oldest first.
    receives: VecDeque<ReceiveInto>,
    /// Receives that are over and not reported yet.
    received: VecDeque<Completion>,
}

struct PostedSend {
    number: u64,
    /// `None` while the receiver may read its memory.
    status: Option<Status>,
    /// How it ends when the receiver is done.
    ends_as: Status,
    length: usize,
    owner: std::result::Result<Descriptor, RawId>,
}

impl Vi {
    /// An idle VI.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the NIC lacks the reliability level, RDMA write or lent receives.
    pub fn new(nic: &Nic, attributes: ViAttributes) -> Result<Self> {
        nic.require("this reliability level", attributes.reliability.cap())?;
        if attributes.enable_rdma_write {
            nic.require("RDMA into this VI's windows", Caps::RDMA_WRITE)?;
        }
        Ok(Vi {
            nic: nic.clone(),
            attributes,
            state: State::Idle,
            port: None,
            leaving: Vec::new(),
            sends: VecDeque::new(),
            next_send: 0,
            receives: VecDeque::new(),
            received: VecDeque::new(),
        })
    }

    /// The NIC it belongs to.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Its settings.
    pub fn attributes(&self) -> &ViAttributes {
        &self.attributes
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Asks the listener at `to` for a connection and waits for the answer. Returns what the other side sent along.
    ///
    /// # Errors
    /// [`Error::NoMatch`], [`Error::Rejected`], [`Error::InvalidReliability`], [`Error::Timeout`],
    /// [`Error::InvalidParameter`] (private data or discriminator too long), [`Error::InvalidState`] unless idle, or
    /// the operating system's.
    pub fn connect(
        &mut self,
        to: &NetAddress,
        send: &CqHandle,
        receive: &CqHandle,
        private_data: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>> {
        self.require_idle("connect")?;
        let limit = self.nic.attributes().max_discriminator;
        if to.discriminator.len() > limit {
            let what = format!("a discriminator of {} bytes, at most {limit}", to.discriminator.len());
            return Err(Error::InvalidParameter(what));
        }
        let hello = self.hello(private_data)?;
        let queues = Queues { send: &send.0, receive: &receive.0, context: self.attributes.context };
        self.state = State::ConnectPending;
        match self.nic.device().connect(to, &hello, queues, deadline) {
            Ok((port, theirs)) => {
                self.connected(port);
                Ok(theirs.private_data)
            }
            Err(error) => {
                self.state = State::Idle;
                Err(error)
            }
        }
    }

    pub(crate) fn require_idle(&self, what: &'static str) -> Result {
        if self.state == State::Idle { Ok(()) } else { Err(Error::InvalidState { what, state: self.state }) }
    }

    fn require_connected(&self, what: &'static str) -> Result {
        if self.state == State::Connected { Ok(()) } else { Err(not_connected(what, self.state)) }
    }

    pub(crate) fn connected(&mut self, port: Box<dyn Port>) {
        self.port = Some(port);
        self.state = State::Connected;
    }

    /// Ends the connection: what was sent still arrives, what is posted here is flushed. Leads to idle, also from
    /// the Error state. Sends whose memory the peer is still reading are reported when it is done.
    pub fn disconnect(&mut self) {
        self.flush_queues(Status::Flushed);
        if let Some(mut port) = self.port.take() {
            port.leave();
            if self.sends.iter().any(|send| send.status.is_none()) {
                self.leaving.push(port);
            }
        }
        self.state = State::Idle;
    }

    // ---- VIA's work queues ----

    /// Posts a send or an RDMA write. Takes the descriptor's memory until [`Vi::send_done`] reports it.
    ///
    /// # Errors
    /// The descriptor comes back with [`Error::InvalidState`] unless connected, [`Error::InvalidPtag`],
    /// [`Error::InvalidParameter`] (too long, too many segments), [`Error::Full`] when the queue is, or
    /// [`Error::RdmaProtection`].
    #[allow(clippy::result_large_err, reason = "a refused descriptor comes back by value; refusals are rare")]
    pub fn post_send(&mut self, descriptor: Descriptor) -> Result<(), (Error, Descriptor)> {
        let located: Vec<_> = descriptor.segments().iter().map(|s| s.located()).collect();
        let checked = self.require_connected("post_send");
        let checked = checked.and_then(|()| descriptor.check_tags(self.attributes.ptag));
        let checked = checked.and_then(|()| match descriptor.remote() {
            None => self.send_located(
                &located,
                descriptor.immediate_data(),
                descriptor.segments().iter().map(|s| s.bytes()),
            ),
            Some(remote) => {
                self.write_located(&located, remote, descriptor.immediate_data()).map(|()| Some(Status::Done))
            }
        });
        match checked {
            Ok(status) => {
                let length = descriptor.len();
                self.push_send(status, length, Ok(descriptor));
                Ok(())
            }
            Err(error) => Err((error, descriptor)),
        }
    }

    pub(crate) fn post_located(
        &mut self,
        located: &[(u64, usize)],
        immediate: Option<u32>,
        id: RawId,
    ) -> Result {
        self.require_connected("post_send")?;
        let status = self.send_located(located, immediate, std::iter::empty())?;
        let length = located.iter().map(|s| s.1).sum();
        self.push_send(status, length, Err(id));
        Ok(())
    }

    fn push_send(
        &mut self,
        status: Option<Status>,
        length: usize,
        owner: std::result::Result<Descriptor, RawId>,
    ) {
        let number = self.next_send;
        self.sends.push_back(PostedSend { number, status, ends_as: Status::Done, length, owner });
        self.next_send += 1;
    }

    /// Sends: inline if `bytes` gives the contents and they fit (done at once), else from where they lie.
    fn send_located<'a>(
        &mut self,
        located: &[(u64, usize)],
        immediate: Option<u32>,
        bytes: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Option<Status>> {
        let total = self.check_send(located)?;
        let number = self.next_send;
        let max_inline = self.nic.attributes().max_inline;
        let Some(port) = &mut self.port else { return Err(not_connected("post_send", self.state)) };
        let pieces: Vec<u8> =
            if total <= max_inline { bytes.flatten().copied().collect() } else { Vec::new() };
        let sent = if pieces.len() == total {
            port.send(immediate, &[], &pieces).map(|()| Some(Status::Done))
        } else {
            let held = Held::Caller(number);
            port.lend(immediate, &[], located, held).map(|()| None).map_err(|(refused, _)| refused)
        };
        sent.map_err(|refused| self.refused(refused))
    }

    fn write_located(
        &mut self,
        located: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
    ) -> Result {
        self.nic.require("RDMA write", Caps::RDMA_WRITE)?;
        let total = self.check_send(located)?;
        let Some(port) = &mut self.port else { return Err(not_connected("RDMA write", self.state)) };
        port.rdma_write(located, to, immediate).map_err(|refused| match refused {
            Refused::Protection => {
                Error::RdmaProtection { handle: to.handle.0, offset: to.offset, len: total }
            }
            other => self.refused(other),
        })
    }

    fn check_send(&self, located: &[(u64, usize)]) -> Result<usize> {
        self.check_segments(located.len())?;
        let limits = self.nic.attributes();
        let total = located.iter().map(|s| s.1).sum();
        if total > limits.max_transfer {
            return Err(Error::InvalidParameter(format!(
                "{total} bytes, at most {} travel",
                limits.max_transfer
            )));
        }
        if self.sends.len() >= limits.max_descriptors_per_queue {
            let bound =
                format!("{} descriptors, until send_done takes some", limits.max_descriptors_per_queue);
            return Err(Error::Full { what: "the send queue", bound });
        }
        Ok(total)
    }

    fn check_segments(&self, count: usize) -> Result {
        let most = self.nic.attributes().max_segments;
        if count <= most {
            return Ok(());
        }
        Err(Error::InvalidParameter(format!("{count} segments in a descriptor, at most {most}")))
    }

    /// Posts a receive. Allowed while idle, so that descriptors are there when the first message comes.
    ///
    /// # Errors
    /// The descriptor comes back with [`Error::InvalidPtag`], [`Error::InvalidState`] (the VI receives lent, or
    /// is in the Error state), [`Error::InvalidParameter`] (too many segments) or [`Error::Full`].
    #[allow(clippy::result_large_err, reason = "a refused descriptor comes back by value; refusals are rare")]
    pub fn post_receive(&mut self, descriptor: Descriptor) -> Result<(), (Error, Descriptor)> {
        let checked = descriptor
            .check_tags(self.attributes.ptag)
            .and_then(|()| self.check_receive(descriptor.segments().len()));
        match checked {
            Ok(()) => {
                self.receives.push_back(ReceiveInto::Descriptor(descriptor));
                Ok(())
            }
            Err(error) => Err((error, descriptor)),
        }
    }

    pub(crate) fn post_receive_into(&mut self, into: ReceiveInto) -> Result {
        self.check_receive(into.segments())?;
        self.receives.push_back(into);
        Ok(())
    }

    fn check_receive(&self, segments: usize) -> Result {
        if self.attributes.receive != Receive::Posted || self.state == State::Error {
            return Err(Error::InvalidState { what: "post_receive", state: self.state });
        }
        self.check_segments(segments)?;
        let bound = self.nic.attributes().max_descriptors_per_queue;
        if self.receives.len() + self.received.len() >= bound {
            return Err(Error::Full { what: "the receive queue", bound: format!("{bound} descriptors") });
        }
        Ok(())
    }

    /// The next send that is over, oldest first.
    pub fn send_done(&mut self) -> Option<Completion> {
        self.collect_sends();
        let status = self.sends.front()?.status?;
        let send = self.sends.pop_front().expect("seen");
        let length = if status == Status::Done { send.length } else { 0 };
        Some(Completion { status, length, immediate: None, descriptor: send.owner.map_err(|id| id.0) })
    }

    fn collect_sends(&mut self) {
        for port in self.leaving.iter_mut().chain(&mut self.port) {
            while let Some(returned) = port.returned() {
                // Numbers ascend in the queue.
                let found = self.sends.binary_search_by_key(&returned.number, |send| send.number);
                let Some(send) = found.ok().map(|at| &mut self.sends[at]) else { continue };
                let lost = returned.lost && send.ends_as == Status::Done;
                send.status = Some(if lost { Status::TransportError } else { send.ends_as });
            }
        }
        if !self.leaving.is_empty() && self.sends.iter().all(|send| send.status.is_some()) {
            self.leaving.clear();
        }
    }

    /// The next receive that is over, oldest first. Takes what has arrived into posted descriptors.
    ///
    /// A message that finds no descriptor, or one too short, breaks a reliable connection: the VI goes to the
    /// Error state, and the peer learns it.
    pub fn receive_done(&mut self) -> Option<Completion> {
        if self.received.is_empty() && self.attributes.receive == Receive::Posted {
            self.take_arrival();
        }
        self.received.pop_front()
    }

    fn take_arrival(&mut self) {
        let Some(port) = &mut self.port else { return };
        let arrival = match port.receive() {
            Ok(Some(arrival)) => arrival,
            Ok(None) => return,
            Err(refused) => {
                self.refused(refused);
                return;
            }
        };
        if matches!(arrival.body, Body::Written(_)) && arrival.immediate.is_none() {
            return;
        }
        let Some(mut into) = self.receives.pop_front() else {
            self.break_connection("a message came and no receive descriptor was posted");
            return;
        };
        let (length, left_over) = match &arrival.body {
            Body::Written(length) => (*length, 0),
            Body::Inline(bytes) => (bytes.bytes().len(), into.fill(std::iter::once(bytes.bytes()))),
            Body::Lent(_, lent) => (lent.len(), into.fill(lent.parts())),
        };
        let status = if left_over == 0 { Status::Done } else { Status::LengthError };
        self.received.push_back(into.complete(status, length - left_over, arrival.immediate));
        if left_over > 0 {
            self.break_connection("a message was longer than the receive descriptor posted for it");
        }
    }

    /// Waits for [`Vi::send_done`].
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn send_wait(&mut self, deadline: Deadline) -> Result<Completion> {
        self.wait_for("a send to complete", deadline, Self::send_done)
    }

    /// Waits for [`Vi::receive_done`].
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn receive_wait(&mut self, deadline: Deadline) -> Result<Completion> {
        self.wait_for("a message", deadline, Self::receive_done)
    }

    /// Spins, then yields: this is the work-queue model, in which the program looks by itself. To sleep, wait on a
    /// completion queue.
    fn wait_for(
        &mut self,
        what: &str,
        deadline: Deadline,
        mut look: impl FnMut(&mut Self) -> Option<Completion>,
    ) -> Result<Completion> {
        let start = Instant::now();
        let mut spinner = Spinner::new(false);
        loop {
            if let Some(completion) = look(self) {
                return Ok(completion);
            }
            if spinner.pause() == Pause::Sleep {
                if deadline.passed() {
                    return Err(Error::Timeout { what: what.into(), waited: start.elapsed() });
                }
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        }
    }

    // ---- the message layer's way: inline sends, lent receives ----

    /// Sends `head` + `body`, at most `max_inline` bytes together, copied before the call returns. No completion.
    ///
    /// # Errors
    /// [`Error::Full`] when the peer has to read first; final ones as for any connection.
    #[inline]
    pub fn send_inline(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result {
        let Some(port) = &mut self.port else { return Err(not_connected("send", self.state)) };
        match port.send(immediate, head, body) {
            Ok(()) => Ok(()),
            Err(refused) => Err(self.refused(refused)),
        }
    }

    /// Gives a block to the peer, which reads it where it lies; it is recycled when the peer drops it. `head` (at
    /// most `max_head` bytes) travels with it. No completion.
    ///
    /// # Errors
    /// The block comes back with [`Error::Full`] when the peer has to read or to give buffers back first, or a
    /// final error.
    #[inline]
    pub fn hand_off(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        block: Block,
    ) -> Result<(), (Error, Block)> {
        let Some(port) = &mut self.port else { return Err((not_connected("hand-off", self.state), block)) };
        let segment = [(block.offset(), block.len())];
        match port.lend(immediate, head, &segment, Held::Block(block)) {
            Ok(()) => Ok(()),
            Err((refused, Held::Block(block))) => Err((self.refused(refused), block)),
            Err((_, Held::Caller(_) | Held::Owner(_))) => unreachable!("a port returns what it was given"),
        }
    }

    /// Copies the block's bytes into the peer's window and sends the immediate data. Done when it returns.
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::RdmaProtection`], [`Error::Unsupported`], or a final one.
    pub fn rdma_write(&mut self, block: &Block, to: RemoteBuffer, immediate: Option<u32>) -> Result {
        self.write_located(&[(block.offset(), block.len())], to, immediate)
    }

    /// The next arrival on a VI that receives lent.
    ///
    /// # Errors
    /// [`Error::Closed`] and [`Error::Lost`], after everything that came before.
    #[inline]
    pub fn arrival(&mut self) -> Result<Option<Arrival>> {
        debug_assert_eq!(self.attributes.receive, Receive::Lent);
        let Some(port) = &mut self.port else { return Err(not_connected("receive", self.state)) };
        match port.receive() {
            Ok(arrival) => Ok(arrival),
            Err(refused) => Err(self.refused(refused)),
        }
    }

    /// Asks that the send queue's completion queue name this VI when there may be room again. Look once more
    /// afterwards, then wait.
    pub fn want_room(&mut self) {
        if let Some(port) = &mut self.port {
            port.want_room();
        }
    }

    /// Takes back the buffers that the peer is done with; they return to their arena.
    pub fn reclaim(&mut self) {
        self.collect_sends();
    }

    /// How many messages the peer has not read yet. Asks it to say so; ask again after [`Vi::want_room`].
    ///
    /// # Errors
    /// Final ones.
    pub fn unread(&mut self) -> Result<u32> {
        let Some(port) = &mut self.port else { return Err(not_connected("flush", self.state)) };
        port.unread().map_err(|refused| self.refused(refused))
    }

    // ---- the end ----

    /// What a refusal means for the program, and for this VI's state.
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
                self.flush_queues(Status::Flushed);
                Error::Closed
            }
            Refused::Lost(why) => {
                self.state = State::Error;
                self.flush_queues(Status::TransportError);
                Error::Lost(why)
            }
        }
    }

    fn break_connection(&mut self, why: &str) {
        if let Some(port) = &mut self.port {
            port.close(Some(why));
        }
        self.state = State::Error;
        self.flush_queues(Status::Flushed);
    }

    /// Ends everything posted, in order: the oldest unfinished send by `first`, all others as flushed. Sends are
    /// reported so once the peer is done with their memory: until then it is not the program's to write.
    fn flush_queues(&mut self, first: Status) {
        self.collect_sends();
        let mut status = first;
        let unfinished = |send: &&mut PostedSend| send.status.is_none() && send.ends_as == Status::Done;
        for send in self.sends.iter_mut().filter(unfinished) {
            send.ends_as = status;
            status = Status::Flushed;
        }
        self.received.extend(self.receives.drain(..).map(|into| into.complete(Status::Flushed, 0, None)));
    }
}

#[cold]
fn not_connected(what: &'static str, state: State) -> Error {
    Error::InvalidState { what, state }
}

impl Drop for Vi {
    fn drop(&mut self) {
        self.disconnect();
        let unfinished = self.sends.drain(..).filter(|send| send.status.is_none());
        for PostedSend { number, owner, .. } in unfinished {
            let Ok(descriptor) = owner else { continue };
            let mut owner: Owner = Box::new(descriptor);
            for port in &mut self.leaving {
                match port.keep(number, owner) {
                    Ok(()) => break,
                    Err(back) => owner = back,
                }
            }
        }
    }
}

impl fmt::Debug for Vi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vi")
            .field("state", &self.state)
            .field("port", &self.port)
            .field("sends", &self.sends.len())
            .field("receives", &self.receives.len())
            .finish()
    }
}
