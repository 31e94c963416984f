//! RDMA: the checks that a window's owner asks for, and the copying.

use std::sync::Arc;

use udeck_via::transport::{Fate, Held, Inline, Refused};
use udeck_via::{MemHandle, Ptag, Reliability, RemoteBuffer};

use crate::frame::{Content, Message};
use crate::memory::{Memory, scatter, snapshot, write_remote};
use crate::port::SimPort;
use crate::world::{Exposed, World};

impl SimPort {
    /// Writes, and sends word of it. At reliable reception a caller is told when that has arrived.
    pub fn write(
        &self,
        world: &mut World,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: Held,
    ) -> Result<Option<Fate>, (Refused, Held)> {
        let len = segments.iter().map(|segment| segment.1).sum();
        let awaited = self.level(world) == Reliability::Reception && matches!(held, Held::Caller(_));
        if let Err(refused) = self.place(world, segments, to, len, awaited) {
            return Err((refused, held));
        }
        world.count_copied(self.node(world), len);
        let token = if awaited {
            Some(self.end(world).lend(held).map_err(|held| (Refused::Busy, held))?)
        } else {
            world.bury_held(held);
            None
        };
        // Also without immediate data, of which its receiver sees nothing: the loss of it is noticed all the same.
        let message = Message { immediate, content: Content::Written { len, token } };
        world.transmit(self.connection, self.side, message);
        Ok(if awaited { None } else { Some(Fate::Arrived) })
    }

    /// Places the data of a write that can be announced.
    fn place(
        &self,
        world: &mut World,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        total: usize,
        awaited: bool,
    ) -> Result<(), Refused> {
        self.room(world)?;
        let connection = &world.connections[&self.connection];
        let (link, tag) = (connection.link_to(1 - self.side), connection.ends[self.side].writable);
        // It is done when the call returns, and nothing gets through a stalled link.
        if world.wire(link).link.stalled || (awaited && !self.end(world).has_token()) {
            return Err(Refused::Busy);
        }
        let (into, at) = self.exposed(world, to, total, tag, |window| window.rights.write)?;
        let from = &world.nodes[link.0].outbox;
        if write_remote(from, segments, &into, at) { Ok(()) } else { Err(Refused::Protection) }
    }

    /// Reads: the question and the answer are a frame each, and both have crossed when it returns.
    pub fn read(
        &self,
        world: &mut World,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
    ) -> Result<(), Refused> {
        let total = segments.iter().map(|segment| segment.1).sum();
        let connection = &world.connections[&self.connection];
        connection.stands(self.side)?;
        let tag = connection.ends[self.side].readable;
        let ways = [connection.link_to(1 - self.side), connection.link_to(self.side)];
        if ways.iter().any(|&link| world.wire(link).link.stalled) {
            return Err(Refused::Busy);
        }
        let (memory, at) = self.exposed(world, from, total, tag, |window| window.rights.read)?;
        let (ours, _) = ways[0];
        let question = [u64::from(from.handle.0), from.offset as u64, total as u64];
        let question = Inline::new([question[0], question[1], question[2], 0, 0, 0], size_of_val(&question));
        world.cross(self.connection, 1 - self.side, Content::Inline(question))?;
        let copy = snapshot(&memory, at, total).ok_or(Refused::Protection)?;
        let answer = Content::Copied { head: Inline::gather(b"", b""), copy, token: None };
        let Content::Copied { copy, .. } = world.cross(self.connection, self.side, answer)? else {
            unreachable!("what arrives is what was sent")
        };
        if !scatter(copy.bytes(), &world.nodes[ours].outbox, segments) {
            return Err(Refused::Protection);
        }
        world.count_copied(ours, total);
        Ok(())
    }

    /// Where `total` bytes of a peer's window lie, in its landing memory or outbox, if it allows us this.
    fn exposed(
        &self,
        world: &World,
        place: RemoteBuffer,
        total: usize,
        tag: Option<Ptag>,
        allows: impl Fn(&Exposed) -> bool,
    ) -> Result<(Arc<Memory>, u64), Refused> {
        let peer = world.connections[&self.connection].ends[1 - self.side].node;
        let MemHandle(handle) = place.handle;
        let window = world.nodes[peer].windows.get(&handle).ok_or(Refused::Protection)?;
        let end = place.offset.checked_add(total).ok_or(Refused::Protection)?;
        if tag != Some(window.ptag) || !allows(window) || end > window.len || total > place.len {
            return Err(Refused::Protection);
        }
        let node = &world.nodes[peer];
        let memory = if window.in_outbox { &node.outbox } else { &node.landing };
        Ok((memory.clone(), window.offset + place.offset as u64))
    }
}
