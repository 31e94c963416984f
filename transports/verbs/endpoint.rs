//! Endpoint of a VI: the VI layer's side of a link.

use std::fmt;
use std::sync::{Arc, Weak};

use udeck_session::TakenMessage;
use udeck_via::RemoteBuffer;
use udeck_via::mem::Lent;
use udeck_via::transport::{
    Arrival, Found, Inline, Landed, LinkReport, Owner, PostedBuffer, Queue, Refused, TransferStatus,
    ViEndpoint,
};

use crate::connection::Connection;
use crate::link::VerbsLink;

/// The two work queues of a VI over a [`VerbsLink`].
pub struct VerbsEndpoint {
    link: Arc<VerbsLink>,
    /// Receipt that the sender of the last arrival waits for, if the arrival was not a lent message.
    receipt: Option<Lent>,
}

impl VerbsEndpoint {
    pub fn new(link: Arc<VerbsLink>) -> Self {
        VerbsEndpoint { link, receipt: None }
    }

    /// Gives the receipt for the last arrival, if its sender waits for one.
    #[inline]
    fn forget_receipt(&mut self) {
        if self.receipt.is_some() {
            drop(self.receipt.take());
        }
    }

    /// Takes the next message.
    fn next(&mut self) -> Result<Option<TakenMessage>, Refused> {
        self.forget_receipt();
        match self.link.with(Connection::take) {
            Ok(None) => {
                self.link.poll();
                self.link.with(Connection::take)
            }
            other => other,
        }
    }

    /// Posts by `post`, and once more if it was busy and the peer's credits have come meanwhile.
    fn post(
        &mut self,
        held: PostedBuffer,
        post: impl Fn(&mut Connection, PostedBuffer) -> Result<(), (Refused, PostedBuffer)>,
    ) -> Result<(), (Refused, PostedBuffer)> {
        match self.link.with(|connection| post(connection, held)) {
            Err((Refused::Busy, held)) => {
                self.link.poll();
                self.link.with(|connection| post(connection, held))
            }
            other => other,
        }
    }

    /// Converts a message for the program. The caller holds no lock: a `Lent` that is dropped takes the link's.
    fn arrival(&mut self, taken: TakenMessage) -> Arrival {
        let link = &self.link;
        taken.into_arrival(|| link.clone(), &mut self.receipt)
    }
}

// SAFETY: requests refer to posted memory, to stores and to leads of our own, and to nothing else; only reads write,
// and only their targets. The device's use of a post is over when its completion says so, or when the queue pair is
// destroyed, before the connection is told that it is lost (`link`); only then a completion is reported or a block
// is dropped (`connection::close`). An offer is read by the peer until it says that it has read it, or the queue
// pair is destroyed. The connection owns all of that, and lives on when the endpoint has left. A refused post leaves
// no request.
unsafe impl ViEndpoint for VerbsEndpoint {
    fn send(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result<(), Refused> {
        match self.link.with_device(|connection, work| connection.send(work, immediate, head, body)) {
            Err(Refused::Busy) => {
                self.link.poll();
                self.link.with_device(|connection, work| connection.send(work, immediate, head, body))
            }
            other => other,
        }
    }

    fn lend(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        segments: &[(u64, usize)],
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        self.post(held, |connection, held| connection.lend(immediate, head, segments, held))
    }

    fn rdma_write(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        self.post(held, |connection, held| connection.rdma_write(segments, to, immediate, held))?;
        Ok(None)
    }

    fn rdma_read(
        &mut self,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        self.post(held, |connection, held| connection.rdma_read(segments, from, held))?;
        Ok(None)
    }

    fn fence(&mut self) {
        self.link.with(Connection::fence);
    }

    fn receive(&mut self) -> Result<Option<Arrival>, Refused> {
        let taken = self.next()?;
        Ok(taken.map(|taken| self.arrival(taken)))
    }

    /// Copies short messages to `to`, and longer ones that fit and came without a header: those for which a program
    /// posted a descriptor. The device does not do it: the descriptor may be taken back at any time, and a read
    /// cannot.
    fn receive_into(&mut self, to: &mut [u8]) -> Result<Option<Landed>, Refused> {
        self.forget_receipt();
        let mut len = 0;
        let short = self.link.take_short(|bytes| {
            len = bytes.len();
            let fitting = len.min(to.len());
            to[..fitting].copy_from_slice(&bytes.bytes()[..fitting]);
        });
        if let Some(immediate) = short {
            return Ok(Some(Landed::Copied { immediate, len }));
        }
        // Another message may have come since.
        let Some(taken) = self.next()? else { return Ok(None) };
        let Some((landed, copied)) = taken.land(to) else {
            return Ok(Some(Landed::Arrival(self.arrival(taken))));
        };
        if copied > 0 || taken.receipt.is_some() {
            self.link.with(|connection| {
                connection.count_copied(copied);
                if let Some(number) = taken.receipt {
                    connection.acknowledge(number, TransferStatus::Arrived);
                }
            });
        }
        Ok(Some(landed))
    }

    fn receive_short(&mut self, to: &mut Inline) -> Found {
        self.forget_receipt();
        if !self.link.has_arrivals() {
            return Found::Other;
        }
        match self.link.take_short(|bytes| *to = *bytes) {
            Some(immediate) => Found::Short(immediate),
            None => Found::Other,
        }
    }

    fn poll_completion(&mut self) -> Option<(u64, TransferStatus)> {
        self.link.with(Connection::next_completion).or_else(|| {
            self.link.poll();
            self.link.with(Connection::next_completion)
        })
    }

    fn receipt(&mut self) -> Option<Lent> {
        self.receipt.take()
    }

    fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        self.link.with(|connection| connection.keep(number, owner))
    }

    fn request_send_notify(&mut self) {
        self.link.with(Connection::request_send_notify);
    }

    fn link_report(&self) -> Option<Weak<dyn LinkReport>> {
        let link: Weak<VerbsLink> = Arc::downgrade(&self.link);
        Some(link)
    }

    fn unread(&mut self) -> Result<u32, Refused> {
        if !matches!(self.link.with(Connection::unread), Ok(0)) {
            self.link.poll();
        }
        self.link.with(Connection::unread)
    }

    fn close(&mut self, broken: Option<&str>) {
        self.forget_receipt();
        // Messages that have come by now were sent to a VI that stands.
        if !self.link.with(|connection| connection.is_closed()) {
            self.link.drain_before_close();
        }
        self.link.with(|connection| connection.close(broken));
    }

    fn leave(&mut self) {
        self.close(None);
        self.link.detach(Queue::Receive);
        self.request_send_notify();
    }
}

impl Drop for VerbsEndpoint {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.leave();
        self.link.detach(Queue::Send);
        self.link.with(Connection::endpoint_gone);
    }
}

impl fmt::Debug for VerbsEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerbsEndpoint({:?})", self.link)
    }
}
