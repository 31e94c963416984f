//! Work queues of a VI: posting to them, and their completions.

mod staging;

use std::time::Instant;

use smallvec::SmallVec;

use super::sends::{ConnectionEnd, PostedSend, status_of};
use super::{Limits, State, Vi, not_connected};
use crate::attributes::{Receive, Reliability};
use crate::caps::Caps;
use crate::descriptor::{Completion, Descriptor, Kind, Operation, RawId, ReceiveInto, Segment, Status};
use crate::error::{Error, Result};
use crate::mem::{Lent, RemoteBuffer};
use crate::report::ErrorCode;
use crate::transport::{Arrival, Body, Landed, PostedBuffer, Refused, TransferStatus};
pub(crate) use staging::Pieces;
pub(super) use staging::{Staged, StandIn};
use udeck_sys::process::is_forked;
use udeck_sys::{Deadline, Pause, Spinner};

/// Result of a poll for arrivals.
enum ArrivalPoll {
    /// A message that is in its descriptor.
    Message(Completion),
    /// An arrival that the program is not told of.
    NoMessage,
    Nothing,
}

impl Vi {
    /// Posts a send, an RDMA write or an RDMA read. Takes the descriptor's memory until [`Vi::send_done`] reports it.
    ///
    /// # Errors
    /// The descriptor comes back with [`Error::InvalidState`] unless connected, [`Error::InvalidPtag`],
    /// [`Error::InvalidParameter`] (too long, too many segments), [`Error::Full`] when the queue is full,
    /// [`Error::RdmaProtection`], or [`Error::NoMemory`] when the outbox has no room for the segments in the program's own
    /// memory.
    #[inline]
    pub fn post_send(&mut self, mut descriptor: Descriptor) -> Result<(), (Error, Descriptor)> {
        match self.start_send(&mut descriptor) {
            Ok(status) => {
                let (length, kind) = (descriptor.len(), descriptor.operation().kind());
                self.push_send(status, kind, length, Ok(descriptor));
                Ok(())
            }
            Err(error) => Err((error, descriptor)),
        }
    }

    #[inline]
    fn start_send(&mut self, descriptor: &mut Descriptor) -> Result<Option<Status>> {
        self.require_connected("post_send")?;
        descriptor.check_tags(self.attributes.ptag)?;
        if descriptor.is_fenced() {
            self.fence();
        }
        let (operation, immediate) = (descriptor.operation(), descriptor.immediate_data());
        if let Operation::Send = operation {
            let total = self.check_send(descriptor.segments().len(), descriptor.len())?;
            if self.travels_inside(total) {
                return self.send_inside(immediate, descriptor.segments());
            }
        }
        match descriptor.located() {
            Some(located) => self.start_located(&located, operation, immediate),
            None => self.start_staged(descriptor, operation, immediate),
        }
    }

    fn start_located(
        &mut self,
        located: &[(u64, usize)],
        operation: Operation,
        immediate: Option<u32>,
    ) -> Result<Option<Status>> {
        match operation {
            Operation::Send => self.send_located(located, immediate),
            Operation::Write(to) => self.post_write(located, to, immediate),
            Operation::Read(from) => self.post_read(located, from, immediate),
        }
    }

    /// Delays the start of the next post until all RDMA reads that were posted so far are over (VIA: its `QFENCE` bit; this
    /// is for posts without a descriptor, others have [`Descriptor::fenced`]). Does not block. Without a connection it has no
    /// effect.
    pub fn fence(&mut self) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.fence();
        }
    }

    #[inline]
    fn push_send(
        &mut self,
        status: Option<Status>,
        kind: Kind,
        length: usize,
        owner: std::result::Result<Descriptor, RawId>,
    ) {
        let number = self.next_send;
        self.sends.push(PostedSend { number, status, ends_as: Status::Done, kind, length, owner });
        self.next_send += 1;
    }

    /// Whether a message is copied into its descriptor's place: it has left when the call returns, but may not have arrived.
    #[inline]
    fn travels_inside(&self, total: usize) -> bool {
        total <= self.limits.inline && self.attributes.reliability != Reliability::Reception
    }

    #[inline]
    fn send_inside(&mut self, immediate: Option<u32>, segments: &[Segment]) -> Result<Option<Status>> {
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !is_forked()) else {
            return Err(not_connected("post_send", self.state));
        };
        let sent = match segments {
            [one] => endpoint.send(immediate, &[], one.bytes()),
            several => {
                let all: SmallVec<[u8; 64]> = several.iter().flat_map(Segment::bytes).copied().collect();
                endpoint.send(immediate, &[], &all)
            }
        };
        match sent {
            Ok(()) => Ok(Some(Status::Done)),
            Err(refused) => Err(self.refused(refused)),
        }
    }

    /// Sends memory in place. Its bounds were checked already.
    fn send_located(&mut self, located: &[(u64, usize)], immediate: Option<u32>) -> Result<Option<Status>> {
        let is_empty = located.iter().all(|piece| piece.1 == 0);
        if is_empty && self.travels_inside(0) {
            return self.send_inside(immediate, &[]);
        }
        let held = PostedBuffer::Caller(self.next_send);
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !is_forked()) else {
            return Err(not_connected("post_send", self.state));
        };
        match endpoint.lend(immediate, &[], located, held) {
            Ok(()) => Ok(None),
            Err((refused, _)) => Err(self.refused(refused)),
        }
    }

    /// Posts an RDMA write that will be reported.
    fn post_write(
        &mut self,
        located: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
    ) -> Result<Option<Status>> {
        let held = PostedBuffer::Caller(self.next_send);
        match self.write_located(located, to, immediate, held) {
            Ok(transfer_status) => Ok(transfer_status
                .map(|transfer_status| status_of(transfer_status, self.attributes.reliability, Kind::Send))),
            Err((error, _)) => Err(error),
        }
    }

    pub(super) fn write_located(
        &mut self,
        located: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Error, PostedBuffer)> {
        let total = match self.check_rdma("RDMA write", Caps::RDMA_WRITE, located) {
            Ok(total) => total,
            Err(error) => return Err((error, held)),
        };
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !is_forked()) else {
            return Err((not_connected("RDMA write", self.state), held));
        };
        endpoint
            .rdma_write(located, to, immediate, held)
            .map_err(|(refused, held)| (self.rdma_refused(refused, to, total), held))
    }

    /// Posts an RDMA read that will be reported.
    fn post_read(
        &mut self,
        located: &[(u64, usize)],
        from: RemoteBuffer,
        immediate: Option<u32>,
    ) -> Result<Option<Status>> {
        if immediate.is_some() {
            return Err(Error::InvalidParameter("an RDMA read carries no immediate data".into()));
        }
        let transfer_status = self.read_located(located, from)?;
        Ok(transfer_status
            .map(|transfer_status| status_of(transfer_status, self.attributes.reliability, Kind::Read)))
    }

    /// Starts an RDMA read under the next number.
    pub(super) fn read_located(
        &mut self,
        located: &[(u64, usize)],
        from: RemoteBuffer,
    ) -> Result<Option<TransferStatus>> {
        let total = self.check_rdma("RDMA read", Caps::RDMA_READ, located)?;
        if self.attributes.reliability == Reliability::Unreliable {
            return Err(Error::InvalidParameter("unreliable delivery has no RDMA read".into()));
        }
        let held = PostedBuffer::Caller(self.next_send);
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !is_forked()) else {
            return Err(not_connected("RDMA read", self.state));
        };
        endpoint
            .rdma_read(located, from, held)
            .map_err(|(refused, _)| self.rdma_refused(refused, from, total))
    }

    fn check_rdma(&self, what: &'static str, needed: Caps, located: &[(u64, usize)]) -> Result<usize> {
        self.nic.require(what, needed)?;
        self.check_send(located.len(), located.iter().map(|s| s.1).sum())
    }

    #[cold]
    fn rdma_refused(&mut self, refused: Refused, remote: RemoteBuffer, len: usize) -> Error {
        match refused {
            Refused::Protection => {
                Error::RdmaProtection { handle: remote.handle.0, offset: remote.offset, len }
            }
            other => self.refused(other),
        }
    }

    #[inline]
    fn check_send(&self, segments: usize, total: usize) -> Result<usize> {
        let Limits { segments: most_segments, transfer, descriptors, .. } = self.limits;
        if segments <= most_segments && total <= transfer && self.sends.len() < descriptors {
            return Ok(total);
        }
        Err(self.limits.exceeded(segments, total))
    }

    /// Posts a receive. Allowed while idle, so that descriptors are there when the first message comes.
    ///
    /// # Errors
    /// The descriptor comes back with [`Error::InvalidPtag`], [`Error::InvalidState`] (the VI receives lent, or
    /// is in the Error state), [`Error::InvalidParameter`] (too many segments) or [`Error::Full`].
    #[inline]
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

    #[inline]
    fn check_receive(&self, segments: usize) -> Result {
        if self.attributes.receive != Receive::Posted || self.state == State::Error {
            return Err(Error::InvalidState { what: "post_receive", state: self.state });
        }
        if segments > self.limits.segments {
            return Err(self.limits.exceeded(segments, 0));
        }
        if self.shared_receives.is_some() {
            return Err(Error::InvalidParameter(
                "this VI shares its receives: post to the shared queue".into(),
            ));
        }
        let bound = self.limits.descriptors;
        if self.receives.len() + self.received.len() >= bound {
            return Err(Error::Full {
                what: "the receive queue",
                bound: format!("{bound} descriptors").into(),
            });
        }
        Ok(())
    }

    /// The next send that is over, oldest first.
    #[inline]
    pub fn send_done(&mut self) -> Option<Completion> {
        if self.sends.oldest_is_under_way() {
            self.collect_sends();
        }
        let (status, mut send) = self.sends.pop_over()?;
        if let Some(staged) = self.staged.take(send.number) {
            staged.finish(status, &mut send);
        }
        let length = if status == Status::Done { send.length } else { 0 };
        Some(Completion { status, length, immediate: None, descriptor: send.owner.map_err(|id| id.0) })
    }

    pub(super) fn collect_sends(&mut self) {
        if is_forked() {
            return;
        }
        let level = self.attributes.reliability;
        for leaving in &mut self.leaving {
            self.sends.settle(&mut *leaving.endpoint, level);
        }
        if !self.leaving.is_empty() && self.sends.all_over() {
            self.leaving.clear();
        }
        let end = self.endpoint.as_mut().and_then(|endpoint| self.sends.settle(&mut **endpoint, level));
        match end {
            Some(ConnectionEnd::Broken) => {
                self.state = State::Error;
                self.report(ErrorCode::ConnectionLost, "the peer refused a message: it had no place for it");
                self.flush_receives();
            }
            Some(ConnectionEnd::Forbidden) => self.handle_forbidden_rdma(),
            Some(ConnectionEnd::Closed) if self.state == State::Connected => self.handle_peer_close(),
            Some(ConnectionEnd::Closed) | None => {}
        }
    }

    /// Breaks the connection: the peer does not allow RDMA to the place that a write or read named, and may not know that
    /// this ends the connection.
    #[cold]
    fn handle_forbidden_rdma(&mut self) {
        let why = "RDMA to a place where it is not allowed";
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.close(Some(why));
        }
        self.state = State::Error;
        self.report(ErrorCode::ConnectionLost, why);
        self.flush_receives();
    }

    /// Handles the peer's end of the connection, which a send has reported, so that the program does not see the send flushed
    /// by a connected VI. Everything that came before the end is taken first. (A VI that receives lent leaves that to
    /// [`Vi::arrival`], which works until it has returned everything.)
    #[cold]
    fn handle_peer_close(&mut self) {
        if self.attributes.receive == Receive::Posted {
            // Receives that the end flushes come behind those that completed before it.
            let mut came = std::mem::take(&mut self.received);
            // Bounded: a peer that goes on sending although it has left does not keep us here.
            for _ in 0..self.limits.descriptors {
                match self.take_arrival() {
                    ArrivalPoll::Message(completion) => came.push_back(completion),
                    ArrivalPoll::NoMessage => {}
                    ArrivalPoll::Nothing => break,
                }
            }
            came.append(&mut self.received);
            self.received = came;
        }
        if self.state == State::Connected {
            self.refused(Refused::Closed);
        }
    }

    /// The next receive that is over, oldest first. Takes arrivals into posted descriptors.
    ///
    /// A message that finds no descriptor, or one too short, breaks a reliable connection: the VI goes to the Error state,
    /// and the peer learns of it. On an unreliable one the message is lost, and nothing else.
    #[inline]
    pub fn receive_done(&mut self) -> Option<Completion> {
        if !self.received.is_empty() || self.attributes.receive != Receive::Posted {
            return self.received.pop_front();
        }
        if is_forked() {
            return None;
        }
        // Bounded: a peer that sends only messages without use does not keep us here.
        for _ in 0..self.limits.descriptors {
            match self.take_arrival() {
                ArrivalPoll::Message(completion) => return Some(completion),
                ArrivalPoll::NoMessage => {}
                ArrivalPoll::Nothing => break,
            }
        }
        self.received.pop_front()
    }

    /// Takes the next arrival, if there is one, into the oldest descriptor. Takes nothing in the Error state: a peer that was
    /// told that the connection broke takes back everything unread, and its memory is no message any more.
    #[inline]
    fn take_arrival(&mut self) -> ArrivalPoll {
        if self.state != State::Connected {
            return ArrivalPoll::Nothing;
        }
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !is_forked()) else {
            return ArrivalPoll::Nothing;
        };
        let mut room = 0;
        let landed = match self.receives.front_mut().and_then(ReceiveInto::one_piece) {
            Some(to) => {
                room = to.len();
                endpoint.receive_into(to)
            }
            None => endpoint.receive().map(|arrival| arrival.map(Landed::Arrival)),
        };
        match landed {
            Ok(Some(Landed::Copied { immediate, len })) => self.complete_copied(immediate, len, room),
            Ok(Some(Landed::Arrival(arrival))) => self.place(arrival),
            Ok(None) => ArrivalPoll::Nothing,
            Err(refused) => {
                self.refused(refused);
                ArrivalPoll::Nothing
            }
        }
    }

    /// Completes a message of `len` bytes that lies in the oldest descriptor already, as far as the `room` there goes.
    #[inline]
    fn complete_copied(&mut self, immediate: Option<u32>, len: usize, room: usize) -> ArrivalPoll {
        let Some(into) = self.receives.pop_front() else { return ArrivalPoll::Nothing };
        if len <= room {
            return ArrivalPoll::Message(into.complete(Status::Done, len, immediate));
        }
        self.too_long(into.complete(Status::LengthError, room, immediate), None, None)
    }

    /// Takes a message into a descriptor, if there is one.
    fn place(&mut self, arrival: Arrival) -> ArrivalPoll {
        if matches!(arrival.body, Body::Written(_)) && arrival.immediate.is_none() {
            return ArrivalPoll::NoMessage;
        }
        // Only at this level does a sender wait for a receipt.
        let receipt = match (self.attributes.reliability, &mut self.endpoint) {
            (Reliability::Reception, Some(endpoint)) => endpoint.receipt(),
            _ => None,
        };
        let Some(mut into) = self.next_receive() else {
            self.no_place(Some(arrival), receipt, "a message came and no receive descriptor was posted");
            return ArrivalPoll::NoMessage;
        };
        let (length, left_over) = match &arrival.body {
            Body::Written(length) => (*length, 0),
            Body::Inline(bytes) => (bytes.bytes().len(), into.fill(std::iter::once(bytes.bytes()))),
            Body::Lent(_, lent) => {
                let left_over = into.fill(lent.parts());
                self.nic.device().count_copied(lent.len() - left_over);
                (lent.len(), left_over)
            }
        };
        if left_over == 0 {
            return ArrivalPoll::Message(into.complete(Status::Done, length, arrival.immediate));
        }
        let completion = into.complete(Status::LengthError, length - left_over, arrival.immediate);
        self.too_long(completion, Some(arrival), receipt)
    }

    fn next_receive(&mut self) -> Option<ReceiveInto> {
        match &self.shared_receives {
            None => self.receives.pop_front(),
            Some(shared) => shared.take_back().map(ReceiveInto::Descriptor),
        }
    }

    /// Completes a receive with a message that was too long. The completion comes before those that the end of the connection
    /// flushes.
    #[cold]
    fn too_long(
        &mut self,
        completion: Completion,
        arrival: Option<Arrival>,
        receipt: Option<Lent>,
    ) -> ArrivalPoll {
        self.received.push_back(completion);
        self.no_place(arrival, receipt, "a message was longer than the receive descriptor posted for it");
        self.received.pop_front().map_or(ArrivalPoll::Nothing, ArrivalPoll::Message)
    }

    /// Refuses a message that found no descriptor, or one too short. Its sender is told before it learns that the connection
    /// broke, so that it knows which message it was.
    #[cold]
    fn no_place(&mut self, arrival: Option<Arrival>, receipt: Option<Lent>, why: &str) {
        if self.attributes.reliability == Reliability::Unreliable {
            return;
        }
        if let Some(Arrival { body: Body::Lent(_, lent), .. }) = arrival {
            lent.refuse();
        }
        if let Some(receipt) = receipt {
            receipt.refuse();
        }
        self.break_connection(why);
    }

    /// Waits for [`Vi::send_done`], until the deadline.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn send_wait(&mut self, deadline: Deadline) -> Result<Completion> {
        self.wait_for("a send to complete", deadline, Self::send_done)
    }

    /// Waits for [`Vi::receive_done`], until the deadline.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub fn receive_wait(&mut self, deadline: Deadline) -> Result<Completion> {
        self.wait_for("a message", deadline, Self::receive_done)
    }

    /// Spins, then yields: this is the work-queue model, in which the program polls by itself. To sleep, wait on a completion
    /// queue.
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

    /// Ends everything posted, in order: the oldest unfinished send by `first`, all others as flushed. A send is reported
    /// only once the peer is done with its memory: until then the program may not write it.
    pub(super) fn flush_queues(&mut self, first: Status) {
        self.collect_sends();
        self.sends.flush(first, self.attributes.reliability);
        self.flush_receives();
    }

    fn flush_receives(&mut self) {
        self.received.extend(self.receives.drain(..).map(|into| into.complete(Status::Flushed, 0, None)));
    }
}
