//! Queued messages (announced, waiting behind an announced one, or without room), and the mailbox's answers.

use std::time::Instant;

use udeck_boot::waits::Call;
use udeck_via::mem::Fill;
use udeck_via::transport::{Arrival, Body};
use udeck_via::{Deadline, Error as ViaError, Pause, PollBudget, Spinner, job_time};

use super::Channel;
use super::incast::delay;
use super::post::mailbox_is_full;
use super::requests::RequestId;
use crate::error::{Error, Result, Titled};
use crate::long_wait::LongWait;
use crate::protocol::auto::{Plan, Step};
use crate::protocol::message_block::{MessageBlock, PostFailure};
use crate::protocol::outgoing::{Outgoing, copied_at_once};
use crate::protocol::side::is_busy;
use crate::wait_policy::WaitPolicy;
use crate::wire::{self, Kind};

/// Polls between two checks of the clock.
const POLLS_PER_CLOCK_CHECK: u32 = 16;

impl Channel {
    /// Accepts a message that cannot simply be sent. (Messages by `handshake` are not queued.)
    pub(super) fn post_queued(
        &mut self,
        block: MessageBlock,
        plan: Plan,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, PostFailure> {
        // The protocol was checked against the connection's capabilities when it was set.
        let checked = self.check_owner(&block).and_then(|()| self.check_copy(&block, plan.step));
        if let Err(error) = checked {
            return Err((error, Some(block)));
        }
        self.enqueue(Outgoing::new(block, plan), policy)
    }

    /// Accepts a message into the queue. Waits, if it must, for a place in the queue.
    pub(super) fn enqueue(
        &mut self,
        message: Outgoing,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, PostFailure> {
        let queued = self.try_enqueue(message, policy);
        self.note_queued();
        queued
    }

    fn try_enqueue(
        &mut self,
        message: Outgoing,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, PostFailure> {
        let memory = message.memory();
        if let Err(error) = self.check_open(policy).and_then(|()| self.wait_for_place(memory, policy)) {
            return Err((error, message.into_block()));
        }
        let is_held = matches!(policy, WaitPolicy::Queue);
        let id = self.queue.push(message, is_held);
        match self.try_progress() {
            Ok(_) => {
                if self.queue.has(id) {
                    self.queue.shorten_last();
                }
                Ok(is_held.then_some(id))
            }
            // The messages before it are lost. So is this one if it was announced; otherwise it comes back.
            Err(error) => {
                let last = self.queue.take_back();
                self.fail(&error);
                match last {
                    Some(last) => Err((self.translate(error, policy), last.into_block())),
                    None => Ok(is_held.then_some(id)),
                }
            }
        }
    }

    /// Retries a message that has found no room, for as long as a wait spins, instead of sleeping: a reader
    /// makes room in a moment. Thus a stream of messages whose receiver keeps up stays in the ring, and its
    /// channel with its poster. `None`: in vain.
    pub(super) fn retry_spinning<R>(
        &mut self,
        until: Option<Deadline>,
        mut attempt: impl FnMut(&mut Self) -> Option<R>,
    ) -> Option<R> {
        let deadline = until?;
        let (mut spinner, mut polls) = (Spinner::new(self.side.world.oversubscribed()), 0_u32);
        loop {
            polls += 1;
            if spinner.pause() == Pause::Sleep
                || (polls.is_multiple_of(POLLS_PER_CLOCK_CHECK) && deadline.passed())
            {
                return None;
            }
            if let Some(done) = attempt(self) {
                return Some(done);
            }
        }
    }

    /// Checks that the block belongs to this NIC. Otherwise sending it would fail, and that would look like
    /// the connection's end.
    fn check_owner(&self, block: &MessageBlock) -> Result {
        if block.lies_in(self.side.vi.nic().outbox()) {
            return Ok(());
        }
        Err(Error::InvalidArgument {
            what: format!("posting to {} on rank {}", Titled(&self.mailbox), self.owner),
            why: "the message was made by another world: make it by the postbox's world".into(),
        })
    }

    /// Checks that a message that is copied on its way leaves memory for the copy. Otherwise it would wait
    /// for memory in vain.
    fn check_copy(&self, block: &MessageBlock, step: Step) -> Result {
        let copy = copied_at_once(step, block.len());
        if copy == 0 || block.kept() + copy <= self.side.vi.nic().outbox().usage().limit {
            return Ok(());
        }
        self.side
            .world
            .allocate(copy, Fill::Keep)
            .map_or_else(|error| self.futile_wait(block.kept(), &error).map_or(Ok(()), Err), |_| Ok(()))
    }

    /// Waits until a message with `memory` bytes of memory may be queued.
    fn wait_for_place(&mut self, memory: usize, policy: WaitPolicy) -> Result {
        if self.queue.has_place(memory) {
            return Ok(());
        }
        let (start, until, mut wait) =
            (Instant::now(), self.until(policy), LongWait::begin("a place in the queue"));
        while !self.queue.has_place(memory) {
            let full = ViaError::Full { what: "the queue of messages", bound: "".into() };
            let deadline = self.may_wait(until, start, &full)?;
            // The head may wait for room: request a notification, poll once more, then wait.
            self.side.vi.request_send_notify();
            if !self.progress() {
                self.wait(deadline, &mut wait, Call::Post)?;
                self.progress();
            }
        }
        Ok(())
    }

    /// Moves messages along, and returns the error if the connection has ended: otherwise each announcement
    /// would be accepted and lost, every time.
    pub(super) fn check_open(&mut self, policy: WaitPolicy) -> Result {
        self.progress();
        if self.has_queued() {
            return Ok(());
        }
        // Answers come only to waiting messages. Without any, only the connection's end can come, and a grant
        // that was asked for ahead.
        match self.side.vi.arrival() {
            Ok(None) => {}
            Ok(Some(arrival)) => self.on_answer(&arrival),
            Err(error) => return Err(self.translate(error, policy)),
        }
        Ok(())
    }

    /// Moves queued messages along as far as possible without waiting. Returns whether anything moved.
    pub fn progress(&mut self) -> bool {
        if !self.has_queued() {
            return false;
        }
        let moved = self.try_progress().unwrap_or_else(|error| {
            self.fail(&error);
            true
        });
        if moved {
            self.note_queued();
        }
        moved
    }

    fn try_progress(&mut self) -> Result<bool, ViaError> {
        let answered = self.take_all_answers()?;
        if let Some(how) = self.lost() {
            return Err(ViaError::Lost(how));
        }
        Ok(self.advance()? | answered)
    }

    /// Updates the account after a change of the queue, or of the messages to be read.
    pub(super) fn note_queued(&self) {
        let (bytes, messages) = (self.announced_reads.bytes(), self.announced_reads.len());
        self.account.note_queued(self.queue.memory() + bytes, self.queue.len() + messages);
    }

    // ---- the mailbox's answers ----

    /// Takes the mailbox's answers, or the first ones (the budget bounds it). Returns whether there were any.
    pub(super) fn take_all_answers(&mut self) -> Result<bool, ViaError> {
        let (mut any, mut budget) = (false, PollBudget::once());
        while budget.take()
            && let Some(arrival) = self.side.vi.arrival()?
        {
            any = true;
            self.on_answer(&arrival);
        }
        Ok(any)
    }

    fn on_answer(&mut self, arrival: &Arrival) {
        let Body::Inline(inline) = &arrival.body else { return };
        let Ok((kind, part, rest)) = wire::decode(inline.bytes()) else { return };
        let immediate = arrival.immediate.unwrap_or(0);
        match kind {
            Kind::Ready => {
                if let Some(message) = self.queue.asked() {
                    let from = job_time() + delay(immediate);
                    message.on_ready(part, (immediate > 0).then_some(from));
                }
            }
            Kind::More => {
                if let Some(first) = self.queue.first_mut() {
                    first.on_more();
                }
            }
            Kind::Grant => {
                if let Some(pacing) = &mut self.pacing {
                    pacing.on_grant(part, immediate);
                }
            }
            Kind::Fin => {
                self.announced_reads.finish();
            }
            Kind::Ack | Kind::Nack => self.pairs.on_answer(kind, part, immediate),
            Kind::Refused => self.on_refusal(part, immediate, &String::from_utf8_lossy(rest)),
            _ => {}
        }
    }

    fn on_refusal(&mut self, kind: u32, pair: u32, why: &str) {
        if kind == Kind::Request as u32 {
            return self.pairs.on_refusal(pair, why);
        }
        let request = if kind == Kind::AskRead as u32 {
            self.announced_reads.finish().then_some(None)
        } else {
            self.queue.remove_asked().map(|waiting| waiting.request())
        };
        match request {
            None => {} // for a message that was not announced
            Some(Some(id)) => {
                let why = Error::Refused { rank: self.owner as usize, why: why.to_owned() };
                self.requests.fail(id, why);
            }
            Some(None) => {
                let why = format!("rank {} refused it: {why}", self.owner);
                self.note_undelivered(1, &why);
            }
        }
    }

    // ---- the queue ----

    /// Sends messages from the head of the queue as far as possible, and announces messages behind it.
    fn advance(&mut self) -> Result<bool, ViaError> {
        let mut advanced = false;
        loop {
            let weight = self.first_weight();
            if let Some(weight) = weight
                && !self.has_turn(weight)?
            {
                break;
            }
            let Some(sent) = self.queue.advance_first(&mut self.side, &mut self.announced_reads) else {
                break;
            };
            match sent {
                Ok(()) => {
                    advanced = true;
                    if let (Some(pacing), Some(weight)) = (&mut self.pacing, weight) {
                        pacing.sent(weight);
                    }
                }
                Err(Some(error)) if !is_busy(&error) => return Err(error),
                Err(_) => break,
            }
        }
        loop {
            match self.queue.announce_next(&mut self.side) {
                Ok(true) => advanced = true,
                Ok(false) => break,
                Err(error) if is_busy(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(advanced)
    }

    /// The obstacle of the queue's head: no memory for a copy, if it needs one; otherwise the mailbox is
    /// full.
    pub(super) fn obstacle(&self) -> ViaError {
        let copy = self.queue.first().map_or(0, Outgoing::next_copy);
        let memory = (copy > 0).then(|| self.side.world.allocate(copy, Fill::Keep).err()).flatten();
        memory.unwrap_or_else(mailbox_is_full)
    }

    /// Ends the queue after the connection's end: messages that are queued, or not read yet, are lost.
    pub(super) fn fail(&mut self, error: &ViaError) {
        let (why, mut lost) = (error.to_string(), self.announced_reads.len());
        for waiting in self.queue.take_all() {
            match waiting.request() {
                Some(id) => self.requests.fail(id, self.loss(error)),
                None => lost += 1,
            }
        }
        if lost > 0 {
            self.note_undelivered(lost, &why);
        }
        self.announced_reads.clear();
        self.note_queued();
    }

    /// Notes that `count` messages without a handle are lost.
    pub(super) fn note_undelivered(&self, count: usize, why: &str) {
        self.side.world.note_undelivered(self.number, count, &self.mailbox, self.owner, why);
    }
}
