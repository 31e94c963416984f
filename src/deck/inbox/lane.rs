//! A lane: what arrives on one postbox's connection, and what it amounts to.

use std::collections::VecDeque;
use std::sync::Arc;

use udeck_via::mem::Fill;
use udeck_via::transport::{Arrival, Body, Inline};
use udeck_via::{
    Block, Deadline, Error as ViaError, Lent, LentSlice, MemHandle, RemoteBuffer, Vi, Window, fault,
};

use super::deferred::{Data, Deferred, Served, may_come};
use super::grants::{Granted, Grants, Memory};
use crate::received::{Parcel, Stored};
use crate::shared::Shared;
use crate::stats::Counters;
use crate::wire::{self, HEAD_BYTES, Kind, MAX_ANNOUNCED, Malformed};

/// Why most messages are refused: no waiting would help. Has to fit into a refusal.
const NO_MEMORY: &str = "larger than its arena (DECK_ARENA)";
const _: () = assert!(NO_MEMORY.len() <= Inline::CAPACITY - HEAD_BYTES);

/// One postbox's connection: its control VI, and its data VI if it has one.
pub(super) struct Lane {
    pub vi: Vi,
    pub from: u32,
    pub postbox: u32,
    /// The place of the VI's NIC in the world's order.
    pub line: usize,
    /// Announced messages, in the order of their answers.
    coming: VecDeque<(Coming, Granted)>,
    /// Announcements that have to be served before anything that was posted behind them, oldest first.
    pub deferred: VecDeque<Deferred>,
    /// Whether the last of them has to be served before the ring is read on, or its message to come on the data VI.
    pub held_up: bool,
    /// A message that is nearly here. Until it is, the ring is not read on either.
    pub unfinished: Option<Unfinished>,
    /// The completion queue named it while its ring was not read on. It names the end of a connection once, so the lane
    /// has to be looked at once its ring is read on.
    pub named: bool,
    /// Whether it is queued up for memory.
    pub stalled: bool,
    /// Boxed: most lanes have none.
    pub data: Option<Box<Data>>,
}

/// A message that is nearly here, by its tag.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unfinished {
    /// It was written, and a peer is still inside its window: another than its writer, which has left, and nobody else was
    /// told of the window. A peer that does that holds up this message and no other.
    Written { tag: u32 },
    /// It is being read.
    Read { tag: u32 },
}

/// A message that was announced.
enum Coming {
    Written(Window),
    Copied { block: Block, filled: usize, tag: u32 },
}

impl Lane {
    pub fn new(vi: Vi, from: u32, postbox: u32, line: usize) -> Self {
        Lane {
            vi,
            from,
            postbox,
            line,
            coming: VecDeque::new(),
            deferred: VecDeque::new(),
            held_up: false,
            unfinished: None,
            named: false,
            stalled: false,
            data: None,
        }
    }

    /// The memory that its oldest announcement needs.
    pub fn wants(&self) -> Option<Memory> {
        self.deferred.front().map(|deferred| deferred.arena())
    }

    #[inline]
    pub(super) fn parcel(&self, tag: u32, stored: Stored) -> Option<Parcel> {
        Some(Parcel { from: self.from, postbox: self.postbox, tag, stored })
    }

    /// What an arrival amounts to.
    #[inline]
    pub fn take(
        &mut self,
        arrival: Arrival,
        world: &Shared,
        counters: &Counters,
    ) -> Result<Option<Parcel>, Malformed> {
        let tag = arrival.immediate.unwrap_or(0);
        match arrival.body {
            Body::Inline(inline) => {
                let (kind, part, rest) = wire::decode(inline.bytes())?;
                if kind == Kind::Eager {
                    counters.copied(rest.len());
                    return Ok(self.parcel(tag, Stored::Inline(inline)));
                }
                self.announced(kind, part, rest, tag)?;
                Ok(None)
            }
            Body::Lent(head, lent) => self.take_lent(head, lent, tag, world, counters),
            Body::Written(len) => self.take_written(len, tag),
        }
    }

    fn take_lent(
        &mut self,
        head: Inline,
        lent: Lent,
        tag: u32,
        world: &Shared,
        counters: &Counters,
    ) -> Result<Option<Parcel>, Malformed> {
        // Whoever posts by this library sends one piece. Of several, the lengths together are not those of the first.
        let lent = lent.into_slice().map_err(|_| Malformed)?;
        match wire::decode(head.bytes())?.0 {
            Kind::HandOff => Ok(self.parcel(tag, Stored::Lent(lent))),
            // Without memory for the copy, the sender's will do.
            Kind::Eager => match world.allocate(lent.len(), Fill::Keep) {
                Err(_) => Ok(self.parcel(tag, Stored::Lent(lent))),
                Ok(mut block) => {
                    block.bytes_mut().copy_from_slice(&lent);
                    counters.copied(lent.len());
                    Ok(self.parcel(tag, Stored::Owned(block)))
                }
            },
            Kind::Fragment => self.take_fragment(lent, world.config().copy_window, counters),
            _ => Err(Malformed),
        }
    }

    fn take_fragment(
        &mut self,
        lent: LentSlice,
        window: u32,
        counters: &Counters,
    ) -> Result<Option<Parcel>, Malformed> {
        let Some((Coming::Copied { block, filled, tag }, _)) = self.coming.front_mut() else {
            return Err(Malformed);
        };
        let room = block.bytes_mut().get_mut(*filled..*filled + lent.len()).ok_or(Malformed)?;
        room.copy_from_slice(&lent);
        counters.copied(lent.len());
        *filled += lent.len();
        fault::point("copy.taken");
        if *filled < block.len() {
            // What the sender may send unasked needs no word; without one it may be gone already.
            let unasked = window.saturating_sub(1) as usize * lent.len();
            let ask = block.len() - *filled > unasked;
            drop(lent); // goes home before its sender is asked for more
            if ask {
                self.answer(None, Kind::More, 0, &[])?;
            }
            return Ok(None);
        }
        let tag = *tag;
        match self.coming.pop_front() {
            Some((Coming::Copied { block, .. }, _)) => Ok(self.parcel(tag, Stored::Owned(block))),
            _ => Err(Malformed),
        }
    }

    fn take_written(&mut self, len: usize, tag: u32) -> Result<Option<Parcel>, Malformed> {
        match self.coming.front() {
            Some((Coming::Written(window), _)) if window.len() == len => {}
            _ => return Err(Malformed),
        }
        self.unfinished = Some(Unfinished::Written { tag });
        self.settle(tag, Deadline::now())
    }

    /// Takes the message that was written out of its window, unless somebody is inside. Its writer has left, so nobody
    /// is, if all keep to the protocol.
    pub(super) fn settle(&mut self, tag: u32, deadline: Deadline) -> Result<Option<Parcel>, Malformed> {
        let Some((Coming::Written(window), _)) = self.coming.front_mut() else { return Err(Malformed) };
        match window.close(deadline) {
            Ok(()) => self.unfinished = None,
            Err(ViaError::Timeout { .. }) => return Ok(None),
            Err(_) => return Err(Malformed),
        }
        let Some((Coming::Written(window), _)) = self.coming.pop_front() else { return Err(Malformed) };
        let settled = window.revoke(deadline).map_err(|_| Malformed)?;
        Ok(self.parcel(tag, Stored::Settled(settled)))
    }

    /// Whether its unfinished message has come.
    pub(super) fn finish(&mut self) -> Result<Served, Malformed> {
        match self.unfinished {
            Some(Unfinished::Written { tag }) => {
                Ok(self.settle(tag, Deadline::now())?.map_or(Served::UnderWay, Served::Parcel))
            }
            Some(Unfinished::Read { tag }) => self.finish_read(tag),
            None => Ok(Served::Answered),
        }
    }

    /// Whether its unfinished message is being read.
    pub(super) fn is_reading(&self) -> bool {
        matches!(self.unfinished, Some(Unfinished::Read { .. }))
    }

    /// Whether the ring is not read on at the moment.
    #[inline]
    pub(super) fn is_held_up(&self) -> bool {
        self.held_up || self.unfinished.is_some()
    }

    /// A postbox announces a message.
    #[cold]
    fn announced(&mut self, kind: Kind, part: u32, rest: &[u8], tag: u32) -> Result<(), Malformed> {
        if self.held_up || self.deferred.len() + self.coming.len() >= MAX_ANNOUNCED {
            return Err(Malformed);
        }
        fault::point("announce.taken");
        self.deferred.push_back(match kind {
            Kind::AskWrite => Deferred::Write { len: wire::decode_length(rest)? },
            Kind::AskCopy => Deferred::Copy { len: wire::decode_length(rest)?, tag },
            Kind::AskRead => {
                let from =
                    RemoteBuffer { handle: MemHandle(part), offset: 0, len: wire::decode_length(rest)? };
                Deferred::Read { from, tag }
            }
            Kind::Request => Deferred::Request { len: tag as usize, pair: part },
            _ => return Err(Malformed),
        });
        self.held_up = matches!(kind, Kind::AskRead | Kind::Request);
        Ok(())
    }

    /// Finds memory for what the postbox will write, or send by fragments, and answers.
    pub(super) fn prepare(
        &mut self,
        deferred: Deferred,
        world: &Shared,
        grants: &Arc<Grants>,
    ) -> Result<Served, Malformed> {
        let len = deferred.len();
        let Some(granted) = grants.grant(deferred.arena(), len, world) else { return Ok(Served::NotYet) };
        let (kind, prepared) = match deferred {
            Deferred::Copy { tag, .. } => {
                let block = world.allocate(len, Fill::Keep);
                (Kind::AskCopy, block.map(|block| Coming::Copied { block, filled: 0, tag }))
            }
            _ => (Kind::AskWrite, self.window(len, world).map(Coming::Written)),
        };
        let part = match &prepared {
            Ok(Coming::Written(window)) => window.remote().handle.0,
            Ok(Coming::Copied { .. }) => world.config().copy_window.max(1),
            Err(error) if may_come(error) => return Ok(Served::NotYet),
            Err(error) => return self.refuse(kind, 0, error).map(|()| Served::Answered),
        };
        self.answer(None, Kind::Ready, part, &[])?;
        fault::point("announce.answered");
        self.coming.extend(prepared.map(|coming| (coming, granted)));
        Ok(Served::Answered)
    }

    /// Memory that the postbox may write. Where there is none, first collects what peers have left by any NIC.
    pub(super) fn window(&self, len: usize, world: &Shared) -> Result<Window, ViaError> {
        let ptag = self.vi.attributes().ptag;
        match self.vi.nic().window(len, ptag) {
            Err(ViaError::NoMemory { .. }) if !world.nics().others.is_empty() => {
                world.nics().reclaim();
                self.vi.nic().window(len, ptag)
            }
            other => other,
        }
    }

    /// Tells the postbox why a message that it announced cannot come.
    pub(super) fn refuse(&mut self, kind: Kind, pair: u32, error: &ViaError) -> Result<(), Malformed> {
        let why = match error {
            ViaError::NoMemory { .. } => NO_MEMORY.into(),
            error => error.to_string(),
        };
        let why = &why.as_bytes()[..why.len().min(Inline::CAPACITY - HEAD_BYTES)];
        self.answer(Some(pair), Kind::Refused, kind as u32, why)
    }

    /// A postbox announces fewer messages than a ring has cells, so there is room; one that does not read its answers
    /// is no postbox. One that has ended cannot be told, and need not: what it sent before is still in the ring, and behind
    /// that its end, for what it was.
    pub(super) fn answer(
        &mut self,
        immediate: Option<u32>,
        kind: Kind,
        part: u32,
        rest: &[u8],
    ) -> Result<(), Malformed> {
        match self.vi.send_inline(immediate, &wire::head(kind, part), rest) {
            Err(ViaError::Full { .. }) => Err(Malformed),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
