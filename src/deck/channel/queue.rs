//! Messages that were announced, stand behind one that was, or were started when there was no room.

use std::collections::VecDeque;
use std::time::Instant;

use udeck_via::mem::Fill;
use udeck_via::transport::{Arrival, Body};
use udeck_via::{Block, Budget, Error as ViaError, MemHandle, RemoteBuffer, fault};

use super::copying::FRAGMENT;
use super::load::{Load, Refused};
use super::starting::Ticket;
use super::{Channel, Failed, Patience, is_busy};
use crate::error::{Error, Result};
use crate::protocol::{MAX_INLINE, Protocol};
use crate::wire::{self, Kind};

/// Messages that may wait here. (Public documentation names it: [`crate::Postbox::start_post`].)
const MAX_QUEUED: usize = wire::MAX_ANNOUNCED;

/// Oldest first.
pub(super) type Queue = VecDeque<Waiting>;

/// A message, and how far it is.
pub(super) struct Waiting {
    pub load: Load,
    pub how: Protocol,
    pub stage: Stage,
    /// Somebody has a handle, and is told what becomes of it.
    pub ticket: Ticket,
}

impl Waiting {
    /// Bytes that have to be copied into other memory before anything can be sent; 0: none.
    pub fn next_copy(&self) -> usize {
        match (self.how, self.stage) {
            (Protocol::Eager, Stage::Unsaid) => copied_at_once(self.how, self.load.len()),
            (Protocol::Copy, Stage::Copying { sent, fragments: 1.. }) => {
                copied_at_once(self.how, self.load.len() - sent)
            }
            _ => 0,
        }
    }
}

/// Bytes of a message of `len` that are copied at a time into other memory of this rank's.
fn copied_at_once(how: Protocol, len: usize) -> usize {
    match how {
        Protocol::Eager if len > MAX_INLINE => len,
        Protocol::Copy => FRAGMENT.min(len),
        _ => 0,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing was said of it yet.
    Unsaid,
    /// Likewise; it has been replaced by the copy that `eager` sends, and waits for room only.
    Copied,
    /// Announced.
    Asked,
    /// The mailbox has memory for it.
    Ready { handle: MemHandle },
    /// Likewise; so many bytes are on their way, and so many more fragments may be.
    Copying { sent: usize, fragments: u32 },
}

/// Why a message stays where it is. `None`: it waits for its answer.
pub(super) type Stays = (Option<ViaError>, Waiting);

impl Channel {
    /// As [`Channel::post_queued`], for a message that nobody else has.
    pub(super) fn post_own_queued(
        &mut self,
        block: Block,
        protocol: Protocol,
        patience: Patience,
    ) -> Result<Ticket, Failed> {
        self.post_queued(Load::Own(block), protocol, patience)
            .map_err(|(error, load)| (error, load.and_then(Load::into_own)))
    }

    /// Accepts a message that cannot simply be sent. (Those by `handshake` are not queued: [`Channel::post_and_wait`].)
    pub(super) fn post_queued(
        &mut self,
        load: Load,
        protocol: Protocol,
        patience: Patience,
    ) -> Result<Ticket, Refused> {
        let posted = self.queue_up(load, protocol, patience);
        self.note_queued();
        posted
    }

    fn queue_up(&mut self, load: Load, protocol: Protocol, patience: Patience) -> Result<Ticket, Refused> {
        // What the connection can do was checked when the protocol was set.
        let checked = self.check_owner(&load).and_then(|()| self.check_copy(&load, protocol));
        if let Err(error) = checked.and_then(|()| self.look()) {
            return Err((error, Some(load)));
        }
        if let Err(error) = self.wait_for_place(patience) {
            return Err((error, Some(load)));
        }
        let ticket = matches!(patience, Patience::Start).then(|| self.tickets.next());
        self.queue.push_back(Waiting { load, how: protocol, stage: Stage::Unsaid, ticket });
        let Err(error) = self.try_progress() else { return Ok(ticket) };
        // Those before it are lost; this one the peer has not heard of.
        let last = self.queue.pop_back();
        if let Some(Waiting { load, stage: Stage::Unsaid | Stage::Copied, .. }) = last {
            self.fail(&error);
            return Err((self.translate(error), Some(load)));
        }
        self.queue.extend(last);
        self.fail(&error);
        Ok(ticket)
    }

    /// Memory of another NIC would be found out when it is sent, and taken for the connection's end.
    fn check_owner(&self, load: &Load) -> Result {
        if self.vi.nic().outbox().owns(load) {
            return Ok(());
        }
        Err(self.translate(ViaError::InvalidParameter("the block belongs to another NIC".into())))
    }

    /// A message that is copied on its way, and leaves no memory for the copy itself, would wait for that in vain.
    fn check_copy(&self, load: &Load, protocol: Protocol) -> Result {
        let copy = copied_at_once(protocol, load.len());
        if copy == 0 || load.capacity() + copy <= self.vi.nic().outbox().usage().limit {
            return Ok(());
        }
        self.world
            .allocate(copy, Fill::Keep)
            .map_or_else(|error| self.in_vain(load.capacity(), &error).map_or(Ok(()), Err), |_| Ok(()))
    }

    fn wait_for_place(&mut self, patience: Patience) -> Result {
        let (start, until) = (Instant::now(), self.until(patience));
        while self.queue.len() >= MAX_QUEUED {
            let full = ViaError::Full { what: "the queue of messages", bound: "".into() };
            let deadline = self.may_wait(until, start, &full)?;
            // Its head may wait for room: ask to be told, look once more, then wait.
            self.vi.want_room();
            if !self.progress() {
                self.wait(deadline);
                self.progress();
            }
        }
        Ok(())
    }

    /// Moves things along, and tells if the connection is over: what is announced to nobody would be accepted and lost,
    /// each time anew.
    pub(super) fn look(&mut self) -> Result {
        self.progress();
        // Answers come to messages that wait; where none does, there is nothing to take but the end.
        if !self.has_queued()
            && let Err(error) = self.vi.arrival()
        {
            return Err(self.translate(error));
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
        let answered = self.take_answers()?;
        if let Some(how) = self.lost() {
            return Err(ViaError::Lost(how));
        }
        Ok(self.advance()? | answered)
    }

    /// Takes what the mailbox has said, or the beginning of it. Returns whether it has said anything.
    pub(super) fn take_answers(&mut self) -> Result<bool, ViaError> {
        let (mut any, mut budget) = (false, Budget::once());
        while budget.take()
            && let Some(arrival) = self.vi.arrival()?
        {
            any = true;
            self.on_answer(&arrival);
        }
        Ok(any)
    }

    fn on_answer(&mut self, arrival: &Arrival) {
        let Body::Inline(inline) = &arrival.body else { return };
        let Ok((kind, part, rest)) = wire::decode(inline.bytes()) else { return };
        match kind {
            Kind::Ready => self.on_ready(part),
            Kind::More => self.on_more(),
            Kind::Fin => drop(self.reads.finished()),
            Kind::Ack | Kind::Nack => self.on_handshake_answer(kind, part, arrival.immediate.unwrap_or(0)),
            Kind::Refused => {
                self.on_refusal(part, arrival.immediate.unwrap_or(0), &String::from_utf8_lossy(rest));
            }
            _ => {}
        }
    }

    fn asked(&self) -> Option<usize> {
        self.queue.iter().position(|waiting| waiting.stage == Stage::Asked)
    }

    fn on_ready(&mut self, part: u32) {
        let Some(at) = self.asked() else { return };
        let asked = &mut self.queue[at];
        asked.stage = match asked.how {
            Protocol::Copy => Stage::Copying { sent: 0, fragments: part },
            _ => Stage::Ready { handle: MemHandle(part) },
        };
    }

    fn on_refusal(&mut self, kind: u32, pair: u32, why: &str) {
        if kind == Kind::Request as u32 {
            return self.on_handshake_refusal(pair, why);
        }
        let ticket = if kind == Kind::AskRead as u32 {
            self.reads.finished().map(|_| None)
        } else {
            self.asked().and_then(|at| self.queue.remove(at)).map(|waiting| waiting.ticket)
        };
        match ticket {
            None => {} // of no message that we announced
            Some(Some(number)) => {
                let why = Error::Refused { node: self.owner as usize, why: why.to_owned() };
                self.tickets.fail(number, why);
            }
            Some(None) => {
                let why = format!("rank {} refused it: {why}", self.owner);
                self.world.note_undelivered(self.number, 1, &self.mailbox, self.owner, &why);
            }
        }
    }

    /// Sends what can be sent from the head of the queue, and announces what stands behind.
    fn advance(&mut self) -> Result<bool, ViaError> {
        let mut advanced = false;
        while let Some(front) = self.queue.pop_front() {
            match self.finish_front(front) {
                Ok(()) => advanced = true,
                Err((error, front)) => {
                    self.queue.push_front(front);
                    match error {
                        Some(error) if !is_busy(&error) => return Err(error),
                        _ => break,
                    }
                }
            }
        }
        for at in 0..self.queue.len() {
            let waiting = &self.queue[at];
            let kind = match (waiting.how, waiting.stage) {
                (Protocol::RdmaWrite, Stage::Unsaid) => Kind::AskWrite,
                (Protocol::Copy, Stage::Unsaid) => Kind::AskCopy,
                (_, Stage::Unsaid | Stage::Copied) => break, // goes out when it is first
                _ => continue,
            };
            let len = (waiting.load.len() as u64).to_le_bytes();
            match self.vi.send_inline(Some(waiting.load.notes()[0]), &wire::head(kind, 0), &len) {
                Ok(()) => {
                    fault::point("announce.said");
                    self.queue[at].stage = Stage::Asked;
                }
                Err(error) if is_busy(&error) => break,
                Err(error) => return Err(error),
            }
            advanced = true;
        }
        Ok(advanced)
    }

    /// Completes the first message of the queue, if it can be.
    #[allow(clippy::result_large_err, reason = "what stays goes back to its place by value")]
    fn finish_front(&mut self, front: Waiting) -> Result<(), Stays> {
        let Waiting { how, stage, ticket, .. } = front;
        let stays = |(error, load)| (Some(error), Waiting { load, how, stage, ticket });
        match (how, stage) {
            (Protocol::RdmaWrite, Stage::Ready { handle }) => {
                let to = RemoteBuffer { handle, offset: 0, len: front.load.len() };
                let tag = Some(front.load.notes()[0]);
                self.write(front.load, to, tag).map_err(stays)
            }
            (Protocol::Copy, Stage::Copying { sent, fragments }) => {
                self.send_fragments(front, sent, fragments)
            }
            (Protocol::RdmaRead, _) => self.announce_readable(front.load).map_err(stays),
            (Protocol::Eager, _) if front.load.len() > MAX_INLINE => self.finish_eager(front),
            (Protocol::Eager | Protocol::HandOff, _) => self.send_load(front.load, how).map_err(stays),
            _ => Err((None, front)),
        }
    }

    /// Sends a long message by `eager`. While it waits for room it is not copied anew at each try.
    #[allow(clippy::result_large_err, reason = "what stays goes back to its place by value")]
    fn finish_eager(&mut self, mut front: Waiting) -> Result<(), Stays> {
        let tag = front.load.notes()[0];
        if front.stage == Stage::Unsaid {
            match self.bounce(&front.load, 0..front.load.len()) {
                Ok(mut bounce) => {
                    bounce.set_notes([tag, 0]);
                    self.counters.copied(bounce.len());
                    (front.load, front.stage) = (Load::Own(bounce), Stage::Copied);
                }
                Err(error) => return Err((Some(error), front)),
            }
        }
        let Waiting { load, how, stage, ticket } = front;
        self.lend(load, Kind::Eager)
            .map_err(|(error, load)| (Some(error), Waiting { load, how, stage, ticket }))
    }

    /// The connection is over: what was queued, or not yet read, is lost.
    pub(super) fn fail(&mut self, error: &ViaError) {
        let (why, mut lost) = (error.to_string(), self.reads.len());
        for waiting in std::mem::take(&mut self.queue) {
            match waiting.ticket {
                Some(number) => self.tickets.fail(number, self.loss(error)),
                None => lost += 1,
            }
        }
        if lost > 0 {
            self.world.note_undelivered(self.number, lost, &self.mailbox, self.owner, &why);
        }
        self.reads.clear();
    }
}
