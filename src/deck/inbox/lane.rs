//! A lane: what arrives on one postbox's connection, and what it amounts to.

use std::collections::VecDeque;
use std::time::Duration;

use udeck_via::mem::Fill;
use udeck_via::transport::{Arrival, Body, Inline};
use udeck_via::{Block, Deadline, Error as ViaError, Lent, MemHandle, Ptag, RemoteBuffer, Vi, Window, fault};

use super::deferred::{Data, Deferred};
use crate::received::{Parcel, Stored};
use crate::shared::Shared;
use crate::stats::Counters;
use crate::wire::{self, HEAD_BYTES, Kind, Malformed};

/// How long a finished RDMA write may take to leave its gate.
const SETTLE: Duration = Duration::from_secs(1);

/// Why most messages are refused. Has to fit into a refusal.
const NO_MEMORY: &str = "its arena is full (raise DECK_ARENA)";
const _: () = assert!(NO_MEMORY.len() <= Inline::CAPACITY - HEAD_BYTES);

/// One postbox's connection: its control VI, and its data VI if it has one.
pub(super) struct Lane {
    pub vi: Vi,
    pub from: u32,
    pub postbox: u32,
    /// Announced messages, in the order of their answers.
    coming: VecDeque<Coming>,
    /// An announcement that has to be served before anything that came behind it.
    pub deferred: Option<Deferred>,
    /// Boxed: most lanes have none.
    pub data: Option<Box<Data>>,
}

/// A message that was announced.
enum Coming {
    Written(Window),
    Copied { block: Block, filled: usize, tag: u32 },
}

impl Lane {
    pub fn new(vi: Vi, from: u32, postbox: u32) -> Self {
        Lane { vi, from, postbox, coming: VecDeque::new(), deferred: None, data: None }
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
        ptag: Ptag,
    ) -> Result<Option<Parcel>, Malformed> {
        let tag = arrival.immediate.unwrap_or(0);
        match arrival.body {
            Body::Inline(inline) => {
                let (kind, part, rest) = wire::decode(inline.bytes())?;
                if kind == Kind::Eager {
                    counters.copied(rest.len());
                    return Ok(self.parcel(tag, Stored::Inline(inline)));
                }
                self.announced(kind, part, rest, tag, world, ptag)?;
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
        match wire::decode(head.bytes())?.0 {
            Kind::HandOff => Ok(self.parcel(tag, Stored::Lent(lent))),
            // Without memory for the copy, the sender's will do.
            Kind::Eager => match world.allocate(lent.len(), Fill::Keep) {
                Err(_) => Ok(self.parcel(tag, Stored::Lent(lent))),
                Ok(mut block) => {
                    block.bytes_mut().copy_from_slice(lent.bytes());
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
        lent: Lent,
        window: u32,
        counters: &Counters,
    ) -> Result<Option<Parcel>, Malformed> {
        let Some(Coming::Copied { block, filled, tag }) = self.coming.front_mut() else {
            return Err(Malformed);
        };
        let room = block.bytes_mut().get_mut(*filled..*filled + lent.len()).ok_or(Malformed)?;
        room.copy_from_slice(lent.bytes());
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
            Some(Coming::Copied { block, .. }) => Ok(self.parcel(tag, Stored::Owned(block))),
            _ => Err(Malformed),
        }
    }

    fn take_written(&mut self, len: usize, tag: u32) -> Result<Option<Parcel>, Malformed> {
        let Some(Coming::Written(window)) = self.coming.pop_front() else { return Err(Malformed) };
        if window.len() != len {
            return Err(Malformed);
        }
        let settled = window.revoke(Deadline::after(SETTLE)).map_err(|_| Malformed)?;
        Ok(self.parcel(tag, Stored::Settled(settled)))
    }

    /// A postbox announces a message. What needs no more than memory of ours is answered at once.
    #[cold]
    fn announced(
        &mut self,
        kind: Kind,
        part: u32,
        rest: &[u8],
        tag: u32,
        world: &Shared,
        ptag: Ptag,
    ) -> Result<(), Malformed> {
        fault::point("announce.taken");
        match kind {
            Kind::AskWrite | Kind::AskCopy => {
                self.prepare(kind, wire::decode_length(rest)?, tag, world, ptag)
            }
            Kind::AskRead => {
                let from =
                    RemoteBuffer { handle: MemHandle(part), offset: 0, len: wire::decode_length(rest)? };
                self.deferred = Some(Deferred::Read { from, tag });
                Ok(())
            }
            Kind::Request => {
                self.deferred = Some(Deferred::Request { len: tag as usize, pair: part });
                Ok(())
            }
            _ => Err(Malformed),
        }
    }

    /// Finds memory for what the postbox will write, or send by fragments, and answers.
    fn prepare(
        &mut self,
        kind: Kind,
        len: usize,
        tag: u32,
        world: &Shared,
        ptag: Ptag,
    ) -> Result<(), Malformed> {
        let prepared = match kind {
            Kind::AskWrite => world.nic().window(len, ptag).map(Coming::Written),
            _ => world.allocate(len, Fill::Keep).map(|block| Coming::Copied { block, filled: 0, tag }),
        };
        let part = match &prepared {
            Ok(Coming::Written(window)) => window.remote().handle.0,
            Ok(Coming::Copied { .. }) => world.config().copy_window.max(1),
            Err(error) => return self.refuse(kind, 0, error),
        };
        self.answer(None, Kind::Ready, part, &[])?;
        fault::point("announce.answered");
        self.coming.extend(prepared);
        Ok(())
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
            _ => Ok(()),
        }
    }
}
