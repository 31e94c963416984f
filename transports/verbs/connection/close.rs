//! Who has the memory of what was posted, and how a connection ends.
//!
//! In order: each side says *end* when its program closes (no messages come from it any more, and it takes none), but goes on
//! with the read that it has begun of what was offered, gives the other offers back unread, and gives receipts for what its program has taken. When both have, and a side waits for
//! nothing any more, it is *done*, and says so on the out-of-band connection; when both are, the queue pair goes.

use std::collections::VecDeque;

use udeck_session::keep;
use udeck_sys::position::Position;
use udeck_via::transport::{Owner, PostedBuffer, Refused, TransferStatus};

use super::recv_queue::{Item, Progress};
use super::send_engine::held_in_flight;
use super::send_queue::{Post, Posted, Then};
use super::{Connection, Phase};
use crate::wire::{Note, Violation};

/// A message that the peer reads from our memory.
pub(super) struct Offered {
    pub number: Position,
    /// Its number on the queue pair where messages travel on the unreliable queue pair, once it has one.
    pub unreliable: Option<u32>,
    /// Who is told when the peer has read it. `None`: somebody awaits a receipt, and [`udeck_session::Unacked`] has that.
    pub held: Option<PostedBuffer>,
}

impl Connection {
    // ---- memory that was posted ----

    /// The next end of a caller's send or read.
    pub fn next_completion(&mut self) -> Option<(u64, TransferStatus)> {
        self.unacked.next_completion()
    }

    /// Puts `owner` in the place of the caller who was to be told of `number`.
    pub fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        let Connection { unacked, offered, flying, unreliable, posts, .. } = self;
        let offered = offered.iter_mut().filter_map(|offered| offered.held.as_mut());
        let in_flight = held_in_flight(flying, unreliable.as_mut(), posts);
        keep(unacked.held_mut().chain(offered).chain(in_flight), number, owner)
    }

    /// Bytes of the outbox that were posted and are not over.
    pub fn lent_bytes(&mut self) -> usize {
        let unacked = self.unacked.lent_bytes();
        let offered: usize =
            self.offered.iter().flat_map(|offered| &offered.held).map(PostedBuffer::bytes).sum();
        unacked
            + offered
            + held_in_flight(&mut self.flying, self.unreliable.as_mut(), &mut self.posts)
                .map(|held| held.bytes())
                .sum::<usize>()
    }

    /// A request is over, as `status` says if nobody else does.
    pub(super) fn after(&mut self, then: Then, status: TransferStatus) {
        match then {
            Then::Nothing => {}
            Then::Held(held) => self.end_held(held, status),
            Then::Left(number) => self.release(number),
            Then::Read(held) => {
                self.reads -= 1;
                self.end_held(held, status);
            }
            Then::ReadDone(number) => self.read_done(number, status),
        }
    }

    /// The peer has read, or will never read, what was offered. `false`: nothing was.
    pub(super) fn was_read(&mut self, narrow: u32) -> bool {
        let found = self.offered.iter().find(|offered| offered.number.narrow() == narrow);
        let Some(number) = found.map(|offered| offered.number) else { return false };
        self.end_offered(number, TransferStatus::Arrived)
    }

    pub(super) fn end_offered(&mut self, number: Position, status: TransferStatus) -> bool {
        let Some(at) = self.offered.iter().position(|offered| offered.number == number) else { return false };
        match self.offered.remove(at).and_then(|offered| offered.held) {
            Some(held) => self.end_held(held, status),
            None => self.release(number),
        }
        true
    }

    fn release(&mut self, number: Position) {
        self.unacked.release(number, &mut self.events);
    }

    #[inline]
    fn end_held(&mut self, held: PostedBuffer, status: TransferStatus) {
        self.unacked.end(held, status, &mut self.events);
    }

    #[inline]
    pub(super) fn tell_of_room(&mut self) {
        self.unacked.tell_of_room(&mut self.events);
    }

    /// The program is gone: what has left is nobody's concern any more.
    pub fn endpoint_gone(&mut self) {
        self.unacked.endpoint_gone(&mut self.events);
    }

    // ---- the end ----

    /// How the connection is over for the program, if it is.
    pub fn end(&self) -> Option<Refused> {
        self.close.end()
    }

    /// [`udeck_via::transport::ViEndpoint::close`].
    pub fn close(&mut self, broken: Option<&str>) {
        self.clear_recv_queue();
        if !self.close.closed {
            self.send_end(broken);
        }
    }

    /// Nobody takes what lies there. What the device is filling stays until it has; who offered the rest has it back.
    fn clear_recv_queue(&mut self) {
        for item in std::mem::take(&mut *self.recv_queue) {
            match item {
                Item::Pending(offer) if matches!(offer.progress, Progress::Waits) => {
                    self.offers -= 1;
                    self.notes.push(Note::Read(offer.number));
                }
                Item::Pending(_) => {
                    self.recv_queue.push_back(item);
                    continue;
                }
                _ => {}
            }
            self.is_gone(self.recv_queue.len(), false);
        }
    }

    /// Ends it by an error that lies with one of the programs, not in the protocol: both learn why.
    pub(super) fn break_off(&mut self, why: &str) {
        self.close.report_loss(why, &mut self.events);
        // The peer counts them as unread.
        self.recv_queue.forget_receipts();
        self.drop_posts(TransferStatus::Lost, |_| true);
        self.send_end(Some(why));
        self.unacked.settle_all(TransferStatus::Lost, &mut self.events, |_| true);
    }

    fn send_end(&mut self, broken: Option<&str>) {
        self.close.closed = true;
        if !self.close.dead {
            self.post(Posted::End { words: broken.map(str::to_owned) });
        }
    }

    /// The peer has ended it.
    pub(super) fn on_end(&mut self, words: Option<String>) {
        self.close.peer_ended(words, &mut self.events);
        // Its program takes nothing any more: what it had not taken it never does.
        let taken = self.window.taken();
        self.unacked.settle_all(TransferStatus::Unread, &mut self.events, |number| number >= taken);
        self.drop_accesses();
        self.events.tell_end();
    }

    /// RDMA that the device does not have: the peer says nothing of its windows any more.
    fn drop_accesses(&mut self) {
        (self.seeking, self.says_where) = (None, None);
        self.drop_posts(TransferStatus::Unread, |post| matches!(post.what, Posted::Access(_)));
    }

    /// Drops the posts of a kind, but for one that the device has begun: it uses that one's memory, and gets the rest of it.
    fn drop_posts(&mut self, status: TransferStatus, is_meant: impl Fn(&Post) -> bool) {
        let posts = std::mem::take(&mut self.posts).into_iter();
        let (dropped, kept): (VecDeque<Post>, _) =
            posts.partition(|post| is_meant(post) && !post.has_begun());
        self.posts = kept;
        dropped.into_iter().for_each(|mut post| self.drop_post(&mut post.what, status));
    }

    /// What the out-of-band connection says of an end by an error.
    pub fn ended_by(&mut self, words: &str) {
        self.release_end();
        if !self.close.is_ended() {
            self.on_end(Some(words.to_owned()));
        }
    }

    /// The peer gave up waiting for the answer to its request, and never used the connection.
    pub fn withdrawn(&mut self) {
        if !self.close.is_ended() {
            self.on_end(None);
        }
        self.lost("the peer gave up waiting for an answer to its request");
    }

    /// The peer broke the protocol: what it is told.
    pub(super) fn break_protocol(&mut self, violation: &Violation) {
        self.close
            .report_loss(&format!("the peer broke the protocol: it sent {violation}"), &mut self.events);
        self.fail(&format!("you broke the protocol: you sent {violation}"));
    }

    /// The device does not do what was asked of it, or the protocol was broken: the peer is told `why`, and it is lost.
    pub fn fail(&mut self, why: &str) {
        self.last_words.get_or_insert_with(|| why.to_owned());
        self.close.report_loss(why, &mut self.events);
    }

    /// Whether it has failed on this side: what the peer is to be told, before [`Connection::lost`].
    #[inline]
    pub fn failure(&self) -> Option<&str> {
        self.last_words.as_deref().filter(|_| !self.close.dead)
    }

    /// Everything under way is lost: the device has nothing of it any more. `why` is for the program. After the peer's end
    /// this is an orderly end that nobody waits for any longer. May be repeated.
    pub fn lost(&mut self, why: &str) {
        if !self.close.dead {
            self.release_end();
        }
        let Some(status) = self.close.die(why, &mut self.events) else { return };
        self.recv_queue.forget_receipts();
        (self.owed, self.reading) = (0, None);
        self.recv_queue.retain(|item| !matches!(item, Item::Pending(_)));
        // What lay behind an offer lies in front now.
        self.skip_silent();
        self.notes.clear();
        self.offers = 0;
        self.ground_all(status);
        for offered in std::mem::take(&mut self.offered) {
            match offered.held {
                Some(held) => self.end_held(held, status),
                None => self.release(offered.number),
            }
        }
        self.unacked.settle_all(status, &mut self.events, |_| true);
        self.events.tell_end();
    }

    /// How far it is.
    #[inline]
    pub fn phase(&self) -> Phase {
        match (self.close.dead, self.end_sent && self.close.peer_has_ended()) {
            (true, _) => Phase::Over,
            (false, false) => Phase::Open,
            (false, true) => self.phase_of_end(),
        }
    }

    fn phase_of_end(&self) -> Phase {
        let nothing_waits = self.owed == 0
            && self.reads == 0
            && self.flying() == 0
            && self.is_all_posted()
            && self.offered.is_empty()
            && self.offers == 0
            && !self.unacked.is_awaited();
        match (nothing_waits, self.peer_done) {
            (true, true) => Phase::Over,
            (true, false) => Phase::Done,
            (false, _) => Phase::Open,
        }
    }

    /// Whether the program has closed it, and the peer has everything that was sent before.
    pub fn has_sent_all(&self) -> bool {
        self.end_sent && self.flying() == 0 && self.is_all_posted() && self.offered.is_empty()
    }

    /// The peer is done: it sends nothing any more and waits for nothing.
    pub fn peer_is_done(&mut self) {
        self.peer_done = true;
    }

    /// Whether the program has closed it or its endpoint is gone: a driver may then give up waiting for the peer after a time of
    /// its own (by [`Connection::lost`]).
    pub fn is_closed(&self) -> bool {
        self.close.closed
    }
}
