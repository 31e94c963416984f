//! Messages that were announced, stand behind one that was, or were posted when there was no room; and the mailbox's answers.

use std::time::Instant;

use udeck_boot::waits::Call;
use udeck_via::mem::Fill;
use udeck_via::transport::{Arrival, Body};
use udeck_via::{Error as ViaError, PollBudget};

use super::Channel;
use super::post::mailbox_is_full;
use super::requests::{QueuedMessage, RequestId};
use crate::error::{Error, Result};
use crate::long_wait::LongWait;
use crate::protocol::Protocol;
use crate::protocol::message_block::{MessageBlock, Refused};
use crate::protocol::outgoing::{Outgoing, copied_at_once};
use crate::protocol::side::is_busy;
use crate::wait_policy::WaitPolicy;
use crate::wire::{self, Kind};

/// Messages that may wait here. (Public documentation names it: [`crate::Postbox::post_nonblocking`].)
const MAX_QUEUED: usize = wire::MAX_ANNOUNCED;

impl Channel {
    /// Accepts a message that cannot simply be sent. (Those by `handshake` are not queued.)
    pub(super) fn post_queued(
        &mut self,
        block: MessageBlock,
        protocol: Protocol,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, Refused> {
        let queued = self.enqueue(block, protocol, policy);
        self.note_queued();
        queued
    }

    fn enqueue(
        &mut self,
        block: MessageBlock,
        protocol: Protocol,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, Refused> {
        // What the connection can do was checked when the protocol was set.
        let checked = self
            .check_owner(&block)
            .and_then(|()| self.check_copy(&block, protocol))
            .and_then(|()| self.look(policy))
            .and_then(|()| self.wait_for_place(policy));
        if let Err(error) = checked {
            return Err((error, Some(block)));
        }
        let request = matches!(policy, WaitPolicy::Queue).then(|| self.requests.next_id());
        self.queue.push_back(QueuedMessage { message: Outgoing::new(block, protocol), request });
        let Err(error) = self.try_progress() else { return Ok(request) };
        // Those before it are lost; this one too, unless the peer has not heard of it.
        if self.queue.back().is_some_and(|last| !last.message.is_announced())
            && let Some(last) = self.queue.pop_back()
        {
            self.fail(&error);
            return Err((self.translate(error, policy), Some(last.message.into_block())));
        }
        self.fail(&error);
        Ok(request)
    }

    /// Memory of another NIC would be found out when it is sent, and taken for the connection's end.
    fn check_owner(&self, block: &MessageBlock) -> Result {
        if self.side.vi.nic().outbox().owns(block) {
            return Ok(());
        }
        let foreign = ViaError::InvalidParameter("the block belongs to another NIC".into());
        Err(self.translate(foreign, WaitPolicy::None))
    }

    /// A message that is copied on its way, and leaves no memory for the copy itself, would wait for that in vain.
    fn check_copy(&self, block: &MessageBlock, protocol: Protocol) -> Result {
        let copy = copied_at_once(protocol, block.len());
        if copy == 0 || block.capacity() + copy <= self.side.vi.nic().outbox().usage().limit {
            return Ok(());
        }
        self.side
            .world
            .allocate(copy, Fill::Keep)
            .map_or_else(|error| self.in_vain(block.capacity(), &error).map_or(Ok(()), Err), |_| Ok(()))
    }

    fn wait_for_place(&mut self, policy: WaitPolicy) -> Result {
        let (start, until, mut wait) = (Instant::now(), self.until(policy), LongWait::begin());
        while self.queue.len() >= MAX_QUEUED {
            let full = ViaError::Full { what: "the queue of messages", bound: "".into() };
            let deadline = self.may_wait(until, start, &full)?;
            // Its head may wait for room: ask to be told, look once more, then wait.
            self.side.vi.request_send_notify();
            if !self.progress() {
                self.wait(deadline, &mut wait, Call::Post);
                self.progress();
            }
        }
        Ok(())
    }

    /// Moves things along, and tells if the connection is over: what is announced to nobody would be accepted and lost,
    /// each time anew.
    pub(super) fn look(&mut self, policy: WaitPolicy) -> Result {
        self.progress();
        // Answers come to messages that wait; where none does, there is nothing to take but the end.
        if !self.has_queued()
            && let Err(error) = self.side.vi.arrival()
        {
            return Err(self.translate(error, policy));
        }
        Ok(())
    }

    /// Moves queued messages along as far as they go without waiting. Returns whether anything moved.
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

    /// The queue, or what is to be read, has changed.
    pub(super) fn note_queued(&self) {
        let queued: usize = self.queue.iter().map(|waiting| waiting.message.block().capacity()).sum();
        self.account.note_queued(queued + self.announced_reads.bytes());
    }

    // ---- the mailbox's answers ----

    /// Takes what the mailbox has said, or the beginning of it. Returns whether it has said anything.
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
                if let Some(at) = self.asked() {
                    self.queue[at].message.on_ready(part);
                }
            }
            Kind::More => {
                if let Some(front) = self.queue.front_mut() {
                    front.message.on_more();
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

    /// The oldest message that waits for an answer to its announcement.
    fn asked(&self) -> Option<usize> {
        self.queue.iter().position(|waiting| waiting.message.is_asked())
    }

    fn on_refusal(&mut self, kind: u32, pair: u32, why: &str) {
        if kind == Kind::Request as u32 {
            return self.pairs.on_refusal(pair, why);
        }
        let request = if kind == Kind::AskRead as u32 {
            self.announced_reads.finish().then_some(None)
        } else {
            self.asked().and_then(|at| self.queue.remove(at)).map(|waiting| waiting.request)
        };
        match request {
            None => {} // of no message that we announced
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

    /// Sends what can be sent from the head of the queue, and announces what stands behind.
    fn advance(&mut self) -> Result<bool, ViaError> {
        let mut advanced = false;
        while let Some(QueuedMessage { message, request }) = self.queue.pop_front() {
            match message.advance(&mut self.side, &mut self.announced_reads) {
                Ok(()) => advanced = true,
                Err((error, message)) => {
                    self.queue.push_front(QueuedMessage { message, request });
                    match error {
                        Some(error) if !is_busy(&error) => return Err(error),
                        _ => break,
                    }
                }
            }
        }
        for waiting in &mut self.queue {
            if waiting.message.is_announced() {
                continue;
            }
            match waiting.message.announce(&mut self.side) {
                Ok(true) => advanced = true,
                Ok(false) => break,
                Err(error) if is_busy(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(advanced)
    }

    /// What the head of the queue waits for: memory for a copy, if there is none; else the mailbox.
    pub(super) fn obstacle(&self) -> ViaError {
        let copy = self.queue.front().map_or(0, |waiting| waiting.message.next_copy());
        let memory = (copy > 0).then(|| self.side.world.allocate(copy, Fill::Keep).err()).flatten();
        memory.unwrap_or_else(mailbox_is_full)
    }

    /// The connection is over: what was queued, or not yet read, is lost.
    pub(super) fn fail(&mut self, error: &ViaError) {
        let (why, mut lost) = (error.to_string(), self.announced_reads.len());
        for waiting in std::mem::take(&mut self.queue) {
            match waiting.request {
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

    /// So many messages that nobody has a handle on are lost.
    pub(super) fn note_undelivered(&self, count: usize, why: &str) {
        self.side.world.note_undelivered(self.number, count, &self.mailbox, self.owner, why);
    }
}
