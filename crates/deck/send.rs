//! The engine behind a postbox: one connection to a mailbox, and the messages that wait for it.
//!
//! Eager and handed-off messages are sent at once. A message that finds no room in the connection is queued
//! until there is some. A message that must be announced first (`rdma-write`, `copy`) waits in the queue
//! until the mailbox has answered. Everything posted behind a queued message is queued too, because the
//! messages of one postbox arrive in order. Several announcements may be under way at a time, so a stream of
//! announced messages does not take a round trip for each. A post waits only if the queue has no place.
//!
//! | file | contents |
//! |---|---|
//! | here | a channel: its connection and its queue |
//! | `poster` | a postbox without its type; the owner of the channel while messages wait |
//! | `post` | accepting a message: at once, or into the queue |
//! | `queue` | messages that wait, in order, and the mailbox's answers |
//! | `backlog` | the messages in the queue, and its bound |
//! | `depth` | how many messages may wait for the receiver, if the mailbox says |
//! | `requests` | the handles on messages in the queue |
//! | `waiting` | flush, handles, and how a channel waits |
//! | `incast` | incast control: whether the first message may be sent |
//! | `failure` | translation of errors for the program; broken connections |
//!
//! Only [`Channel::post`], [`Channel::wait_for_request`] and [`Channel::flush`] block, until their deadlines.
//! The holder of the channel calls [`Channel::progress`]: the poster, another call of its thread, or the
//! progress thread.

mod backlog;
mod depth;
mod failure;
mod incast;
mod post;
pub(crate) mod poster;
mod queue;
pub(crate) mod requests;
mod waiting;

use std::cell::RefCell;
use std::sync::Arc;

use udeck_via::mem::{StableBuffer, UserMemory};
use udeck_via::{Block, Caps, Cq, Error as ViaError, NetAddress, Region, Vi, is_forked, say};

use self::backlog::Backlog;
use self::depth::Depth;
use self::incast::Pacing;
use self::requests::RequestTable;
use crate::error::{Error, Result, Titled};
use crate::exits::check::ExitCheck;
use crate::incast::Rules;
use crate::memory::accounting::PostboxAccount;
use crate::protocol::Protocol;
use crate::protocol::auto::Selector;
use crate::protocol::handshake::Pairs;
use crate::protocol::rdma_read::AnnouncedReads;
use crate::protocol::side::SendSide;
use crate::route::Route;
use crate::stats::Counters;
use crate::world_state::WorldState;
use udeck_via::ServiceLevel;

/// A failed post: the error, and the message unless it was in flight.
pub(crate) type BlockFailure = (Error, Option<Block>);

/// One connection to a mailbox.
///
/// The fields are dropped in their order: the VIs, then the completion queue that they report to, the world
/// last.
pub(crate) struct Channel {
    side: SendSide,
    /// Data VIs for handshakes.
    pairs: Pairs,
    /// Chooses the protocol of a message.
    selector: Selector,
    cq: Cq,
    /// Address of the mailbox's NIC.
    to: NetAddress,
    /// The transport by which the mailbox was reached.
    route: Box<Route>,
    mailbox: String,
    owner: u32,
    number: u32,
    queue: Backlog,
    /// Incast control, if the mailbox schedules short messages. Then they pass the queue by only within a
    /// window or a grant.
    pacing: Option<Box<Pacing>>,
    /// Bound of the messages that wait for the receiver, if the mailbox sets one. Then none is sent on a fast
    /// path, because each has to be counted.
    depth: Option<Depth>,
    requests: RequestTable,
    /// Announced messages that the mailbox reads.
    announced_reads: AnnouncedReads,
    /// The exit check of the mailbox's owner, once the connection is broken.
    exit_check: RefCell<Option<Box<ExitCheck>>>,
    /// Whether a call that did not wait would have waited for an event without a notification: free memory, or
    /// the mailbox's reading.
    #[cfg(feature = "async")]
    needs_polling: std::cell::Cell<bool>,
    /// Account that shows others what waits in the queue.
    account: Arc<PostboxAccount>,
    /// The world of `side`, kept here so that it is dropped last.
    _world: Arc<WorldState>,
}

/// The mailbox that a channel leads to, and the channel's settings.
pub(crate) struct Target {
    pub mailbox: String,
    /// The name under which the name service knows the mailbox.
    pub registered: String,
    /// The mailbox's rank.
    pub owner: u32,
    /// Number of the postbox.
    pub number: u32,
    /// Bound of the postbox's queue, in bytes.
    pub queue: usize,
    /// Bound of the messages that wait for the receiver.
    pub depth: Option<u32>,
    pub level: ServiceLevel,
    /// Incast rules of the mailbox.
    pub incast: Rules,
}

impl Channel {
    pub fn new(vi: Vi, cq: Cq, world: Arc<WorldState>, to: NetAddress, target: Target, route: Route) -> Self {
        let counters = world.postbox_counters(&target.mailbox, target.owner, vi.link_report());
        let Target { mailbox, owner, number, queue, depth, incast, .. } = target;
        let account = world.accounting().open_postbox(&mailbox, owner, vi.link_report());
        let selector = Selector::under(&world.config().auto, vi.nic().caps(), incast, depth.is_some());
        Channel {
            _world: world.clone(),
            side: SendSide { vi, world, counters },
            pairs: Pairs::default(),
            selector,
            cq,
            to,
            route: Box::new(route),
            mailbox,
            owner,
            number,
            queue: Backlog::new(queue),
            pacing: Pacing::new(incast),
            depth: Depth::new(depth),
            requests: RequestTable::default(),
            announced_reads: AnnouncedReads::default(),
            exit_check: RefCell::default(),
            #[cfg(feature = "async")]
            needs_polling: std::cell::Cell::default(),
            account,
        }
    }

    /// Whether messages wait for the mailbox.
    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty() || !self.announced_reads.is_empty()
    }

    /// The mailbox's rank.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// The postbox's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Counters of the postbox.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.side.counters
    }

    /// The transport by which the mailbox was reached, and why no better one is used.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// The selector of a message's protocol.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Registers memory of the program with the NIC, unless it is still registered.
    #[allow(clippy::result_large_err, reason = "refused memory comes back by value; refusals are rare")]
    pub fn register<B: StableBuffer>(
        &self,
        memory: UserMemory<B>,
    ) -> Result<Region, (ViaError, UserMemory<B>)> {
        self.side.vi.nic().register_memory(memory, self.side.ptag())
    }

    /// Whether the connection can carry messages by `protocol`.
    pub fn check(&self, protocol: Protocol) -> Result {
        let have: Caps = self.selector.caps();
        let needed = protocol.needs();
        if have.has(needed) {
            return Ok(());
        }
        Err(Error::Unsupported {
            protocol,
            rank: self.owner as usize,
            needed: needed.to_string(),
            have: have.to_string(),
            possible: Protocol::possible(have),
        })
    }

    /// The error of a post by `handshake` that must not hold its thread.
    pub fn would_block_thread(&self) -> Error {
        Error::WouldBlockThread { name: self.mailbox.clone(), rank: self.owner as usize }
    }
}

impl Drop for Channel {
    /// Reports lost messages on the error stream: the program has dropped its world without finishing, so no
    /// call is left to do it.
    fn drop(&mut self) {
        let lost = self.queue.len() + self.announced_reads.len();
        if lost > 0 && !is_forked() && !self.side.world.has_ended() {
            say!(
                "rank {}: {lost} message(s) to {} of rank {} are lost: the world ended before they were sent (World::finish waits \
                 for them)",
                self.side.world.rank(),
                Titled(&self.mailbox),
                self.owner
            );
        }
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("mailbox", &self.mailbox)
            .field("owner", &self.owner)
            .field("queued", &self.queue.len())
            .field("vi", &self.side.vi)
            .finish()
    }
}
