//! The two work queues: posting to them, and what comes out of them.

mod staging;

use std::time::Instant;

use super::sends::{PostedSend, status_of};
use super::{State, Vi, not_connected};
use crate::attributes::{Caps, Receive, Reliability};
use crate::descriptor::{Completion, Descriptor, Operation, RawId, ReceiveInto, Status};
use crate::error::{Error, Result};
use crate::mem::{Lent, RemoteBuffer};
use crate::transport::{Arrival, Body, Held, Refused};
pub(super) use staging::Staged;
pub(crate) use staging::{Pieces, Place};
use udeck_sys::{Deadline, Pause, Spinner};

impl Vi {
    /// Posts a send, an RDMA write or an RDMA read. Takes the descriptor's memory until [`Vi::send_done`] reports it.
    ///
    /// # Errors
    /// The descriptor comes back with [`Error::InvalidState`] unless connected, [`Error::InvalidPtag`],
    /// [`Error::InvalidParameter`] (too long, too many segments), [`Error::Full`] when the queue is,
    /// [`Error::RdmaProtection`], or [`Error::NoMemory`] when the outbox has no room for what lies in the program's own
    /// memory.
    #[allow(clippy::result_large_err, reason = "a refused descriptor comes back by value; refusals are rare")]
    pub fn post_send(&mut self, descriptor: Descriptor) -> Result<(), (Error, Descriptor)> {
        let located: Option<Vec<_>> = descriptor.segments().iter().map(|s| s.located()).collect();
        let Some(located) = located else { return self.post_staged(descriptor) };
        let checked = self.require_connected("post_send");
        let checked = checked.and_then(|()| descriptor.check_tags(self.attributes.ptag));
        let checked = checked.and_then(|()| match descriptor.operation() {
            Operation::Send => {
                let bytes = descriptor.segments().iter().map(|s| s.bytes());
                self.send_located(&located, descriptor.immediate_data(), bytes)
            }
            Operation::Write(to) => self.post_write(&located, to, descriptor.immediate_data()),
            Operation::Read(from) => self.read_located(&located, from, descriptor.immediate_data()),
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

    fn push_send(
        &mut self,
        status: Option<Status>,
        length: usize,
        owner: std::result::Result<Descriptor, RawId>,
    ) {
        let number = self.next_send;
        self.sends.push(PostedSend { number, status, ends_as: Status::Done, length, owner });
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
        // What is inside its descriptor has left when the call returns, but it has not arrived.
        let max_inline = match self.attributes.reliability {
            Reliability::Reception => None,
            Reliability::Unreliable | Reliability::Delivery => Some(self.nic.attributes().max_inline),
        };
        let Some(port) = &mut self.port else { return Err(not_connected("post_send", self.state)) };
        let fits = max_inline.is_some_and(|most| total <= most);
        let pieces: Vec<u8> = if fits { bytes.flatten().copied().collect() } else { Vec::new() };
        let sent = if fits && pieces.len() == total {
            port.send(immediate, &[], &pieces).map(|()| Some(Status::Done))
        } else {
            let held = Held::Caller(number);
            port.lend(immediate, &[], located, held).map(|()| None).map_err(|(refused, _)| refused)
        };
        sent.map_err(|refused| self.refused(refused))
    }

    /// An RDMA write that will be reported.
    fn post_write(
        &mut self,
        located: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
    ) -> Result<Option<Status>> {
        if self.attributes.reliability != Reliability::Reception {
            return self.write_located(located, to, immediate).map(|()| Some(Status::Done));
        }
        let total = self.check_rdma("RDMA write", Caps::RDMA_WRITE, located)?;
        let held = Held::Caller(self.next_send);
        let Some(port) = &mut self.port else { return Err(not_connected("RDMA write", self.state)) };
        match port.rdma_write_acknowledged(located, to, immediate, held) {
            Ok(fate) => Ok(fate.map(|fate| status_of(fate, Reliability::Reception))),
            Err((refused, _)) => Err(self.rdma_refused(refused, to, total)),
        }
    }

    pub(super) fn write_located(
        &mut self,
        located: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
    ) -> Result {
        let total = self.check_rdma("RDMA write", Caps::RDMA_WRITE, located)?;
        let Some(port) = &mut self.port else { return Err(not_connected("RDMA write", self.state)) };
        port.rdma_write(located, to, immediate).map_err(|refused| self.rdma_refused(refused, to, total))
    }

    /// An RDMA read is over when it returns; so a fence (VIA's QFENCE), which holds a descriptor back until the
    /// reads before it are done, has nothing to wait for, and there is no such flag.
    fn read_located(
        &mut self,
        located: &[(u64, usize)],
        from: RemoteBuffer,
        immediate: Option<u32>,
    ) -> Result<Option<Status>> {
        let total = self.check_rdma("RDMA read", Caps::RDMA_READ, located)?;
        if immediate.is_some() {
            return Err(Error::InvalidParameter("an RDMA read carries no immediate data".into()));
        }
        if self.attributes.reliability == Reliability::Unreliable {
            return Err(Error::InvalidParameter("unreliable delivery has no RDMA read".into()));
        }
        let Some(port) = &mut self.port else { return Err(not_connected("RDMA read", self.state)) };
        match port.rdma_read(located, from) {
            Ok(()) => Ok(Some(Status::Done)),
            Err(refused) => Err(self.rdma_refused(refused, from, total)),
        }
    }

    fn check_rdma(&self, what: &'static str, needed: Caps, located: &[(u64, usize)]) -> Result<usize> {
        self.nic.require(what, needed)?;
        self.check_send(located)
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
        let (status, send) = self.sends.pop_over()?;
        drop(self.staged.take(send.number));
        let length = if status == Status::Done { send.length } else { 0 };
        Some(Completion { status, length, immediate: None, descriptor: send.owner.map_err(|id| id.0) })
    }

    pub(super) fn collect_sends(&mut self) {
        let level = self.attributes.reliability;
        for port in &mut self.leaving {
            self.sends.settle(&mut **port, level);
        }
        if !self.leaving.is_empty() && self.sends.all_over() {
            self.leaving.clear();
        }
        if let Some(port) = &mut self.port
            && self.sends.settle(&mut **port, level)
        {
            self.state = State::Error;
            self.flush_receives();
        }
    }

    /// The next receive that is over, oldest first. Takes what has arrived into posted descriptors.
    ///
    /// A message that finds no descriptor, or one too short, breaks a reliable connection: the VI goes to the
    /// Error state, and the peer learns it. On an unreliable one the message is lost, and nothing else.
    pub fn receive_done(&mut self) -> Option<Completion> {
        if self.attributes.receive == Receive::Posted {
            // Bounded: a peer that only sends what nobody wants does not keep us here.
            for _ in 0..self.nic.attributes().max_descriptors_per_queue {
                if !self.received.is_empty() || !self.take_arrival() {
                    break;
                }
            }
        }
        self.received.pop_front()
    }

    /// Takes one message into a descriptor, if there is one. Returns whether there was a message.
    fn take_arrival(&mut self) -> bool {
        let Some(port) = &mut self.port else { return false };
        let arrival = match port.receive() {
            Ok(Some(arrival)) => arrival,
            Ok(None) => return false,
            Err(refused) => {
                self.refused(refused);
                return false;
            }
        };
        if matches!(arrival.body, Body::Written(_)) && arrival.immediate.is_none() {
            return true;
        }
        let receipt = port.receipt();
        let Some(mut into) = self.receives.pop_front() else {
            self.no_place(arrival, receipt, "a message came and no receive descriptor was posted");
            return true;
        };
        let (length, left_over) = match &arrival.body {
            Body::Written(length) => (*length, 0),
            Body::Inline(bytes) => (bytes.bytes().len(), into.fill(std::iter::once(bytes.bytes()))),
            Body::Lent(_, lent) => (lent.len(), into.fill(lent.parts())),
        };
        let status = if left_over == 0 { Status::Done } else { Status::LengthError };
        self.received.push_back(into.complete(status, length - left_over, arrival.immediate));
        if left_over > 0 {
            let why = "a message was longer than the receive descriptor posted for it";
            self.no_place(arrival, receipt, why);
        }
        true
    }

    /// A message found no descriptor, or one too short. Its sender is told before it learns that the connection
    /// broke: so it knows which message it was.
    fn no_place(&mut self, arrival: Arrival, receipt: Option<Lent>, why: &str) {
        if self.attributes.reliability == Reliability::Unreliable {
            return;
        }
        if let Body::Lent(_, lent) = arrival.body {
            lent.refuse();
        }
        if let Some(receipt) = receipt {
            receipt.refuse();
        }
        self.break_connection(why);
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

    /// Ends everything posted, in order: the oldest unfinished send by `first`, all others as flushed. Sends are
    /// reported so once the peer is done with their memory: until then it is not the program's to write.
    pub(super) fn flush_queues(&mut self, first: Status) {
        self.collect_sends();
        self.sends.flush(first);
        self.flush_receives();
    }

    fn flush_receives(&mut self) {
        self.received.extend(self.receives.drain(..).map(|into| into.complete(Status::Flushed, 0, None)));
    }
}
