//! The engine behind a postbox: one connection to a mailbox, and the messages that wait for it.
//!
//! Eager and handed-off messages go out at once. A message that must be announced first (`rdma-write`, `copy`) waits
//! in the queue until the mailbox has answered; whatever is posted behind it waits too, so that messages of one postbox
//! arrive in order. Announcements run ahead of each other, so that a stream of them is not a stream of round trips.
//!
//! Nothing here blocks but [`Channel::post`] and [`Channel::flush`], with deadlines. [`Channel::progress`] may be called
//! by whoever has the channel: the poster, another call of its thread, or the helper.

#[cfg(feature = "async")]
mod room;
mod share;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_via::mem::Fill;
use udeck_via::transport::{Arrival, Body};
use udeck_via::{Block, Cq, Deadline, Error as ViaError, MemHandle, RemoteBuffer, Vi};

use crate::error::{Error, Result};
use crate::protocol::{MAX_INLINE, Protocol};
use crate::shared::Shared;
use crate::stats::Counters;
use crate::wire::{self, Kind};

/// Messages that may wait for the mailbox's answer.
const MAX_QUEUED: usize = 16;
/// Bytes of a fragment of the `copy` protocol.
const FRAGMENT: usize = 64 << 10;

/// Memory may come free where a waiting post does not hear of it: so often it looks.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// How long a post may wait.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    None,
    /// The world's deadline. The clock is read only when there is something to wait for.
    Usual,
    Until(Deadline),
}

/// A failed post: why, and the message unless it was under way.
pub(crate) type Failed = (Error, Option<Block>);

/// One connection to a mailbox.
pub(crate) struct Channel {
    vi: Vi,
    cq: Cq,
    world: Arc<Shared>,
    mailbox: String,
    owner: u32,
    number: u32,
    queue: VecDeque<Waiting>,
    /// Whether a post that did not wait would have waited for memory.
    #[cfg(feature = "async")]
    short_of_memory: std::cell::Cell<bool>,
    counters: Arc<Counters>,
}

struct Waiting {
    block: Block,
    how: Protocol,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing was said of it yet.
    Unsaid,
    /// Announced.
    Asked,
    /// The mailbox has memory for it.
    Ready { handle: MemHandle },
    /// Likewise; so many bytes are on their way, and so many more fragments may be.
    Copying { sent: usize, fragments: u32 },
}

impl Channel {
    pub fn new(vi: Vi, cq: Cq, world: Arc<Shared>, mailbox: &str, owner: u32, number: u32) -> Self {
        let counters = world.counters(mailbox);
        Channel {
            vi,
            cq,
            world,
            mailbox: mailbox.to_owned(),
            owner,
            number,
            queue: VecDeque::new(),
            #[cfg(feature = "async")]
            short_of_memory: std::cell::Cell::default(),
            counters,
        }
    }

    /// Whether messages wait for the mailbox.
    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether the connection can carry messages by `protocol`.
    pub fn check(&self, protocol: Protocol) -> Result {
        let have = self.vi.nic().caps();
        let needed = protocol.needs();
        if have.has(needed) {
            return Ok(());
        }
        Err(Error::Unsupported {
            protocol,
            node: self.owner as usize,
            needed: needed.to_string(),
            have: have.to_string(),
            possible: Protocol::possible(have),
        })
    }

    /// Accepts a message. Waits, if it must, for room at the mailbox.
    #[inline]
    pub fn post(&mut self, block: Block, protocol: Protocol, patience: Patience) -> Result<(), Failed> {
        if self.world.has_undelivered()
            && let Err(error) = self.undelivered()
        {
            return Err((error, Some(block)));
        }
        let protocol = protocol.resolve(block.len(), self.vi.nic().caps());
        let len = block.len();
        if self.queue.is_empty() && matches!(protocol, Protocol::Eager | Protocol::HandOff) {
            self.post_now(block, protocol, patience)?;
        } else {
            self.post_queued(block, protocol, patience)?;
        }
        self.counters.posted(len);
        Ok(())
    }

    #[inline]
    fn post_now(&mut self, block: Block, protocol: Protocol, patience: Patience) -> Result<(), Failed> {
        match self.send(block, protocol) {
            Ok(()) => Ok(()),
            Err((error, block)) => self.post_slowly(error, block, protocol, patience),
        }
    }

    #[cold]
    fn post_slowly(
        &mut self,
        mut error: ViaError,
        mut block: Block,
        protocol: Protocol,
        patience: Patience,
    ) -> Result<(), Failed> {
        let (start, until) = (Instant::now(), self.until(patience));
        let mut asked = false;
        while is_busy(&error) {
            let deadline = match self.may_wait(until, start, &error) {
                Ok(deadline) => deadline,
                Err(why) => return Err((why, Some(block))),
            };
            // Ask to be told of room, look once more, then wait.
            if asked {
                self.wait(look_again(&error, deadline));
            } else {
                self.vi.want_room();
            }
            asked = !asked;
            match self.send(block, protocol) {
                Ok(()) => return Ok(()),
                Err((again, returned)) => (error, block) = (again, returned),
            }
        }
        Err((self.translate(error), Some(block)))
    }

    fn post_queued(&mut self, block: Block, protocol: Protocol, patience: Patience) -> Result<(), Failed> {
        if let Err(error) = self.check(protocol) {
            return Err((error, Some(block)));
        }
        let (start, until) = (Instant::now(), self.until(patience));
        if let Err(error) = self.look() {
            return Err((error, Some(block)));
        }
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
    fn look(&mut self) -> Result {
        self.progress();
        // Answers come to messages that wait; where none does, there is nothing to take but the end.
        if self.queue.is_empty()
            && let Err(error) = self.vi.arrival()
        {
            return Err(self.translate(error));
        }
        Ok(())
    }

    /// Accepts a copy of `bytes` as a message. Waits, if it must, for the memory of it, then as [`Channel::post`].
    pub fn post_copy(&mut self, bytes: &[u8], tag: u32, protocol: Protocol, patience: Patience) -> Result {
        let limit = self.vi.nic().attributes().max_transfer;
        if bytes.len() > limit {
            return Err(Error::TooLarge { asked: bytes.len(), limit });
        }
        let (start, until) = (Instant::now(), self.until(patience));
        let mut block = loop {
            self.look()?;
            match self.world.allocate(bytes.len(), Fill::Keep) {
                Ok(block) => break block,
                Err(error) if is_busy(&error) => {
                    let deadline = self.may_wait(until, start, &error)?;
                    self.wait(look_again(&error, deadline));
                }
                Err(error) => return Err(self.translate(error)),
            }
        };
        block.bytes_mut().copy_from_slice(bytes);
        block.set_notes([tag, 0]);
        self.counters.copied(bytes.len());
        let patience = until.map_or(Patience::None, Patience::Until);
        self.post(block, protocol, patience).map_err(|(error, _)| error)
    }

    fn until(&self, patience: Patience) -> Option<Deadline> {
        match patience {
            Patience::None => None,
            Patience::Usual => Some(Deadline::after(self.world.config().deadline)),
            Patience::Until(deadline) => Some(deadline),
        }
    }

    /// Until when a post may wait because of `error`, or why it may not.
    #[cold]
    fn may_wait(&self, until: Option<Deadline>, start: Instant, error: &ViaError) -> Result<Deadline> {
        #[cfg(feature = "async")]
        self.short_of_memory.set(matches!(error, ViaError::NoMemory { .. }));
        match until {
            None => {
                let whom = format!("rank {} to read from mailbox {:?}", self.owner, self.mailbox);
                Err(Error::WouldBlock { what: "the post", whom })
            }
            Some(deadline) if deadline.passed() => Err(self.too_late("posting", start, error)),
            Some(deadline) => Ok(deadline),
        }
    }

    /// Sends a message that needs no announcement.
    #[inline]
    fn send(&mut self, block: Block, how: Protocol) -> Result<(), (ViaError, Block)> {
        let tag = Some(block.notes()[0]);
        if how == Protocol::HandOff {
            return self.vi.hand_off(tag, &wire::head(Kind::HandOff, 0), block);
        }
        if block.len() > MAX_INLINE {
            return self.send_copy(&block, 0..block.len(), Kind::Eager).map_err(|error| (error, block));
        }
        match self.vi.send_inline(tag, &wire::head(Kind::Eager, 0), block.bytes()) {
            Ok(()) => {
                self.counters.copied(block.len());
                Ok(())
            }
            Err(error) => Err((error, block)),
        }
    }

    /// Copies a piece of the message into memory of the library's and sends that.
    fn send_copy(&mut self, block: &Block, piece: Range<usize>, kind: Kind) -> Result<(), ViaError> {
        let mut bounce = self.world.allocate(piece.len(), Fill::Keep)?;
        bounce.bytes_mut().copy_from_slice(&block.bytes()[piece.clone()]);
        self.vi.hand_off(Some(block.notes()[0]), &wire::head(kind, 0), bounce).map_err(|(error, _)| error)?;
        self.counters.copied(piece.len());
        Ok(())
    }

    /// Moves queued messages along as far as they go without waiting. Returns whether anything moved.
    pub fn progress(&mut self) -> bool {
        if self.queue.is_empty() {
            return false;
        }
        self.try_progress().unwrap_or_else(|error| {
            self.fail(&error);
            true
        })
    }

    fn try_progress(&mut self) -> Result<bool, ViaError> {
        let mut moved = false;
        while let Some(arrival) = self.vi.arrival()? {
            moved = true;
            self.on_answer(&arrival);
        }
        Ok(self.advance()? | moved)
    }

    fn on_answer(&mut self, arrival: &Arrival) {
        let Body::Inline(inline) = &arrival.body else { return };
        let Ok((kind, part, rest)) = wire::decode(inline.bytes()) else { return };
        if let (Kind::More, Some(Waiting { stage: Stage::Copying { fragments, .. }, .. })) =
            (kind, self.queue.front_mut())
        {
            *fragments += 1;
            return;
        }
        let Some(at) = self.queue.iter().position(|waiting| waiting.stage == Stage::Asked) else { return };
        let asked = &mut self.queue[at];
        match (kind, asked.how) {
            (Kind::Ready, Protocol::Copy) => asked.stage = Stage::Copying { sent: 0, fragments: part },
            (Kind::Ready, _) => asked.stage = Stage::Ready { handle: MemHandle(part) },
            (Kind::Refused, _) => {
                self.queue.remove(at);
                let why = format!("rank {} refused it: {}", self.owner, String::from_utf8_lossy(rest));
                self.world.note_undelivered(self.number, 1, &self.mailbox, self.owner, &why);
            }
            _ => {}
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
                Ok(()) => self.queue[at].stage = Stage::Asked,
                Err(error) if is_busy(&error) => break,
                Err(error) => return Err(error),
            }
            advanced = true;
        }
        Ok(advanced)
    }

    /// Completes the first message of the queue, if it can be. `Err(None)`: it waits for its answer.
    fn finish_front(&mut self, mut front: Waiting) -> Result<(), (Option<ViaError>, Waiting)> {
        let Waiting { how, stage, .. } = front;
        match (how, stage) {
            (Protocol::RdmaWrite, Stage::Ready { handle }) => {
                let to = RemoteBuffer { handle, offset: 0, len: front.block.len() };
                let tag = Some(front.block.notes()[0]);
                self.vi.rdma_write(&front.block, to, tag).map_err(|error| (Some(error), front))
            }
            (Protocol::Copy, Stage::Copying { mut sent, mut fragments }) => {
                let mut stopped = None;
                while fragments > 0 && stopped.is_none() {
                    let end = (sent + FRAGMENT).min(front.block.len());
                    match self.send_copy(&front.block, sent..end, Kind::Fragment) {
                        Ok(()) if end == front.block.len() => return Ok(()),
                        Ok(()) => (sent, fragments) = (end, fragments - 1),
                        Err(error) => stopped = Some(error),
                    }
                }
                front.stage = Stage::Copying { sent, fragments };
                Err((stopped, front))
            }
            (Protocol::Eager | Protocol::HandOff, _) => self
                .send(front.block, how)
                .map_err(|(error, block)| (Some(error), Waiting { block, how, stage })),
            _ => Err((None, front)),
        }
    }

    /// The connection is over: what was queued is lost.
    fn fail(&mut self, error: &ViaError) {
        let why = error.to_string();
        if !self.queue.is_empty() {
            self.world.note_undelivered(self.number, self.queue.len(), &self.mailbox, self.owner, &why);
        }
        self.queue.clear();
    }

    /// What happened to earlier messages, told once.
    #[cold]
    fn undelivered(&self) -> Result {
        self.world.take_undelivered(self.number)
    }

    /// Waits until everything posted here has been read by the mailbox's owner.
    pub fn flush(&mut self, deadline: Deadline) -> Result {
        let start = Instant::now();
        loop {
            self.progress();
            self.undelivered()?;
            if self.queue.is_empty() {
                self.vi.want_room();
                match self.vi.unread() {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) => return Err(self.translate(error)),
                }
            }
            if deadline.passed() {
                let full = ViaError::Full { what: "the mailbox", bound: "".into() };
                return Err(self.too_late("flushing", start, &full));
            }
            self.wait(deadline);
        }
    }

    /// Sleeps until the peer has done something, briefly if other channels have work that this thread should do.
    fn wait(&mut self, deadline: Deadline) {
        let world = &self.world;
        self.cq.wait(world.slice(deadline), || {
            world.help_others();
            false
        });
    }

    fn too_late(&self, what: &str, start: Instant, cause: &ViaError) -> Error {
        let what = format!("{what} to mailbox {:?}", self.mailbox);
        let whom = match cause {
            ViaError::NoMemory { .. } => format!("memory: {cause}"),
            _ => format!("rank {} to retrieve from it", self.owner),
        };
        Error::Deadline { what, waited: start.elapsed(), whom }
    }

    /// What an error of the VI layer means to a program.
    fn translate(&self, error: ViaError) -> Error {
        let (node, name) = (self.owner as usize, self.mailbox.clone());
        match error {
            ViaError::Closed => Error::MailboxGone { name, owner: node },
            ViaError::Lost(how) => {
                self.world.lost_or_closed(node, how, || Error::MailboxGone { name, owner: node })
            }
            ViaError::InvalidState { .. } => {
                let gone = Error::MailboxGone { name, owner: node };
                self.world.ends().how_lost(self.owner).map_or(gone, |how| Error::PeerLost { node, how })
            }
            other => Error::via(format!("posting to mailbox {name:?} on rank {node}"), other),
        }
    }
}

/// When a wait because of `error` should look again, news or not.
fn look_again(error: &ViaError, deadline: Deadline) -> Deadline {
    match error {
        ViaError::NoMemory { .. } => deadline.min(Deadline::after(MEMORY_PAUSE)),
        _ => deadline,
    }
}

/// Whether waiting may help: the peer has to read, or to give buffers back.
fn is_busy(error: &ViaError) -> bool {
    matches!(error, ViaError::Full { .. } | ViaError::NoMemory { .. })
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("mailbox", &self.mailbox)
            .field("owner", &self.owner)
            .field("queued", &self.queue.len())
            .field("vi", &self.vi)
            .finish()
    }
}
