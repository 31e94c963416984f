//! Incoming frames other than the program's messages: checked when the header has come, served when all has come.

use smallvec::SmallVec;
use udeck_via::mem::MemHandle;
use udeck_via::transport::{Inline, TransferStatus};
use udeck_via::{Reliability, RemoteBuffer};

use super::Connection;
use super::incoming::Target;
use super::outgoing::{OnRelease, OutFrame};
use crate::close::no_memory;
use crate::framed::windows::Right;
use crate::framed::wire::{Frame, Header, Violation};
use crate::memory::Place;
use crate::{Item, MESSAGES};

/// Upper bound of answers and receipts in the queue: as many as a peer that keeps the rules may wait for, and the same again
/// for those that are sent and not acknowledged by the stream below.
const MOST_ANSWERS: usize = 4 * MESSAGES as usize;

fn violation<T>(words: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(words.into()))
}

impl Connection {
    /// Checks a header before anything is allocated for it, and sets the payload's target. Returns the lengths of lead and
    /// payload.
    pub(super) fn admit(&mut self, header: Header) -> Result<(usize, usize), Violation> {
        let Header { taken, frame } = header;
        if self.peer_over {
            return violation(format!("{frame:?} behind its last frame"));
        }
        if self.close.peer_has_ended()
            && !matches!(frame, Frame::Receipt { .. } | Frame::Credit | Frame::Over)
        {
            return violation(format!("{frame:?} behind its end"));
        }
        let outside = matches!(frame, Frame::Message { .. } | Frame::Write { .. });
        if (outside && self.is_unreliable())
            || (matches!(frame, Frame::Forget { .. }) && !self.is_unreliable())
        {
            return violation(format!("{frame:?} on a connection that has none"));
        }
        if self.outgoing.answers() > MOST_ANSWERS {
            return violation(format!("more than {MOST_ANSWERS} answers that it does not take"));
        }
        self.on_taken(taken)?;
        match frame {
            Frame::Message { receipt, lent, head, len, .. } => self.admit_message(receipt, lent, head, len),
            Frame::Write { receipt, handle, offset, len, .. } => {
                self.admit_write(receipt, handle, offset, len)
            }
            Frame::Data { number, status, len } => self.admit_data(number, status, len),
            Frame::End { len, .. } => Ok((len as usize, 0)),
            Frame::Read { .. }
            | Frame::Receipt { .. }
            | Frame::Credit
            | Frame::Ask { .. }
            | Frame::Forget { .. }
            | Frame::Over
            | Frame::RecvClosed => Ok((0, 0)),
        }
    }

    /// Whether [`Connection::admit`] lets any short message through, apart from credits.
    #[inline]
    pub(super) fn admits_short(&self) -> bool {
        let is_over = self.broken || self.close.dead || self.peer_over || self.close.peer_has_ended();
        !is_over && !self.is_unreliable() && self.outgoing.answers() <= MOST_ANSWERS
    }

    fn admit_message(
        &mut self,
        receipt: bool,
        lent: bool,
        head: u8,
        len: u64,
    ) -> Result<(usize, usize), Violation> {
        let most = self.max_transfer;
        let Some(body) = usize::try_from(len).ok().filter(|&len| len <= most) else {
            return violation(format!("a message of {len} bytes, at most {most}"));
        };
        if !lent && len > 0 {
            return violation(format!("a short message with a body of {len} bytes"));
        }
        self.check_receipt(receipt)?;
        self.incoming.number = self.credits.arrive(len + u64::from(head)).map_err(Violation)?;
        self.note_shape(head, body);
        if lent && !self.close.closed {
            match self.store_for(head, body) {
                Some(store) => self.incoming.target = Target::Store(store),
                None => self.break_off(&no_memory(body)),
            }
        }
        Ok((head.into(), body))
    }

    fn admit_write(
        &mut self,
        receipt: bool,
        handle: u32,
        offset: u64,
        len: u64,
    ) -> Result<(usize, usize), Violation> {
        let (Ok(total), Ok(offset)) = (isize::try_from(len), usize::try_from(offset)) else {
            return violation(format!("a write of {len} bytes at {offset} of a window"));
        };
        let total = total.cast_unsigned();
        self.check_receipt(receipt)?;
        self.incoming.number = self.credits.arrive(0).map_err(Violation)?;
        if !self.close.closed {
            let handle = MemHandle(handle);
            let all = RemoteBuffer { handle, offset, len: total };
            match self.windows.enter(all, self.writable, Right::Write) {
                Some((_, range)) if !range.in_outbox => self.incoming.target = Target::Window(handle, offset),
                _ => self.incoming.refused = true,
            }
        }
        Ok((0, total))
    }

    fn admit_data(
        &mut self,
        number: u32,
        status: TransferStatus,
        len: u64,
    ) -> Result<(usize, usize), Violation> {
        let Some(read) = self.reads.front().filter(|read| read.number.narrow() == number) else {
            return violation(format!("an answer to read {number} that was not requested"));
        };
        let expected = if status == TransferStatus::Arrived { read.len } else { 0 };
        if status == TransferStatus::Refused || len != expected as u64 {
            return violation(format!("{len} bytes ({status:?}) as the answer to a read of {}", read.len));
        }
        self.incoming.target = Target::Read;
        Ok((0, expected))
    }

    fn check_receipt(&self, receipt: bool) -> Result<(), Violation> {
        if receipt && self.level != Reliability::Reception {
            return violation("a receipt is wanted on a connection that has none");
        }
        Ok(())
    }

    /// Handles the count of our messages that the peer's program has taken.
    pub(super) fn on_taken(&mut self, taken: u32) -> Result<(), Violation> {
        let untaken = (self.untaken.len() - self.unsent) as u32;
        let more = self.window.on_taken(taken, untaken).map_err(Violation)?;
        if more > 0 {
            self.untaken_bytes -= self.untaken.drain(..more as usize).sum::<u64>();
            self.release_held_back();
            self.notify_room();
        }
        Ok(())
    }

    /// Handles a frame that has come as a whole.
    pub(super) fn complete(&mut self, frame: Frame) -> Result<(), Violation> {
        match frame {
            Frame::Message { immediate, receipt, lent, .. } => {
                self.on_message(immediate, receipt, lent);
            }
            Frame::Write { immediate, receipt, len, .. } => self.on_write(immediate, receipt, len as usize),
            Frame::Read { number, handle, offset, len } => self.serve_read(number, handle, offset, len),
            Frame::Data { status, .. } => self.end_read(status),
            Frame::Receipt { number, status } => {
                // The peer did not know of messages that ended otherwise here.
                let known = self.settle(number, status) || self.close.closed || self.close.is_lost();
                if !known {
                    return violation(format!("a receipt for message {number} that was not requested"));
                }
            }
            Frame::Credit => self.window.on_answer(),
            Frame::RecvClosed => {
                self.peer_recv_closed = true;
                self.release_held_back();
            }
            Frame::Ask { when_taken } => {
                self.credits.messages.on_ask(when_taken);
                self.send_credits();
            }
            Frame::Forget { upto } => self.on_given_up(upto),
            Frame::End { broken, .. } => self.on_end(broken),
            Frame::Over => self.peer_over = true,
        }
        Ok(())
    }

    fn on_message(&mut self, immediate: Option<u32>, receipt: bool, lent: bool) {
        if self.close.closed {
            return;
        }
        let head = self.incoming.head.take().unwrap_or(Inline::EMPTY);
        let receipt = receipt.then_some(self.incoming.number);
        match std::mem::take(&mut self.incoming.target) {
            Target::Store(store) if lent => {
                let landed = self.incoming.landed;
                self.deliver(Item::Body { immediate, head, store, landed, receipt });
            }
            _ => self.deliver(Item::Inline { immediate, bytes: head }),
        }
    }

    fn on_write(&mut self, immediate: Option<u32>, receipt: bool, len: usize) {
        if self.close.closed {
            return;
        }
        let number = self.incoming.number;
        if self.incoming.refused {
            return self.write_refused(receipt.then_some(number));
        }
        match immediate {
            Some(immediate) => {
                let receipt = receipt.then_some(number);
                self.deliver(Item::Written { immediate, len, receipt });
            }
            None => {
                if receipt {
                    self.control(
                        Frame::Receipt { number, status: TransferStatus::Arrived },
                        OnRelease::Receipt,
                    );
                }
                self.deliver(Item::Silent);
            }
        }
    }

    /// Refuses a write to a place where the peer may not write. The sender is told before it learns that the connection broke.
    fn write_refused(&mut self, receipt: Option<u32>) {
        if self.level == Reliability::Unreliable {
            return self.deliver(Item::Silent);
        }
        if let Some(number) = receipt {
            self.control(Frame::Receipt { number, status: TransferStatus::Protection }, OnRelease::Receipt);
        }
        self.break_off("an RDMA write to memory that is not exposed to this peer, or not any more");
    }

    /// Answers a read in place: the window is held for the reader until the answer has left.
    fn serve_read(&mut self, number: u32, handle: u32, offset: u64, len: u64) {
        // An end behind a fence waits for the peer's answers, and the peer's end may wait for ours, so reads are answered
        // until then.
        if self.end_sent {
            return;
        }
        let found = match (usize::try_from(offset), usize::try_from(len)) {
            (Ok(offset), Ok(len)) => {
                let from = RemoteBuffer { handle: MemHandle(handle), offset, len };
                self.windows.enter(from, self.readable, Right::Read)
            }
            _ => None,
        };
        let found = found.and_then(|(access, range)| {
            let arena = if range.in_outbox { &self.memory.outbox } else { &self.memory.landing };
            Some((access, Place::of(arena, range.offset, range.len)?))
        });
        let out = match found {
            Some((access, place)) => {
                let frame = Frame::Data { number, status: TransferStatus::Arrived, len };
                let body = SmallVec::from_iter([place]);
                OutFrame::new(frame, [&[], &[]], body, OnRelease::Served(Some(access)))
            }
            None => OutFrame::bare(
                Frame::Data { number, status: TransferStatus::Protection, len: 0 },
                OnRelease::Served(None),
            ),
        };
        self.queue(out);
    }
}
