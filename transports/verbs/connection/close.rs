//! Owners of posted memory, and the end of a connection.
//!
//! An orderly end has these steps. Each side says *end* when its program closes: no messages come from it any more,
//! and it takes none. It goes on with the read of an offer that it has begun, gives the other offers back unread,
//! and gives receipts for messages that its program has taken. When both sides have said *end*, and a side waits for
//! nothing any more, it is *done*, and says so on the out-of-band connection. When both are done, the queue pair
//! goes.

use std::collections::VecDeque;

use udeck_session::keep;
use udeck_sys::position::Position;
use udeck_via::transport::{Owner, PostedBuffer, Refused, TransferStatus};

use super::recv_queue::{Item, Progress};
use super::send_engine::held_in_flight;
use super::send_queue::{OnCompletion, Post, Posted};
use super::{Connection, Phase};
use crate::wire::{Note, Violation};

/// An offered message: the peer reads it from our memory.
pub(super) struct Offered {
    pub number: Position,
    /// Number of the offer on the unreliable queue pair, once it has one.
    pub unreliable: Option<u32>,
    /// Owner of the message's buffer, told when the peer has read it. `None`: a receipt is awaited, and
    /// [`udeck_session::Unacked`] has the buffer.
    pub held: Option<PostedBuffer>,
}

impl Connection {
    // ---- memory that was posted ----

    /// Returns the next completion of a caller's send or read.
    pub fn next_completion(&mut self) -> Option<(u64, TransferStatus)> {
        self.unacked.next_completion()
    }

    /// Lets `owner` hold the buffer of the send `number` instead of the caller, who is then not told of its completion.
    pub fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        let Connection { unacked, offered, in_flight, unreliable, posts, .. } = self;
        let offered = offered.iter_mut().filter_map(|offered| offered.held.as_mut());
        let in_flight = held_in_flight(in_flight, unreliable.as_mut(), posts);
        keep(unacked.held_mut().chain(offered).chain(in_flight), number, owner)
    }

    /// Bytes of the outbox whose posts are not complete.
    pub fn lent_bytes(&mut self) -> usize {
        let unacked = self.unacked.lent_bytes();
        let offered: usize =
            self.offered.iter().flat_map(|offered| &offered.held).map(PostedBuffer::bytes).sum();
        unacked
            + offered
            + held_in_flight(&mut self.in_flight, self.unreliable.as_mut(), &mut self.posts)
                .map(|held| held.bytes())
                .sum::<usize>()
    }

    /// Completes a request. `status` counts unless another status was set before.
    pub(super) fn complete(&mut self, on_completion: OnCompletion, status: TransferStatus) {
        match on_completion {
            OnCompletion::Nothing => {}
            OnCompletion::ReturnBuffer(held) => self.end_held(held, status),
            OnCompletion::MessageLeft(number) => self.release(number),
            OnCompletion::ProgramRead(held) => {
                self.reads -= 1;
                self.end_held(held, status);
            }
            OnCompletion::OfferRead(number) => self.read_done(number, status),
        }
    }

    /// Ends the offer of this number: the peer has read it, or will never read it. Returns `false` if there is none.
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
    pub(super) fn notify_room(&mut self) {
        self.unacked.notify_room(&mut self.events);
    }

    /// Notes that the program is gone: nobody waits for messages that have left.
    pub fn endpoint_gone(&mut self) {
        self.unacked.endpoint_gone(&mut self.events);
    }

    // ---- the end ----

    /// Returns how the connection is over for the program; `None` while it stands.
    pub fn end(&self) -> Option<Refused> {
        self.close.end()
    }

    /// Implements [`udeck_via::transport::ViEndpoint::close`].
    pub fn close(&mut self, broken: Option<&str>) {
        self.clear_recv_queue();
        if !self.close.closed {
            self.send_end(broken);
        }
    }

    /// Empties the receive queue. An offer that the device is reading stays until it is complete; unread offers are
    /// given back.
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
            self.forget_number(self.recv_queue.len(), false);
        }
    }

    /// Ends the connection by an error of one of the programs, not of the protocol. Both learn the reason.
    pub(super) fn break_off(&mut self, why: &str) {
        self.close.report_loss(why, &mut self.events);
        // The peer counts these messages as unread.
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

    /// Handles the peer's end.
    pub(super) fn on_end(&mut self, words: Option<String>) {
        self.close.peer_ended(words, &mut self.events);
        // The peer's program takes nothing any more: untaken messages stay unread.
        let taken = self.window.taken();
        self.unacked.settle_all(TransferStatus::Unread, &mut self.events, |number| number >= taken);
        self.drop_accesses();
        self.events.notify_end();
    }

    /// Drops RDMA accesses that the device does not have yet: the peer tells nothing of its windows any more.
    fn drop_accesses(&mut self) {
        (self.seeking, self.pending_where) = (None, None);
        self.drop_posts(TransferStatus::Unread, |post| matches!(post.what, Posted::Access(_)));
    }

    /// Drops posts that `is_meant` selects, but not one that the device has begun: the device uses its memory, and
    /// gets the rest of it.
    fn drop_posts(&mut self, status: TransferStatus, is_meant: impl Fn(&Post) -> bool) {
        let posts = std::mem::take(&mut self.posts).into_iter();
        let (dropped, kept): (VecDeque<Post>, _) =
            posts.partition(|post| is_meant(post) && !post.has_begun());
        self.posts = kept;
        dropped.into_iter().for_each(|mut post| self.drop_post(&mut post.what, status));
    }

    /// Handles the peer's end by an error, which the out-of-band connection has reported.
    pub fn ended_by(&mut self, words: &str) {
        self.release_end();
        if !self.close.is_ended() {
            self.on_end(Some(words.to_owned()));
        }
    }

    /// Handles a peer that gave up waiting for the answer to its request, and never used the connection.
    pub fn withdrawn(&mut self) {
        if !self.close.is_ended() {
            self.on_end(None);
        }
        self.lost("the peer gave up waiting for an answer to its request");
    }

    /// Fails the connection because the peer broke the protocol, and tells the peer.
    pub(super) fn break_protocol(&mut self, violation: &Violation) {
        self.close
            .report_loss(&format!("the peer broke the protocol: it sent {violation}"), &mut self.events);
        self.fail(&format!("you broke the protocol: you sent {violation}"));
    }

    /// Fails the connection because the device does not do its work, or the protocol was broken. The peer is told `why`.
    pub fn fail(&mut self, why: &str) {
        self.last_words.get_or_insert_with(|| why.to_owned());
        self.close.report_loss(why, &mut self.events);
    }

    /// Text for the peer if the connection has failed on this side, until [`Connection::lost`] is called.
    #[inline]
    pub fn failure(&self) -> Option<&str> {
        self.last_words.as_deref().filter(|_| !self.close.dead)
    }

    /// Ends everything in flight: the device has nothing of it any more. `why` is for the program. After the peer's
    /// end this is an orderly end that nobody waits for any longer. May be called again.
    pub fn lost(&mut self, why: &str) {
        if !self.close.dead {
            self.release_end();
        }
        let Some(status) = self.close.die(why, &mut self.events) else { return };
        self.recv_queue.forget_receipts();
        (self.owed, self.reading) = (0, None);
        self.recv_queue.retain(|item| !matches!(item, Item::Pending(_)));
        // Items that lay behind an offer are in front now.
        self.skip_silent();
        self.notes.clear();
        self.offers = 0;
        self.fail_all(status);
        for offered in std::mem::take(&mut self.offered) {
            match offered.held {
                Some(held) => self.end_held(held, status),
                None => self.release(offered.number),
            }
        }
        self.unacked.settle_all(status, &mut self.events, |_| true);
        self.events.notify_end();
    }

    /// Phase of the connection.
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
            && self.in_flight() == 0
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

    /// Whether the program has closed the connection, and the peer has everything that was sent before.
    pub fn has_sent_all(&self) -> bool {
        self.end_sent && self.in_flight() == 0 && self.is_all_posted() && self.offered.is_empty()
    }

    /// Notes that the peer is done: it sends nothing any more and waits for nothing.
    pub fn peer_is_done(&mut self) {
        self.peer_done = true;
    }

    /// Whether the program has closed the connection or its endpoint is gone. A driver may then give up waiting for
    /// the peer after a time of its own (by [`Connection::lost`]).
    pub fn is_closed(&self) -> bool {
        self.close.closed
    }
}
