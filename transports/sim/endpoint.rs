//! The two work queues of a connected VI on the simulated fabric.

#![allow(unsafe_code, reason = "it implements the transport contract")]

use std::sync::Arc;

use udeck_via::mem::Lent;
use udeck_via::transport::{
    Arrival, Body, Inline, Owner, PostedBuffer, Queue, Refused, TransferStatus, ViEndpoint,
};
use udeck_via::{Caps, Reliability, RemoteBuffer};

use crate::borrowed::{Bytes, LoanId};
use crate::connection::{End, Side, WINDOW};
use crate::device::SimDevice;
use crate::frame::{Content, Message, copy_of};
use crate::waiter::SimNotifier;
use crate::world::World;

/// Upper bound of one peer's buffers that a program may read in place. Beyond it, messages are copied and their
/// buffers returned at once: a receiver that hoards messages must not starve its sender.
const HELD_QUOTA: usize = WINDOW / 2;

/// A connected endpoint, owned by its VI.
pub struct SimEndpoint {
    pub device: Arc<SimDevice>,
    pub connection: u64,
    pub side: Side,
    /// Receipt that the sender of the last arrival waits for, if the arrival was not a lent message.
    pub receipt: Option<Lent>,
    /// Keeps the waiters of the two queues alive.
    pub notifiers: [Arc<SimNotifier>; 2],
}

impl SimEndpoint {
    pub fn with<R>(&self, work: impl FnOnce(&mut World) -> R) -> R {
        self.device.shared.with(work)
    }

    /// Fails if there is no room to send, even after virtual time has passed.
    pub fn room(&self, world: &mut World) -> Result<(), Refused> {
        let room = |world: &mut World| match world.connections[&self.connection].room(self.side) {
            Err(Refused::Busy) => None,
            other => Some(other),
        };
        world.look(room).unwrap_or(Err(Refused::Busy))
    }

    pub fn level(&self, world: &World) -> Reliability {
        world.connections[&self.connection].level
    }

    pub fn node(&self, world: &World) -> usize {
        world.connections[&self.connection].ends[self.side].node
    }

    /// Returns our end of a connection that is known to exist.
    pub fn end<'a>(&self, world: &'a mut World) -> &'a mut End {
        &mut world.connections.get_mut(&self.connection).expect("just seen").ends[self.side]
    }

    /// Takes the next message of the inbox.
    fn next(&self, world: &mut World) -> Option<Taken> {
        let end = &mut world.connections.get_mut(&self.connection)?.ends[self.side];
        let Message { immediate, content } = end.inbox.pop_front()?;
        // The connection's end may have been reported while this message lay before it.
        if end.inbox.is_empty() && self.over(world).is_some() {
            world.announce(self.connection, self.side, Queue::Receive);
        }
        world.taken(self.connection, self.side);
        let body = match content {
            Content::Inline(bytes) => Found::Body(Body::Inline(bytes)),
            Content::Written { len, token } => {
                let receipt = token.map(|token| self.loan(world, token).0);
                Found::Written(len, receipt)
            }
            Content::Copied { head, copy, token } => {
                world.count_copied(self.node(world), copy.len());
                match token {
                    Some(token) => self.lent(world, head, Bytes::Copied(copy), token),
                    None => Found::Body(Body::Lent(head, copy.into())),
                }
            }
            Content::Lent { head, memory, segments, token } => {
                self.lent(world, head, Bytes::InPlace(memory, segments), token)
            }
            Content::Write { .. }
            | Content::ReadRequest { .. }
            | Content::ReadResponse { .. }
            | Content::Receipt { .. }
            | Content::End(_) => {
                unreachable!("what is for the engine is in no inbox")
            }
        };
        Some(Taken { immediate, body })
    }

    /// Starts the program's loan of `token`. The flag is true if the program has more loans than it may read in place.
    fn loan(&self, world: &mut World, token: u16) -> (LoanId, bool) {
        let lender = 1 - self.side;
        let beyond = world.borrow(self.connection, lender, token) > HELD_QUOTA;
        let shared = self.device.shared.clone();
        (LoanId { shared, connection: self.connection, lender, token }, beyond)
    }

    fn lent(&self, world: &mut World, head: Inline, bytes: Bytes, token: u16) -> Found {
        let (loan, beyond) = self.loan(world, token);
        if beyond && let Bytes::InPlace(_, segments) = &bytes {
            world.count_copied(self.node(world), segments.iter().map(|segment| segment.1).sum());
        }
        Found::Lent { head, bytes, loan, beyond }
    }

    fn over(&self, world: &World) -> Option<Refused> {
        world.connections.get(&self.connection)?.end(self.side)
    }
}

/// A message taken from the inbox. [`Lent`]s are made outside the lock, because dropping one takes it.
struct Taken {
    immediate: Option<u32>,
    body: Found,
}

enum Found {
    Body(Body),
    Written(usize, Option<LoanId>),
    Lent { head: Inline, bytes: Bytes, loan: LoanId, beyond: bool },
}

// SAFETY: a loan, a write or a read ends when the receiver has dropped the buffer, the data are in place, or neither
// can happen any more (`loans`): memory that is no loan by then is accessed by no frame.
unsafe impl ViEndpoint for SimEndpoint {
    fn send(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result<(), Refused> {
        let content = Content::Inline(Inline::gather(head, body));
        self.with(|world| {
            self.room(world)?;
            world.transmit(self.connection, self.side, Message { immediate, content });
            Ok(())
        })
    }

    fn lend(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        segments: &[(u64, usize)],
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        let head = Inline::gather(head, &[]);
        self.with(|world| {
            if let Err(refused) = self.room(world) {
                return Err((refused, held));
            }
            let level = self.level(world);
            let in_place = self.device.has(Caps::HAND_OFF) && level != Reliability::Unreliable;
            let awaited = level == Reliability::Reception && matches!(held, PostedBuffer::Caller(_));
            let token = if in_place || awaited {
                Some(self.end(world).lend(held).map_err(|held| (Refused::Busy, held))?)
            } else {
                // The data leave the sender, so it has its memory back whatever becomes of them.
                if let PostedBuffer::Caller(number) = held {
                    self.end(world).returned.push_back((number, TransferStatus::Arrived));
                }
                world.defer_drop_held(held);
                None
            };
            let memory = &self.device.memory;
            let content = match token {
                Some(token) if in_place => {
                    Content::Lent { head, memory: memory.clone(), segments: segments.to_vec(), token }
                }
                token => {
                    let copy = copy_of(memory, segments);
                    world.count_copied(self.node(world), copy.len());
                    Content::Copied { head, copy, token }
                }
            };
            world.transmit(self.connection, self.side, Message { immediate, content });
            Ok(())
        })
    }

    fn rdma_write(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        self.with(|world| self.write(world, segments, to, immediate, held))
    }

    fn rdma_read(
        &mut self,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        self.with(|world| self.read(world, segments, from, held))
    }

    fn fence(&mut self) {
        self.with(|world| world.fence(self.connection, self.side));
    }

    fn receive(&mut self) -> Result<Option<Arrival>, Refused> {
        drop(self.receipt.take());
        let next = |world: &mut World| match self.next(world) {
            Some(taken) => Some(Ok(taken)),
            None => self.over(world).map(Err),
        };
        let taken = self.with(|world| world.look(next));
        let Some(taken) = taken else { return Ok(None) };
        let Taken { immediate, body } = taken?;
        let body = match body {
            Found::Body(body) => body,
            Found::Written(len, receipt) => {
                self.receipt = receipt.map(LoanId::receipt);
                Body::Written(len)
            }
            Found::Lent { head, bytes, loan, beyond: false } => Body::Lent(head, loan.read(bytes)),
            Found::Lent { head, bytes, loan, beyond: true } => Body::Lent(head, loan.keep(bytes)),
        };
        Ok(Some(Arrival { immediate, body }))
    }

    fn receipt(&mut self) -> Option<Lent> {
        self.receipt.take()
    }

    fn poll_completion(&mut self) -> Option<(u64, TransferStatus)> {
        let next = |world: &mut World| {
            world.connections.get_mut(&self.connection)?.ends[self.side].returned.pop_front()
        };
        self.with(|world| world.look(next))
    }

    fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        self.with(|world| match world.connections.get_mut(&self.connection) {
            Some(connection) => connection.ends[self.side].keep(number, owner),
            None => Err(owner),
        })
    }

    fn request_send_notify(&mut self) {
        self.with(|world| {
            if let Some(connection) = world.connections.get_mut(&self.connection) {
                connection.ends[self.side].wants_room = true;
            }
        });
    }

    fn unread(&mut self) -> Result<u32, Refused> {
        self.with(|world| {
            let connection = |world: &World| {
                let connection = &world.connections[&self.connection];
                let end = &connection.ends[self.side];
                (end.unread + end.held_back() as u32, connection.room(self.side))
            };
            // An end in transit decides what becomes of the unread messages.
            world.look(|world| {
                matches!(connection(world), (0, _) | (_, Err(Refused::Closed | Refused::Lost(_))))
                    .then_some(())
            });
            match connection(world) {
                (unread, Ok(()) | Err(Refused::Busy)) => Ok(unread),
                (0, Err(_)) => Ok(0),
                (_, Err(refused)) => Err(refused),
            }
        })
    }

    fn close(&mut self, broken: Option<&str>) {
        drop(self.receipt.take());
        self.with(|world| world.close(self.connection, self.side, broken));
    }

    fn leave(&mut self) {
        self.close(None);
        self.with(|world| world.detach(self.connection, self.side, Queue::Receive));
        self.request_send_notify();
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        self.leave();
        self.with(|world| {
            world.detach(self.connection, self.side, Queue::Send);
            world.endpoint_gone(self.connection, self.side);
        });
    }
}

impl std::fmt::Debug for SimEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimEndpoint(side {} of connection {}, {:?})", self.side, self.connection, self.notifiers)
    }
}
