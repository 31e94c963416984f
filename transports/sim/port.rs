//! The two work queues of a connected VI.

use std::sync::Arc;

use udeck_via::mem::{Lender, Lent};
use udeck_via::transport::{Arrival, Body, Fate, Held, Inline, Owner, Port, Queue, Refused};
use udeck_via::{Caps, MemHandle, Reliability, RemoteBuffer};

use crate::connection::{Content, Message, Side, WINDOW, copy_of, parts};
use crate::device::SimDevice;
use crate::memory::{Memory, write_remote};
use crate::waiter::SimNotifier;
use crate::world::{Shared, World};

/// Buffers of one peer that a program may read where they lie; further ones are copied and go home at once: a
/// receiver that hoards messages must not starve its sender.
const HELD_QUOTA: usize = WINDOW / 2;

/// A connected port. Belongs to its VI.
pub struct SimPort {
    pub device: Arc<SimDevice>,
    pub connection: u64,
    pub side: Side,
    /// Keeps the waiters that news go to.
    pub notifiers: [Arc<SimNotifier>; 2],
}

/// A buffer that a program reads where it lies.
struct Borrowed {
    shared: Arc<Shared>,
    connection: u64,
    lender: Side,
    /// Keeps it mapped, whatever becomes of its NIC.
    _memory: Arc<Memory>,
}

impl Lender for Borrowed {
    fn give_back(&self, token: u16) {
        self.shared.with(|world| world.give_back(self.connection, self.lender, token));
    }
}

impl SimPort {
    fn with<R>(&self, work: impl FnOnce(&mut World) -> R) -> R {
        self.device.shared.with(work)
    }

    /// Whether there is room to send, now or when time has passed.
    fn room(&self, world: &mut World) -> Result<(), Refused> {
        let room = |world: &mut World| match world.connections[&self.connection].room(self.side) {
            Err(Refused::Busy) => None,
            other => Some(other),
        };
        world.look(room).unwrap_or(Err(Refused::Busy))
    }

    fn level(&self, world: &World) -> Reliability {
        world.connections[&self.connection].level
    }

    fn node(&self, world: &World) -> usize {
        world.connections[&self.connection].ends[self.side].node
    }

    /// What has come next, if anything has.
    fn next(&self, world: &mut World) -> Option<Taken> {
        let end = &mut world.connections.get_mut(&self.connection)?.ends[self.side];
        let Message { immediate, content } = end.inbox.pop_front()?;
        world.taken(self.connection, self.side);
        let node = self.node(world);
        let body = match content {
            Content::Inline(bytes) => Found::Body(Body::Inline(bytes)),
            Content::Written(len) => Found::Body(Body::Written(len)),
            Content::Copied { head, copy } => {
                world.count_copied(node, copy.len());
                Found::Body(Body::Lent(head, copy))
            }
            Content::Lent { head, memory, segments, token } => {
                let copied = world.borrow(self.connection, 1 - self.side, token) > HELD_QUOTA;
                if copied {
                    world.count_copied(node, segments.iter().map(|segment| segment.1).sum());
                }
                Found::Lent { head, memory, segments, token, copied }
            }
            Content::End(_) => unreachable!("ends do not get into inboxes"),
        };
        Some(Taken { immediate, body })
    }

    fn borrow(&self, memory: Arc<Memory>, segments: &[(u64, usize)], token: u16, copied: bool) -> Lent {
        let parts = parts(&memory, segments);
        let copy = copied.then(|| copy_of(&memory, segments));
        let shared = self.device.shared.clone();
        let lender = Borrowed { shared, connection: self.connection, lender: 1 - self.side, _memory: memory };
        // SAFETY: the parts lie in memory that `lender` keeps; the sender's loan, which ends by `give_back`, keeps their
        // blocks from being written.
        let lent = unsafe { Lent::new(&parts, Arc::new(lender), token) };
        copy.unwrap_or(lent)
    }

    fn end(&self, world: &World) -> Option<Refused> {
        let connection = world.connections.get(&self.connection)?;
        match (&connection.ends[self.side].ended, &connection.lost) {
            (Some(Some(why)), _) => Some(Refused::Lost(format!("the peer ended it: {why}"))),
            (Some(None), _) => Some(Refused::Closed),
            (None, Some(why)) => Some(Refused::Lost(why.clone())),
            (None, None) => None,
        }
    }

    /// Places the data of an RDMA write.
    fn place(
        &self,
        world: &World,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        total: usize,
    ) -> Result<(), Refused> {
        let connection = &world.connections[&self.connection];
        let (ours, peer) = (&connection.ends[self.side], connection.ends[1 - self.side].node);
        let MemHandle(handle) = to.handle;
        let exposed = world.nodes[peer].windows.get(&handle).ok_or(Refused::Protection)?;
        let end = to.offset.checked_add(total).ok_or(Refused::Protection)?;
        if ours.writable != Some(exposed.ptag) || end > exposed.len || total > to.len {
            return Err(Refused::Protection);
        }
        let at = exposed.offset + to.offset as u64;
        let (from, into) = (&world.nodes[ours.node].outbox, &world.nodes[peer].landing);
        if write_remote(from, segments, into, at) { Ok(()) } else { Err(Refused::Protection) }
    }
}

/// A message out of its inbox; [`Lent`]s are made when the lock is free, because dropping one takes it.
struct Taken {
    immediate: Option<u32>,
    body: Found,
}

enum Found {
    Body(Body),
    Lent { head: Inline, memory: Arc<Memory>, segments: Vec<(u64, usize)>, token: u16, copied: bool },
}

impl Port for SimPort {
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
        held: Held,
    ) -> Result<(), (Refused, Held)> {
        let head = Inline::gather(head, &[]);
        self.with(|world| {
            if let Err(refused) = self.room(world) {
                return Err((refused, held));
            }
            let in_place = self.device.has(Caps::HAND_OFF) && self.level(world) != Reliability::Unreliable;
            let memory = &self.device.memory;
            let content = if in_place {
                let end =
                    &mut world.connections.get_mut(&self.connection).expect("there is room").ends[self.side];
                let token = end.lend(held).map_err(|held| (Refused::Busy, held))?;
                Content::Lent { head, memory: memory.clone(), segments: segments.to_vec(), token }
            } else {
                // The data leave the sender: it has its memory back whatever becomes of them.
                let copy = copy_of(memory, segments);
                world.count_copied(self.node(world), copy.len());
                if let Held::Caller(number) = held {
                    let end = &mut world.connections.get_mut(&self.connection).expect("there is room").ends
                        [self.side];
                    end.returned.push_back((number, Fate::Arrived));
                }
                world.bury_held(held);
                Content::Copied { head, copy }
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
    ) -> Result<(), Refused> {
        let total = segments.iter().map(|segment| segment.1).sum();
        self.with(|world| {
            self.room(world)?;
            let link = world.connections[&self.connection].link_to(1 - self.side);
            if world.wire(link).link.stalled {
                // A write is done when this returns, and nothing gets through at the moment.
                return Err(Refused::Busy);
            }
            self.place(world, segments, to, total)?;
            world.count_copied(self.node(world), total);
            // Without immediate data nothing arrives that its receiver would see; the loss of it is noticed all the same.
            let message = Message { immediate, content: Content::Written(total) };
            world.transmit(self.connection, self.side, message);
            Ok(())
        })
    }

    fn receive(&mut self) -> Result<Option<Arrival>, Refused> {
        let next = |world: &mut World| match self.next(world) {
            Some(taken) => Some(Ok(taken)),
            None => self.end(world).map(Err),
        };
        let taken = self.with(|world| world.look(next));
        let Some(taken) = taken else { return Ok(None) };
        let Taken { immediate, body } = taken?;
        let body = match body {
            Found::Body(body) => body,
            Found::Lent { head, memory, segments, token, copied } => {
                Body::Lent(head, self.borrow(memory, &segments, token, copied))
            }
        };
        Ok(Some(Arrival { immediate, body }))
    }

    fn ended(&mut self) -> Option<(u64, Fate)> {
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

    fn want_room(&mut self) {
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
                (connection.ends[self.side].unread, connection.room(self.side))
            };
            // An end that is under way decides what becomes of the unread.
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
        self.with(|world| world.close(self.connection, self.side, broken));
    }

    fn leave(&mut self) {
        self.with(|world| {
            world.close(self.connection, self.side, None);
            world.detach(self.connection, self.side, Queue::Receive);
        });
        self.want_room();
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        self.leave();
        self.with(|world| {
            world.detach(self.connection, self.side, Queue::Send);
            world.port_gone(self.connection, self.side);
        });
    }
}

impl std::fmt::Debug for SimPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimPort(side {} of connection {}, {:?})", self.side, self.connection, self.notifiers)
    }
}
