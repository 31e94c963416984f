//! Send engine of a connection: from both queues to the device, and completions.

use std::collections::VecDeque;

use smallvec::SmallVec;
use udeck_session::cut;
use udeck_sys::position::Position;
use udeck_via::transport::{PostedBuffer, TransferStatus};
use udeck_via::{Reliability, RemoteBuffer};

use super::send_queue::{Access, OnCompletion, Post, Posted, Segments};
use super::unreliable::Unreliable;
use super::{CONTROL, CREDITS, Connection, RequestOptions, Span, Work};
use crate::memory::Segment;
use crate::wire::{Frame, HEADER, Header, MAX_HEAD, MAX_WORDS, NOTES, Note, PARTS, RemoteKey};

/// Number of requests without a reported completion in a row. After so many one is reported all the same, so that
/// the queue's room is known.
const UNSIGNALLED: u32 = 32;

/// Length of a frame in bytes beyond which its completion is always reported.
const LONG: usize = 256;

/// A request that the device has, and whose completion has an effect.
pub(super) struct InFlight {
    token: u32,
    on_completion: OnCompletion,
}

/// Result of giving the front post to the device.
pub(super) enum Step {
    /// The device has it.
    Submitted,
    /// The post goes back to the front: there is no room, or an answer has yet to come.
    Waits,
    /// The post has ended otherwise, and others may go.
    Finished,
}

impl Connection {
    /// Gives the device as many requests as it takes.
    pub fn pump(&mut self, work: &mut dyn Work) {
        if self.close.dead || !self.has_work() {
            return;
        }
        let result = self.pump_all(work);
        if let Err(why) = result {
            self.fail(&why);
        }
    }

    /// Whether there may be requests for the device.
    #[inline]
    fn has_work(&self) -> bool {
        !self.posts.is_empty() || self.has_control_frame() || self.offers > 0
    }

    /// Whether the engine has a control frame to send.
    #[inline]
    pub fn has_control_frame(&self) -> bool {
        !self.notes.is_empty()
            || !self.pending_here.is_empty()
            || self.pending_where.is_some()
            || self.pending_ask
            || self.pending_credit_request
            || self.credit_is_due()
            || self.left_report_is_due()
    }

    /// Sends a short message at once, if nothing waits before it and the device has room. Returns `false` if it has
    /// to be posted.
    pub(super) fn send_now(
        &mut self,
        work: &mut dyn Work,
        immediate: Option<u32>,
        head: &[u8],
        body: &[u8],
    ) -> bool {
        if self.unreliable.is_some() {
            return self.send_now_unreliable(work, immediate, head, body);
        }
        if !self.posts.is_empty() || self.fence || self.close.dead || !work.has_room() {
            return false;
        }
        let len = head.len() + body.len();
        let (taken, control_ack) = (self.credits.advertise(), self.control_received);
        self.control_ack_sent = control_ack;
        let mut lead = [0; HEADER + MAX_HEAD];
        lead[..HEADER]
            .copy_from_slice(&Header { taken, control_ack, frame: Frame::Short { immediate, len } }.encode());
        lead[HEADER..HEADER + head.len()].copy_from_slice(head);
        lead[HEADER + head.len()..HEADER + len].copy_from_slice(body);
        let options = self.request_options(false, &OnCompletion::Nothing);
        let sent = work.send(&lead[..HEADER + len], &[], options);
        self.track(options, OnCompletion::Nothing);
        self.window.push();
        self.unacked.found_room();
        if let Err(why) = sent {
            self.fail(&why);
        }
        true
    }

    fn pump_all(&mut self, work: &mut dyn Work) -> Result<(), String> {
        while !self.close.dead && work.has_room() {
            if self.send_next_control(work)? || self.read_next(work)? {
                continue;
            }
            let Some(mut post) = self.posts.pop_front() else { break };
            match self.give(work, &mut post) {
                Ok(Step::Submitted | Step::Finished) => self.notify_room(),
                Ok(Step::Waits) => {
                    self.posts.push_front(post);
                    break;
                }
                Err(why) => {
                    // The device may have some of the post's requests: its memory is kept, and reported when the
                    // connection is lost.
                    self.posts.push_front(post);
                    return Err(why);
                }
            }
        }
        // The last posts may have made control frames necessary.
        while !self.close.dead && work.has_room() && self.send_next_control(work)? {}
        Ok(())
    }

    // ---- the engine's control frames ----

    /// Sends one control frame, if there is one to send and the peer has room for it. Returns whether it did.
    fn send_next_control(&mut self, work: &mut dyn Work) -> Result<bool, String> {
        if !self.has_control_frame() {
            return Ok(false);
        }
        let unacked = self.control_sent.wrapping_sub(self.control_acked);
        if unacked < CONTROL {
            if !self.notes.is_empty() {
                let count = self.notes.len().min(NOTES);
                let rest: Vec<u8> = self.notes.drain(..count).flat_map(|note: Note| note.encode()).collect();
                self.send_control(work, Frame::Notes { count }, &rest)?;
                return Ok(true);
            }
            if let Some((handle, write)) = self.pending_here.pop_front() {
                let place = work.find(handle, write);
                self.send_control(work, Frame::Here { handle, place }, &[])?;
                return Ok(true);
            }
            if let Some((handle, write)) = self.pending_where.take() {
                self.send_control(work, Frame::Where { handle, write }, &[])?;
                return Ok(true);
            }
            if let Some(upto) = self.take_left_report() {
                self.send_control(work, Frame::Left { upto }, &[])?;
                return Ok(true);
            }
            for when_taken in [true, false] {
                let wanted =
                    if when_taken { &mut self.pending_credit_request } else { &mut self.pending_ask };
                if std::mem::take(wanted) {
                    self.send_control(work, Frame::Ask { when_taken }, &[])?;
                    return Ok(true);
                }
            }
        }
        if unacked < CONTROL + CREDITS && self.credit_is_due() {
            self.credits.asked = false;
            self.send_control(work, Frame::Credit, &[])?;
            return Ok(true);
        }
        Ok(false)
    }

    fn send_control(&mut self, work: &mut dyn Work, frame: Frame, rest: &[u8]) -> Result<(), String> {
        self.control_sent = self.control_sent.wrapping_add(1);
        self.send_frame(work, frame, rest, &[], false, OnCompletion::Nothing)
    }

    fn send_frame(
        &mut self,
        work: &mut dyn Work,
        frame: Frame,
        rest: &[u8],
        body: &[Segment],
        fence: bool,
        on_completion: OnCompletion,
    ) -> Result<(), String> {
        let taken = self.credits.advertise();
        self.control_ack_sent = self.control_received;
        let header = Header { taken, control_ack: self.control_received, frame };
        let mut lead: SmallVec<[u8; 128]> = SmallVec::from_slice(&header.encode());
        lead.extend_from_slice(rest);
        let mut options = self.request_options(fence, &on_completion);
        // A long frame takes much of the device's room, so its own completion frees that room.
        options.signalled |= lead.len() > LONG;
        let sent = work.send(&lead, body, options);
        self.track(options, on_completion);
        sent
    }

    fn request_options(&mut self, fence: bool, on_completion: &OnCompletion) -> RequestOptions {
        let token = self.next_token;
        self.next_token = token.wrapping_add(1);
        let matters = !matches!(on_completion, OnCompletion::Nothing)
            || self.close.closed
            || std::mem::take(&mut self.seeks_confirmation);
        let signalled = matters || self.unsignalled + 1 >= UNSIGNALLED;
        self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
        RequestOptions { fence, signalled, token }
    }

    /// Notes a request that the device has. Most have no effect when complete, and are only counted.
    #[inline]
    pub(super) fn track(&mut self, options: RequestOptions, on_completion: OnCompletion) {
        if !matches!(on_completion, OnCompletion::Nothing) {
            self.in_flight.push_back(InFlight { token: options.token, on_completion });
        }
    }

    pub(super) fn read_options(&mut self, last: bool) -> RequestOptions {
        let on_completion =
            if last { OnCompletion::MessageLeft(Position::START) } else { OnCompletion::Nothing };
        self.request_options(false, &on_completion)
    }

    // ---- the program's posts ----

    /// Gives the device the front post, or more of it.
    fn give(&mut self, work: &mut dyn Work, post: &mut Post) -> Result<Step, String> {
        let Post { fence, what } = post;
        if self.unreliable.is_some()
            && !matches!(what, Posted::Access(Access { is_write: false, .. }) | Posted::End { .. })
        {
            return self.give_unreliable(work, what);
        }
        match what {
            Posted::Frame { frame, lead, body, on_completion } => {
                check_fits_whole(work, body)?;
                self.send_frame(work, *frame, lead, body, *fence, std::mem::take(on_completion))?;
                Ok(Step::Submitted)
            }
            Posted::Offer { immediate, receipt, head, body, number } => {
                self.give_offer(work, *fence, (*immediate, *receipt), head, body)?;
                debug_assert!(self.offered.iter().any(|offered| offered.number == *number));
                Ok(Step::Submitted)
            }
            Posted::Access(access) => self.give_access(work, fence, access),
            Posted::End { words } => self.give_end(work, words.as_deref()),
        }
    }

    fn give_offer(
        &mut self,
        work: &mut dyn Work,
        fence: bool,
        (immediate, receipt): (Option<u32>, bool),
        head: &[u8],
        body: &Segments,
    ) -> Result<(), String> {
        let (frame, rest) = Self::offer_frame(work, (immediate, receipt), head, body)?;
        self.send_frame(work, frame, &rest, &[], fence, OnCompletion::Nothing)
    }

    pub(super) fn offer_frame(
        work: &mut dyn Work,
        (immediate, receipt): (Option<u32>, bool),
        head: &[u8],
        body: &Segments,
    ) -> Result<(Frame, Vec<u8>), String> {
        let mut parts = Vec::new();
        work.offer(body, &mut parts)?;
        if parts.len() > PARTS {
            return Err(format!("a message in {} parts, at most {PARTS}", parts.len()));
        }
        let len = body.iter().map(|segment| segment.len() as u64).sum();
        let frame = Frame::Offer { immediate, receipt, head: head.len(), parts: parts.len(), len };
        let mut rest = head.to_vec();
        rest.extend(parts.iter().flat_map(|part| part.encode()));
        Ok((frame, rest))
    }

    /// Gives the device an RDMA access. If the window's place is not known, asks the peer first.
    fn give_access(
        &mut self,
        work: &mut dyn Work,
        fence: &mut bool,
        access: &mut Access,
    ) -> Result<Step, String> {
        let Access { is_write, remote, immediate, .. } = *access;
        let total: usize = access.body.iter().map(|segment| segment.len()).sum();
        let Some(place) = self.place_of(remote, is_write) else {
            self.seek(remote, is_write);
            return Ok(Step::Waits);
        };
        if !fits(place.len, remote.offset, total) {
            self.forbidden(access);
            return Ok(Step::Finished);
        }
        let Access { body, done, on_completion, .. } = access;
        if total == 0 && immediate.is_none() {
            self.complete(std::mem::take(on_completion), TransferStatus::Arrived);
            return Ok(Step::Finished);
        }
        loop {
            if !work.has_room() {
                return Ok(Step::Waits);
            }
            let len = match is_write {
                true if total == 0 => 0,
                true => work.fitting(body, *done)?,
                false => work.fitting_read(body, *done)?,
            };
            let last = *done + len == total;
            let at =
                RemoteKey { address: place.address.wrapping_add((remote.offset + *done) as u64), ..place };
            let span = Span { segments: body, from: *done, len };
            let options =
                self.request_options(*fence, if last { on_completion } else { &OnCompletion::Nothing });
            match is_write {
                true => work.write(span, at, immediate.filter(|_| last), options)?,
                false => work.read(span, at, options)?,
            }
            if last {
                self.track(options, std::mem::take(on_completion));
                self.forget_places();
                return Ok(Step::Submitted);
            }
            (*fence, *done) = (false, *done + len);
        }
    }

    fn give_end(&mut self, work: &mut dyn Work, words: Option<&str>) -> Result<Step, String> {
        // The peer learns first which messages have to come before the end.
        self.owe_left_report();
        if self.control_sent.wrapping_sub(self.control_acked) < CONTROL
            && let Some(upto) = self.take_left_report()
        {
            self.send_control(work, Frame::Left { upto }, &[])?;
        }
        if !self.has_reported_all() || !work.has_room() {
            return Ok(Step::Waits);
        }
        let text = words.map_or("", |words| cut(words, MAX_WORDS));
        let frame = Frame::End { broken: words.is_some(), len: text.len() };
        self.control_sent = self.control_sent.wrapping_add(1);
        self.send_frame(work, frame, text.as_bytes(), &[], false, OnCompletion::Nothing)?;
        self.end_sent = true;
        self.abandon();
        Ok(Step::Submitted)
    }

    pub(super) fn seek(&mut self, remote: RemoteBuffer, write: bool) {
        if self.seeking.is_none() {
            self.seeking = Some((remote.handle.0, write));
            self.pending_where = self.seeking;
        }
    }

    /// Forgets the windows' places on an unreliable connection, which asks each time: a window that was revoked
    /// meanwhile must not break it.
    fn forget_places(&mut self) {
        if self.level == Reliability::Unreliable {
            self.places.clear();
        }
    }

    /// Handles an access that the peer does not allow.
    pub(super) fn forbidden(&mut self, access: &mut Access) {
        if self.level == Reliability::Unreliable {
            // The access counts as lost on its way. Its immediate data had a number, which both sides count, so a
            // flush takes its place.
            if let (Some(_), None) = (access.immediate, &self.unreliable) {
                let (lead, body, on_completion) = (SmallVec::new(), Segments::new(), OnCompletion::Nothing);
                let what = Posted::Frame { frame: Frame::Flush, lead, body, on_completion };
                self.posts.push_front(Post { fence: false, what });
            }
            // The next post may be the frame that stands for the immediate data; a flush takes its place, too.
            if let Some(Post { what: Posted::Frame { frame: frame @ Frame::Written { .. }, .. }, .. }) =
                self.posts.front_mut()
            {
                *frame = Frame::Flush;
            }
            return self.cancel(&mut access.on_completion, TransferStatus::Arrived);
        }
        self.cancel(&mut access.on_completion, TransferStatus::Protection);
        self.break_off("RDMA to memory that is not (or no longer) exposed to this peer");
    }

    // ---- completions ----

    /// Completes the request `token` and all before it. It is a request that the device has, or the one before. Its
    /// distance from any number here is at most the number of requests that the device takes ([`Work::has_room`]),
    /// so half the range of numbers tells which is earlier.
    pub fn sent(&mut self, token: u32) {
        if token.wrapping_sub(self.retired) <= u32::MAX / 2 {
            self.retired = token.wrapping_add(1);
        }
        while self.in_flight.front().is_some_and(|first| token.wrapping_sub(first.token) <= u32::MAX / 2) {
            let Some(InFlight { on_completion, .. }) = self.in_flight.pop_front() else { break };
            self.complete(on_completion, TransferStatus::Arrived);
        }
        self.notify_room();
    }

    /// Handles a failed request, after all before it have completed. `forbidden` says that the peer's device did not
    /// allow it. The caller ends the connection next.
    pub fn failed(&mut self, token: u32, forbidden: bool) {
        self.sent(token.wrapping_sub(1));
        let is_known = self.in_flight.front().is_some_and(|first| first.token == token);
        let known = if is_known { self.in_flight.pop_front() } else { None };
        let on_completion = known.map_or(OnCompletion::Nothing, |in_flight| in_flight.on_completion);
        self.retired = token.wrapping_add(1);
        let status = if forbidden && !matches!(on_completion, OnCompletion::OfferRead(_)) {
            TransferStatus::Protection
        } else {
            TransferStatus::Lost
        };
        match on_completion {
            OnCompletion::MessageLeft(number) if forbidden => {
                self.settle(number, status);
                self.complete(OnCompletion::MessageLeft(number), status);
            }
            // Only the last of several requests for one post has an effect, and an earlier one may be the one that
            // fails.
            OnCompletion::Nothing if forbidden => self.next_access_fails(),
            on_completion => self.complete(on_completion, status),
        }
    }

    fn next_access_fails(&mut self) {
        let is_access = |on_completion: &OnCompletion| {
            matches!(
                on_completion,
                OnCompletion::ProgramRead(_) | OnCompletion::ReturnBuffer(_) | OnCompletion::MessageLeft(_)
            )
        };
        if let Some(at) = self.in_flight.iter().position(|in_flight| is_access(&in_flight.on_completion))
            && let Some(InFlight { mut on_completion, .. }) = self.in_flight.remove(at)
        {
            self.cancel(&mut on_completion, TransferStatus::Protection);
        } else if self.posts.front().is_some_and(Post::has_begun)
            && let Some(Post { mut what, .. }) = self.posts.pop_front()
        {
            self.drop_post(&mut what, TransferStatus::Protection);
        }
    }

    /// Completes all requests that the device has, or will not get, with `status`.
    pub(super) fn fail_all(&mut self, status: TransferStatus) {
        self.retired = self.next_token;
        while let Some(InFlight { on_completion, .. }) = self.in_flight.pop_front() {
            self.complete(on_completion, status);
        }
        self.fail_all_unreliable(status);
        for mut post in std::mem::take(&mut self.posts) {
            self.drop_post(&mut post.what, status);
        }
    }

    /// Whether everything that was to be sent has been given to the device.
    pub(super) fn is_all_posted(&self) -> bool {
        self.posts.is_empty() && self.notes.is_empty() && self.pending_here.is_empty()
    }

    /// Whether all posts are complete at the peer's device, or never will be: our device has nothing of them and
    /// will not have, and the peer reads nothing from here.
    pub fn is_all_sent(&self) -> bool {
        self.close.dead || (self.in_flight() == 0 && self.is_all_posted() && self.offered.is_empty())
    }

    /// Asks the device to report when all its requests are complete, because most of them are not reported on their
    /// own. If nothing else is to be sent, a question to the peer serves for that.
    pub fn seek_confirmation(&mut self) {
        if self.unsignalled > 0 && !self.close.closed && !self.close.dead {
            self.seeks_confirmation = true;
            self.pending_ask = true;
        }
    }

    /// Number of requests that were given to the device and are not confirmed.
    pub fn in_flight(&self) -> u32 {
        self.next_token.wrapping_sub(self.retired) + self.in_flight_unreliable()
    }
}

/// Returns the buffers of all requests that the device has or is to have.
pub(super) fn held_in_flight<'a>(
    in_flight: &'a mut VecDeque<InFlight>,
    unreliable: Option<&'a mut Box<Unreliable>>,
    posts: &'a mut VecDeque<Post>,
) -> impl Iterator<Item = &'a mut PostedBuffer> {
    let in_flight = in_flight.iter_mut().map(|in_flight| &mut in_flight.on_completion);
    let posts = posts.iter_mut().filter_map(|post| match &mut post.what {
        Posted::Frame { on_completion, .. } | Posted::Access(Access { on_completion, .. }) => {
            Some(on_completion)
        }
        Posted::Offer { .. } | Posted::End { .. } => None,
    });
    in_flight.chain(Connection::held_unreliable(unreliable)).chain(posts).filter_map(|on_completion| {
        match on_completion {
            OnCompletion::ReturnBuffer(held) | OnCompletion::ProgramRead(held) => Some(held),
            OnCompletion::Nothing | OnCompletion::MessageLeft(_) | OnCompletion::OfferRead(_) => None,
        }
    })
}

/// Checks that one request takes a whole message.
pub(super) fn check_fits_whole(work: &mut dyn Work, body: &Segments) -> Result<(), String> {
    let len = body.iter().map(|segment| segment.len()).sum();
    if len > 0 && work.fitting(body, 0)? < len {
        return Err(format!("a message of {} segments, more than the device takes", body.len()));
    }
    Ok(())
}

/// Whether `[offset, offset + len)` lies in a window of `window` bytes.
pub(super) fn fits(window: u64, offset: usize, len: usize) -> bool {
    offset.checked_add(len).is_some_and(|end| end as u64 <= window)
}
