//! Send queue of a connection: the program's posts.

use smallvec::SmallVec;
use udeck_sys::position::Position;
use udeck_via::transport::{PostedBuffer, Refused, TransferStatus};
use udeck_via::{Reliability, RemoteBuffer};

use super::close::Offered;
use super::unreliable::WRITE_NUMBERS;
use super::{Connection, MESSAGES, Work};
use crate::memory::Segment;
use crate::wire::{EAGER, Frame};

/// Upper bound of posts that wait for the device, including those that are not counted otherwise.
const POSTS: usize = 4 * MESSAGES as usize;

/// A post that the device does not have yet, or not all of it.
pub(super) struct Post {
    pub fence: bool,
    pub what: Posted,
}

impl Post {
    /// Whether the device has some of the post's requests.
    pub fn has_begun(&self) -> bool {
        matches!(self.what, Posted::Access(Access { done: 1.., .. }))
    }
}

pub(super) type Segments = SmallVec<[Segment; 4]>;

pub(super) enum Posted {
    /// A frame. `lead` has its header, whose length the frame says, or a short message.
    Frame {
        frame: Frame,
        lead: SmallVec<[u8; 64]>,
        body: Segments,
        on_completion: OnCompletion,
    },
    /// A message that the peer reads from our memory.
    Offer {
        immediate: Option<u32>,
        receipt: bool,
        head: SmallVec<[u8; 64]>,
        body: Segments,
        number: Position,
    },
    Access(Access),
    End {
        words: Option<String>,
    },
}

/// An RDMA write or read.
pub(super) struct Access {
    pub is_write: bool,
    pub body: Segments,
    pub remote: RemoteBuffer,
    pub immediate: Option<u32>,
    /// Number of bytes for which the device has requests.
    pub done: usize,
    pub on_completion: OnCompletion,
}

/// Effect of a request's completion.
#[derive(Default)]
pub(super) enum OnCompletion {
    #[default]
    Nothing,
    /// The buffer is given back.
    ReturnBuffer(PostedBuffer),
    /// The message of this number has left. Its entry among the unacknowledged ends when the receipt has come, too.
    MessageLeft(Position),
    /// A read of the program is complete.
    ProgramRead(PostedBuffer),
    /// The offer of this number has been read.
    OfferRead(u32),
}

impl Connection {
    /// Implements [`udeck_via::transport::ViEndpoint::send`]. `work` is the device, if the peer is ready to receive.
    pub fn send(
        &mut self,
        work: Option<&mut dyn Work>,
        immediate: Option<u32>,
        head: &[u8],
        body: &[u8],
    ) -> Result<(), Refused> {
        self.room(1)?;
        // Most messages take this fast path.
        if let Some(work) = work
            && self.send_now(work, immediate, head, body)
        {
            return Ok(());
        }
        let mut lead = SmallVec::from_slice(head);
        lead.extend_from_slice(body);
        let frame = Frame::Short { immediate, len: lead.len() };
        self.post_numbered(Posted::Frame {
            frame,
            lead,
            body: Segments::new(),
            on_completion: OnCompletion::Nothing,
        });
        Ok(())
    }

    /// Implements [`udeck_via::transport::ViEndpoint::lend`].
    pub fn lend(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        segments: &[(u64, usize)],
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        let (body, len) = match self.segments(segments) {
            Ok(found) => found,
            Err(refused) => return Err((refused, held)),
        };
        if let Err(refused) = self.room_for(&held, 1) {
            return Err((refused, held));
        }
        let (receipt, number, head) =
            (self.awaits_receipt(&held), self.window.sent(), SmallVec::from_slice(head));
        if len > EAGER {
            if receipt {
                self.unacked.push(number, held);
                self.offered.push_back(Offered { number, unreliable: None, held: None });
            } else {
                self.offered.push_back(Offered { number, unreliable: None, held: Some(held) });
            }
            self.post_numbered(Posted::Offer { immediate, receipt, head, body, number });
            return Ok(());
        }
        let on_completion = self.hold(held, receipt);
        let frame = Frame::Body { immediate, receipt, head: head.len(), len };
        self.post_numbered(Posted::Frame { frame, lead: head, body, on_completion });
        Ok(())
    }

    /// Implements [`udeck_via::transport::ViEndpoint::rdma_write`].
    pub fn rdma_write(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        let body = match self.remote_segments(segments, to, self.may_write) {
            Ok(found) => found,
            Err(refused) => return Err((refused, held)),
        };
        let receipt = self.awaits_receipt(&held);
        let numbered = receipt || immediate.is_some();
        let room = if numbered { self.room_for(&held, WRITE_NUMBERS) } else { self.room_to_post() };
        if let Err(refused) = room {
            return Err((refused, held));
        }
        let on_completion = self.hold(held, receipt);
        let by_frame = immediate.filter(|_| self.frames_immediates);
        let len = body.iter().map(|segment| segment.len()).sum();
        let immediate_of_write = immediate.filter(|_| by_frame.is_none());
        let write = Access {
            is_write: true,
            body,
            remote: to,
            immediate: immediate_of_write,
            done: 0,
            on_completion,
        };
        let write = Posted::Access(write);
        match immediate_of_write {
            Some(_) => self.post_numbered(write),
            None => self.post(write),
        }
        if let Some(immediate) = by_frame {
            let (lead, body) = (SmallVec::new(), Segments::new());
            let frame = Frame::Written { immediate, len };
            self.post_numbered(Posted::Frame { frame, lead, body, on_completion: OnCompletion::Nothing });
        }
        if receipt && immediate.is_none() {
            // A frame behind a write on the same queue pair arrives after the write's data.
            let lead = SmallVec::new();
            let (frame, body) = (Frame::Flush, Segments::new());
            self.post_numbered(Posted::Frame { frame, lead, body, on_completion: OnCompletion::Nothing });
        }
        Ok(())
    }

    /// Implements [`udeck_via::transport::ViEndpoint::rdma_read`].
    pub fn rdma_read(
        &mut self,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        let body = match self.remote_segments(segments, from, self.may_read) {
            Ok(found) => found,
            Err(refused) => return Err((refused, held)),
        };
        // Reads do not exist where answers may be lost.
        if self.level == Reliability::Unreliable {
            return Err((Refused::Unsupported, held));
        }
        if let Err(refused) = self.room_to_post() {
            return Err((refused, held));
        }
        if self.reads >= MESSAGES {
            self.unacked.request_send_notify(&mut self.events);
            return Err((Refused::Busy, held));
        }
        self.reads += 1;
        let on_completion = OnCompletion::ProgramRead(held);
        let read = Access { is_write: false, body, remote: from, immediate: None, done: 0, on_completion };
        self.post(Posted::Access(read));
        Ok(())
    }

    /// Implements [`udeck_via::transport::ViEndpoint::fence`].
    pub fn fence(&mut self) {
        self.fence = self.reads > 0;
    }

    /// Implements [`udeck_via::transport::ViEndpoint::request_send_notify`].
    pub fn request_send_notify(&mut self) {
        self.unacked.request_send_notify(&mut self.events);
    }

    /// Implements [`udeck_via::transport::ViEndpoint::unread`] by what is known; asks the peer if that may be old.
    pub fn unread(&mut self) -> Result<u32, Refused> {
        let unread = self.untaken();
        match self.end() {
            Some(end) if unread > 0 => return Err(end),
            None if unread > 0 && !self.close.closed && self.window.ask() => {
                self.pending_ask = true;
                self.owe_left_report();
            }
            _ => {}
        }
        Ok(unread)
    }

    fn untaken(&self) -> u32 {
        self.untaken_unreliable().unwrap_or_else(|| self.window.untaken())
    }

    /// Fails if there is no room for a numbered frame, which takes `numbers` numbers on the unreliable queue pair.
    /// The peer is then asked to report when it has taken something.
    fn room(&mut self, numbers: u32) -> Result<(), Refused> {
        self.room_to_post()?;
        let is_room = match self.unreliable {
            Some(_) => self.has_numbers_for(numbers),
            None => self.untaken() < MESSAGES,
        };
        if is_room {
            return Ok(());
        }
        self.request_credit();
        Err(Refused::Busy)
    }

    pub(super) fn request_credit(&mut self) {
        if self.window.request_credit() {
            self.pending_credit_request = true;
        }
        self.owe_left_report();
    }

    fn room_to_post(&mut self) -> Result<(), Refused> {
        self.close.stands()?;
        if self.posts.len() < POSTS { Ok(()) } else { Err(Refused::Busy) }
    }

    fn room_for(&mut self, held: &PostedBuffer, numbers: u32) -> Result<(), Refused> {
        self.room(numbers)?;
        let waiting = self.unacked.len().max(self.offered.len());
        if waiting >= MESSAGES as usize && (self.awaits_receipt(held) || !self.offered.is_empty()) {
            return Err(Refused::Busy);
        }
        Ok(())
    }

    fn awaits_receipt(&self, held: &PostedBuffer) -> bool {
        self.level == Reliability::Reception && matches!(held, PostedBuffer::Caller(_))
    }

    /// Notes the buffer of the next numbered frame, or of the write that it flushes.
    fn hold(&mut self, held: PostedBuffer, receipt: bool) -> OnCompletion {
        if !receipt {
            return OnCompletion::ReturnBuffer(held);
        }
        self.unacked.push(self.window.sent(), held);
        OnCompletion::MessageLeft(self.window.sent())
    }

    /// Converts segments of the outbox. Returns also their length in bytes.
    fn segments(&self, segments: &[(u64, usize)]) -> Result<(Segments, usize), Refused> {
        // The VI layer posts live blocks of the outbox only.
        if segments.iter().any(|&(offset, len)| self.memory.outbox.place(offset, len).is_none()) {
            return Err(Refused::Protection);
        }
        let full = segments.iter().filter(|(_, len)| *len > 0);
        let segments: Segments = full.map(|&(offset, len)| Segment::Outbox(offset, len)).collect();
        let len = segments.iter().map(|segment| segment.len()).sum();
        Ok((segments, len))
    }

    /// Converts segments as [`Connection::segments`], and checks the access to `remote` as far as this side can.
    fn remote_segments(
        &self,
        segments: &[(u64, usize)],
        remote: RemoteBuffer,
        may: bool,
    ) -> Result<Segments, Refused> {
        let (segments, len) = self.segments(segments)?;
        let fits = remote.offset.checked_add(len).is_some() && len <= remote.len;
        if may && fits { Ok(segments) } else { Err(Refused::Protection) }
    }

    fn post_numbered(&mut self, what: Posted) {
        self.window.push();
        self.post(what);
    }

    pub(super) fn post(&mut self, what: Posted) {
        self.unacked.found_room();
        let fence = std::mem::take(&mut self.fence);
        self.posts.push_back(Post { fence, what });
    }

    /// Completes a post that will not be carried out.
    pub(super) fn drop_post(&mut self, what: &mut Posted, status: TransferStatus) {
        match what {
            Posted::Frame { on_completion, .. } | Posted::Access(Access { on_completion, .. }) => {
                self.cancel(on_completion, status)
            }
            Posted::Offer { number, .. } => _ = self.end_offered(*number, status),
            Posted::End { .. } => {}
        }
    }

    /// Completes the effect of a post that will not be carried out, as [`Connection::drop_post`].
    pub(super) fn cancel(&mut self, on_completion: &mut OnCompletion, status: TransferStatus) {
        let on_completion = std::mem::take(on_completion);
        if let OnCompletion::MessageLeft(number) = on_completion {
            self.settle(number, status);
        }
        self.complete(on_completion, status);
    }
}
