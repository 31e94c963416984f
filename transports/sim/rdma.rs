//! RDMA: a write travels with its data, a read is a question and an answer. The target checks its windows once, when
//! a frame arrives: under the fabric's one lock the data are placed or copied at that moment.
//!
//! Only the target knows what it allows. A forbidden access breaks a reliable connection at both ends, at that
//! moment. On an unreliable one the write is dropped.

use std::sync::Arc;

use udeck_via::transport::{PostedBuffer, Queue, Refused, TransferStatus};
use udeck_via::{Caps, MemHandle, Reliability, RemoteBuffer, Rights};

use crate::borrowed::Bytes;
use crate::connection::Side;
use crate::endpoint::SimEndpoint;
use crate::fence::Reading;
use crate::frame::{Content, Message, copy_of};
use crate::memory::{Memory, scatter, snapshot, write_copy, write_remote};
use crate::world::World;

impl SimEndpoint {
    /// Sends an RDMA write.
    pub fn write(
        &self,
        world: &mut World,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        let len = total(segments);
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
            world.defer_drop_held(held);
            None
        };
        let memory = &self.device.memory;
        let bytes = match in_place {
            true => Bytes::InPlace(memory.clone(), segments.to_vec()),
            false => Bytes::Copied(copy_of(memory, segments)),
        };
        world.count_copied(self.node(world), len);
        let content = Content::Write { to, bytes, token };
        world.transmit(self.connection, self.side, Message { immediate, content });
        Ok(if token.is_some() { None } else { Some(TransferStatus::Arrived) })
    }

    /// Sends the question of an RDMA read.
    pub fn read(
        &self,
        world: &mut World,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        let len = total(segments);
        if let Err(refused) = world.connections[&self.connection].stands(self.side) {
            return Err((refused, held));
        }
        let end = self.end(world);
        let token = end.lend(held).map_err(|held| (Refused::Busy, held))?;
        end.reads.insert(token, Reading { segments: segments.to_vec(), is_asked: false });
        let content = Content::ReadRequest { from, len, token };
        world.transmit(self.connection, self.side, Message { immediate: None, content });
        Ok(None)
    }
}

fn total(segments: &[(u64, usize)]) -> usize {
    segments.iter().map(|segment| segment.1).sum()
}

impl World {
    /// Returns where `len` bytes of a window begin, in the landing arena or outbox of `asker`'s peer, if the window
    /// allows the access.
    fn exposed(
        &self,
        number: u64,
        asker: Side,
        place: RemoteBuffer,
        len: usize,
        right: Rights,
    ) -> Option<(Arc<Memory>, u64)> {
        let connection = &self.connections[&number];
        let (asking, peer) = (&connection.ends[asker], &self.nodes[connection.ends[1 - asker].node]);
        let tag = if right.write { asking.writable } else { asking.readable };
        let MemHandle(handle) = place.handle;
        let window = peer.windows.get(&handle)?;
        let end = place.offset.checked_add(len)?;
        let allowed = if right.write { window.rights.write } else { window.rights.read };
        if tag != Some(window.ptag) || !allowed || end > window.len || len > place.len {
            return None;
        }
        let memory = if window.in_outbox { &peer.outbox } else { &peer.landing };
        Some((memory.clone(), window.offset + place.offset as u64))
    }

    /// Handles a write that has come to `to`. The end `to` is not closed.
    pub fn write_arrives(
        &mut self,
        number: u64,
        to: Side,
        immediate: Option<u32>,
        (place, bytes, token): (RemoteBuffer, Bytes, Option<u16>),
    ) {
        let len = bytes.len();
        let placed =
            self.exposed(number, 1 - to, place, len, Rights::WRITE).is_some_and(
                |(memory, at)| match &bytes {
                    Bytes::InPlace(from, segments) => write_remote(from, segments, &memory, at),
                    Bytes::Copied(copy) => write_copy(copy, &memory, at),
                },
            );
        if !placed {
            return self.forbid(number, to, token, "write");
        }
        let connection = self.connections.get_mut(&number).expect("just seen");
        let (owed, unasked): (Option<u16>, Option<u16>) = match token {
            Some(token) if connection.owes_receipt(1 - to, token) => (Some(token), None),
            token => (None, token),
        };
        if let Some(token) = unasked {
            // The data are in place, and nobody waits for a receipt.
            self.settle(number, 1 - to, token, TransferStatus::Arrived);
        }
        if immediate.is_some() {
            let content = Content::Written { len, token: owed };
            let connection = self.connections.get_mut(&number).expect("just seen");
            connection.ends[to].inbox.push_back(Message { immediate, content });
            return self.announce(number, to, Queue::Receive);
        }
        self.taken(number, to);
        if let Some(token) = owed {
            self.acknowledge(number, 1 - to, token, TransferStatus::Arrived);
        }
    }

    /// Handles the question of a read that has come to `to`. The end `to` is not closed.
    pub fn question_arrives(&mut self, number: u64, to: Side, from: RemoteBuffer, len: usize, token: u16) {
        let place = self.exposed(number, 1 - to, from, len, Rights::READ);
        match place.and_then(|(memory, at)| snapshot(&memory, at, len)) {
            Some(copy) => {
                let content = Content::ReadResponse { copy, token };
                self.launch(number, to, Message { immediate: None, content });
            }
            None => self.forbid(number, to, Some(token), "read"),
        }
    }

    /// Handles the answer to a read that has come to `to`. The end `to` is not closed.
    pub fn answer_to_read_arrives(&mut self, number: u64, to: Side, copy: &udeck_via::LentSlice, token: u16) {
        let end = &self.connections[&number].ends[to];
        let Some(reading) = end.reads.get(&token) else { return };
        let node = end.node;
        let placed = scatter(copy, &self.nodes[node].outbox, &reading.segments);
        debug_assert!(placed, "what is read into are blocks of the outbox, as long as what was asked for");
        self.count_copied(node, copy.len());
        self.settle(number, to, token, TransferStatus::Arrived);
    }

    /// Handles RDMA that the peer of `to` has sent and that `to` does not allow.
    fn forbid(&mut self, number: u64, to: Side, token: Option<u16>, what: &str) {
        let connection = &self.connections[&number];
        if !connection.is_reliable() {
            return self.taken(number, to);
        }
        let (from, at) = connection.link_to(to);
        if let Some(token) = token {
            self.settle(number, 1 - to, token, TransferStatus::Protection);
        }
        let (from, at) = (&self.nodes[from].name, &self.nodes[at].name);
        let why =
            format!("an RDMA {what} of {from} to a place where {at} does not allow it (seed {})", self.seed);
        self.lose(number, &why);
    }
}
