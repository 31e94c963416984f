//! An endpoint with a plan.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::Plan;
use super::arrivals::{Arrivals, Taken};
use super::news_queue::{NewsQueues, QueueNews};
use crate::Connection;
use crate::random::Dice;
use udeck_via::mem::{Arena, Block, Lent, LentSlice, RemoteBuffer};
use udeck_via::transport::Reporter;
use udeck_via::transport::{
    Arrival, Found, Inline, Landed, LinkReport, Owner, PostedBuffer, Refused, ShortArrival, TransferStatus,
    ViEndpoint,
};

#[derive(Debug)]
pub struct FaultyEndpoint {
    inner: Box<dyn ViEndpoint>,
    outbox: Arc<Arena>,
    reporter: Arc<Reporter>,
    plan: Plan,
    seed: u64,
    number: u64,
    posts: Dice,
    losses: Dice,
    splits: Dice,
    arrivals: Arrivals,
    /// Receipt of the last arrival given to the program.
    receipt: Option<Lent>,
    /// Sends that were reported too early and that the caller has not polled yet.
    ended_early: VecDeque<u64>,
    /// Number of messages posted and arrived.
    messages: u64,
    lost: Option<String>,
    /// Whether the last post was refused without a reason of the transport.
    feigned_busy: bool,
    /// Whether room was requested since the last accepted post.
    wants_room: bool,
    send_news: QueueNews,
    receive_news: QueueNews,
}

impl FaultyEndpoint {
    pub fn new(
        inner: Box<dyn ViEndpoint>,
        plan: Plan,
        seed: u64,
        connection: &Connection<'_>,
        news_queues: &NewsQueues,
    ) -> Self {
        let number = connection.number;
        let [send_news, receive_news] = news_queues.news(connection);
        FaultyEndpoint {
            inner,
            outbox: connection.outbox.clone(),
            reporter: connection.queues.reporter.clone(),
            plan,
            seed,
            number,
            posts: Dice::new(seed, 4 * number),
            losses: Dice::new(seed, !(4 * number + 3)),
            splits: Dice::new(seed, !(4 * number + 1)),
            arrivals: Arrivals::new(
                [4 * number + 1, !(4 * number + 2)].map(|stream| Dice::new(seed, stream)),
            ),
            receipt: None,
            ended_early: VecDeque::new(),
            messages: 0,
            lost: None,
            feigned_busy: false,
            wants_room: false,
            send_news,
            receive_news,
        }
    }

    /// Whether the connection is alive. If its time has come, it is lost here, and both sides learn it.
    fn stands(&mut self) -> Result<(), Refused> {
        if self.lost.is_none() && self.plan.lose_after.is_some_and(|most| self.messages >= most) {
            let FaultyEndpoint { seed, number, messages, .. } = self;
            let why =
                format!("fault injection (seed {seed}) lost connection {number} after {messages} messages");
            self.inner.close(Some(&why));
            self.reporter.lost(&why);
            self.lost = Some(why);
            self.send_news.name();
            self.receive_news.name();
        }
        match &self.lost {
            Some(why) => Err(Refused::Lost(why.clone())),
            None => Ok(()),
        }
    }

    /// Decides about a post: it is refused, or whether it is to be reported too early.
    fn before_post(&mut self) -> Result<bool, Refused> {
        if let [true] = self.losses.throw([&self.plan.lose_at]) {
            self.plan.lose_after = Some(self.messages);
        }
        self.stands()?;
        let [busy, early] = self.posts.throw([&self.plan.busy, &self.plan.complete_early]);
        if busy {
            self.feigned_busy = true;
            self.tell_of_feigned_room();
            return Err(Refused::Busy);
        }
        Ok(early)
    }

    /// Records whether the transport accepted a post.
    fn after_post<T, E>(&mut self, posted: Result<T, E>) -> Result<T, E> {
        self.feigned_busy = false;
        if posted.is_ok() {
            self.wants_room = false;
            self.count_message();
        }
        posted
    }

    fn count_message(&mut self) {
        self.messages += 1;
        // A sleeping caller is told of a loss now; a caller that posts or receives learns of it the next time.
        let _ = self.stands();
    }

    /// Reports room after a feigned refusal: the transport has room, and will not report it itself.
    fn tell_of_feigned_room(&self) {
        if self.feigned_busy && self.wants_room {
            self.send_news.name();
        }
    }

    /// Lends `copy` instead of the posted buffer, which the caller gets back at once.
    fn lend_copy(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        copy: Block,
        number: u64,
    ) -> Result<(), Refused> {
        let segment = [(copy.offset(), copy.len())];
        self.inner
            .lend(immediate, head, &segment, PostedBuffer::Block(copy))
            .map_err(|(refused, _)| refused)?;
        self.ended_early.push_back(number);
        self.send_news.name();
        Ok(())
    }

    /// Writes `copy` instead of the posted buffer, which the caller gets back at once.
    fn write_copy(&mut self, copy: Block, to: RemoteBuffer, immediate: Option<u32>) -> Result<(), Refused> {
        let segment = [(copy.offset(), copy.len())];
        let written = self.inner.rdma_write(&segment, to, immediate, PostedBuffer::Block(copy));
        written.map(drop).map_err(|(refused, _)| refused)
    }

    /// Takes the next arrival from the transport, if there is one; and one more, if that is to overtake it.
    fn take(&mut self) -> Result<(), Refused> {
        self.take_one()?;
        if self.arrivals.hold_one_back() {
            // If this is the end, the next poll reports it, too.
            let _ = self.take_one();
            self.arrivals.release();
        }
        Ok(())
    }

    fn take_one(&mut self) -> Result<(), Refused> {
        match self.inner.receive() {
            Ok(Some(arrival)) => {
                let receipt = self.inner.receipt();
                self.arrivals.add(Taken { arrival, receipt }, &self.plan);
                self.count_message();
                Ok(())
            }
            Ok(None) => self.stands(),
            Err(end) => Err(self.stands().err().unwrap_or(end)),
        }
    }
}

/// Splits a single segment into halves.
fn in_two(segments: &[(u64, usize)]) -> Option<[(u64, usize); 2]> {
    let &[(offset, len)] = segments else { return None };
    let half = len / 2;
    Some([(offset, half), (offset + half as u64, len - half)])
}

#[deny(clippy::missing_trait_methods)]
// SAFETY: calls are passed on as they came, or not at all, to an endpoint that keeps the contract. What ends before that endpoint
// says so is a post in whose place a copy was lent or written, in a block of its own.
unsafe impl ViEndpoint for FaultyEndpoint {
    fn send(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result<(), Refused> {
        self.before_post()?;
        let sent = self.inner.send(immediate, head, body);
        self.after_post(sent)
    }

    fn send_short(&mut self, immediate: u32, head: [u8; 8], body: &[u8]) -> bool {
        self.send(Some(immediate), &head, body).is_ok()
    }

    fn send_short_run(&mut self, immediate: u32, head: [u8; 8], bodies: &[u8], each: usize) -> usize {
        bodies.chunks_exact(each).take_while(|body| self.send_short(immediate, head, body)).count()
    }

    fn lend(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        segments: &[(u64, usize)],
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        let early = match self.before_post() {
            Ok(early) => early,
            Err(refused) => return Err((refused, held)),
        };
        // Without memory for a copy, the post stays honest.
        let copy = if early { self.outbox.gather(segments).ok() } else { None };
        let [split] = self.splits.throw([&self.plan.split]);
        let halves = if split { in_two(segments) } else { None };
        let segments = halves.as_ref().map_or(segments, |halves| halves);
        let lent = match (held, copy) {
            (PostedBuffer::Caller(number), Some(copy)) => self
                .lend_copy(immediate, head, copy, number)
                .map_err(|refused| (refused, PostedBuffer::Caller(number))),
            (held, _) => self.inner.lend(immediate, head, segments, held),
        };
        self.after_post(lent)
    }

    fn rdma_write(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        let early = match self.before_post() {
            Ok(early) => early,
            Err(refused) => return Err((refused, held)),
        };
        // Without memory for a copy, the post stays honest.
        let copy = if early { self.outbox.gather(segments).ok() } else { None };
        let written = match (held, copy) {
            (PostedBuffer::Caller(number), Some(copy)) => self
                .write_copy(copy, to, immediate)
                .map(|()| Some(TransferStatus::Arrived))
                .map_err(|refused| (refused, PostedBuffer::Caller(number))),
            (held, _) => self.inner.rdma_write(segments, to, immediate, held),
        };
        self.after_post(written)
    }

    /// (An early end of a read is no possible lie: the data are written later.)
    fn rdma_read(
        &mut self,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        if let Err(refused) = self.before_post() {
            return Err((refused, held));
        }
        let read = self.inner.rdma_read(segments, from, held);
        self.after_post(read)
    }

    fn fence(&mut self) {
        self.inner.fence();
    }

    fn receive(&mut self) -> Result<Option<Arrival>, Refused> {
        self.receipt = None;
        if !self.arrivals.has_next() {
            self.take()?;
        }
        let next = self.arrivals.next();
        if self.arrivals.has_next() {
            // The transport does not know about these arrivals.
            self.receive_news.name();
        }
        Ok(next.map(|Taken { arrival, receipt }| {
            self.receipt = receipt;
            arrival
        }))
    }

    /// Declines: each arrival must pass through this endpoint's hands.
    fn receive_into(&mut self, _: &mut [u8]) -> Result<Option<Landed>, Refused> {
        Ok(self.receive()?.map(Landed::Arrival))
    }

    /// Declines, as [`receive_into`](Self::receive_into) does.
    fn receive_short(&mut self, _: &mut Inline) -> Found {
        Found::Other
    }

    /// Declines, as [`receive_into`](Self::receive_into) does.
    fn receive_short_run(&mut self, _: u8, _: &mut [ShortArrival]) -> usize {
        0
    }

    /// Declines, as [`receive_into`](Self::receive_into) does.
    fn receive_lent(&mut self, _: &mut Inline) -> Option<(Option<u32>, LentSlice)> {
        None
    }

    fn poll_completion(&mut self) -> Option<(u64, TransferStatus)> {
        match self.ended_early.pop_front() {
            Some(number) => Some((number, TransferStatus::Arrived)),
            None => self.inner.poll_completion(),
        }
    }

    fn receipt(&mut self) -> Option<Lent> {
        self.receipt.take()
    }

    fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        self.inner.keep(number, owner)
    }

    fn request_send_notify(&mut self) {
        self.inner.request_send_notify();
        self.wants_room = true;
        self.tell_of_feigned_room();
    }

    fn link_report(&self) -> Option<Weak<dyn LinkReport>> {
        self.inner.link_report()
    }

    fn unread(&mut self) -> Result<u32, Refused> {
        match self.inner.unread() {
            Ok(0) => Ok(0),
            unread => self.stands().and(unread),
        }
    }

    fn close(&mut self, broken: Option<&str>) {
        self.inner.close(broken);
    }

    fn leave(&mut self) {
        self.arrivals.clear();
        self.receipt = None;
        self.send_news.forget();
        self.receive_news.forget();
        self.inner.leave();
    }
}
