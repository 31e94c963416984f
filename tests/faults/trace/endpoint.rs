//! An endpoint and a waiter whose operations are recorded.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Call, Outcome, Sink, Who};
use udeck_via::mem::{Lent, LentSlice, RemoteBuffer};
use udeck_via::transport::{
    Armed, Arrival, Found, Inline, Landed, LinkReport, Notifier, Owner, PostedBuffer, Ready, Refused,
    ShortArrival, TransferStatus, ViEndpoint, Waiter,
};

#[derive(Debug)]
pub struct TracedEndpoint {
    pub inner: Box<dyn ViEndpoint>,
    pub who: Who,
    pub sink: Arc<Sink>,
}

impl TracedEndpoint {
    fn note(&self, call: Call, outcome: Outcome) {
        self.sink.note(self.who, call, outcome);
    }

    /// Records a receive. A poll that found nothing is no event.
    fn note_look<T>(&self, received: &Result<Option<T>, Refused>, outcome: impl FnOnce(&T) -> Outcome) {
        match received {
            Ok(Some(arrival)) => self.note(Call::Receive, outcome(arrival)),
            Ok(None) => {}
            Err(refused) => self.note(Call::Receive, Outcome::refused(refused)),
        }
    }
}

fn total(segments: &[(u64, usize)]) -> usize {
    segments.iter().map(|segment| segment.1).sum()
}

/// The number by which the caller is told of the end, if it is told.
fn number_of(held: &PostedBuffer) -> Option<u64> {
    match held {
        PostedBuffer::Caller(number) => Some(*number),
        PostedBuffer::Block(_) | PostedBuffer::Owner(_) => None,
    }
}

#[deny(clippy::missing_trait_methods)]
// SAFETY: every call is passed on as it came, to an endpoint that keeps the contract.
unsafe impl ViEndpoint for TracedEndpoint {
    fn send(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result<(), Refused> {
        let sent = self.inner.send(immediate, head, body);
        self.note(Call::Send { immediate, head: head.len(), body: body.len() }, Outcome::of(&sent));
        sent
    }

    fn send_short(&mut self, immediate: u32, head: [u8; 8], body: &[u8]) -> bool {
        self.send(Some(immediate), &head, body).is_ok()
    }

    fn send_short_run(&mut self, immediate: u32, head: [u8; 8], bodies: &[u8], each: usize) -> usize {
        bodies.chunks_exact(each).take_while(|body| self.send_short(immediate, head, body)).count()
    }

    fn lend(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        segments: &[(u64, usize)],
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        let (len, number) = (total(segments), number_of(&held));
        let call = Call::Lend { immediate, head: head.len(), segments: segments.len(), len, number };
        let lent = self.inner.lend(immediate, head, segments, held);
        self.note(
            call,
            lent.as_ref().map_or_else(|(refused, _)| Outcome::refused(refused), |()| Outcome::Done),
        );
        lent
    }

    fn rdma_write(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        let (len, number) = (total(segments), number_of(&held));
        let call = Call::RdmaWrite { immediate, segments: segments.len(), len, to, number };
        let written = self.inner.rdma_write(segments, to, immediate, held);
        self.note(call, Outcome::rdma(&written));
        written
    }

    fn rdma_read(
        &mut self,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        let (len, number) = (total(segments), number_of(&held));
        let call = Call::RdmaRead { segments: segments.len(), len, from, number };
        let read = self.inner.rdma_read(segments, from, held);
        self.note(call, Outcome::rdma(&read));
        read
    }

    fn fence(&mut self) {
        self.inner.fence();
        self.note(Call::Fence, Outcome::Done);
    }

    fn receive(&mut self) -> Result<Option<Arrival>, Refused> {
        let received = self.inner.receive();
        self.note_look(&received, Outcome::arrived);
        received
    }

    fn receive_into(&mut self, to: &mut [u8]) -> Result<Option<Landed>, Refused> {
        let received = self.inner.receive_into(to);
        self.note_look(&received, Outcome::landed);
        received
    }

    fn receive_short(&mut self, to: &mut Inline) -> Found {
        let found = self.inner.receive_short(to);
        if let Found::Short(immediate) = found {
            let len = to.bytes().len();
            self.note(Call::Receive, Outcome::Arrived { kind: "inline", immediate, head: 0, len });
        }
        found
    }

    fn receive_short_run(&mut self, first: u8, to: &mut [ShortArrival]) -> usize {
        let taken = self.inner.receive_short_run(first, to);
        for ShortArrival { immediate, message } in &to[..taken] {
            let (immediate, len) = (*immediate, message.len());
            self.note(Call::Receive, Outcome::Arrived { kind: "inline", immediate, head: 0, len });
        }
        taken
    }

    fn receive_lent(&mut self, head: &mut Inline) -> Option<(Option<u32>, LentSlice)> {
        let (immediate, lent) = self.inner.receive_lent(head)?;
        let (head, len) = (head.bytes().len(), lent.len());
        self.note(Call::Receive, Outcome::Arrived { kind: "lent", immediate, head, len });
        Some((immediate, lent))
    }

    fn poll_completion(&mut self) -> Option<(u64, TransferStatus)> {
        let (number, status) = self.inner.poll_completion()?;
        self.note(Call::Ended, Outcome::Ended { number, status });
        Some((number, status))
    }

    fn receipt(&mut self) -> Option<Lent> {
        let receipt = self.inner.receipt()?;
        self.note(Call::Receipt, Outcome::Done);
        Some(receipt)
    }

    fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        let kept = self.inner.keep(number, owner);
        self.note(Call::Keep { number }, if kept.is_ok() { Outcome::Done } else { Outcome::Unknown });
        kept
    }

    fn request_send_notify(&mut self) {
        self.inner.request_send_notify();
        self.note(Call::WantRoom, Outcome::Done);
    }

    fn link_report(&self) -> Option<Weak<dyn LinkReport>> {
        self.inner.link_report()
    }

    fn unread(&mut self) -> Result<u32, Refused> {
        let unread = self.inner.unread();
        self.note(
            Call::Unread,
            unread.as_ref().map_or_else(Outcome::refused, |count| Outcome::Messages(*count)),
        );
        unread
    }

    fn close(&mut self, broken: Option<&str>) {
        self.inner.close(broken);
        self.note(Call::Close { broken: broken.is_some() }, Outcome::Done);
    }

    fn leave(&mut self) {
        self.inner.leave();
        self.note(Call::Leave, Outcome::Done);
    }
}

#[derive(Debug)]
pub struct TracedWaiter {
    pub inner: Box<dyn Waiter>,
    pub who: Who,
    pub sink: Arc<Sink>,
}

#[deny(clippy::missing_trait_methods)]
impl Waiter for TracedWaiter {
    fn poll(&mut self) -> Option<Ready> {
        let ready = self.inner.poll()?;
        self.sink.note(self.who, Call::Poll, Outcome::News(ready));
        Some(ready)
    }

    fn poll_all(&mut self) -> Option<Ready> {
        let ready = self.inner.poll_all()?;
        self.sink.note(self.who, Call::Poll, Outcome::News(ready));
        Some(ready)
    }

    fn sole_active(&mut self) -> Option<Ready> {
        self.inner.sole_active()
    }

    fn park(&mut self, limit: Duration) {
        self.inner.park(limit);
        self.sink.note(self.who, Call::Park { limit }, Outcome::Done);
    }

    fn arm(&mut self) -> Armed {
        let armed = self.inner.arm();
        self.sink.note(self.who, Call::Arm, Outcome::Armed(armed));
        armed
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.inner.notifier()
    }
}
