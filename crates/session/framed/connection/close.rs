//! End of a connection over streams of frames.
//!
//! In order: each side sends an *end* frame when it closes. No messages, writes, reads or answers come from it any more, and
//! it takes none, but it goes on giving receipts for what its program has taken. When both have sent their end, and neither
//! side waits for anything, each sends an *over* frame, the accepting side last. When the asking side receives that, it knows
//! that the peer has everything, and may reset the stream.

use std::sync::Arc;

use smallvec::SmallVec;
use udeck_via::transport::{Refused, TransferStatus};

use super::incoming::Target;
use super::outgoing::{OnRelease, OutFrame};
use super::{Connection, Phase, Side};
use crate::close::cut;
use crate::framed::wire::{Frame, MAX_WORDS, Violation};
use crate::memory::Place;

impl Connection {
    /// How the connection ended for the program, if it did.
    pub(crate) fn end(&self) -> Option<Refused> {
        self.close.end()
    }

    /// [`udeck_via::transport::ViEndpoint::close`].
    pub(crate) fn close(&mut self, broken: Option<&str>) {
        if self.close.closed {
            // An arrival may be left from before the loss.
            self.recv_queue.clear();
            return;
        }
        self.recv_queue.clear();
        self.send_end(broken);
        self.try_over();
    }

    /// Ends the connection by an error that is no violation of the protocol: both programs learn why.
    pub(super) fn break_off(&mut self, why: &str) {
        self.close.report_loss(why, &mut self.events);
        // The peer counts the messages without a receipt as unread.
        self.recv_queue.forget_receipts();
        self.send_end(Some(why));
        self.settle_all(TransferStatus::Lost, |_| true);
    }

    fn send_end(&mut self, broken: Option<&str>) {
        self.close.closed = true;
        if matches!(self.incoming.target, Target::Store(_) | Target::Window(..)) {
            self.incoming.target = Target::Nowhere;
        }
        if self.close.dead || self.broken {
            return;
        }
        let out = end_frame(broken);
        self.post(out);
        if self.holds_back() {
            // Otherwise the peer's held-back posts, and its end behind them, would wait for our program to take messages, as
            // ours wait for the peer's.
            self.control(Frame::RecvClosed, OnRelease::Nothing);
        }
    }

    /// Handles the peer's end.
    pub(super) fn on_end(&mut self, broken: bool) {
        let words = std::mem::take(&mut self.incoming.words);
        self.close.peer_ended(broken.then_some(words), &mut self.events);
        // The peer's program takes nothing any more, so it will never take the messages that it had not taken.
        let taken = self.window.taken();
        self.settle_all(TransferStatus::Unread, |number| number >= taken);
        while !self.reads.is_empty() {
            self.end_read(TransferStatus::Unread);
        }
        self.release_held_back();
        self.drop_unsent(TransferStatus::Unread);
        self.events.notify_end();
    }

    /// Closes the connection after a violation of the protocol. Frames that are queued still leave, if the stream takes them,
    /// and the words leave last.
    pub(super) fn break_protocol(&mut self, violation: &Violation) {
        if self.broken || self.close.dead {
            return;
        }
        self.close
            .report_loss(&format!("the peer broke the protocol: it sent {violation}"), &mut self.events);
        self.recv_queue.forget_receipts();
        self.owed = 0;
        self.broken = true;
        if !self.close.closed {
            self.close.closed = true;
            self.queue(end_frame(Some(&format!("you broke the protocol: you sent {violation}"))));
        }
        self.incoming.target = Target::Nowhere;
    }

    /// Ends the connection because the stream broke or the peer is dead: everything in flight is lost, and nothing is
    /// gathered any more. `why` is for the program. After the peer's end this is an orderly end that no program waits for any
    /// longer. May be repeated.
    pub fn lost(&mut self, why: &str) {
        let Some(status) = self.close.die(why, &mut self.events) else { return };
        self.incoming.target = Target::Nowhere;
        self.recv_queue.forget_receipts();
        self.owed = 0;
        let end = self.outgoing.end();
        while let Some(on_release) = self.outgoing.pop_released(end) {
            self.after(on_release, status);
        }
        while let Some(held_back) = self.held_back.pop_front() {
            self.after(held_back.out.into_on_release(), status);
        }
        self.drop_unsent(status);
        while !self.reads.is_empty() {
            self.end_read(status);
        }
        self.settle_all(status, |_| true);
        self.events.notify_end();
    }

    /// Handles the end of the peer's direction of the stream.
    pub fn hung_up(&mut self) {
        self.lost(
            "its stream ended without a goodbye: the peer's process has died, or its NIC was closed by force",
        );
    }

    /// Whether the connection is open, and everything that waits to be sent is in its stream. Both hold after most polls.
    #[inline]
    pub fn is_calm(&self) -> bool {
        !(self.close.dead || self.broken || self.over || self.holds_back())
    }

    /// Ends the connection: the peer gave up waiting for the answer to its request, and never used the connection.
    pub fn withdrawn(&mut self) {
        self.close.peer_ended(None, &mut self.events);
        self.lost("the peer gave up waiting for an answer to its request");
    }

    /// The connection's state, for its driver.
    pub fn phase(&self) -> Phase {
        if self.close.dead {
            Phase::Over { abruptly: true }
        } else if self.broken {
            Phase::Broken
        } else if self.over && self.peer_over && self.outgoing.start() == self.outgoing.end() {
            Phase::Over { abruptly: self.side == Side::Asked }
        } else {
            Phase::Open
        }
    }

    /// Whether the program has closed it or its endpoint is gone: a driver may then give up waiting for the peer after a
    /// time of its own (by [`Connection::lost`]).
    pub fn is_closed(&self) -> bool {
        self.close.closed
    }

    /// Sends the *over* frame when its time has come.
    #[inline]
    pub(super) fn try_over(&mut self) {
        if self.close.closed {
            self.try_over_closed();
        }
    }

    fn try_over_closed(&mut self) {
        let ended = self.close.peer_has_ended() && !self.close.dead && !self.broken;
        let nothing_waits =
            self.owed == 0 && self.reads.is_empty() && !self.holds_back() && !self.unacked.is_awaited();
        let my_turn = self.side == Side::Asked || self.peer_over;
        if ended && nothing_waits && my_turn && !self.over {
            self.control(Frame::Over, OnRelease::Nothing);
            self.over = true;
        }
    }
}

fn end_frame(broken: Option<&str>) -> OutFrame {
    let words = broken.map_or("", |words| cut(words, MAX_WORDS));
    let words: Arc<[u8]> = words.as_bytes().into();
    let frame = Frame::End { broken: broken.is_some(), len: words.len() as u64 };
    let body = SmallVec::from_iter([Place::bytes(&words)]);
    OutFrame::new(frame, [&[], &[]], body, OnRelease::Words(words))
}
