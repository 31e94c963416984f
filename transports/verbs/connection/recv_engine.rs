//! Incoming frames: each is checked before anything is allocated for it.

use udeck_session::{Store, no_memory};
use udeck_sys::position::Position;
use udeck_via::Reliability;
use udeck_via::transport::{Inline, TransferStatus};

use super::recv_queue::{Item, Offer, Progress};
use super::send_queue::{Post, Posted};
use super::{CONTROL, CREDITS, Connection, MESSAGES, PLACES};
use crate::wire::{Frame, HEADER, Header, MAX_HEAD, Note, RemoteKey, RemotePiece, Violation};

/// Upper bound of unanswered questions, beyond which the peer breaks the protocol.
const ANSWERS: usize = CONTROL as usize * 2;

fn violation<T>(words: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(words.into()))
}

impl Connection {
    /// Handles a whole frame that has come.
    pub fn on_receive(&mut self, bytes: &[u8]) {
        if self.close.dead {
            return;
        }
        if let Err(violation) = self.take_in(bytes) {
            self.break_protocol(&violation);
        }
    }

    fn take_in(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return violation(format!("a frame of {} bytes", bytes.len()));
        };
        let Header { taken, control_ack, frame } = Header::decode(header)?;
        if rest.len() != frame.rest() {
            return violation(format!("{frame:?} with {} bytes behind it", rest.len()));
        }
        if (taken, control_ack) != (self.window.taken().narrow(), self.control_acked) {
            self.on_taken(taken)?;
            self.on_control_acked(control_ack)?;
        }
        // Most frames are of this kind.
        if let (Frame::Short { immediate, .. }, false, None) =
            (frame, self.close.peer_has_ended(), &self.unreliable)
        {
            return self.on_short(immediate, rest);
        }
        if !frame.is_numbered() {
            self.control_received = self.control_received.wrapping_add(1);
            // The end is sent in any case, so one more frame is allowed.
            if self.control_received.wrapping_sub(self.control_ack_sent) > CONTROL + CREDITS + 1 {
                return violation("more control frames than it may before one of them is acknowledged");
            }
        }
        if frame.is_numbered() && (self.close.peer_has_ended() || self.unreliable.is_some()) {
            return violation(format!("{frame:?} after its end, or on the wrong queue pair"));
        }
        match frame {
            Frame::Short { immediate, .. } => self.on_short(immediate, rest),
            Frame::Body { immediate, receipt, head, len } => {
                self.on_body(immediate, receipt, rest.split_at(head), len)
            }
            Frame::Offer { immediate, receipt, head, len, .. } => {
                self.on_offer(immediate, receipt, rest.split_at(head), len)
            }
            Frame::Flush => {
                let number = self.arrive()?;
                if !self.close.closed {
                    // The data of the earlier write are in place. The receipt waits for no program.
                    if self.level == Reliability::Reception {
                        self.notes.push(Note::Receipt(number, TransferStatus::Arrived));
                    }
                    self.deliver(Item::Silent);
                }
                Ok(())
            }
            Frame::Written { .. } if !self.frames_immediates => {
                violation(format!("{frame:?} where RDMA writes carry immediate data"))
            }
            Frame::Written { immediate, len } => {
                self.written(immediate, len);
                Ok(())
            }
            Frame::Notes { .. } => {
                rest.as_chunks::<{ Note::LEN }>().0.iter().try_for_each(|note| self.on_note(note))
            }
            Frame::Credit => {
                self.window.on_answer();
                Ok(())
            }
            Frame::Ask { when_taken } => {
                self.credits.on_ask(when_taken);
                Ok(())
            }
            Frame::End { broken, .. } => {
                let words = broken.then(|| String::from_utf8_lossy(rest).into_owned());
                self.on_end_behind(words);
                Ok(())
            }
            Frame::Where { handle, write } => {
                if self.pending_here.len() >= ANSWERS {
                    return violation(format!("more than {ANSWERS} questions before the answers"));
                }
                // A closed connection answers nothing: the asking side learns of the close otherwise.
                if !self.close.closed {
                    self.pending_here.push_back((handle, write));
                }
                Ok(())
            }
            Frame::Here { handle, place } => self.here(handle, place),
            Frame::Wrote { .. } => violation("a `wrote` frame on the wrong queue pair"),
            Frame::Left { upto } => self.on_sent_before(upto),
        }
    }

    /// Handles an RDMA write that has placed its data and brought immediate data.
    pub fn written(&mut self, immediate: u32, len: usize) {
        if self.close.dead {
            return;
        }
        if self.unreliable.is_some() {
            return self.break_protocol(&Violation(
                "an RDMA write with immediate data on the wrong queue pair".into(),
            ));
        }
        match self.arrive() {
            Ok(_) if self.close.closed => {}
            Ok(number) => {
                let receipt = (self.level == Reliability::Reception).then_some(number);
                self.deliver(Item::Written { immediate, len, receipt });
            }
            Err(violation) => self.break_protocol(&violation),
        }
    }

    /// Counts a numbered frame. Returns its number.
    fn arrive(&mut self) -> Result<u32, Violation> {
        let number = self.arrived;
        if number.wrapping_sub(self.credits.taken) >= MESSAGES && !self.close.closed {
            return violation(format!("more than {MESSAGES} messages before one of them was taken"));
        }
        self.arrived = number.wrapping_add(1);
        Ok(number)
    }

    fn on_short(&mut self, immediate: Option<u32>, bytes: &[u8]) -> Result<(), Violation> {
        self.arrive()?;
        if !self.close.closed {
            self.deliver(Item::Inline { immediate, bytes: Inline::gather(bytes, &[]) });
        }
        Ok(())
    }

    fn on_body(
        &mut self,
        immediate: Option<u32>,
        receipt: bool,
        (head, body): (&[u8], &[u8]),
        len: usize,
    ) -> Result<(), Violation> {
        let number = self.arrive()?;
        self.check_receipt(receipt)?;
        debug_assert_eq!(body.len(), len);
        if self.close.closed {
            return Ok(());
        }
        let Some(store) = Store::copy_of(&self.memory, body) else {
            self.break_off(&no_memory(len));
            return Ok(());
        };
        let receipt = receipt.then_some(number);
        self.deliver(Item::Body { immediate, head: Inline::gather(head, &[]), store, landed: 0, receipt });
        Ok(())
    }

    fn on_offer(
        &mut self,
        immediate: Option<u32>,
        receipt: bool,
        (head, parts): (&[u8], &[u8]),
        len: u64,
    ) -> Result<(), Violation> {
        let number = self.arrive()?;
        self.check_receipt(receipt)?;
        let parts: Vec<RemotePiece> =
            parts.as_chunks::<{ RemotePiece::LEN }>().0.iter().map(RemotePiece::decode).collect();
        let len = self.check_offer(&parts, len)?;
        if self.close.closed {
            self.notes.push(Note::Read(number));
            return Ok(());
        }
        debug_assert!(head.len() <= MAX_HEAD);
        let (head, progress) = (Inline::gather(head, &[]), Progress::Waits);
        self.offers += 1;
        let offer = Offer { immediate, head, len, parts, number, receipt, progress };
        self.deliver(Item::Pending(Box::new(offer)));
        Ok(())
    }

    /// Checks that an offer is consistent. Returns its length in bytes.
    pub(super) fn check_offer(&self, parts: &[RemotePiece], len: u64) -> Result<usize, Violation> {
        let most = self.max_transfer;
        let together: u64 = parts.iter().map(|part| u64::from(part.len)).sum();
        let Some(len) = usize::try_from(len).ok().filter(|&len| len <= most) else {
            return violation(format!("a message of {len} bytes, at most {most}"));
        };
        if together != len as u64 || parts.iter().any(|part| part.len == 0) || parts.is_empty() {
            return violation(format!("a message of {len} bytes in parts of {together}, or empty ones"));
        }
        Ok(len)
    }

    fn check_receipt(&self, receipt: bool) -> Result<(), Violation> {
        if receipt && self.level != Reliability::Reception {
            return violation("a receipt is wanted on a connection that has none");
        }
        Ok(())
    }

    /// Notes that the peer's program has taken `taken` of our messages, modulo 2^32.
    fn on_taken(&mut self, taken: u32) -> Result<(), Violation> {
        if self.unreliable.is_some() {
            return self.are_over(taken);
        }
        let more = self.window.on_taken(taken, self.window.untaken()).map_err(Violation)?;
        if more > 0 {
            self.notify_room();
        }
        Ok(())
    }

    fn on_control_acked(&mut self, control_ack: u32) -> Result<(), Violation> {
        let unacked = self.control_sent.wrapping_sub(self.control_acked);
        let more = control_ack.wrapping_sub(self.control_acked);
        if more > unacked {
            return violation(format!("{more} control frames were acknowledged of {unacked}"));
        }
        self.control_acked = control_ack;
        Ok(())
    }

    fn on_note(&mut self, bytes: &[u8; Note::LEN]) -> Result<(), Violation> {
        let known = match Note::decode(bytes)? {
            // An offer that is over may have been reported already.
            Note::Read(number) => self.was_read(number) || self.unreliable.is_some(),
            // The peer may not know yet that a message has ended otherwise here.
            Note::Receipt(number, status) => {
                self.unacked.settle_named(number, self.window.sent(), status, &mut self.events)
                    || self.level == Reliability::Reception
                    || self.close.closed
                    || self.close.is_lost()
            }
        };
        if known { Ok(()) } else { violation("a note of a message that nobody waits for") }
    }

    /// Handles the answer about a window: its place, or that access is not allowed.
    fn here(&mut self, handle: u32, place: Option<RemoteKey>) -> Result<(), Violation> {
        let Some((_, write)) = self.seeking.take().filter(|(sought, _)| *sought == handle) else {
            return violation(format!("an answer about window {handle:#x}, which was not requested"));
        };
        match place {
            Some(place) => {
                if self.places.len() >= PLACES {
                    self.places.clear();
                }
                self.places.insert((handle, write), place);
            }
            None => self.nowhere(handle, write),
        }
        Ok(())
    }

    /// Drops the accesses in front of the queue that are for a window which is not there.
    fn nowhere(&mut self, handle: u32, write: bool) {
        let is_for = |post: &Post| match &post.what {
            Posted::Access(access) => access.is_write == write && access.remote.handle.0 == handle,
            _ => false,
        };
        if self.posts.front().is_some_and(is_for)
            && let Some(Post { what: Posted::Access(mut access), .. }) = self.posts.pop_front()
        {
            self.forbidden(&mut access);
        }
    }

    /// Completes a message or flush. Returns `false` if nobody waits for it.
    pub(super) fn settle(&mut self, number: Position, status: TransferStatus) -> bool {
        self.unacked.settle(number, status, &mut self.events)
    }
}
