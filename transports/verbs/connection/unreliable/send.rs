//! Sender's side of the unreliable queue pair: numbers, messages that leave, and the report of how many have left.

use smallvec::SmallVec;
use udeck_via::transport::TransferStatus;

use super::super::send_engine::{Step, check_fits_whole, fits};
use super::super::send_queue::{Access, OnCompletion, Posted};
use super::super::{Connection, MESSAGES, RequestOptions, Span, Work};
use super::{Unreliable, UnreliableRequest, ahead, violation};
use crate::memory::Segment;
use crate::wire::{Frame, Header, MAX_HEAD, RemoteKey, Violation};

impl Connection {
    /// Lets messages and writes travel on the unreliable queue pair. To be called before anything is posted, on both
    /// sides or on none.
    pub fn go_unreliable(&mut self) {
        self.unreliable = Some(Box::default());
    }

    /// Count of the numbers in use, if there is an unreliable queue pair.
    fn numbers_out(&self) -> u32 {
        self.unreliable
            .as_ref()
            .map_or(0, |unreliable| unreliable.left.wrapping_sub(self.window.taken().narrow()))
    }

    fn has_number(&self) -> bool {
        self.numbers_out() < MESSAGES
    }

    /// Whether there will be `wanted` numbers for one more post, behind those that wait.
    pub(in crate::connection) fn has_numbers_for(&self, wanted: u32) -> bool {
        let waiting: u32 = self.posts.iter().map(|post| post.what.numbers()).sum();
        self.numbers_out() + waiting + wanted <= MESSAGES
    }

    /// Number of messages that are not over.
    pub(in crate::connection) fn untaken_unreliable(&self) -> Option<u32> {
        let unreliable = self.unreliable.as_ref()?;
        let waiting = self.posts.iter().filter(|post| post.what.numbers() > 0).count();
        Some(self.numbers_out() - unreliable.pieces.count_ones().min(self.numbers_out()) + waiting as u32)
    }

    fn take_number(&mut self, is_piece: bool) -> u32 {
        let at = self.numbers_out();
        let Some(unreliable) = &mut self.unreliable else { return 0 };
        unreliable.pieces |= u64::from(is_piece) << at.min(63);
        unreliable.written += u32::from(is_piece);
        let number = unreliable.left;
        unreliable.left = number.wrapping_add(1);
        number
    }

    /// Handles the peer's report that the numbers below `upto` are over.
    pub(in crate::connection) fn are_over(&mut self, upto: u32) -> Result<(), Violation> {
        let (more, out) = (upto.wrapping_sub(self.window.taken().narrow()), self.numbers_out());
        if more > out {
            return violation(format!("{more} messages are over of the {out} that were not"));
        }
        // For an offer that was taken, this is the second report; for one that was lost, the only one.
        let is_over = |number: Option<u32>| number.is_some_and(|n| ahead(upto, n).is_some_and(|by| by > 0));
        while let Some(offered) = self.offered.iter().find(|offered| is_over(offered.unreliable)) {
            let number = offered.number;
            self.end_offered(number, TransferStatus::Arrived);
        }
        // A peer that has ended the connection takes nothing any more: untaken messages stay untaken.
        if let (Some(unreliable), true, false) = (&mut self.unreliable, more > 0, self.close.peer_has_ended())
        {
            unreliable.pieces = unreliable.pieces.checked_shr(more).unwrap_or(0);
            self.window.advance(more);
            self.notify_room();
        }
        Ok(())
    }

    /// Makes the report of how many messages have left due: this side waits for something that the peer knows only by it.
    pub(in crate::connection) fn owe_left_report(&mut self) {
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.owes_left_report = unreliable.reported != unreliable.left;
        }
    }

    /// Whether that report is due, and all messages have left.
    pub(in crate::connection) fn left_report_is_due(&self) -> bool {
        self.unreliable
            .as_ref()
            .is_some_and(|unreliable| unreliable.owes_left_report && unreliable.gone == unreliable.left)
    }

    pub(in crate::connection) fn take_left_report(&mut self) -> Option<u32> {
        let unreliable = self
            .unreliable
            .as_mut()
            .filter(|unreliable| unreliable.owes_left_report && unreliable.gone == unreliable.left)?;
        (unreliable.owes_left_report, unreliable.reported) = (false, unreliable.left);
        Some(unreliable.reported)
    }

    /// Whether the peer has been told that all messages have left.
    pub(in crate::connection) fn has_reported_all(&self) -> bool {
        self.unreliable.as_ref().is_none_or(|unreliable| unreliable.reported == unreliable.left)
    }

    /// Marks messages as over when our end is sent: no more are taken.
    pub(in crate::connection) fn abandon(&mut self) {
        let Some(unreliable) = &mut self.unreliable else { return };
        unreliable.abandoned = true;
        // Messages in the receive queue are left out: they are offers that are being read.
        let read = unreliable.numbers.clone();
        let mut number = unreliable.base;
        while number != unreliable.next {
            if !read.contains(&number) {
                unreliable.is_over(number);
            }
            number = number.wrapping_add(1);
        }
        // The peer has offers that were lost given back by this report.
        self.credits.asked |= self.credits.taken != unreliable.base;
        self.credits.taken = unreliable.base;
    }

    /// Sends a short message as [`Connection::send_now`], on the unreliable queue pair.
    pub(in crate::connection) fn send_now_unreliable(
        &mut self,
        work: &mut dyn Work,
        immediate: Option<u32>,
        head: &[u8],
        body: &[u8],
    ) -> bool {
        let Some(device) = work.unreliable().filter(|device| device.has_room()) else { return false };
        if !self.posts.is_empty() || self.close.dead || !self.has_number() {
            return false;
        }
        let mut rest = [0; MAX_HEAD];
        let len = head.len() + body.len();
        rest[..head.len()].copy_from_slice(head);
        rest[head.len()..len].copy_from_slice(body);
        let frame = Frame::Short { immediate, len };
        self.unacked.found_room();
        if let Err(why) = self.send_unreliable(device, frame, 0, (&rest[..len], &[]), OnCompletion::Nothing) {
            self.fail(&why);
        }
        true
    }

    /// Sends a numbered frame. `key` names an offer in later notes.
    fn send_unreliable(
        &mut self,
        device: &mut dyn Work,
        frame: Frame,
        key: u32,
        (rest, body): (&[u8], &[Segment]),
        on_completion: OnCompletion,
    ) -> Result<(), String> {
        let header = Header { taken: self.take_number(false), control_ack: key, frame };
        let mut lead: SmallVec<[u8; 128]> = SmallVec::from_slice(&header.encode());
        lead.extend_from_slice(rest);
        let options = self.unreliable_options();
        let sent = device.send(&lead, body, options);
        self.track_unreliable(options, on_completion);
        sent
    }

    /// Options of a request. All completions are reported: no receiver acknowledges, and a completion must not wait
    /// for another request's.
    fn unreliable_options(&mut self) -> RequestOptions {
        let Some(unreliable) = &mut self.unreliable else { return RequestOptions::default() };
        let token = unreliable.next_token;
        unreliable.next_token = token.wrapping_add(1);
        RequestOptions { fence: false, signalled: true, token }
    }

    fn track_unreliable(&mut self, options: RequestOptions, on_completion: OnCompletion) {
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.in_flight.push_back(UnreliableRequest {
                token: options.token,
                on_completion,
                upto: unreliable.left,
            });
        }
    }

    /// Completes the request `token` and all before it: their messages have left.
    pub fn on_sent_unreliable(&mut self, token: u32) {
        let is_over = |first: &UnreliableRequest| ahead(token, first.token).is_some();
        while let Some(unreliable) = &mut self.unreliable
            && unreliable.in_flight.front().is_some_and(is_over)
        {
            let Some(UnreliableRequest { on_completion, upto, .. }) = unreliable.in_flight.pop_front() else {
                break;
            };
            unreliable.gone = upto;
            self.complete(on_completion, TransferStatus::Arrived);
        }
        self.notify_room();
    }

    pub(in crate::connection) fn in_flight_unreliable(&self) -> u32 {
        self.unreliable.as_ref().map_or(0, |unreliable| unreliable.in_flight.len() as u32)
    }

    pub(in crate::connection) fn held_unreliable(
        unreliable: Option<&mut Box<Unreliable>>,
    ) -> impl Iterator<Item = &mut OnCompletion> {
        unreliable
            .into_iter()
            .flat_map(|unreliable| unreliable.in_flight.iter_mut().map(|leaving| &mut leaving.on_completion))
    }

    /// Completes requests that have not left, and never will, with `status`.
    pub(in crate::connection) fn fail_all_unreliable(&mut self, status: TransferStatus) {
        let in_flight = self.unreliable.as_mut().map(|unreliable| std::mem::take(&mut unreliable.in_flight));
        in_flight.into_iter().flatten().for_each(|leaving| self.complete(leaving.on_completion, status));
    }

    /// Gives the device the front post, if the device takes it.
    pub(in crate::connection) fn give_unreliable(
        &mut self,
        work: &mut dyn Work,
        what: &mut Posted,
    ) -> Result<Step, String> {
        let Some(device) = work.unreliable() else {
            return Err("the device has no unreliable queue pair".into());
        };
        if let Posted::Access(access) = what {
            return self.write_unreliable(device, access);
        }
        if !device.has_room() || !self.has_number() {
            if self.waits_for_room() {
                return Ok(Step::Waits);
            }
            self.drop_post(what, TransferStatus::Unread);
            return Ok(Step::Finished);
        }
        match what {
            Posted::Frame { frame, lead, body, on_completion } => {
                check_fits_whole(device, body)?;
                self.send_unreliable(device, *frame, 0, (lead, body), std::mem::take(on_completion))?;
            }
            Posted::Offer { immediate, receipt, head, body, number: key } => {
                let (frame, rest) = Self::offer_frame(device, (*immediate, *receipt), head, body)?;
                let number = self.unreliable.as_ref().map(|unreliable| unreliable.left);
                self.offered
                    .iter_mut()
                    .filter(|offered| offered.number == *key)
                    .for_each(|o| o.unreliable = number);
                self.send_unreliable(device, frame, key.narrow(), (&rest, &[]), OnCompletion::Nothing)?;
                // If the offer is lost, its memory comes back by this report.
                self.owe_left_report();
            }
            Posted::Access(_) | Posted::End { .. } => {}
        }
        Ok(Step::Submitted)
    }

    fn write_unreliable(&mut self, device: &mut dyn Work, access: &mut Access) -> Result<Step, String> {
        let Access { remote: to, immediate, .. } = *access;
        let total: usize = access.body.iter().map(|segment| segment.len()).sum();
        let Some(place) = self.place_of(to, true) else {
            self.seek(to, true);
            return Ok(Step::Waits);
        };
        if !fits(place.len, to.offset, total) {
            self.forbidden(access);
            return Ok(Step::Finished);
        }
        let Access { body, done, on_completion, .. } = access;
        if let (Some(unreliable), 0) = (&mut self.unreliable, *done) {
            unreliable.written = 0;
        }
        while *done < total {
            if !device.has_room() || (immediate.is_some() && !self.has_number()) {
                return Ok(self.wait_unreliable(*done, on_completion));
            }
            let len = device.fitting(body, *done)?;
            let at = RemoteKey { address: place.address.wrapping_add((to.offset + *done) as u64), ..place };
            let number = immediate.map(|_| self.take_number(true));
            let (span, options) = (Span { segments: body, from: *done, len }, self.unreliable_options());
            device.write(span, at, number, options)?;
            *done += len;
            self.track_unreliable(
                options,
                if *done == total { std::mem::take(on_completion) } else { OnCompletion::Nothing },
            );
        }
        if let Some(immediate) = immediate {
            if !device.has_room() || !self.has_number() {
                return Ok(self.wait_unreliable(*done, on_completion));
            }
            let pieces = self.unreliable.as_ref().map_or(0, |unreliable| unreliable.written);
            let frame = Frame::Wrote { immediate, pieces, len: total as u64 };
            self.send_unreliable(device, frame, 0, (&[], &[]), OnCompletion::Nothing)?;
        }
        // A write of no bytes has no request in flight.
        self.complete(std::mem::take(on_completion), TransferStatus::Arrived);
        Ok(Step::Submitted)
    }

    /// Decides whether a write waits for room, as [`Connection::waits_for_room`]. A write that would wait in vain is
    /// lost, as soon as the device has none of its first `done` bytes any more.
    fn wait_unreliable(&mut self, done: usize, on_completion: &mut OnCompletion) -> Step {
        if self.waits_for_room() || (done > 0 && self.in_flight_unreliable() > 0) {
            return Step::Waits;
        }
        self.cancel(on_completion, TransferStatus::Unread);
        Step::Finished
    }

    /// Whether there will be room, as there is none now. If nobody takes the messages that were sent before, there
    /// never will be.
    fn waits_for_room(&mut self) -> bool {
        if self.has_number() {
            return true;
        }
        if self.close.closed || self.close.peer_has_ended() {
            return false;
        }
        self.request_credit();
        true
    }
}
