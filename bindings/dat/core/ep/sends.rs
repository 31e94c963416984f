//! The request queue: what may be posted.

use smallvec::SmallVec;
use udeck_rdma::INLINE;
use udeck_rdma::frame::{self, Head};
use udeck_rdma::{Face, Outcome};

use super::face::{Operation, Posted};
use super::{Ep, MAX_DTOS, is_told};
use crate::core::code::{Code, Result, Sub};
use crate::core::event::{Dto, Event, Status, total};
use crate::core::memory::{self, Right, Triplet};
use crate::core::state::{EpCall, EpState};

impl Ep {
    /// `dat_ep_post_send` of one segment: the shortest way for most.
    ///
    /// # Errors
    /// As [`Ep::post_request`].
    #[inline(always)]
    pub fn post_send(&mut self, segment: Triplet, cookie: u64, bits: u32) -> Result {
        let face = &self.face;
        // An empty segment may name any memory, because nothing is read: `post_request` takes it.
        if (1..=INLINE).contains(&(segment.len as usize))
            && self.state == EpState::Connected
            && self.queues.posted() == 0
            && let Some(vi) = &mut self.queues.vi
        {
            let head = Head::plain(frame::SEND).bytes();
            let mut bytes = [0; INLINE];
            let bytes = &mut bytes[..segment.len as usize];
            memory::read(segment, face.pz, Right::LocalRead, bytes)
                .map_err(|why| memory::refused(why, Right::LocalRead))?;
            if vi.send_short(0, head, bytes) {
                if let Some(evd) = &face.settings.request_evd
                    && is_told(bits, Status::Success)
                {
                    let len = segment.len as usize;
                    let sent = Event::dto(face.handle, cookie, Status::Success, len, Dto::Send, 0);
                    evd.push_from(sent, || face.process());
                }
                return Ok(());
            }
        }
        self.post_request(Operation::Send, &[segment], cookie, bits)
    }

    /// Posts a send, RDMA or a bind.
    ///
    /// # Errors
    /// The state forbids it, the queue is full, the request is too long, or it names memory that may not be used so.
    #[inline(never)]
    pub fn post_request(
        &mut self,
        operation: Operation,
        segments: &[Triplet],
        cookie: u64,
        bits: u32,
    ) -> Result {
        self.state.check(EpCall::PostRequest)?;
        if segments.len() > self.face.settings.max_request_segments {
            return Err(Code::argument(2));
        }
        let len = total(segments);
        if len > self.face.ia.max_transfer() {
            return Err(Code::LENGTH_ERROR);
        }
        let right =
            if matches!(operation, Operation::Read(..)) { Right::LocalWrite } else { Right::LocalRead };
        for segment in segments.iter().filter(|segment| segment.len > 0) {
            memory::access(*segment, self.face.pz, right, |_| ())
                .map_err(|why| memory::refused(why, right))?;
        }
        let segments = SmallVec::from_slice(segments);
        let posted = Posted { cookie, bits, operation, len, segments };
        if self.state == EpState::Disconnected {
            self.face.complete(posted, Outcome::Flushed);
            return Ok(());
        }
        if self.queues.posted() >= self.face.settings.max_requests.min(MAX_DTOS) {
            return Err(Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceMemory));
        }
        if let Err(end) = self.queues.post(&mut self.face, posted) {
            self.end_by(end);
        }
        self.note_stuck();
        Ok(())
    }
}
