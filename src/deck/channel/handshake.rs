//! `handshake`: the protocol of the DECK/VIA thesis, kept to compare.
//!
//! A postbox that uses it owns a *pair* of VIs. On the control VI it asks (REQST, the length in the immediate data); the
//! mailbox posts a receive descriptor of that length on the data VI and says so (ACK), or says how much room it has
//! (NACK). Then the message is sent on the data VI from where it lies, its tag in the immediate data. The data VI is
//! reliable in reception: the send is done when the message is in the mailbox's descriptor, and then the post returns.
//!
//! The pair is made at the first such post. A post that gives up after it has asked ends its data VI: a descriptor that
//! was posted for it goes with the connection. Requests and answers name the pair by number, so that those of an ended
//! pair are known for what they are.

use std::time::Instant;

use udeck_via::{
    Block, Deadline, Descriptor, Error as ViaError, Region, Reliability, Status, Vi, ViAttributes, fault,
};

use super::{Channel, Failed, Patience, Ticket, is_busy};
use crate::error::{Error, Result};
use crate::protocol::Protocol;
use crate::wire::{self, Kind, MAX_REQUEST, Role};

/// The data VI of a pair.
pub(super) struct Data {
    vi: Vi,
    /// Of the pair.
    number: u32,
    /// What the mailbox said to the request that is under way.
    answer: Option<Answer>,
}

enum Answer {
    Ack,
    Nack { room: usize },
    Refused { why: String },
}

impl Channel {
    /// Posts a message, and waits until the mailbox has received it.
    pub(super) fn post_and_wait(&mut self, block: Block, patience: Patience) -> Result<Ticket, Failed> {
        let start = Instant::now();
        let asked = self.may_shake_hands(patience, start).and_then(|deadline| {
            self.ask(block.len(), start, deadline)?;
            Ok(deadline)
        });
        match asked {
            Ok(deadline) => self.send_data(block, start, deadline).map(|()| None),
            Err(error) => Err((error, Some(block))),
        }
    }

    fn may_shake_hands(&mut self, patience: Patience, start: Instant) -> Result<Deadline> {
        self.check(Protocol::Handshake)?;
        self.look()?;
        if matches!(patience, Patience::Start) {
            return Err(self.synchronous());
        }
        self.may_wait(self.until(patience), start, &waiting())
    }

    /// Why a post that must not hold its thread cannot be by this protocol.
    pub fn synchronous(&self) -> Error {
        Error::Synchronous { name: self.mailbox.clone(), owner: self.owner as usize }
    }

    /// Asks for a descriptor of `len` bytes, behind all that was posted before. When this fails, the mailbox has none.
    fn ask(&mut self, len: usize, start: Instant, deadline: Deadline) -> Result {
        if len > MAX_REQUEST {
            return Err(Error::TooLarge { asked: len, limit: MAX_REQUEST });
        }
        self.wait_until(start, deadline, |channel| {
            channel.progress();
            Ok(channel.queue.is_empty().then_some(()))
        })?;
        let pair = self.pair(deadline)?;
        let request = wire::head(Kind::Request, pair);
        self.wait_until(start, deadline, |channel| {
            match channel.vi.send_inline(Some(len as u32), &request, &[]) {
                Ok(()) => Ok(Some(())),
                Err(error) if is_busy(&error) => Ok(None),
                Err(error) => Err(error),
            }
        })?;
        fault::point("handshake.asked");
        let answer = self.wait_until(start, deadline, |channel| {
            channel.take_answers()?;
            Ok(channel.data.as_mut().and_then(|data| data.answer.take()))
        });
        let node = self.owner as usize;
        match answer {
            Ok(Answer::Ack) => Ok(()),
            Ok(Answer::Nack { room }) => Err(Error::NoRoom { node, needed: len, have: room }),
            Ok(Answer::Refused { why }) => Err(Error::Refused { node, why }),
            Err(error) => {
                self.data = None;
                Err(error)
            }
        }
    }

    /// The number of the pair, whose data VI is made if need be.
    fn pair(&mut self, deadline: Deadline) -> Result<u32> {
        if let Some(data) = &mut self.data {
            data.answer = None;
            return Ok(data.number);
        }
        self.pairs += 1;
        let mut attributes = ViAttributes::new(self.ptag());
        attributes.reliability = Reliability::Reception;
        attributes.peer = Some(self.owner);
        let (cq, introduction) =
            (self.cq.handle(), self.world.introduce(self.number, Role::Data(self.pairs)));
        let connected = Vi::new(self.vi.nic(), attributes).and_then(|mut vi| {
            vi.connect(&self.to, &cq, &cq, &introduction, deadline)?;
            Ok(vi)
        });
        let vi = connected.map_err(|error| self.world.connect_error(&self.mailbox, self.owner, error))?;
        self.data = Some(Box::new(Data { vi, number: self.pairs, answer: None }));
        Ok(self.pairs)
    }

    /// Sends the message to the descriptor that is posted for it, and waits until it is there.
    fn send_data(&mut self, block: Block, start: Instant, deadline: Deadline) -> Result<(), Failed> {
        let tag = block.notes()[0];
        let region = match self.vi.nic().region_of(block, self.ptag()) {
            Ok(region) => region,
            Err((error, block)) => return Err((self.translate(error), Some(block))),
        };
        let Some(data) = &mut self.data else { return Err((self.over(), region.into_block().ok())) };
        if let Err((error, descriptor)) = data.vi.post_send(Descriptor::new([region]).immediate(tag)) {
            self.data = None;
            return Err((self.translate(error), block_of(descriptor)));
        }
        fault::point("handshake.sent");
        let done = self.wait_until(start, deadline, |channel| {
            let Some(data) = &mut channel.data else { return Err(ViaError::Closed) };
            data.vi.want_room();
            Ok(data.vi.send_done())
        });
        match done {
            Ok(completion) if completion.status == Status::Done => Ok(()),
            // Flushed by the mailbox's end: it never took the message. After any other end it may have.
            Ok(completion) => {
                self.data = None;
                let unseen = completion.descriptor.ok().filter(|_| completion.status == Status::Flushed);
                Err((self.over(), unseen.and_then(block_of)))
            }
            // What is under way stays so; its memory comes home by the connection.
            Err(error) => {
                self.data = None;
                Err((error, None))
            }
        }
    }

    pub(super) fn on_handshake_answer(&mut self, kind: Kind, pair: u32, immediate: u32) {
        if let Some(data) = self.data.as_mut().filter(|data| data.number == pair) {
            let nack = Answer::Nack { room: immediate as usize };
            data.answer = Some(if kind == Kind::Ack { Answer::Ack } else { nack });
        }
    }

    pub(super) fn on_handshake_refusal(&mut self, pair: u32, why: &str) {
        if let Some(data) = self.data.as_mut().filter(|data| data.number == pair) {
            data.answer = Some(Answer::Refused { why: why.to_owned() });
        }
    }

    /// Looks until there is what is looked for, sleeping in between.
    fn wait_until<T>(
        &mut self,
        start: Instant,
        deadline: Deadline,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, ViaError>,
    ) -> Result<T> {
        loop {
            self.vi.want_room();
            match look(self) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) => {
                    self.fail(&error);
                    return Err(self.translate(error));
                }
            }
            self.is_awaited()?;
            if deadline.passed() {
                return Err(self.too_late("posting", start, &waiting()));
            }
            self.wait(deadline);
        }
    }

    /// Why the data VI has ended.
    fn over(&mut self) -> Error {
        let error = self.take_answers().err().unwrap_or(ViaError::Closed);
        self.fail(&error);
        self.translate(error)
    }
}

/// What a post waits for in all its stages.
fn waiting() -> ViaError {
    ViaError::Full { what: "the mailbox", bound: "".into() }
}

/// The message that a descriptor is made of.
fn block_of(descriptor: Descriptor) -> Option<Block> {
    let segment = descriptor.into_segments().pop()?;
    Region::into_block(segment.into_region()).ok()
}
