//! Loans of which somebody waits for the end, and how a connection ends.
//!
//! In order: each side says *end* when its program closes (no messages come from it any more, and it takes none), but goes on
//! reading what was offered before, and giving receipts for what its program has taken. When both have, and a side waits for
//! nothing any more, it is *done*, and says so on the lifeline; when both are, the queue pair goes.

use std::collections::VecDeque;

use udeck_sys::position::Position;
use udeck_via::transport::{Fate, Held, Owner, Refused};

use super::posting::{Post, Posted, Then};
use super::taking::{Item, Progress};
use super::{Connection, Phase};
use crate::wire::{Note, Violation};

/// A message or write of which a receipt is to come.
pub(super) struct Loan {
    pub number: Position,
    held: Held,
    /// Nobody reads its memory any more.
    released: bool,
    pub fate: Option<Fate>,
}

/// A message that the peer reads from our memory. Who awaits a receipt has it in a [`Loan`].
pub(super) struct Offered {
    pub number: Position,
    /// Its number on the queue pair where messages travel apart, once it has one.
    pub apart: Option<u32>,
    pub held: Option<Held>,
}

impl Loan {
    pub fn new(number: Position, held: Held) -> Self {
        Loan { number, held, released: false, fate: None }
    }
}

impl Connection {
    // ---- loans ----

    /// The next end of a caller's send or read.
    pub fn next_ended(&mut self) -> Option<(u64, Fate)> {
        self.ended.pop_front()
    }

    /// Puts `owner` in the place of the caller who was to be told of `number`.
    pub fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        let is_this = |held: &&mut Held| matches!(held, Held::Caller(other) if *other == number);
        let found = self.loans.iter_mut().map(|loan| &mut loan.held).find(is_this);
        let found = match found {
            Some(held) => Some(held),
            None => match self.offered.iter_mut().filter_map(|offered| offered.held.as_mut()).find(is_this) {
                // (One borrow at a time.)
                Some(_) => self.offered.iter_mut().filter_map(|offered| offered.held.as_mut()).find(is_this),
                None => self.held_in_flight().find(is_this),
            },
        };
        match found {
            Some(held) => {
                *held = Held::Owner(owner);
                Ok(())
            }
            None => Err(owner),
        }
    }

    /// Bytes of the outbox that were posted and are not over.
    pub fn lent_bytes(&mut self) -> usize {
        let loans: usize = self.loans.iter().map(|loan| loan.held.bytes()).sum();
        let offered: usize = self.offered.iter().flat_map(|offered| &offered.held).map(Held::bytes).sum();
        loans + offered + self.held_in_flight().map(|held| held.bytes()).sum::<usize>()
    }

    /// A request is over, as `fate` says if nobody else does.
    pub(super) fn after(&mut self, then: Then, fate: Fate) {
        match then {
            Then::Nothing => {}
            Then::Held(held) => self.end_held(held, fate),
            Then::Left(number) => self.release(number),
            Then::Read(held) => {
                self.reads -= 1;
                self.end_held(held, fate);
            }
            Then::Fetched(number) => self.fetched(number, fate),
        }
    }

    /// The peer has read, or will never read, what was offered. `false`: nothing was.
    pub(super) fn was_read(&mut self, narrow: u32) -> bool {
        let found = self.offered.iter().find(|offered| offered.number.narrow() == narrow);
        let Some(number) = found.map(|offered| offered.number) else { return false };
        self.end_offered(number, Fate::Arrived)
    }

    pub(super) fn end_offered(&mut self, number: Position, fate: Fate) -> bool {
        let Some(at) = self.offered.iter().position(|offered| offered.number == number) else { return false };
        match self.offered.remove(at).and_then(|offered| offered.held) {
            Some(held) => self.end_held(held, fate),
            None => self.release(number),
        }
        true
    }

    fn release(&mut self, number: Position) {
        if let Some(at) = self.loan_at(number) {
            self.loans[at].released = true;
            self.end_loan_if_over(at);
        }
    }

    /// Settles all of which nothing is known and that are meant.
    fn settle_all(&mut self, fate: Fate, meant: impl Fn(Position) -> bool) {
        for loan in self.loans.iter_mut().filter(|loan| loan.fate.is_none() && meant(loan.number)) {
            loan.fate = Some(fate);
        }
        let mut at = 0;
        while at < self.loans.len() {
            at += usize::from(!self.end_loan_if_over(at));
        }
    }

    pub(super) fn loan_at(&self, number: Position) -> Option<usize> {
        self.loans.binary_search_by_key(&number, |loan| loan.number).ok()
    }

    pub(super) fn end_loan_if_over(&mut self, at: usize) -> bool {
        let Some(Loan { released: true, fate: Some(fate), .. }) = self.loans.get(at) else { return false };
        let fate = *fate;
        if let Some(loan) = self.loans.remove(at) {
            self.end_held(loan.held, fate);
        }
        true
    }

    fn end_held(&mut self, held: Held, fate: Fate) {
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
    pub fn port_gone(&mut self) {
        self.gone = true;
        self.ended.clear();
        self.settle_all(Fate::Unread, |_| true);
    }

    // ---- the end ----

    /// How the connection is over for the program, if it is.
    pub fn end(&self) -> Option<Refused> {
        match (&self.peer_end, &self.lost) {
            (Some(Some(why)), _) => Some(Refused::Lost(format!("the peer ended it: {why}"))),
            (Some(None), _) => Some(Refused::Closed),
            (None, Some(why)) => Some(Refused::Lost(why.clone())),
            (None, None) => None,
        }
    }

    /// [`udeck_via::transport::Port::close`].
    pub fn close(&mut self, broken: Option<&str>) {
        self.empty_inbox();
        if !self.closed {
            self.say_end(broken);
        }
    }

    /// Nobody takes what lies there. What the device is filling stays until it has; who offered the rest has it back.
    fn empty_inbox(&mut self) {
        for item in std::mem::take(&mut self.inbox) {
            match item {
                Item::Offer(offer) if matches!(offer.progress, Progress::Waits) => {
                    self.offers -= 1;
                    self.notes.push(Note::Read(offer.number));
                }
                Item::Offer(_) => {
                    self.inbox.push_back(item);
                    continue;
                }
                _ => {}
            }
            self.is_gone(self.inbox.len(), false);
        }
    }

    /// Ends it by an error that lies with one of the programs, not in the protocol: both learn why.
    pub(super) fn break_off(&mut self, why: &str) {
        self.report_loss(why);
        // The peer counts them as unread.
        self.inbox_without_receipts();
        for post in std::mem::take(&mut self.posts) {
            self.drop_post(post.what, Fate::Lost);
        }
        self.say_end(Some(why));
        self.settle_all(Fate::Lost, |_| true);
    }

    fn say_end(&mut self, broken: Option<&str>) {
        self.closed = true;
        if !self.dead {
            self.post(Posted::End { words: broken.map(str::to_owned) });
        }
    }

    /// The peer has ended it.
    pub(super) fn end_came(&mut self, words: Option<String>) {
        let broken = words.is_some();
        if self.peer_end.is_none() {
            self.peer_end = Some(words);
        }
        if let (true, Some(Refused::Lost(why)), false) = (broken, self.end(), self.closed) {
            self.news.lost.get_or_insert(why);
        }
        // Its program takes nothing any more: what it had not taken it never does.
        let taken = self.peer_taken;
        self.settle_all(Fate::Unread, |number| number >= taken);
        self.drop_accesses();
        self.tell_end();
    }

    /// RDMA that the device does not have: the peer says nothing of its windows any more.
    fn drop_accesses(&mut self) {
        (self.seeking, self.says_where) = (None, None);
        let is_access = |what: &Posted| matches!(what, Posted::Write { .. } | Posted::Read { .. });
        let posts = std::mem::take(&mut self.posts).into_iter();
        let (accesses, others): (VecDeque<Post>, _) = posts.partition(|post| is_access(&post.what));
        self.posts = others;
        accesses.into_iter().for_each(|post| self.drop_post(post.what, Fate::Unread));
    }

    /// What the lifeline says of an end by an error.
    pub fn ended_by(&mut self, words: &str) {
        self.release_end();
        if self.peer_end.is_none() && self.lost.is_none() {
            self.end_came(Some(words.to_owned()));
        }
    }

    /// The peer broke the protocol: what it is told.
    pub(super) fn break_protocol(&mut self, violation: &Violation) {
        self.report_loss(&format!("the peer broke the protocol: it sent {violation}"));
        self.fail(&format!("you broke the protocol: you sent {violation}"));
    }

    /// The device does not do what was asked of it, or the protocol was broken: the peer is told `why`, and it is lost.
    pub fn fail(&mut self, why: &str) {
        self.last_words.get_or_insert_with(|| why.to_owned());
        self.report_loss(why);
    }

    /// Whether it has failed on this side: what the peer is to be told, before [`Connection::lost`].
    #[inline]
    pub fn failure(&self) -> Option<&str> {
        self.last_words.as_deref().filter(|_| !self.dead)
    }

    /// Everything under way is lost: the device has nothing of it any more. `why` is for the program. After the peer's end
    /// this is an orderly end that nobody waits for any longer. May be repeated.
    pub fn lost(&mut self, why: &str) {
        if std::mem::replace(&mut self.dead, true) {
            return;
        }
        self.release_end();
        let fate = if self.peer_end.is_some() {
            Fate::Unread
        } else {
            self.report_loss(why);
            Fate::Lost
        };
        self.inbox_without_receipts();
        (self.owed, self.fetching) = (0, None);
        self.notes.clear();
        self.inbox.retain(|item| !matches!(item, Item::Offer(_)));
        self.offers = 0;
        self.ground_all(fate);
        for offered in std::mem::take(&mut self.offered) {
            match offered.held {
                Some(held) => self.end_held(held, fate),
                None => self.release(offered.number),
            }
        }
        self.settle_all(fate, |_| true);
        self.tell_end();
    }

    /// How far it is.
    #[inline]
    pub fn phase(&self) -> Phase {
        match (self.dead, self.said_end && self.peer_end.is_some()) {
            (true, _) => Phase::Over,
            (false, false) => Phase::Open,
            (false, true) => self.phase_of_end(),
        }
    }

    fn phase_of_end(&self) -> Phase {
        let nothing_waits = self.owed == 0
            && self.reads == 0
            && self.flying() == 0
            && self.all_has_left()
            && self.offered.is_empty()
            && self.offers == 0
            && (self.loans.is_empty() || self.gone);
        match (nothing_waits, self.peer_done) {
            (true, true) => Phase::Over,
            (true, false) => Phase::Done,
            (false, _) => Phase::Open,
        }
    }

    /// Whether the program has closed it, and the peer has everything that was sent before.
    pub fn has_sent_all(&self) -> bool {
        self.said_end && self.flying() == 0 && self.all_has_left() && self.offered.is_empty()
    }

    /// The peer is done: it sends nothing any more and waits for nothing.
    pub fn peer_is_done(&mut self) {
        self.peer_done = true;
    }

    /// Whether the program has closed it or its port is gone: a driver may then give up waiting for the peer after a time of
    /// its own (by [`Connection::lost`]).
    pub fn is_closed(&self) -> bool {
        self.closed
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
