//! Sends of which somebody waits for the end.
//!
//! Below reliable reception a send is over when its data have left: its [`Held`] lies with its frame. At reliable
//! reception a caller waits for a receipt, and its memory is its own again when, besides, nobody gathers it any more.

use std::collections::VecDeque;

use smallvec::SmallVec;
use udeck_sys::position::Position;
use udeck_via::transport::{Fate, Held, Owner};

use super::Connection;
use super::outgoing::Then;
use crate::memory::Place;

/// A message or write of which a receipt is to come.
pub(super) struct Loan {
    pub number: Position,
    held: Held,
    /// Nobody reads its memory any more.
    released: bool,
    fate: Option<Fate>,
}

/// A read that is not over.
pub(super) struct Reading {
    pub number: Position,
    pub places: SmallVec<[Place; 2]>,
    pub len: usize,
    pub held: Held,
}

impl Loan {
    pub fn new(number: Position, held: Held) -> Self {
        Loan { number, held, released: false, fate: None }
    }
}

impl Connection {
    /// The next end of a caller's send or read.
    pub(crate) fn next_ended(&mut self) -> Option<(u64, Fate)> {
        self.ended.pop_front()
    }

    /// Puts `owner` in the place of the caller who was to be told of `number`.
    pub(crate) fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        let frames =
            self.outgoing.iter_mut().chain(self.held_back.iter_mut().map(|held_back| &mut held_back.out));
        let frames = frames.chain(self.apart.iter_mut().flat_map(|apart| apart.posts_mut()));
        let in_frames = frames.filter_map(|out| match out.then_mut() {
            Then::Held(held) => Some(held),
            _ => None,
        });
        let in_loans = self.loans.iter_mut().map(|loan| &mut loan.held);
        let in_reads = self.reads.iter_mut().map(|read| &mut read.held);
        let is_this = |held: &&mut Held| matches!(held, Held::Caller(other) if *other == number);
        match in_frames.chain(in_loans).chain(in_reads).find(is_this) {
            Some(held) => {
                *held = Held::Owner(owner);
                Ok(())
            }
            None => Err(owner),
        }
    }

    /// Bytes of the outbox that were posted and are not over.
    pub(crate) fn lent_bytes(&self) -> usize {
        let frames = self.outgoing.iter().chain(self.held_back.iter().map(|held_back| &held_back.out));
        let frames = frames.chain(self.apart.iter().flat_map(|apart| apart.posts()));
        let in_frames = frames.map(|out| match out.then() {
            Then::Held(held) => held.bytes(),
            _ => 0,
        });
        let in_loans = self.loans.iter().map(|loan| loan.held.bytes());
        in_frames.chain(in_loans).chain(self.reads.iter().map(|read| read.held.bytes())).sum()
    }

    /// A frame is not needed any more; `fate` is that of what it carried, if nobody else is to say.
    pub(super) fn after(&mut self, then: Then, fate: Fate) {
        match then {
            Then::Held(held) => self.end_held(held, fate),
            Then::Left(number) => {
                let Some(at) = self.loan_at(number) else { return };
                self.loans[at].released = true;
                self.end_loan_if_over(at);
            }
            Then::Nothing | Then::Served(_) | Then::Receipt | Then::Words(_) => {}
        }
    }

    /// What became of the message whose number is `narrow` on the wire. `false`: nobody waits for that. A receipt may come when
    /// 2^32 messages have been sent since; then the loan tells which one is meant.
    pub(super) fn settle(&mut self, narrow: u32, fate: Fate) -> bool {
        let found = self.sent.all_of(narrow).find_map(|number| self.loan_at(number));
        let Some(at) = found else { return false };
        self.loans[at].fate.get_or_insert(fate);
        self.end_loan_if_over(at);
        true
    }

    /// Settles all of which nothing is known and that are meant.
    pub(super) fn settle_all(&mut self, fate: Fate, meant: impl Fn(Position) -> bool) {
        for loan in self.loans.iter_mut().filter(|loan| loan.fate.is_none() && meant(loan.number)) {
            loan.fate = Some(fate);
        }
        let mut at = 0;
        while at < self.loans.len() {
            at += usize::from(!self.end_loan_if_over(at));
        }
    }

    /// The oldest read is over.
    pub(super) fn end_read(&mut self, fate: Fate) {
        let Some(read) = self.reads.pop_front() else { return };
        self.reads_over = self.reads_over.plus(1);
        self.end_held(read.held, fate);
        self.let_go();
    }

    fn loan_at(&self, number: Position) -> Option<usize> {
        self.loans.binary_search_by_key(&number, |loan| loan.number).ok()
    }

    fn end_loan_if_over(&mut self, at: usize) -> bool {
        let Some(Loan { released: true, fate: Some(fate), .. }) = self.loans.get(at) else { return false };
        let fate = *fate;
        if let Some(loan) = self.loans.remove(at) {
            self.end_held(loan.held, fate);
        }
        true
    }

    pub(super) fn end_held(&mut self, held: Held, fate: Fate) {
        match held {
            Held::Caller(_) if self.gone => {}
            Held::Caller(number) => self.ended.push_back((number, fate)),
            Held::Block(block) => drop(block),
            Held::Owner(owner) => self.news.buried.push(owner),
        }
        self.tell_of_room();
    }

    pub(super) fn tell_of_room(&mut self) {
        self.news.send |= self.wants_room;
    }

    /// The program is gone: what has left is nobody's concern any more.
    pub(crate) fn port_gone(&mut self) {
        self.gone = true;
        self.ended = VecDeque::new();
        self.settle_all(Fate::Unread, |_| true);
        self.try_over();
    }
}
