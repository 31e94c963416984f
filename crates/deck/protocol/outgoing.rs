//! A message in a channel's queue, by any protocol: the questions of the queue, passed on to the protocol's
//! file.

use std::time::Instant;

use udeck_via::{Error as ViaError, fault, job_time};

use super::auto::{Plan, Step};
use super::message_block::MessageBlock;
use super::rdma_read::AnnouncedReads;
use super::side::SendSide;
use super::{Protocol, copy, eager, hand_off, rdma_write};

/// A message, and its state.
pub(crate) enum Outgoing {
    Short(eager::ShortSend),
    Eager(eager::EagerSend),
    /// A message whose own memory is sent, by `hand-off` or `eager`.
    Lent(MessageBlock, Protocol),
    Copy(copy::CopySend),
    RdmaWrite(rdma_write::WriteSend),
    /// A message that is announced when it is first, and then leaves the queue.
    RdmaRead(MessageBlock),
}

/// Error that keeps a message in its place, and the message. `None`: it waits for its answer.
pub(crate) type Blocked = (Option<ViaError>, Outgoing);

impl Outgoing {
    /// Makes a queued message. `plan` is not [`Step::Handshake`], whose messages are not queued.
    pub fn new(block: MessageBlock, plan: Plan) -> Self {
        match plan.step {
            Step::Lend => Outgoing::Lent(block, plan.protocol),
            Step::AnnounceCopy => Outgoing::Copy(copy::CopySend::new(block)),
            Step::AnnounceWrite => Outgoing::RdmaWrite(rdma_write::WriteSend::new(block)),
            Step::AnnounceRead => Outgoing::RdmaRead(block),
            Step::Inline | Step::Bounce | Step::Handshake => Outgoing::Eager(eager::EagerSend::new(block)),
        }
    }

    /// Makes a message of at most [`super::MAX_INLINE`] bytes by `eager`, which has no block.
    pub fn short(bytes: &[u8], tag: u32) -> Self {
        Outgoing::Short(eager::ShortSend::new(bytes, tag))
    }

    /// Drops the block of a short message, for a message that will not come back to its poster.
    pub fn shortened(self) -> Self {
        match self {
            Outgoing::Eager(message) => message.shortened().map_or(Outgoing::Eager(message), Outgoing::Short),
            other => other,
        }
    }

    /// Bytes of message memory that the message holds.
    pub fn memory(&self) -> usize {
        match self {
            Outgoing::Short(_) => 0,
            Outgoing::Lent(block, _) | Outgoing::RdmaRead(block) => block.kept(),
            Outgoing::Eager(message) => message.block.kept(),
            Outgoing::Copy(message) => message.block.kept(),
            Outgoing::RdmaWrite(message) => message.block.kept(),
        }
    }

    /// The message's block, if it has one.
    pub fn into_block(self) -> Option<MessageBlock> {
        match self {
            Outgoing::Short(_) => None,
            Outgoing::Lent(block, _) | Outgoing::RdmaRead(block) => Some(block),
            Outgoing::Eager(message) => Some(message.block),
            Outgoing::Copy(message) => Some(message.block),
            Outgoing::RdmaWrite(message) => Some(message.block),
        }
    }

    /// Whether the message was announced to the mailbox.
    pub fn is_announced(&self) -> bool {
        match self {
            Outgoing::Copy(message) => message.stage != copy::CopyStage::New,
            Outgoing::RdmaWrite(message) => message.stage != rdma_write::WriteStage::New,
            _ => false,
        }
    }

    /// Whether the message waits for the mailbox's answer to its announcement.
    pub fn is_asked(&self) -> bool {
        match self {
            Outgoing::Copy(message) => message.stage == copy::CopyStage::Asked,
            Outgoing::RdmaWrite(message) => message.stage == rdma_write::WriteStage::Asked,
            _ => false,
        }
    }

    /// Protocol of the message, and its length in bytes.
    pub fn described(&self) -> (Protocol, usize) {
        match self {
            Outgoing::Short(message) => (Protocol::Eager, message.len()),
            Outgoing::Eager(message) => (Protocol::Eager, message.block.len()),
            Outgoing::Lent(block, protocol) => (*protocol, block.len()),
            Outgoing::Copy(message) => (Protocol::Copy, message.block.len()),
            Outgoing::RdmaWrite(message) => (Protocol::RdmaWrite, message.block.len()),
            Outgoing::RdmaRead(block) => (Protocol::RdmaRead, block.len()),
        }
    }

    /// Announces the message while others are before it. `false`: it goes out when it is first, and nothing
    /// behind it may be announced.
    pub fn announce(&mut self, side: &mut SendSide) -> Result<bool, ViaError> {
        match self {
            Outgoing::Copy(message) => message.announce(side)?,
            Outgoing::RdmaWrite(message) => message.announce(side)?,
            _ => return Ok(false),
        }
        fault::point("announce.said");
        Ok(true)
    }

    /// Notes the mailbox's answer to the announcement. `part`: a handle, or a number of fragments. `from`:
    /// time before which the mailbox does not accept the message.
    pub fn on_ready(&mut self, part: u32, from: Option<Instant>) {
        match self {
            Outgoing::Copy(message) => {
                message.on_ready(part);
                message.from = from;
            }
            Outgoing::RdmaWrite(message) => {
                message.on_ready(part);
                message.from = from;
            }
            _ => {}
        }
    }

    /// Time from which the mailbox accepts the message, if it has said so.
    pub fn granted_from(&self) -> Option<Instant> {
        match self {
            Outgoing::Copy(message) => message.from,
            Outgoing::RdmaWrite(message) => message.from,
            _ => None,
        }
    }

    /// Length in bytes of a message that is sent without an announcement.
    pub fn unannounced_len(&self) -> Option<usize> {
        match self {
            Outgoing::Short(message) => Some(message.len()),
            Outgoing::Eager(message) => Some(message.block.len()),
            Outgoing::Lent(block, _) => Some(block.len()),
            Outgoing::Copy(_) | Outgoing::RdmaWrite(_) | Outgoing::RdmaRead(_) => None,
        }
    }

    /// Notes that the mailbox has read a fragment.
    pub fn on_more(&mut self) {
        if let Outgoing::Copy(message) = self {
            message.on_more();
        }
    }

    /// Completes the message, which is the first, if possible. `others_wait`: there are others in the queue.
    #[allow(clippy::result_large_err, reason = "what stays goes back to its place by value")]
    pub fn advance(
        self,
        side: &mut SendSide,
        announced_reads: &mut AnnouncedReads,
        others_wait: bool,
    ) -> Result<(), Blocked> {
        if self.granted_from().is_some_and(|from| job_time() < from) {
            return Err((None, self));
        }
        match self {
            Outgoing::Short(message) => {
                message.send(side).map_err(|error| (Some(error), Outgoing::Short(message)))
            }
            Outgoing::Eager(message) => message
                .advance(side, others_wait)
                .map_err(|(error, message)| (Some(error), Outgoing::Eager(message))),
            Outgoing::Lent(block, protocol) => hand_off::send(side, block)
                .map_err(|(error, block)| (Some(error), Outgoing::Lent(block, protocol))),
            Outgoing::Copy(message) => {
                message.advance(side).map_err(|(error, message)| (error, Outgoing::Copy(message)))
            }
            Outgoing::RdmaWrite(message) => {
                message.advance(side).map_err(|(error, message)| (error, Outgoing::RdmaWrite(message)))
            }
            Outgoing::RdmaRead(block) => announced_reads
                .announce(block, side)
                .map_err(|(error, block)| (Some(error), Outgoing::RdmaRead(block))),
        }
    }

    /// Bytes that have to be copied into other memory before anything can be sent; 0 if none.
    pub fn next_copy(&self) -> usize {
        match self {
            Outgoing::Eager(message) => message.next_copy(),
            Outgoing::Copy(message) => message.next_copy(),
            _ => 0,
        }
    }
}

/// Bytes of a message of `len` bytes that are copied at a time into other memory of this rank.
pub(crate) fn copied_at_once(step: Step, len: usize) -> usize {
    match step {
        Step::Bounce => len,
        Step::AnnounceCopy => copy::FRAGMENT.min(len),
        _ => 0,
    }
}
