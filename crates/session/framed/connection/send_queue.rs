//! Send queue: the program's posts, room for them, and fences.

use smallvec::SmallVec;
use udeck_sys::position::Position;
use udeck_via::transport::{PostedBuffer, Refused, TransferStatus};
use udeck_via::{Reliability, RemoteBuffer};

use super::Connection;
use super::outgoing::{OnRelease, OutFrame};
use super::unacked::PendingRead;
use crate::MESSAGES;
use crate::framed::wire::Frame;
use crate::memory::Place;

/// A post that is not in the stream yet.
pub(super) struct HeldBack {
    /// The post waits until the reads below this number are over.
    reads: Position,
    /// Bytes that the peer has to take, of a message or write; the post waits until the peer has room for it.
    bytes: Option<u64>,
    pub out: OutFrame,
}

impl Connection {
    /// [`udeck_via::transport::ViEndpoint::send`].
    pub(crate) fn send(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result<(), Refused> {
        let len = head.len() + body.len();
        self.room()?;
        let frame = Frame::Message { immediate, receipt: false, lent: false, head: len as u8, len: 0 };
        self.post_message(OutFrame::new(frame, [head, body], SmallVec::new(), OnRelease::Nothing), len);
        Ok(())
    }

    /// [`udeck_via::transport::ViEndpoint::lend`].
    pub(crate) fn lend(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        segments: &[(u64, usize)],
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        let (places, len) = match self.places(segments) {
            Ok(found) => found,
            Err(refused) => return Err((refused, held)),
        };
        if let Err(refused) = self.room_for(&held) {
            return Err((refused, held));
        }
        let (receipt, on_release) = self.hold(held);
        let frame =
            Frame::Message { immediate, receipt, lent: true, head: head.len() as u8, len: len as u64 };
        self.post_message(OutFrame::new(frame, [head, &[]], places, on_release), head.len() + len);
        Ok(())
    }

    /// [`udeck_via::transport::ViEndpoint::rdma_write`].
    pub(crate) fn rdma_write(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        let (places, len) = match self.remote_places(segments, to, self.may_write) {
            Ok(found) => found,
            Err(refused) => return Err((refused, held)),
        };
        if let Err(refused) = self.room_for(&held) {
            return Err((refused, held));
        }
        let (receipt, on_release) = self.hold(held);
        let (handle, offset) = (to.handle.0, to.offset as u64);
        let frame = Frame::Write { immediate, receipt, handle, offset, len: len as u64 };
        // A write's data need no room, because they lie in the window.
        self.post_message(OutFrame::new(frame, [&[], &[]], places, on_release), 0);
        Ok(())
    }

    /// [`udeck_via::transport::ViEndpoint::rdma_read`].
    pub(crate) fn rdma_read(
        &mut self,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        let (places, len) = match self.remote_places(segments, from, self.may_read) {
            Ok(found) => found,
            Err(refused) => return Err((refused, held)),
        };
        if let Err(refused) = self.close.stands() {
            return Err((refused, held));
        }
        // Reads are not supported where answers may be lost.
        if self.level == Reliability::Unreliable {
            return Err((Refused::Unsupported, held));
        }
        if self.reads.len() >= MESSAGES as usize {
            return Err((Refused::Busy, held));
        }
        let number = self.next_read;
        self.next_read = number.plus(1);
        self.reads.push_back(PendingRead { number, places, len, held });
        let (handle, offset) = (from.handle.0, from.offset as u64);
        self.unacked.found_room();
        self.post(OutFrame::bare(
            Frame::Read { number: number.narrow(), handle, offset, len: len as u64 },
            OnRelease::Nothing,
        ));
        Ok(())
    }

    /// [`udeck_via::transport::ViEndpoint::fence`].
    pub(crate) fn fence(&mut self) {
        self.fence = (!self.reads.is_empty()).then_some(self.next_read);
    }

    /// [`udeck_via::transport::ViEndpoint::request_send_notify`].
    pub(crate) fn request_send_notify(&mut self) {
        self.unacked.request_send_notify(&mut self.events);
    }

    /// [`udeck_via::transport::ViEndpoint::unread`], as far as is known. Asks the peer if the count may be outdated.
    pub(crate) fn unread(&mut self) -> Result<u32, Refused> {
        let unread = self.untaken.len() as u32;
        match self.end() {
            Some(end) if unread > 0 => return Err(end),
            None if unread > 0 && !self.close.closed && self.window.ask() => {
                self.control(Frame::Ask { when_taken: false }, OnRelease::Nothing);
            }
            _ => {}
        }
        Ok(unread)
    }

    /// Whether a message posted now would wait for the peer to take earlier ones.
    pub(crate) fn would_hold_back(&self) -> bool {
        !self.held_back.is_empty() || !self.has_room_for(Some(0))
    }

    /// Checks that there is room for a message. If not, the peer is asked to report when it has taken something.
    fn room(&mut self) -> Result<(), Refused> {
        self.close.stands()?;
        if self.untaken.len() < MESSAGES as usize {
            return Ok(());
        }
        self.request_credit();
        Err(Refused::Busy)
    }

    fn room_for(&mut self, held: &PostedBuffer) -> Result<(), Refused> {
        self.room()?;
        if self.awaits_receipt(held) && self.unacked.len() >= MESSAGES as usize {
            Err(Refused::Busy)
        } else {
            Ok(())
        }
    }

    fn awaits_receipt(&self, held: &PostedBuffer) -> bool {
        self.level == Reliability::Reception && matches!(held, PostedBuffer::Caller(_))
    }

    /// Notes who holds the memory of the next message. Returns whether it wants a receipt, and the action when it has left.
    fn hold(&mut self, held: PostedBuffer) -> (bool, OnRelease) {
        if !self.awaits_receipt(&held) {
            return (false, OnRelease::Held(held));
        }
        self.unacked.push(self.window.sent(), held);
        (true, OnRelease::Left(self.window.sent()))
    }

    /// Places of segments of the outbox, and their length in bytes.
    fn places(&self, segments: &[(u64, usize)]) -> Result<(SmallVec<[Place; 2]>, usize), Refused> {
        let place = |&(offset, len): &(u64, usize)| Place::of(&self.memory.outbox, offset, len);
        let places: Option<SmallVec<[Place; 2]>> = segments.iter().map(place).collect();
        // The VI layer posts live blocks of the outbox only.
        let places = places.ok_or(Refused::Protection)?;
        let len = places.iter().map(|place| place.len()).sum();
        Ok((places, len))
    }

    /// The same as [`Connection::places`], for an access to `remote`. Checks that the access is allowed, as far as this side
    /// can tell.
    fn remote_places(
        &self,
        segments: &[(u64, usize)],
        remote: RemoteBuffer,
        may: bool,
    ) -> Result<(SmallVec<[Place; 2]>, usize), Refused> {
        let (places, len) = self.places(segments)?;
        let fits = remote.offset.checked_add(len).is_some() && len <= remote.len;
        if may && fits { Ok((places, len)) } else { Err(Refused::Protection) }
    }

    /// Posts a message or write, with `bytes` that the peer's program has to take.
    #[inline]
    fn post_message(&mut self, out: OutFrame, bytes: usize) {
        self.untaken.push_back(bytes as u64);
        self.window.push();
        self.unacked.found_room();
        self.post_behind(out, Some(bytes as u64));
    }

    /// Posts a frame that the peer's program need not take.
    pub(super) fn post(&mut self, out: OutFrame) {
        self.post_behind(out, None);
    }

    /// Queues a frame, behind posts that wait for a fence or for room at the peer. Waiting posts lie in the program's memory.
    #[inline]
    fn post_behind(&mut self, out: OutFrame, bytes: Option<u64>) {
        let fence = self.fence.filter(|&reads| !self.are_over(reads));
        if fence.is_none() && self.held_back.is_empty() && self.has_room_for(bytes) {
            self.fence = None;
            self.untaken_bytes += bytes.unwrap_or(0);
            return self.queue(out);
        }
        self.unsent += usize::from(bytes.is_some());
        self.held_back.push_back(HeldBack { reads: fence.unwrap_or(self.reads_over), bytes, out });
        self.release_held_back();
    }

    /// Queues posts that were held back for reads that are over, or for messages that were taken. If the first one waits for
    /// room at the peer, the peer is asked to report it; if there will never be room, the post is dropped.
    pub(super) fn release_held_back(&mut self) {
        while let Some(first) = self.held_back.front() {
            let (reads, bytes) = (first.reads, first.bytes);
            if !self.are_over(reads) {
                return;
            }
            let has_room = self.has_room_for(bytes);
            let never = self.peer_recv_closed || self.close.peer_has_ended();
            if !has_room && !never {
                return self.request_credit();
            }
            let Some(first) = self.held_back.pop_front() else { return };
            if !has_room {
                // The message counts as unread for ever.
                self.after(first.out.into_on_release(), TransferStatus::Unread);
                continue;
            }
            self.unsent -= usize::from(bytes.is_some());
            self.untaken_bytes += bytes.unwrap_or(0);
            self.queue(first.out);
        }
    }

    /// Whether the peer has room for a message at this moment. The last message that fits may be of any length.
    fn has_room_for(&self, message: Option<u64>) -> bool {
        message.is_none() || self.untaken_bytes < self.credits.window
    }

    /// Asks the peer to report when its program takes something.
    fn request_credit(&mut self) {
        if self.window.request_credit() {
            self.control(Frame::Ask { when_taken: true }, OnRelease::Nothing);
        }
    }

    fn are_over(&self, reads: Position) -> bool {
        self.reads_over >= reads
    }

    /// Queues a control frame of the engine.
    pub(super) fn control(&mut self, frame: Frame, on_release: OnRelease) {
        self.queue(OutFrame::bare(frame, on_release));
    }

    #[inline]
    pub(super) fn queue(&mut self, out: OutFrame) {
        if self.close.dead {
            return;
        }
        let out = match self.unreliable.as_mut().filter(|_| !self.broken) {
            Some(unreliable) => unreliable.admit(out),
            None => Some(out),
        };
        let Some(out) = out else {
            self.fresh = true;
            return;
        };
        self.end_sent |= matches!(out.on_release(), OnRelease::Words(_));
        let taken = self.credits.advertise();
        self.outgoing.push(out, taken);
        self.fresh = true;
    }
}
