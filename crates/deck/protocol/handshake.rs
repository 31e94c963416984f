//! `handshake`: the protocol of the DECK/VIA thesis, kept to compare.
//!
//! ```text
//! postbox                                  mailbox
//!   control VI: Request (REQST, length) ->   posts a receive descriptor of that length on the data VI
//!                                       <-   Ack, Nack (bytes of room) or Refused
//!   data VI: the message, from where it lies, its tag as immediate data
//! ```
//!
//! A postbox that uses this protocol owns a *pair* of VIs. The data VI is reliable in reception: the send is
//! done when the message is in the mailbox's descriptor, and then the post returns.
//!
//! The pair is made by the first such post. A post that gives up after it has asked ends its data VI: a
//! descriptor that was posted for it goes with the connection. Requests and answers name the pair by number,
//! so that those of an ended pair are recognised.
//!
//! The message is not queued: the post waits until everything posted before is through, and then goes step by
//! step. It waits through its postbox's channel ([`Host`]).

use std::time::Instant;

use udeck_via::quota::Share;
use udeck_via::{
    Block, Completion, Deadline, Descriptor, Error as ViaError, Reliability, State, Status, Vi, ViAttributes,
    fault,
};

use super::side::{RecvSide, RendezvousStatus, SendSide, block_for, is_busy};
use crate::error::{Error, Result};
use crate::memory::accounting::Grant;
use crate::parcel::{Parcel, Stored};
use crate::wire::{self, Kind, MAX_REQUEST, Malformed, Role};
use crate::world_state::WorldState;

// ---- the poster's side ----

/// A postbox's data VIs: none before its first handshake.
#[derive(Default)]
pub(crate) struct Pairs {
    /// Boxed: most channels have none.
    data: Option<Box<SendData>>,
    /// Number of pairs made so far.
    made: u32,
}

/// The data VI of a pair.
struct SendData {
    vi: Vi,
    /// Number of the pair.
    number: u32,
    /// The mailbox's answer to the current request.
    answer: Option<Answer>,
}

enum Answer {
    Ack,
    Nack { buffer_len: usize },
    Refused { why: String },
}

/// The services of a postbox's channel that a handshake uses.
pub(crate) trait Host {
    fn side(&mut self) -> &mut SendSide;
    fn pairs(&mut self) -> &mut Pairs;
    /// The mailbox's rank.
    fn owner(&self) -> u32;
    /// Moves earlier messages along. Returns whether none of them waits in the queue.
    fn is_queue_drained(&mut self) -> bool;
    /// Takes the mailbox's answers.
    fn take_answers(&mut self) -> Result<bool, ViaError>;
    /// Calls `poll` until it returns a value, sleeping in between.
    fn wait_until<T>(
        &mut self,
        time: PostTiming,
        poll: impl FnMut(&mut Self) -> Result<Option<T>, ViaError>,
    ) -> Result<T>;
    /// Makes another connection to the mailbox.
    fn connect(&mut self, attributes: ViAttributes, role: Role, time: PostTiming) -> Result<Vi>;
    /// Translates an error for the program.
    fn translate_error(&self, error: ViaError, time: PostTiming) -> Error;
    /// Handles the end of the connection: all that was queued is lost.
    fn end(&mut self, error: ViaError, time: PostTiming) -> Error;
}

/// Start and deadline of a waiting post.
#[derive(Clone, Copy)]
pub(crate) struct PostTiming {
    pub start: Instant,
    pub deadline: Deadline,
}

/// Posts a message, and waits until the mailbox has received it.
pub(crate) fn post<H: Host>(
    host: &mut H,
    block: Block,
    time: PostTiming,
) -> Result<(), (Error, Option<Block>)> {
    match ask(host, block.len(), time) {
        Ok(()) => send(host, block, time),
        Err(error) => Err((error, Some(block))),
    }
}

/// Asks for a descriptor of `len` bytes, behind all earlier messages. If this fails, the mailbox has posted
/// none.
fn ask<H: Host>(host: &mut H, len: usize, time: PostTiming) -> Result {
    if len > MAX_REQUEST {
        return Err(Error::TooLarge { asked: len, limit: MAX_REQUEST });
    }
    host.wait_until(time, |host| Ok(host.is_queue_drained().then_some(())))?;
    let pair = pair(host, time)?;
    let request = wire::head(Kind::Request, pair);
    host.wait_until(time, |host| match host.side().vi.send_inline(Some(len as u32), &request, &[]) {
        Ok(()) => Ok(Some(())),
        Err(error) if is_busy(&error) => Ok(None),
        Err(error) => Err(error),
    })?;
    fault::point("handshake.asked");
    let answer = host.wait_until(time, |host| {
        host.take_answers()?;
        Ok(host.pairs().data.as_mut().and_then(|data| data.answer.take()))
    });
    let rank = host.owner() as usize;
    match answer {
        Ok(Answer::Ack) => Ok(()),
        Ok(Answer::Nack { buffer_len }) => {
            Err(Error::ReceiverBufferTooSmall { rank, needed: len, have: buffer_len })
        }
        Ok(Answer::Refused { why }) => Err(Error::Refused { rank, why }),
        Err(error) => {
            host.pairs().data = None;
            Err(error)
        }
    }
}

/// Returns the number of the pair, and makes its data VI if there is none.
fn pair<H: Host>(host: &mut H, time: PostTiming) -> Result<u32> {
    if let Some(data) = &mut host.pairs().data {
        data.answer = None;
        return Ok(data.number);
    }
    host.pairs().made += 1;
    let number = host.pairs().made;
    let mut attributes = ViAttributes::new(host.side().ptag());
    attributes.reliability = Reliability::Reception;
    attributes.level = host.side().vi.attributes().level;
    let vi = host.connect(attributes, Role::Data(number), time)?;
    host.pairs().data = Some(Box::new(SendData { vi, number, answer: None }));
    Ok(number)
}

/// Sends the message to the descriptor that is posted for it, and waits until it has arrived.
fn send<H: Host>(host: &mut H, block: Block, time: PostTiming) -> Result<(), (Error, Option<Block>)> {
    let (tag, ptag) = (block.notes()[0], host.side().ptag());
    let region = match host.side().vi.nic().region_of(block, ptag) {
        Ok(region) => region,
        Err((error, block)) => return Err((host.translate_error(error, time), Some(block))),
    };
    let Some(data) = &mut host.pairs().data else { return Err((over(host, time), region.into_block().ok())) };
    if let Err((error, descriptor)) = data.vi.post_send(Descriptor::new([region]).immediate(tag)) {
        host.pairs().data = None;
        return Err((host.translate_error(error, time), block_of(descriptor)));
    }
    fault::point("handshake.sent");
    let done = host.wait_until(time, |host| {
        let Some(data) = &mut host.pairs().data else { return Err(ViaError::Closed) };
        data.vi.request_send_notify();
        Ok(data.vi.send_done())
    });
    match done {
        Ok(completion) if completion.status == Status::Done => Ok(()),
        // The mailbox's end flushes a message that it never took. After any other end the mailbox may have
        // taken it.
        Ok(completion) => {
            host.pairs().data = None;
            Err((over(host, time), unseen(completion)))
        }
        // The send stays in flight; its memory comes back by the connection.
        Err(error) => {
            host.pairs().data = None;
            Err((error, None))
        }
    }
}

fn unseen(completion: Completion) -> Option<Block> {
    let is_flushed = completion.status == Status::Flushed;
    completion.descriptor.ok().filter(|_| is_flushed).and_then(block_of)
}

/// The error of a data VI that has ended.
fn over<H: Host>(host: &mut H, time: PostTiming) -> Error {
    let error = host.take_answers().err().unwrap_or(ViaError::Closed);
    host.end(error, time)
}

impl Pairs {
    /// Notes the mailbox's answer to the request of a pair: `Ack` or `Nack`.
    pub fn on_answer(&mut self, kind: Kind, pair: u32, buffer_len: u32) {
        if let Some(data) = self.data.as_mut().filter(|data| data.number == pair) {
            let nack = Answer::Nack { buffer_len: buffer_len as usize };
            data.answer = Some(if kind == Kind::Ack { Answer::Ack } else { nack });
        }
    }

    pub fn on_refusal(&mut self, pair: u32, why: &str) {
        if let Some(data) = self.data.as_mut().filter(|data| data.number == pair) {
            data.answer = Some(Answer::Refused { why: why.to_owned() });
        }
    }
}

// ---- the mailbox's side ----

/// The data VI of a postbox's pair.
pub(crate) struct RecvData {
    pub vi: Vi,
    /// Number of the pair.
    pair: u32,
    /// The message that a descriptor is posted for: its length in bytes, and the grant of its memory.
    awaited: Option<(usize, Option<Grant>)>,
    _place: Share<u32>,
}

/// A postbox's request, with a grant of the mailbox's quota.
pub(crate) struct Request {
    /// Length of the message in bytes.
    pub len: usize,
    /// Number of the pair.
    pub pair: u32,
    /// The grant; `None` if no memory could hold the message.
    pub granted: Option<Grant>,
}

impl RecvData {
    /// Makes the data VI. `place` is its share of the connections that its rank may have.
    pub fn new(vi: Vi, pair: u32, place: Share<u32>) -> Self {
        RecvData { vi, pair, awaited: None, _place: place }
    }

    /// Whether a descriptor is posted for a message that may or may not come. The control VI is not read on
    /// until that is known: a poster that has given up meanwhile goes on posting, and its message may have
    /// come all the same, before the later ones.
    pub fn awaits_message(&self) -> bool {
        self.awaited.is_some()
    }
}

/// Answers a request that takes no memory. `buffer_len` is the length in bytes of the program's buffer, if it
/// brought one.
pub(crate) fn answer_at_once(
    (len, pair): (usize, u32),
    buffer_len: Option<usize>,
    slot: Option<&RecvData>,
    side: &mut RecvSide,
) -> Result<Option<RendezvousStatus>, Malformed> {
    // A request of a pair that no longer exists was given up.
    let Some(data) = slot.filter(|data| data.pair == pair) else {
        return Ok(Some(RendezvousStatus::Answered));
    };
    if data.awaited.is_some() {
        return Err(Malformed);
    }
    let Some(buffer_len) = buffer_len.filter(|bytes| *bytes < len) else { return Ok(None) };
    side.answer(Some(buffer_len as u32), Kind::Nack, pair, &[])?;
    Ok(Some(RendezvousStatus::TooLong(len)))
}

/// Posts a receive descriptor for a message on the data VI, for a request that [`answer_at_once`] has not answered.
pub(crate) fn grant(
    Request { len, pair, granted }: Request,
    slot: &mut Option<Box<RecvData>>,
    side: &mut RecvSide,
    world: &WorldState,
) -> Result<RendezvousStatus, Malformed> {
    let Some(data) = slot.as_mut() else { return Ok(RendezvousStatus::Answered) };
    let registered = match block_for(len, world) {
        Ok(Some(block)) => {
            data.vi.nic().region_of(block, data.vi.attributes().ptag).map_err(|(error, _)| error)
        }
        Ok(None) => return Ok(RendezvousStatus::Deferred),
        Err(error) => Err(error),
    };
    let region = match registered {
        Ok(region) => region,
        Err(error) => return side.refuse(Kind::Request, pair, &error),
    };
    if data.vi.post_receive(Descriptor::new([region])).is_err() {
        // The data VI has ended: its sender has given up, or is gone.
        *slot = None;
        return Ok(RendezvousStatus::Answered);
    }
    data.awaited = Some((len, granted));
    side.answer(Some(len as u32), Kind::Ack, pair, &[])?;
    fault::point("handshake.granted");
    Ok(RendezvousStatus::Answered)
}

/// Receives from the data VI.
pub(crate) fn receive(
    slot: &mut Option<Box<RecvData>>,
    side: &RecvSide,
) -> Result<Option<Parcel>, Malformed> {
    let Some(data) = slot else { return Ok(None) };
    let Some(completion) = data.vi.receive_done() else {
        if data.vi.state() != State::Connected {
            *slot = None;
        }
        return Ok(None);
    };
    match (completion.status, data.awaited.take()) {
        (Status::Done, Some((len, _granted))) if len == completion.length => {
            fault::point("handshake.received");
            let tag = completion.immediate.unwrap_or(0);
            let block = completion.descriptor.ok().and_then(block_of).ok_or(Malformed)?;
            Ok(Some(side.parcel(tag, Stored::Owned(block))))
        }
        (Status::Done | Status::LengthError, _) => Err(Malformed),
        _ => {
            *slot = None;
            Ok(None)
        }
    }
}

/// The block of a completed descriptor.
fn block_of(descriptor: Descriptor) -> Option<Block> {
    descriptor.into_segments().pop()?.into_region().into_block().ok()
}
