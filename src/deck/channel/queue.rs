//! Messages that were announced, or stand behind one that was.

use std::collections::VecDeque;
use std::time::Instant;

use udeck_via::transport::{Arrival, Body};
use udeck_via::{Block, Error as ViaError, MemHandle, RemoteBuffer, fault};

use super::{Channel, Failed, Patience, is_busy};
use crate::error::Result;
use crate::protocol::Protocol;
use crate::wire::{self, Kind};

/// Messages that may wait for the mailbox's answer.
const MAX_QUEUED: usize = wire::MAX_ANNOUNCED;

/// Oldest first.
pub(super) type Queue = VecDeque<Waiting>;

/// A message, and how far it is.
pub(super) struct Waiting {
    pub block: Block,
    pub how: Protocol,
    pub stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nothing was said of it yet.
    Unsaid,
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
    /// Accepts a message that cannot simply be sent.
    pub(super) fn post_queued(
        &mut self,
        block: Block,
        protocol: Protocol,
        patience: Patience,
    ) -> Result<(), Failed> {
        if let Err(error) = self.check(protocol).and_then(|()| self.look()) {
            return Err((error, Some(block)));
        }
        if protocol == Protocol::Handshake {
            return self.post_and_wait(block, patience);
        }
        let (start, until) = (Instant::now(), self.until(patience));
        while self.queue.len() >= MAX_QUEUED {
            let full = ViaError::Full { what: "the queue of announced messages", bound: "".into() };
            match self.may_wait(until, start, &full) {
                Ok(deadline) => self.wait(deadline),
                Err(why) => return Err((why, Some(block))),
            }
            self.progress();
        }
        self.queue.push_back(Waiting { block, how: protocol, stage: Stage::Unsaid });
        let Err(error) = self.try_progress() else { return Ok(()) };
        // Those before it are lost; this one the peer has not heard of.
        let last = self.queue.pop_back();
        if let Some(Waiting { block, stage: Stage::Unsaid, .. }) = last {
            self.fail(&error);
            return Err((self.translate(error), Some(block)));
        }
        self.queue.extend(last);
        self.fail(&error);
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
        Ok(self.advance()? | answered)
    }

    /// Takes what the mailbox has said. Returns whether it has said anything.
    pub(super) fn take_answers(&mut self) -> Result<bool, ViaError> {
        let mut any = false;
        while let Some(arrival) = self.vi.arrival()? {
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
        let found = if kind == Kind::AskRead as u32 {
            self.reads.finished().is_some()
        } else {
            self.asked().and_then(|at| self.queue.remove(at)).is_some()
        };
        if found {
            let why = format!("rank {} refused it: {why}", self.owner);
            self.world.note_undelivered(self.number, 1, &self.mailbox, self.owner, &why);
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
                (_, Stage::Unsaid) => break, // goes out when it is first
                _ => continue,
            };
            let len = (waiting.block.len() as u64).to_le_bytes();
            match self.vi.send_inline(Some(waiting.block.notes()[0]), &wire::head(kind, 0), &len) {
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
    fn finish_front(&mut self, front: Waiting) -> Result<(), Stays> {
        let Waiting { how, stage, .. } = front;
        match (how, stage) {
            (Protocol::RdmaWrite, Stage::Ready { handle }) => {
                let to = RemoteBuffer { handle, offset: 0, len: front.block.len() };
                let tag = Some(front.block.notes()[0]);
                self.vi.rdma_write(&front.block, to, tag).map_err(|error| (Some(error), front))
            }
            (Protocol::Copy, Stage::Copying { sent, fragments }) => {
                self.send_fragments(front, sent, fragments)
            }
            (Protocol::RdmaRead, _) => self
                .announce_readable(front.block)
                .map_err(|(error, block)| (Some(error), Waiting { block, how, stage })),
            (Protocol::Eager | Protocol::HandOff, _) => self
                .send(front.block, how)
                .map_err(|(error, block)| (Some(error), Waiting { block, how, stage })),
            _ => Err((None, front)),
        }
    }

    /// The connection is over: what was queued, or not yet read, is lost.
    pub(super) fn fail(&mut self, error: &ViaError) {
        let (why, lost) = (error.to_string(), self.queue.len() + self.reads.len());
        if lost > 0 {
            self.world.note_undelivered(self.number, lost, &self.mailbox, self.owner, &why);
        }
        self.queue.clear();
        self.reads.clear();
    }
}
