//! Announcements: the mailbox reads the message (`rdma-read`), posts a receive descriptor for it (`handshake`), or grants
//! memory to write it to or to copy it to (`rdma-write`, `copy`).
//!
//! What is read may come later; until then the ring is not read on (`Unfinished`).
//!
//! All of them need memory of ours. While there is none, the announcement stays with its lane, and what was posted behind
//! it: so order is kept, and the sender's bounds are what piles up. Every retrieve tries again, oldest announcement first
//! (`stalled`). What came behind it *in the ring* may be read where the postbox runs ahead (`rdma-write`, `copy`): there lie
//! further announcements, and the data of messages that were granted before, whose memory may be what is waited for.

use std::sync::Arc;

use udeck_via::mem::Fill;
use udeck_via::{
    Block, Descriptor, Error as ViaError, ReadDone, Reading, RemoteBuffer, State, Status, Vi, fault,
};

use super::grants::{Grants, Memory};
use super::lane::{Lane, Unfinished};
use crate::received::{Parcel, Stored};
use crate::shared::Shared;
use crate::wire::{Kind, Malformed};

/// An announcement that was not served yet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Deferred {
    /// The postbox wants to write the message.
    Write { len: usize },
    /// The postbox wants to send it by fragments.
    Copy { len: usize, tag: u32 },
    /// The message lies there.
    Read { from: RemoteBuffer, tag: u32 },
    /// The message is to be sent on the data VI of that pair.
    Request { len: usize, pair: u32 },
}

/// What became of it.
pub(super) enum Served {
    Parcel(Parcel),
    /// There is nothing more to do; an announcement that nobody stands behind any more is dropped.
    Answered,
    /// The message is being read.
    UnderWay,
    /// There is no memory for it at the moment, or somebody may be writing there.
    NotYet,
    /// The sender was told that there is no room for so many bytes.
    TooLong(usize),
    /// The connection has ended before the message could be had.
    Over(ViaError),
}

/// A lane's data VI.
pub(super) struct Data {
    pub vi: Vi,
    /// Of the pair.
    pub pair: u32,
    /// Bytes of the message that a descriptor is posted for.
    awaited: Option<usize>,
}

impl Deferred {
    /// Bytes of the message.
    pub fn len(self) -> usize {
        match self {
            Deferred::Read { from, .. } => from.len,
            Deferred::Write { len } | Deferred::Copy { len, .. } | Deferred::Request { len, .. } => len,
        }
    }

    /// Where its memory comes from.
    pub fn arena(self) -> Memory {
        match self {
            Deferred::Write { .. } => Memory::Landing,
            _ => Memory::Outbox,
        }
    }
}

impl Data {
    pub fn new(vi: Vi, pair: u32) -> Self {
        Data { vi, pair, awaited: None }
    }
}

impl Lane {
    /// `room`: bytes of the buffer that the program has ready, if it brought one.
    pub fn serve(
        &mut self,
        deferred: Deferred,
        room: Option<usize>,
        world: &Shared,
        grants: &Arc<Grants>,
    ) -> Result<Served, Malformed> {
        match deferred {
            Deferred::Write { .. } | Deferred::Copy { .. } => self.prepare(deferred, world, grants),
            Deferred::Read { from, tag } => self.read(from, tag, world),
            Deferred::Request { len, pair } => self.grant(len, pair, room, world),
        }
    }

    fn read(&mut self, from: RemoteBuffer, tag: u32, world: &Shared) -> Result<Served, Malformed> {
        let block = match room_for(from.len, world) {
            Ok(Some(block)) => block,
            Ok(None) => return Ok(Served::NotYet),
            Err(error) => return self.refuse(Kind::AskRead, 0, &error).map(|()| Served::Answered),
        };
        match self.vi.rdma_read(block, from) {
            Ok(Reading::Done(block)) => Ok(self.was_read(block, tag)),
            Ok(Reading::UnderWay(_)) => {
                self.unfinished = Some(Unfinished::Read { tag });
                // Who asks is told, and looks once more: so what ended in between is not missed.
                self.vi.want_room();
                Ok(Served::UnderWay)
            }
            Err((error, _)) => self.was_not_read(error),
        }
    }

    fn was_read(&mut self, block: Block, tag: u32) -> Served {
        fault::point("read.fetched");
        // A sender that cannot be told has gone meanwhile. The message is here all the same.
        let _ = self.answer(None, Kind::Fin, 0, &[]);
        let (from, postbox) = (self.from, self.postbox);
        Served::Parcel(Parcel { from, postbox, tag, stored: Stored::Owned(block) })
    }

    fn was_not_read(&mut self, error: ViaError) -> Result<Served, Malformed> {
        match error {
            ViaError::Full { .. } => Ok(Served::NotYet),
            ViaError::RdmaProtection { .. } => Err(Malformed),
            ViaError::Unsupported { .. } => self.refuse(Kind::AskRead, 0, &error).map(|()| Served::Answered),
            // The sender has left, and its message with it. So has what came behind: nothing may pass it.
            error => Ok(Served::Over(error)),
        }
    }

    /// What has become of the message that is being read.
    pub(super) fn finish_read(&mut self, tag: u32) -> Result<Served, Malformed> {
        let Some(done) = self.vi.read_done() else {
            self.vi.want_room();
            // Once more: what ended before that is not told.
            return match self.vi.read_done() {
                Some(done) => self.end_read(done, tag),
                None => Ok(Served::UnderWay),
            };
        };
        self.end_read(done, tag)
    }

    fn end_read(&mut self, done: ReadDone, tag: u32) -> Result<Served, Malformed> {
        self.unfinished = None;
        match done.block {
            Ok(block) => Ok(self.was_read(block, tag)),
            Err(error) => self.was_not_read(error),
        }
    }

    /// Posts a receive descriptor for a message on the data VI.
    fn grant(
        &mut self,
        len: usize,
        pair: u32,
        room: Option<usize>,
        world: &Shared,
    ) -> Result<Served, Malformed> {
        // A request of a pair that is no more was given up.
        let Some(data) = self.data.as_mut().filter(|data| data.pair == pair) else {
            return Ok(Served::Answered);
        };
        if data.awaited.is_some() {
            return Err(Malformed);
        }
        if let Some(room) = room.filter(|room| *room < len) {
            return self.answer(Some(room as u32), Kind::Nack, pair, &[]).map(|()| Served::TooLong(len));
        }
        let granted = match room_for(len, world) {
            Ok(Some(block)) => {
                data.vi.nic().region_of(block, data.vi.attributes().ptag).map_err(|(error, _)| error)
            }
            Ok(None) => return Ok(Served::NotYet),
            Err(error) => Err(error),
        };
        let region = match granted {
            Ok(region) => region,
            Err(error) => return self.refuse(Kind::Request, pair, &error).map(|()| Served::Answered),
        };
        if data.vi.post_receive(Descriptor::new([region])).is_err() {
            // The data VI is over: its sender has given up, or is gone.
            self.data = None;
            return Ok(Served::Answered);
        }
        data.awaited = Some(len);
        self.answer(Some(len as u32), Kind::Ack, pair, &[])?;
        fault::point("handshake.granted");
        Ok(Served::Answered)
    }

    /// Whether a descriptor is posted on the data VI for a message whose fate is open. Until it is known, the control VI is not
    /// read on: a poster that has given up meanwhile posts on, and its message may have come all the same, before the others.
    pub(super) fn awaits_data(&self) -> bool {
        self.data.as_ref().is_some_and(|data| data.awaited.is_some())
    }

    /// What has come on the data VI.
    pub fn take_data(&mut self) -> Result<Option<Parcel>, Malformed> {
        let Some(data) = &mut self.data else { return Ok(None) };
        let Some(completion) = data.vi.receive_done() else {
            if data.vi.state() != State::Connected {
                self.data = None;
            }
            return Ok(None);
        };
        match (completion.status, data.awaited.take()) {
            (Status::Done, Some(len)) if len == completion.length => {
                fault::point("handshake.received");
                let tag = completion.immediate.unwrap_or(0);
                let block = completion.descriptor.ok().and_then(block_of).ok_or(Malformed)?;
                Ok(self.parcel(tag, Stored::Owned(block)))
            }
            (Status::Done | Status::LengthError, _) => Err(Malformed),
            _ => {
                self.data = None;
                Ok(None)
            }
        }
    }
}

/// A block for a message of `len` bytes; `None`: not now.
fn room_for(len: usize, world: &Shared) -> Result<Option<Block>, ViaError> {
    match world.allocate(len, Fill::Keep) {
        Ok(block) => Ok(Some(block)),
        Err(error) if may_come(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether what is short now may be there later.
pub(super) fn may_come(error: &ViaError) -> bool {
    match error {
        ViaError::NoMemory { asked, limit, .. } => asked <= limit,
        ViaError::Full { .. } => true,
        _ => false,
    }
}

fn block_of(descriptor: Descriptor) -> Option<Block> {
    descriptor.into_segments().pop()?.into_region().into_block().ok()
}
