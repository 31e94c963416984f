//! How a connection ends.
//!
//! In order: each side says *end* when it closes (no messages, writes, reads or answers come from it any more, and it
//! takes none), but goes on giving receipts for what its program has taken. When both have, and neither side waits for
//! anything, each says *over*, the side that accepted last: so the other one knows, when it hears that, that the peer
//! has everything of it, and may reset the stream.

use std::sync::Arc;

use smallvec::SmallVec;
use udeck_via::transport::{Fate, Refused};

use super::incoming::Target;
use super::outgoing::{Out, Then};
use super::{Connection, Phase, Side};
use crate::memory::Place;
use crate::wire::{Frame, MAX_WORDS, Violation};

impl Connection {
    /// How the connection is over for the program, if it is.
    pub(crate) fn end(&self) -> Option<Refused> {
        match (&self.peer_end, &self.lost) {
            (Some(Some(why)), _) => Some(Refused::Lost(format!("the peer ended it: {why}"))),
            (Some(None), _) => Some(Refused::Closed),
            (None, Some(why)) => Some(Refused::Lost(why.clone())),
            (None, None) => None,
        }
    }

    /// [`udeck_via::transport::Port::close`].
    pub(crate) fn close(&mut self, broken: Option<&str>) {
        if self.closed {
            // What broke it off may have left something to read.
            self.inbox.clear();
            return;
        }
        self.inbox.clear();
        self.say_end(broken);
        self.try_over();
    }

    /// Ends it by an error that lies with the peer but not in its protocol: both programs learn why.
    pub(super) fn break_off(&mut self, why: &str) {
        self.report_loss(why);
        // The peer counts them as unread.
        self.inbox_without_receipts();
        self.say_end(Some(why));
        self.settle_all(Fate::Lost, |_| true);
    }

    fn say_end(&mut self, broken: Option<&str>) {
        self.closed = true;
        if matches!(self.incoming.target, Target::Store(_) | Target::Window(..)) {
            self.incoming.target = Target::Nowhere;
        }
        if self.dead || self.broken {
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
    pub(super) fn end_came(&mut self, broken: bool) {
        let words = std::mem::take(&mut self.incoming.words);
        self.peer_end = Some(broken.then_some(words));
        if let (true, Some(Refused::Lost(why)), false) = (broken, self.end(), self.closed) {
            self.news.lost.get_or_insert(why);
        }
        // Its program takes nothing any more: what it had not taken it never does.
        let taken = self.peer_taken;
        self.settle_all(Fate::Unread, |number| number >= taken);
        while !self.reads.is_empty() {
            self.end_read(Fate::Unread);
        }
        self.let_go();
        self.stay(Fate::Unread);
        self.tell_end();
    }

    /// The peer broke the protocol. What is queued already still leaves, if the stream takes it, and the words last.
    pub(super) fn break_protocol(&mut self, violation: &Violation) {
        if self.broken || self.dead {
            return;
        }
        self.report_loss(&format!("the peer broke the protocol: it sent {violation}"));
        self.inbox_without_receipts();
        self.owed = 0;
        self.broken = true;
        if !self.closed {
            self.closed = true;
            self.queue(end_frame(Some(&format!("you broke the protocol: you sent {violation}"))));
        }
        self.incoming.target = Target::Nowhere;
    }

    /// The stream broke, or the peer is dead: everything under way is lost, nothing is gathered any more. `why` is for
    /// the program. After the peer's end this is an orderly end that nobody waits for any longer. May be repeated.
    pub fn lost(&mut self, why: &str) {
        if std::mem::replace(&mut self.dead, true) {
            return;
        }
        let fate = if self.peer_end.is_some() {
            Fate::Unread
        } else {
            self.report_loss(why);
            Fate::Lost
        };
        self.incoming.target = Target::Nowhere;
        self.inbox_without_receipts();
        self.owed = 0;
        let end = self.outgoing.end();
        while let Some(then) = self.outgoing.pop_released(end) {
            self.after(then, fate);
        }
        while let Some(held_back) = self.held_back.pop_front() {
            self.after(held_back.out.into_then(), fate);
        }
        self.stay(fate);
        while !self.reads.is_empty() {
            self.end_read(fate);
        }
        self.settle_all(fate, |_| true);
        self.tell_end();
    }

    /// The peer's direction of the stream ended.
    pub fn hung_up(&mut self) {
        self.lost(
            "its stream ended without a goodbye: the peer's process has died, or its NIC was closed by force",
        );
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        if self.dead {
            Phase::Over { abruptly: true }
        } else if self.broken {
            Phase::Broken
        } else if self.over && self.peer_over && self.outgoing.start() == self.outgoing.end() {
            Phase::Over { abruptly: self.side == Side::Asked }
        } else {
            Phase::Open
        }
    }

    /// Whether the program has closed it or its port is gone: a driver may then give up waiting for the peer after a
    /// time of its own (by [`Connection::lost`]).
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Says *over* when the time has come.
    pub(super) fn try_over(&mut self) {
        if !self.closed {
            return;
        }
        let ended = self.peer_end.is_some() && !self.dead && !self.broken;
        let nothing_waits = self.owed == 0
            && self.reads.is_empty()
            && !self.holds_back()
            && (self.loans.is_empty() || self.gone);
        let my_turn = self.side == Side::Asked || self.peer_over;
        if ended && nothing_waits && my_turn && !self.over {
            self.control(Frame::Over, Then::Nothing);
            self.over = true;
        }
    }

    fn report_loss(&mut self, why: &str) {
        if self.lost.is_none() && self.peer_end.is_none() {
            self.lost = Some(why.to_owned());
            if !self.closed {
                self.news.lost = Some(why.to_owned());
            }
        }
        self.tell_end();
    }

    fn tell_end(&mut self) {
        self.news.send = true;
        self.news_of_end = true;
    }

    /// No receipt will be given for what was not taken; what has arrived can still be read.
    fn inbox_without_receipts(&mut self) {
        for item in &mut self.inbox {
            item.forget_receipt();
        }
    }
}

fn end_frame(broken: Option<&str>) -> Out {
    let words = broken.map_or("", |words| &words[..words.floor_char_boundary_of(MAX_WORDS)]);
    let words: Arc<[u8]> = words.as_bytes().into();
    let frame = Frame::End { broken: broken.is_some(), len: words.len() as u64 };
    let body = SmallVec::from_iter([Place::bytes(&words)]);
    Out::new(frame, [&[], &[]], body, Then::Words(words))
}

/// Where a text can be cut.
trait Cut {
    fn floor_char_boundary_of(&self, most: usize) -> usize;
}

impl Cut for str {
    fn floor_char_boundary_of(&self, most: usize) -> usize {
        (0..=most.min(self.len())).rev().find(|&at| self.is_char_boundary(at)).unwrap_or(0)
    }
}
