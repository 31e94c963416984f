//! One postbox's connection at its mailbox, and the handling of its arrivals.

use std::collections::VecDeque;
use std::sync::Arc;

use udeck_via::quota::Share;
use udeck_via::transport::{Arrival, Body, Found, Inline};
use udeck_via::{Lent, Vi, fault};

use super::incast::{Grants, Reservations};
use crate::memory::accounting::{Grant, Memory};
use crate::parcel::{Parcel, Stored};
use crate::protocol::handshake::{self, RecvData, Request};
use crate::protocol::incoming::{Announcement, Incoming, prepare};
use crate::protocol::side::{RecvSide, RendezvousStatus};
use crate::protocol::{eager, hand_off, rdma_read};
use crate::stats::Counters;
use crate::wire::{self, Kind, MAX_ANNOUNCED, Malformed};
use crate::world_state::WorldState;

/// One postbox's connection: its control VI, and its data VI if it has one.
pub(super) struct Connection {
    pub side: RecvSide,
    /// Index of the VI's NIC in the world's order.
    pub nic: usize,
    /// Announced messages that were answered, in the order of the answers.
    answered: VecDeque<(Incoming, Grant)>,
    /// Announcements that have to be served before anything posted behind them, oldest first.
    announced: VecDeque<Announcement>,
    /// Whether an announcement blocks the ring: it is not read until the last announcement has been served,
    /// or until its message has come on the data VI.
    pub blocked_by_announcement: bool,
    /// A message that has almost arrived. The ring is not read until it has.
    unfinished: Option<Unfinished>,
    /// Whether the completion queue reported the connection while it was blocked. The queue reports the end
    /// of a connection only once, so such a connection has to be polled when it is not blocked any more.
    pub notified_while_blocked: bool,
    /// Whether the connection is queued for memory.
    pub awaits_memory: bool,
    /// Reservations under incast control.
    pub reservations: Reservations,
    /// The data VI. Boxed because most connections have none.
    pub data: Option<Box<RecvData>>,
    _place: Share<u32>,
}

/// A message that has almost arrived, with its tag.
enum Unfinished {
    /// Written completely, while a peer is still inside its window. That peer is not the writer, which has
    /// left, and nobody else was told of the window. A peer that does so delays this message and no other.
    Written { tag: u32 },
    /// The message is being read, into memory that was granted.
    Read { tag: u32, _granted: Option<Grant> },
}

impl Connection {
    /// Makes a connection. `place` is its share of the connections that its rank may have.
    pub fn new(vi: Vi, (rank, postbox): (u32, u32), nic: usize, place: Share<u32>) -> Self {
        Connection {
            side: RecvSide { vi, rank, postbox, arrivals: Arc::default() },
            nic,
            answered: VecDeque::new(),
            announced: VecDeque::new(),
            blocked_by_announcement: false,
            unfinished: None,
            notified_while_blocked: false,
            awaits_memory: false,
            reservations: Reservations::default(),
            data: None,
            _place: place,
        }
    }

    /// Rank of the postbox, and its number there.
    pub fn postbox(&self) -> (u32, u32) {
        (self.side.rank, self.side.postbox)
    }

    // ---- the fast path ----

    /// Makes a message in `parcel` of a short arrival. Returns its length in bytes; `None` if the arrival is
    /// not short.
    #[inline]
    pub fn complete_short(&self, found: Found, parcel: &mut Parcel, counters: &Counters) -> Option<usize> {
        let (Found::Short(immediate), Stored::Inline(inline)) = (found, &parcel.stored) else { return None };
        let len = wire::short_len(inline)?;
        counters.copied(len);
        self.set_source(immediate, len, parcel);
        Some(len)
    }

    /// Writes the source of a message of `len` bytes into `parcel`, and counts the message.
    #[inline]
    pub fn set_source(&self, immediate: Option<u32>, len: usize, parcel: &mut Parcel) {
        (parcel.rank, parcel.postbox, parcel.tag) =
            (self.side.rank, self.side.postbox, immediate.unwrap_or(0));
        parcel.number = self.side.arrivals.take(len);
    }

    /// Whether the connection's ring is not read at the moment (head-of-line blocking).
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.blocked_by_announcement || self.unfinished.is_some()
    }

    // ---- any arrival ----

    /// Processes an arrival. Returns a message if the arrival completes one.
    #[inline]
    pub fn receive(
        &mut self,
        arrival: Arrival,
        world: &WorldState,
        counters: &Counters,
    ) -> Result<Option<Parcel>, Malformed> {
        let tag = arrival.immediate.unwrap_or(0);
        match arrival.body {
            Body::Inline(inline) => {
                let (kind, part, rest) = wire::decode(inline.bytes())?;
                if kind == Kind::Eager {
                    return Ok(Some(eager::receive_short(&self.side, inline, tag, counters)));
                }
                self.on_announcement(kind, part, rest, tag)?;
                Ok(None)
            }
            Body::Lent(head, lent) => self.receive_lent(head, lent, tag, world, counters),
            Body::Written(len) => self.receive_written(len, tag),
        }
    }

    fn receive_lent(
        &mut self,
        head: Inline,
        lent: Lent,
        tag: u32,
        world: &WorldState,
        counters: &Counters,
    ) -> Result<Option<Parcel>, Malformed> {
        // Senders that use this library send one piece. With several, the lengths together differ from the
        // first one's.
        let lent = lent.into_slice().map_err(|_| Malformed)?;
        match wire::decode(head.bytes())?.0 {
            Kind::HandOff => Ok(Some(hand_off::receive(&self.side, lent, tag))),
            Kind::Eager => Ok(Some(eager::receive(&self.side, lent, tag, world, counters))),
            Kind::Fragment => {
                let Some((Incoming::Copy(incoming), _)) = self.answered.front_mut() else {
                    return Err(Malformed);
                };
                let window = world.config().copy_window;
                if !incoming.take_fragment(lent, window, &mut self.side, counters)? {
                    return Ok(None);
                }
                let Some((Incoming::Copy(incoming), _)) = self.answered.pop_front() else {
                    return Err(Malformed);
                };
                Ok(Some(incoming.into_parcel(&self.side)))
            }
            _ => Err(Malformed),
        }
    }

    fn receive_written(&mut self, len: usize, tag: u32) -> Result<Option<Parcel>, Malformed> {
        match self.answered.front() {
            Some((Incoming::RdmaWrite(incoming), _)) if incoming.is_of(len) => {}
            _ => return Err(Malformed),
        }
        self.unfinished = Some(Unfinished::Written { tag });
        self.finish_written(tag)
    }

    /// Takes the written message out of its window, unless a peer is still inside.
    fn finish_written(&mut self, tag: u32) -> Result<Option<Parcel>, Malformed> {
        let Some((Incoming::RdmaWrite(incoming), _)) = self.answered.front_mut() else {
            return Err(Malformed);
        };
        if !incoming.close()? {
            return Ok(None);
        }
        self.unfinished = None;
        let Some((Incoming::RdmaWrite(incoming), _)) = self.answered.pop_front() else {
            return Err(Malformed);
        };
        incoming.into_parcel(tag, &self.side).map(Some)
    }

    // ---- announcements ----

    /// Processes a postbox's announcement of a message.
    #[cold]
    fn on_announcement(&mut self, kind: Kind, part: u32, rest: &[u8], tag: u32) -> Result<(), Malformed> {
        if kind == Kind::Reserve {
            self.reservations.asked = Some(wire::decode_length(rest)? as u64);
            return Ok(());
        }
        if self.blocked_by_announcement || self.announced.len() + self.answered.len() >= MAX_ANNOUNCED {
            return Err(Malformed);
        }
        fault::point("announce.taken");
        let announcement = Announcement::decode(kind, part, rest, tag)?;
        self.blocked_by_announcement = announcement.blocks_ring();
        self.announced.push_back(announcement);
        Ok(())
    }

    /// The oldest announcement of this connection.
    pub fn announced(&self) -> Option<Announcement> {
        self.announced.front().copied()
    }

    /// The memory that the oldest announcement needs.
    pub fn wants(&self) -> Option<Memory> {
        self.announced().map(Announcement::memory)
    }

    /// Removes the oldest announcement, which has been served.
    pub fn pop_announcement(&mut self) {
        self.announced.pop_front();
        self.blocked_by_announcement = self.awaits_data();
    }

    /// Serves an announcement. `buffer_len` is the length in bytes of the program's buffer, if it brought
    /// one.
    pub fn serve(
        &mut self,
        announcement: Announcement,
        buffer_len: Option<usize>,
        world: &WorldState,
        grants: &mut Grants,
    ) -> Result<RendezvousStatus, Malformed> {
        if let Announcement::Handshake { len, pair } = announcement
            && let Some(answered) =
                handshake::answer_at_once((len, pair), buffer_len, self.data.as_deref(), &mut self.side)?
        {
            return Ok(answered);
        }
        let (len, memory) = (announcement.len(), announcement.memory());
        let granted = grants.quota.grant(memory, len, grants.most_memory(&self.side, world));
        // A message larger than any memory is refused below, whatever is granted. Deferring it would hold up
        // all messages behind it.
        if granted.is_none() && len <= world.arena(memory).limit() {
            return Ok(RendezvousStatus::Deferred);
        }
        match announcement {
            Announcement::RdmaRead { from, tag } => {
                let served = rdma_read::read(from, tag, &mut self.side, world)?;
                if matches!(served, RendezvousStatus::InProgress) {
                    self.unfinished = Some(Unfinished::Read { tag, _granted: granted });
                }
                Ok(served)
            }
            Announcement::Handshake { len, pair } => {
                let request = Request { len, pair, granted };
                handshake::grant(request, &mut self.data, &mut self.side, world)
            }
            Announcement::RdmaWrite { .. } | Announcement::Copy { .. } => {
                let (served, incoming) = prepare(announcement, granted, &mut self.side, world, grants)?;
                self.answered.extend(incoming);
                Ok(served)
            }
        }
    }

    // ---- messages that have almost arrived ----

    /// Checks whether the unfinished message has arrived.
    pub fn finish(&mut self) -> Result<RendezvousStatus, Malformed> {
        match self.unfinished {
            Some(Unfinished::Written { tag }) => {
                Ok(self.finish_written(tag)?.map_or(RendezvousStatus::InProgress, RendezvousStatus::Received))
            }
            Some(Unfinished::Read { tag, .. }) => {
                let served = rdma_read::finish(tag, &mut self.side);
                if !matches!(served, Ok(RendezvousStatus::InProgress)) {
                    self.unfinished = None;
                }
                served
            }
            None => Ok(RendezvousStatus::Answered),
        }
    }

    pub fn is_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Whether the unfinished message is being read.
    pub fn is_reading(&self) -> bool {
        matches!(self.unfinished, Some(Unfinished::Read { .. }))
    }

    // ---- the data VI ----

    /// Whether a message is to come on the data VI; the ring is not read before.
    pub fn awaits_data(&self) -> bool {
        self.data.as_ref().is_some_and(|data| data.awaits_message())
    }

    /// Receives from the data VI.
    pub fn receive_data(&mut self) -> Result<Option<Parcel>, Malformed> {
        handshake::receive(&mut self.data, &self.side)
    }
}
