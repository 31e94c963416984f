//! How a connection ends.
//!
//! In order: each side says *end* when it closes (no messages, writes, reads or answers come from it any more, and it
//! takes none), but goes on giving receipts for what its program has taken. When both have, and neither side waits for
//! anything, each says *over*, the side that accepted last: so the other one knows, when it hears that, that the peer
//! has everything of it, and may reset the stream.

use std::sync::Arc;

use smallvec::SmallVec;
use udeck_via::transport::{Refused, TransferStatus};

use super::incoming::Target;
use super::outgoing::{Out, Then};
use super::{Connection, Phase, Side};
use crate::close::cut;
use crate::framed::wire::{Frame, MAX_WORDS, Violation};
use crate::memory::Place;

impl Connection {
    /// How the connection is over for the program, if it is.
    pub(crate) fn end(&self) -> Option<Refused> {
        self.close.end()
    }

    /// [`udeck_via::transport::ViEndpoint::close`].
    pub(crate) fn close(&mut self, broken: Option<&str>) {
        if self.close.closed {
            // What broke it off may have left something to read.
            self.recv_queue.clear();
            return;
        }
        self.recv_queue.clear();
        self.send_end(broken);
        self.try_over();
    }

    /// Ends it by an error that lies with the peer but not in its protocol: both programs learn why.
    pub(super) fn break_off(&mut self, why: &str) {
        self.close.report_loss(why, &mut self.events);
        // The peer counts them as unread.
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
            // What the peer holds back, and its end behind that, would wait for us as ours does for it.
            self.control(Frame::Deaf, Then::Nothing);
        }
    }

    /// The peer has ended it.
    pub(super) fn on_end(&mut self, broken: bool) {
        let words = std::mem::take(&mut self.incoming.words);
        self.close.peer_ended(broken.then_some(words), &mut self.events);
        // Its program takes nothing any more: what it had not taken it never does.
        let taken = self.window.taken();
        self.settle_all(TransferStatus::Unread, |number| number >= taken);
        while !self.reads.is_empty() {
            self.end_read(TransferStatus::Unread);
        }
        self.let_go();
        self.stay(TransferStatus::Unread);
        self.events.tell_end();
    }

    /// The peer broke the protocol. What is queued already still leaves, if the stream takes it, and the words last.
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

    /// The stream broke, or the peer is dead: everything under way is lost, nothing is gathered any more. `why` is for
    /// the program. After the peer's end this is an orderly end that nobody waits for any longer. May be repeated.
    pub fn lost(&mut self, why: &str) {
        let Some(status) = self.close.die(why, &mut self.events) else { return };
        self.incoming.target = Target::Nowhere;
        self.recv_queue.forget_receipts();
        self.owed = 0;
        let end = self.outgoing.end();
        while let Some(then) = self.outgoing.pop_released(end) {
            self.after(then, status);
        }
        while let Some(held_back) = self.held_back.pop_front() {
            self.after(held_back.out.into_then(), status);
        }
        self.stay(status);
        while !self.reads.is_empty() {
            self.end_read(status);
        }
        self.settle_all(status, |_| true);
        self.events.tell_end();
    }

    /// The peer's direction of the stream ended.
    pub fn hung_up(&mut self) {
        self.lost(
            "its stream ended without a goodbye: the peer's process has died, or its NIC was closed by force",
        );
    }

    /// Whether it is open, and nothing waits to be sent but in its stream: what it is after most looks.
    #[inline]
    pub fn is_calm(&self) -> bool {
        !(self.close.dead || self.broken || self.over || self.holds_back())
    }

    /// The peer gave up waiting for the answer to its request, and never used the connection.
    pub fn withdrawn(&mut self) {
        self.close.peer_ended(None, &mut self.events);
        self.lost("the peer gave up waiting for an answer to its request");
    }

    /// How far it is.
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

    /// Says *over* when the time has come.
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
            self.control(Frame::Over, Then::Nothing);
            self.over = true;
        }
    }
}

fn end_frame(broken: Option<&str>) -> Out {
    let words = broken.map_or("", |words| cut(words, MAX_WORDS));
    let words: Arc<[u8]> = words.as_bytes().into();
    let frame = Frame::End { broken: broken.is_some(), len: words.len() as u64 };
    let body = SmallVec::from_iter([Place::bytes(&words)]);
    Out::new(frame, [&[], &[]], body, Then::Words(words))
}
