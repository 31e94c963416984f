//! The engine behind a postbox: one connection to a mailbox, and the messages that wait for it.
//!
//! Eager and handed-off messages go out at once. A message that must be announced first (`rdma-write`, `copy`) waits
//! in the queue until the mailbox has answered, and one that was only started until there is room; whatever is posted
//! behind it waits too, so that messages of one postbox arrive in order. Announcements run ahead of each other, so that a
//! stream of them is not a stream of round trips.
//!
//! | file | what it is |
//! |---|---|
//! | here | posting; what goes out at once; waiting, and what errors mean |
//! | `queue` | messages that wait, in order |
//! | `starting` | posts that return at once: what became of their messages |
//! | `load` | a message's memory, whoever else has it |
//! | `copying` | `copy`: fragments |
//! | `reading` | `rdma-read`: messages that the mailbox reads by itself |
//! | `handshake` | `handshake`: a pair of VIs, and a post that waits |
//!
//! Nothing here blocks but [`Channel::post`], [`Channel::wait_over`] and [`Channel::flush`], with deadlines.
//! [`Channel::progress`] may be called by whoever has the channel: the poster, another call of its thread, or the helper.

mod copying;
mod handshake;
mod load;
mod queue;
mod reading;
#[cfg(feature = "async")]
mod room;
mod share;
mod starting;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_via::mem::{Fill, StableBuffer, UserMemory};
use udeck_via::{Block, Caps, Cq, Deadline, Error as ViaError, NetAddress, Ptag, Region, Vi};

use crate::auto::Thresholds;
use crate::error::{Error, Result, Titled};
use crate::holders::Sender;
use crate::inbox::grants::Memory;
use crate::protocol::{MAX_INLINE, Protocol};
use crate::routes::Route;
use crate::shared::Shared;
use crate::stats::Counters;
use crate::wire::{self, Kind};

pub(crate) use copying::FRAGMENT;
pub(crate) use starting::Ticket;

/// Memory may come free where a waiting post does not hear of it: so often it looks.
pub(crate) const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// So often a wait looks whether the launcher has told of the owner's end.
const LOOK_UP: Duration = Duration::from_millis(500);

/// Nor does a mailbox tell of each message that it reads, which would cost every retrieve: a flush looks so often, at
/// first and in the long run.
const FLUSH_PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// How long a post may wait.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    None,
    /// Not at all: a message for which there is no room waits in the queue.
    Start,
    /// The world's deadline. The clock is read only when there is something to wait for.
    Usual,
    Until(Deadline),
}

impl Patience {
    /// The end of a wait that begins now; `None`: there is to be none.
    pub fn until(self, usual: Duration) -> Option<Deadline> {
        match self {
            Patience::None | Patience::Start => None,
            Patience::Usual => Some(Deadline::after(usual)),
            Patience::Until(deadline) => Some(deadline),
        }
    }
}

/// A failed post: why, and the message unless it was under way.
pub(crate) type Failed = (Error, Option<Block>);

/// One connection to a mailbox.
pub(crate) struct Channel {
    /// The control VI: everything but the data of `handshake`.
    vi: Vi,
    /// The data VI, from the first handshake on. (Boxed: most channels have none.)
    data: Option<Box<handshake::Data>>,
    /// Data VIs made so far.
    pairs: u32,
    /// The NIC's, close at hand: asking the device is a call per message.
    caps: Caps,
    /// [`Thresholds::first_beyond_inline`] of it.
    beyond_inline: usize,
    /// By [`Protocol::Auto`], longer messages are handed off: the first protocol that is asked for.
    handed_off_from: usize,
    cq: Cq,
    world: Arc<Shared>,
    /// Where the mailbox is.
    to: NetAddress,
    /// By which transport it was reached.
    route: Box<Route>,
    mailbox: String,
    owner: u32,
    number: u32,
    tickets: starting::Tickets,
    queue: queue::Queue,
    reads: reading::Reads,
    /// Whether a call that did not wait would have waited for what nobody tells of: memory, or the mailbox's reading.
    #[cfg(feature = "async")]
    has_to_look: std::cell::Cell<bool>,
    counters: Arc<Counters>,
    /// Says to others what waits in the queue.
    books: Arc<Sender>,
}

/// What a channel leads to, and from where.
pub(crate) struct Whom {
    pub mailbox: String,
    /// Its rank.
    pub owner: u32,
    /// The postbox's.
    pub number: u32,
}

impl Channel {
    pub fn new(vi: Vi, cq: Cq, world: Arc<Shared>, to: NetAddress, whom: Whom, route: Route) -> Self {
        let counters = world.counters(&whom.mailbox);
        let Whom { mailbox, owner, number } = whom;
        let books = world.registry().open_sender(&mailbox, owner, vi.ledger());
        let (auto, caps) = (&world.config().auto, vi.nic().caps());
        let beyond_inline = auto.first_beyond_inline(caps);
        let handed_off_from = if caps.has(Caps::HAND_OFF) { auto.hand_off } else { Thresholds::NEVER };
        Channel {
            caps,
            beyond_inline,
            handed_off_from,
            vi,
            data: None,
            pairs: 0,
            cq,
            world,
            to,
            route: Box::new(route),
            mailbox,
            owner,
            number,
            queue: Default::default(),
            reads: Default::default(),
            tickets: Default::default(),
            #[cfg(feature = "async")]
            has_to_look: std::cell::Cell::default(),
            counters,
            books,
        }
    }

    /// Whether messages wait for the mailbox.
    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty() || !self.reads.is_empty()
    }

    /// The mailbox's rank.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// By which transport it was reached, and why by no better one.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// The tag of its VIs, and of adopted memory.
    fn ptag(&self) -> Ptag {
        self.vi.attributes().ptag
    }

    /// Makes memory of the program's known to the NIC, or finds that it is still known.
    #[allow(clippy::result_large_err, reason = "refused memory comes back by value; refusals are rare")]
    pub fn register<B: StableBuffer>(
        &self,
        memory: UserMemory<B>,
    ) -> Result<Region, (ViaError, UserMemory<B>)> {
        self.vi.nic().register_memory(memory, self.ptag())
    }

    /// What the connection can do.
    pub fn caps(&self) -> Caps {
        self.vi.nic().caps()
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

    /// How a message of `len` bytes goes out by `protocol`. Where there is no hand-off the transport gives the receiver a copy
    /// of its own anyway: then `eager` needs none of ours, and sends the message from where it lies.
    #[inline]
    pub(super) fn resolve(&self, protocol: Protocol, len: usize) -> Protocol {
        match protocol.resolve(len, self.caps, &self.world.config().auto) {
            Protocol::Eager if len > MAX_INLINE && !self.caps.has(Caps::HAND_OFF) => Protocol::HandOff,
            resolved => resolved,
        }
    }

    /// Sends what most messages are: short, with nothing before them and room at the mailbox. `false`: nothing was done, and
    /// the longer way finds out why.
    #[inline]
    pub fn post_short(&mut self, bytes: &[u8], tag: u32, protocol: Protocol) -> bool {
        let is_inline = match protocol {
            Protocol::Auto => bytes.len() < self.beyond_inline,
            Protocol::Eager => bytes.len() <= MAX_INLINE,
            _ => false,
        };
        if !is_inline || self.has_queued() || self.world.has_undelivered() {
            return false;
        }
        let sent = self.vi.send_inline(Some(tag), &wire::head(Kind::Eager, 0), bytes).is_ok();
        if sent {
            let counters = &*self.counters;
            counters.copied(bytes.len());
            counters.posted(bytes.len());
        }
        sent
    }

    /// Likewise what most long messages are: handed off. Otherwise the message comes back.
    #[inline]
    pub fn post_handed_off(&mut self, block: Block, protocol: Protocol) -> Result<(), Block> {
        let len = block.len();
        let is_handed_off = match protocol {
            Protocol::Auto => len >= self.handed_off_from,
            Protocol::HandOff => true,
            _ => false,
        };
        if !is_handed_off || self.has_queued() || self.world.has_undelivered() {
            return Err(block);
        }
        let tag = Some(block.notes()[0]);
        let handed_off = self.vi.hand_off(tag, &wire::head(Kind::HandOff, 0), block);
        handed_off.map_err(|(_, block)| block)?;
        self.counters.posted(len);
        Ok(())
    }

    /// Accepts a message. Waits, if it must, for room at the mailbox. The ticket is [`Patience::Start`]'s.
    #[inline]
    pub fn post(&mut self, block: Block, protocol: Protocol, patience: Patience) -> Result<Ticket, Failed> {
        if self.world.has_undelivered()
            && let Err(error) = self.undelivered()
        {
            return Err((error, Some(block)));
        }
        let protocol = self.resolve(protocol, block.len());
        let len = block.len();
        let ticket = if self.queue.is_empty() && matches!(protocol, Protocol::Eager | Protocol::HandOff) {
            self.post_now(block, protocol, patience)?
        } else if protocol == Protocol::Handshake {
            self.post_and_wait(block, patience)?
        } else {
            self.post_own_queued(block, protocol, patience)?
        };
        self.counters.posted(len);
        Ok(ticket)
    }

    #[inline]
    fn post_now(&mut self, block: Block, protocol: Protocol, patience: Patience) -> Result<Ticket, Failed> {
        match self.send(block, protocol) {
            Ok(()) => Ok(None),
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
    ) -> Result<Ticket, Failed> {
        if matches!(patience, Patience::Start) && is_busy(&error) {
            return self.post_own_queued(block, protocol, patience);
        }
        let (start, until) = (Instant::now(), self.until(patience));
        let mut asked = false;
        while is_busy(&error) {
            let deadline = match self.may_wait_beside(block.capacity(), until, start, &error) {
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
                Ok(()) => return Ok(None),
                Err((again, returned)) => (error, block) = (again, returned),
            }
        }
        Err((self.translate(error), Some(block)))
    }

    /// Accepts a copy of `bytes` as a message. Waits, if it must, for the memory of it, then as [`Channel::post`].
    #[inline]
    pub fn post_copy(
        &mut self,
        bytes: &[u8],
        tag: u32,
        protocol: Protocol,
        patience: Patience,
    ) -> Result<Ticket> {
        if self.post_short(bytes, tag, protocol) {
            return Ok(None);
        }
        self.post_copied(bytes, tag, protocol, patience)
    }

    /// As [`Channel::post_copy`], by way of a block.
    #[cold]
    fn post_copied(
        &mut self,
        bytes: &[u8],
        tag: u32,
        protocol: Protocol,
        patience: Patience,
    ) -> Result<Ticket> {
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
        let patience = until.map_or(patience, Patience::Until);
        self.post(block, protocol, patience).map_err(|(error, _)| error)
    }

    fn until(&self, patience: Patience) -> Option<Deadline> {
        patience.until(self.world.config().deadline)
    }

    /// Until when a post may wait because of `error`, or why it may not.
    #[cold]
    fn may_wait(&self, until: Option<Deadline>, start: Instant, error: &ViaError) -> Result<Deadline> {
        #[cfg(feature = "async")]
        self.has_to_look.set(matches!(error, ViaError::NoMemory { .. }));
        match until {
            None => {
                let whom = format!("rank {} to read from {}", self.owner, Titled(&self.mailbox));
                Err(Error::WouldBlock { what: "the post", whom })
            }
            Some(deadline) if deadline.passed() => Err(self.too_late("posting", start, error)),
            Some(deadline) => self.is_awaited().map(|()| deadline),
        }
    }

    /// As [`Channel::may_wait`], of a post that holds `held` bytes itself and may have to copy them.
    #[cold]
    fn may_wait_beside(
        &self,
        held: usize,
        until: Option<Deadline>,
        start: Instant,
        error: &ViaError,
    ) -> Result<Deadline> {
        self.in_vain(held, error).map_or_else(|| self.may_wait(until, start, error), Err)
    }

    /// Why waiting for memory would be in vain, if it would: the message itself, of `held` bytes, leaves no room for the copy
    /// of it that `error` speaks of, whatever others give back.
    #[cold]
    fn in_vain(&self, held: usize, error: &ViaError) -> Option<Error> {
        let &ViaError::NoMemory { asked, limit, .. } = error else { return None };
        if held.saturating_add(asked) <= limit {
            return None;
        }
        let holders = self.world.holders(Memory::Outbox).to_string();
        let source = Box::new(self.world.allocate(asked, Fill::Keep).err()?);
        let what = format!("copying {asked} bytes of a message of {held} for {}", Titled(&self.mailbox));
        Some(Error::NoMemory { what, holders, source })
    }

    /// The launcher may know that the mailbox's owner is lost before the connection does: then there is nothing to wait for.
    #[cold]
    fn is_awaited(&self) -> Result {
        let node = self.owner as usize;
        self.lost().map_or(Ok(()), |how| Err(Error::PeerLost { node, how }))
    }

    /// What became of the mailbox's owner, if it is lost.
    fn lost(&self) -> Option<String> {
        let ends = self.world.ends();
        if ends.seen() == 0 { None } else { ends.how_lost(self.owner) }
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
        let (copied, bounce) = (piece.len(), self.bounce(block, piece)?);
        self.vi.hand_off(Some(block.notes()[0]), &wire::head(kind, 0), bounce).map_err(|(error, _)| error)?;
        self.counters.copied(copied);
        Ok(())
    }

    /// The queue has changed.
    fn note_queued(&self) {
        let queued: usize = self.queue.iter().map(|waiting| waiting.load.capacity()).sum();
        self.books.note_queued(queued + self.reads.bytes());
    }

    /// A copy of a piece of the message.
    fn bounce(&self, block: &Block, piece: Range<usize>) -> Result<Block, ViaError> {
        let mut bounce = self.world.allocate(piece.len(), Fill::Keep)?;
        bounce.bytes_mut().copy_from_slice(&block.bytes()[piece]);
        Ok(bounce)
    }

    /// What happened to earlier messages, told once.
    #[cold]
    fn undelivered(&self) -> Result {
        self.world.take_undelivered(self.number)
    }

    /// Waits until everything posted here has been read by the mailbox's owner.
    pub fn flush(&mut self, deadline: Deadline) -> Result {
        let start = Instant::now();
        let [mut pause, longest] = FLUSH_PAUSES;
        loop {
            self.progress();
            self.undelivered()?;
            if !self.has_queued() {
                self.vi.want_room();
                match self.vi.unread() {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) => return Err(self.translate(error)),
                }
            }
            self.is_awaited()?;
            if deadline.passed() {
                #[cfg(feature = "async")]
                self.has_to_look.set(true);
                let full = ViaError::Full { what: "the mailbox", bound: "".into() };
                return Err(self.too_late("flushing", start, &full));
            }
            self.wait(deadline.min(Deadline::after(pause)));
            pause = longest.min(pause * 2);
        }
    }

    /// Sleeps until the peer has done something, briefly if other channels have work that this thread should do, and no
    /// longer than its end may be news.
    fn wait(&mut self, deadline: Deadline) {
        let world = &self.world;
        let until = deadline.min(Deadline::after(LOOK_UP));
        self.cq.wait(world.slice(until), || world.help_others());
    }

    fn too_late(&self, what: &str, start: Instant, cause: &ViaError) -> Error {
        let what = format!("{what} to {}", Titled(&self.mailbox));
        let whom = match cause {
            ViaError::NoMemory { .. } => format!("memory: {cause}; {}", self.world.holders(Memory::Outbox)),
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
            other => Error::via(format!("posting to {} on rank {node}", Titled(&name)), other),
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
