//! VI endpoint over a [`Link`]: the VI layer's side of a connection.

#![allow(unsafe_code, reason = "it implements the transport contract")]

use std::fmt;
use std::sync::{Arc, Weak};

use udeck_via::RemoteBuffer;
use udeck_via::mem::Lent;
use udeck_via::transport::{
    Arrival, Found, Inline, Landed, LinkReport, Owner, PostedBuffer, Queue, Refused, TransferStatus,
    ViEndpoint,
};

use crate::framed::connection::Connection;
use crate::framed::link::{Driver, Link};
use crate::recv_queue::{TakenBody, TakenMessage};
use crate::watching::{Watch, Watching};

/// The two work queues of a VI over a [`Link`].
pub struct SessionEndpoint<D: Driver> {
    link: Arc<Link<D>>,
    /// Receipt that the sender of the last arrival waits for, if that was no lent message.
    receipt: Option<Lent>,
}

impl<D: Driver> SessionEndpoint<D> {
    /// The endpoint of a connection that stands. News goes to `watch` from now on, and earlier news is announced once.
    pub fn new(link: Arc<Link<D>>, watch: Watch) -> Self {
        Self::watched(link, watch.into())
    }

    pub(crate) fn watched(link: Arc<Link<D>>, watching: Watching) -> Self {
        link.attach(watching);
        SessionEndpoint { link, receipt: None }
    }

    /// The link.
    pub fn link(&self) -> &Arc<Link<D>> {
        &self.link
    }
}

impl<D: Driver> SessionEndpoint<D> {
    /// Takes the next arrival. A long message that is coming may go to `to` already.
    fn next(&mut self, to: &mut [u8]) -> Result<Option<TakenMessage>, Refused> {
        drop(self.receipt.take());
        self.link.with(|connection, driver| match connection.take() {
            Ok(None) => {
                connection.poll_into(to, |connection| driver.poll(connection));
                connection.take()
            }
            other => other,
        })
    }

    /// Posts; tries once more if the peer's credits may lie in the stream already.
    fn post<R>(
        &mut self,
        held: PostedBuffer,
        post: impl Fn(&mut Connection, PostedBuffer) -> Result<R, (Refused, PostedBuffer)>,
    ) -> Result<R, (Refused, PostedBuffer)> {
        self.link.with(|connection, driver| {
            poll_for_room(connection, driver);
            match post(connection, held) {
                Err((Refused::Busy, held)) => {
                    driver.poll(connection);
                    post(connection, held)
                }
                other => other,
            }
        })
    }

    /// The arrival in the program's form. Runs without the lock, because a `Lent` that is dropped takes it.
    ///
    /// # Errors
    /// [`Refused::Lost`] when a part of it lies in the place that the program polled with before, and did not offer again.
    fn arrival(&mut self, taken: TakenMessage) -> Result<Arrival, Refused> {
        if let TakenBody::Body(_, _, 1..) = taken.body {
            let why = "the place that a message was coming to was not the one that it was received with";
            self.link.with(|connection, _| {
                if let Some(number) = taken.receipt {
                    connection.acknowledge(number, TransferStatus::Refused);
                }
                connection.close(Some(why));
            });
            return Err(Refused::Lost(why.into()));
        }
        let link = &self.link;
        Ok(taken.into_arrival(|| link.clone(), &mut self.receipt))
    }
}

/// Polls before a post that would be held back: the peer's credits may lie in the stream already, and the poster need not
/// poll this connection again.
fn poll_for_room<D: Driver>(connection: &mut Connection, driver: &mut D) {
    if connection.would_hold_back() {
        driver.poll(connection);
    }
}

// SAFETY: frames refer to what was posted, and to nothing else, until the driver says that they are released, or the
// connection is lost and nothing is gathered any more; only then `ended` tells a number or a block is dropped
// (`connection::unacked`). What a read may write is its segments, until it is over (`Target::Read`). All of that is the
// connection's, which lives on when the endpoint has left. A post that is refused leaves no frame.
unsafe impl<D: Driver> ViEndpoint for SessionEndpoint<D> {
    fn send(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result<(), Refused> {
        self.link.with(|connection, driver| {
            poll_for_room(connection, driver);
            match connection.send(immediate, head, body) {
                Err(Refused::Busy) => {
                    driver.poll(connection);
                    connection.send(immediate, head, body)
                }
                other => other,
            }
        })
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
        self.link.with(|connection, _| connection.fence());
    }

    fn receive(&mut self) -> Result<Option<Arrival>, Refused> {
        let taken = self.next(&mut [])?;
        taken.map(|taken| self.arrival(taken)).transpose()
    }

    fn receive_short(&mut self, to: &mut Inline) -> Found {
        if self.receipt.is_some() {
            drop(self.receipt.take());
        }
        self.link.with(|connection, driver| {
            if connection.has_nothing_yet() {
                driver.poll(connection);
            }
            connection.take_short(to)
        })
    }

    /// Receives into `to` short messages, and long ones that fit and came without a header: those are the messages that a
    /// program posted a descriptor for. The beginning of a long one may be there before the call returns the message: `to`
    /// has to be the same until then.
    fn receive_into(&mut self, to: &mut [u8]) -> Result<Option<Landed>, Refused> {
        let Some(taken) = self.next(to)? else { return Ok(None) };
        let Some((landed, copied)) = taken.land(to) else {
            return Ok(Some(Landed::Arrival(self.arrival(taken)?)));
        };
        if copied > 0 || taken.receipt.is_some() {
            self.link.with(|connection, _| {
                connection.count_copied(copied);
                if let Some(number) = taken.receipt {
                    connection.acknowledge(number, TransferStatus::Arrived);
                }
            });
        }
        Ok(Some(landed))
    }

    fn poll_completion(&mut self) -> Option<(u64, TransferStatus)> {
        self.link.with(|connection, driver| {
            connection.next_completion().or_else(|| {
                driver.poll(connection);
                connection.next_completion()
            })
        })
    }

    fn receipt(&mut self) -> Option<Lent> {
        self.receipt.take()
    }

    fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        self.link.with(|connection, _| connection.keep(number, owner))
    }

    fn request_send_notify(&mut self) {
        self.link.with(|connection, _| connection.request_send_notify());
    }

    fn link_report(&self) -> Option<Weak<dyn LinkReport>> {
        let link: Weak<Link<D>> = Arc::downgrade(&self.link);
        Some(link)
    }

    fn unread(&mut self) -> Result<u32, Refused> {
        self.link.with(|connection, driver| {
            if !matches!(connection.unread(), Ok(0)) {
                driver.poll(connection);
            }
            connection.unread()
        })
    }

    fn close(&mut self, broken: Option<&str>) {
        drop(self.receipt.take());
        self.link.with(|connection, driver| {
            // Everything that has come by now was sent to a VI that stands.
            if !connection.is_closed() {
                driver.drain_before_close(connection);
            }
            connection.close(broken);
        });
    }

    fn leave(&mut self) {
        self.close(None);
        self.link.detach(Queue::Receive);
        self.request_send_notify();
    }
}

impl<D: Driver> Drop for SessionEndpoint<D> {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.leave();
        self.link.detach(Queue::Send);
        self.link.with(|connection, _| connection.endpoint_gone());
    }
}

impl<D: Driver> fmt::Debug for SessionEndpoint<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionEndpoint({:?})", self.link)
    }
}
