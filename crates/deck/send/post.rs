//! Accepting a message: sending it at once if possible, otherwise queueing it.

use std::time::Instant;

use udeck_boot::waits::Call;
use udeck_via::mem::Fill;
use udeck_via::{Block, Deadline, Error as ViaError, Vi, copy_bytes};

use super::requests::RequestId;
use super::{BlockFailure, Channel};
use crate::connect::attempt::Attempt;
use crate::error::{Error, Result};
use crate::long_wait::LongWait;
#[cfg(doc)]
use crate::protocol::auto::Dispatch;
use crate::protocol::auto::{Plan, Step};
use crate::protocol::handshake::{self, Host, Pairs, PostTiming};
use crate::protocol::message_block::{MessageBlock, PostFailure};
use crate::protocol::outgoing::Outgoing;
use crate::protocol::side::{SendSide, is_busy};
use crate::protocol::{Protocol, eager, hand_off};
use crate::wait_policy::{WaitPolicy, poll_deadline};
use crate::wire::{Introduction, Role};

impl Channel {
    /// Sends a message on the fast path: it is short ([`Dispatch::is_short`]), nothing is queued before it,
    /// and the mailbox has room. `false`: nothing was done; the slow path finds out why.
    #[inline]
    pub fn post_short(&mut self, bytes: &[u8], tag: u32) -> bool {
        debug_assert!(!self.has_queued());
        if self.side.world.has_news_for_posts() {
            return false;
        }
        eager::post_short(&mut self.side, bytes, tag)
    }

    /// Sends messages of `each` bytes that lie one after another in `bytes`, without tags, on the fast path.
    /// Returns how many were sent.
    pub fn post_short_run(&mut self, bytes: &[u8], each: usize) -> usize {
        debug_assert!(!self.has_queued());
        if self.side.world.has_news_for_posts() {
            return 0;
        }
        eager::post_short_run(&mut self.side, bytes, each)
    }

    /// Hands off a message ([`Dispatch::is_handed_off`]) on the fast path of most long messages. If it
    /// cannot, the message comes back.
    #[inline]
    pub fn post_handed_off(&mut self, block: Block) -> Result<(), Block> {
        debug_assert!(!self.has_queued());
        if self.side.world.has_news_for_posts() {
            return Err(block);
        }
        let len = block.len();
        hand_off::send_own(&mut self.side, block)?;
        self.side.counters.posted(len);
        self.side.counters.by(Protocol::HandOff);
        Ok(())
    }

    /// Accepts any message. Waits, if it must, for a place in the queue. Returns a request for
    /// [`WaitPolicy::Queue`].
    pub fn post(
        &mut self,
        block: MessageBlock,
        protocol: Protocol,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, PostFailure> {
        let plan = self.selector.plan(protocol, block.len());
        match self.admit(plan, policy) {
            Ok(policy) => self.post_admitted(block, plan, policy),
            Err(error) => Err((error, Some(block))),
        }
    }

    /// Reports earlier messages that were not delivered, and takes a place for a further one. A handshake
    /// needs none. Returns the policy of the post's further waits.
    fn admit(&mut self, plan: Plan, policy: WaitPolicy) -> Result<WaitPolicy> {
        if self.side.world.has_news_for_posts() {
            self.undelivered()?;
        }
        if plan.step == Step::Handshake { Ok(policy) } else { self.take_place(policy) }
    }

    /// Accepts a message that has its place ([`Channel::admit`]).
    fn post_admitted(
        &mut self,
        block: MessageBlock,
        plan: Plan,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, PostFailure> {
        let len = block.len();
        let request = match plan.step {
            Step::Inline | Step::Bounce | Step::Lend if self.may_bypass_queue() => {
                self.post_now(block, plan, policy)?
            }
            Step::Handshake => return self.post_and_wait(block, policy),
            _ => self.post_queued(block, plan, policy)?,
        };
        self.side.counters.by(plan.protocol);
        self.side.counters.posted(len);
        Ok(request)
    }

    fn post_now(
        &mut self,
        block: MessageBlock,
        plan: Plan,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, PostFailure> {
        match self.send(block, plan.step) {
            Ok(()) => Ok(None),
            Err((error, block)) => self.post_now_slow(error, block, plan, policy),
        }
    }

    #[cold]
    fn post_now_slow(
        &mut self,
        mut error: ViaError,
        mut block: MessageBlock,
        plan: Plan,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, PostFailure> {
        let (start, until, mut wait) = (Instant::now(), self.until(policy), LongWait::begin("memory"));
        let policy = until.map_or(policy, WaitPolicy::Until);
        // The wait for memory is here, because a message that waits in the queue takes some itself.
        while matches!(error, ViaError::NoMemory { .. }) && !matches!(policy, WaitPolicy::Queue) {
            let deadline = match self.may_wait_holding(block.kept(), until, start, &error) {
                Ok(deadline) => deadline,
                Err(why) => return Err((why, Some(block))),
            };
            // Takes a grant that was asked for ahead, which would end each wait at once. The next try reports
            // an error.
            self.take_all_answers().ok();
            if let Err(why) = self.wait(poll_deadline(&error, deadline), &mut wait, Call::Post) {
                return Err((why, Some(block)));
            }
            match self.send(block, plan.step) {
                Ok(()) => return Ok(None),
                Err((again, returned)) => (error, block) = (again, returned),
            }
        }
        if !is_busy(&error) {
            return Err((self.translate(error, policy), Some(block)));
        }
        if plan.step == Step::Bounce {
            // Queued, so that the message is not copied again at each try.
            let request = self.post_queued(block, plan, policy)?;
            self.retry_spinning(until, |channel| {
                channel.progress();
                channel.queue.is_empty().then_some(())
            });
            return Ok(request);
        }
        let mut message = Some(block);
        let sent = self.retry_spinning(until, |channel| match channel.send(message.take()?, plan.step) {
            Ok(()) => Some(Ok(())),
            Err((error, returned)) if is_busy(&error) => {
                message = Some(returned);
                None
            }
            Err(failed) => Some(Err(failed)),
        });
        match (sent, message) {
            (None, Some(block)) => self.post_queued(block, plan, policy),
            (Some(Err((error, block))), _) => Err((self.translate(error, policy), Some(block))),
            _ => Ok(None),
        }
    }

    /// Sends a message that needs no announcement. Unless it is lent, its block is not needed any more
    /// afterwards.
    fn send(&mut self, block: MessageBlock, step: Step) -> Result<(), (ViaError, MessageBlock)> {
        let len = block.len();
        if step == Step::Lend {
            hand_off::send(&mut self.side, block)?;
        } else if let Err(error) = eager::send(&mut self.side, &block) {
            return Err((error, block));
        }
        self.note_sent(len);
        Ok(())
    }

    /// Accepts a copy of `bytes` as a message, in a block unless it is short. Waits like [`Channel::post`],
    /// and, once the message has its place, for the block's memory: a post that waits for its place holds no
    /// memory. (The caller has tried [`Channel::post_short`].)
    #[cold]
    pub fn post_copy(
        &mut self,
        bytes: &[u8],
        tag: u32,
        protocol: Protocol,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>> {
        let limit = self.side.vi.nic().attributes().max_transfer;
        if bytes.len() > limit {
            return Err(Error::TooLarge { asked: bytes.len(), limit });
        }
        let plan = self.selector.plan(protocol, bytes.len());
        if plan.step == Step::Inline {
            return self.post_short_copy(bytes, tag, plan, policy);
        }
        let (start, until, mut wait) = (Instant::now(), self.until(policy), LongWait::begin("memory"));
        let policy = self.admit(plan, until.map_or(policy, WaitPolicy::Until))?;
        let mut block = loop {
            self.check_open(policy)?;
            match self.side.world.allocate_leaving_room(bytes.len(), Fill::Keep) {
                Ok(block) => break block,
                Err(error) if is_busy(&error) => {
                    let deadline = self.may_wait(until, start, &error)?;
                    self.wait(poll_deadline(&error, deadline), &mut wait, Call::Post)?;
                }
                Err(error) => return Err(self.translate(error, policy)),
            }
        };
        copy_bytes(block.bytes_mut(), bytes);
        block.set_notes([tag, 0]);
        self.side.counters.copied(bytes.len());
        self.post_admitted(MessageBlock::Own(block), plan, policy).map_err(|(error, _)| error)
    }

    /// Accepts a short message, which takes no memory of the library.
    fn post_short_copy(
        &mut self,
        bytes: &[u8],
        tag: u32,
        plan: Plan,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>> {
        let policy = self.admit(plan, policy)?;
        self.check_open(policy)?;
        let sent = if self.may_bypass_queue() { self.send_short(bytes, tag, policy) } else { Ok(false) };
        let request = match sent {
            Ok(true) => None,
            Ok(false) => {
                let queued = self.enqueue(Outgoing::short(bytes, tag), policy);
                queued.map_err(|(error, _)| error)?
            }
            Err(error) => return Err(self.translate(error, policy)),
        };
        self.side.counters.posted(bytes.len());
        Ok(request)
    }

    /// Sends a short message, before which none waits. `false`: there is no room, and none comes soon.
    fn send_short(&mut self, bytes: &[u8], tag: u32, policy: WaitPolicy) -> Result<bool, ViaError> {
        let attempt = |channel: &mut Self| match eager::send_short(&mut channel.side, bytes, tag) {
            Err(error) if is_busy(&error) => None,
            sent => Some(sent),
        };
        let sent = attempt(self).or_else(|| self.retry_spinning(self.until(policy), attempt));
        match sent {
            Some(Ok(())) => {
                self.note_sent(bytes.len());
                Ok(true)
            }
            Some(Err(error)) => Err(error),
            None => Ok(false),
        }
    }

    /// Posts a message by `handshake`, and waits until the mailbox has received it. Its descriptor has to own
    /// what it sends, so a shared message is copied.
    fn post_and_wait(
        &mut self,
        block: MessageBlock,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, PostFailure> {
        let block = match block {
            MessageBlock::Own(block) => block,
            MessageBlock::Shared(shared) => {
                let posted = self.post_copy(shared.bytes(), shared.notes()[0], Protocol::Handshake, policy);
                return posted.map_err(|error| (error, None));
            }
        };
        let (start, len) = (Instant::now(), block.len());
        let posted = match self.check_handshake(policy, start) {
            Ok(deadline) => handshake::post(self, block, PostTiming { start, deadline }),
            Err(error) => Err((error, Some(block))),
        };
        let refused = |(error, block): BlockFailure| (error, block.map(MessageBlock::Own));
        posted.map_err(refused)?;
        self.side.counters.by(Protocol::Handshake);
        self.side.counters.posted(len);
        Ok(None)
    }

    fn check_handshake(&mut self, policy: WaitPolicy, start: Instant) -> Result<Deadline> {
        self.check(Protocol::Handshake)?;
        self.check_open(policy)?;
        if matches!(policy, WaitPolicy::Queue) {
            return Err(self.would_block_thread());
        }
        self.may_wait(self.until(policy), start, &mailbox_is_full())
    }
}

/// The error that stands for a full mailbox: its owner has to retrieve.
pub(super) fn mailbox_is_full() -> ViaError {
    ViaError::Full { what: "the mailbox", bound: "".into() }
}

/// The services of a channel that a handshake uses.
impl Host for Channel {
    fn side(&mut self) -> &mut SendSide {
        &mut self.side
    }

    fn pairs(&mut self) -> &mut Pairs {
        &mut self.pairs
    }

    fn owner(&self) -> u32 {
        self.owner
    }

    fn is_queue_drained(&mut self) -> bool {
        self.progress();
        self.queue.is_empty()
    }

    fn take_answers(&mut self) -> Result<bool, ViaError> {
        let answered = self.take_all_answers()?;
        if answered {
            self.note_queued();
        }
        Ok(answered)
    }

    fn wait_until<T>(
        &mut self,
        PostTiming { start, deadline }: PostTiming,
        mut poll: impl FnMut(&mut Self) -> Result<Option<T>, ViaError>,
    ) -> Result<T> {
        let mut wait = LongWait::begin("the mailbox");
        loop {
            self.side.vi.request_send_notify();
            match poll(self) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) => {
                    self.fail(&error);
                    return Err(self.translate(error, WaitPolicy::Until(deadline)));
                }
            }
            self.check_owner_alive()?;
            if deadline.passed() {
                return Err(self.too_late("posting", start, &mailbox_is_full()));
            }
            self.wait(deadline, &mut wait, Call::Post)?;
        }
    }

    fn connect(
        &mut self,
        mut attributes: udeck_via::ViAttributes,
        role: Role,
        PostTiming { start, deadline }: PostTiming,
    ) -> Result<Vi> {
        attributes.peer = Some(self.owner);
        let introduction = Introduction { postbox: self.number, role }.encode();
        let cq = self.cq.handle();
        let attempt = Attempt { start, deadline, waits: true };
        let connected = Vi::new(self.side.vi.nic(), attributes).and_then(|mut vi| {
            attempt.persist(None, || vi.connect(&self.to, &cq, &cq, &introduction, deadline))?;
            Ok(vi)
        });
        connected.map_err(|error| attempt.translate(&self.side.world, &self.mailbox, self.owner, error))
    }

    fn translate_error(&self, error: ViaError, time: PostTiming) -> Error {
        self.translate(error, WaitPolicy::Until(time.deadline))
    }

    fn end(&mut self, error: ViaError, time: PostTiming) -> Error {
        self.fail(&error);
        self.translate(error, WaitPolicy::Until(time.deadline))
    }
}
