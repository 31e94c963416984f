//! The engine behind a postbox: one connection to a mailbox, and the messages that wait for it.
//!
//! Eager and handed-off messages are sent at once. A message that must be announced first (`rdma-write`, `copy`) waits in the
//! queue until the mailbox has answered. A message that was posted without waiting is queued until there is room. Whatever is
//! posted behind a queued message is queued too, because the messages of one postbox arrive in order. Several announcements may be
//! under way at a time, so that a stream of announced messages does not take a round trip for each.
//!
//! | file | what it is |
//! |---|---|
//! | here | a channel: its connection and its queue |
//! | `poster` | a postbox without its type; who holds the channel while messages wait |
//! | `post` | accepting a message: at once, or after a wait for room |
//! | `queue` | messages that wait, in order, and the mailbox's answers |
//! | `requests` | what waits in the queue, and the handles on it |
//! | `waiting` | flush, handles, and how a channel waits |
//! | `failure` | what an error means to the program; a connection that broke |
//!
//! Only [`Channel::post`], [`Channel::wait_for_request`] and [`Channel::flush`] block, until their deadlines. Whoever holds the channel
//! calls [`Channel::progress`]: the poster, another call of its thread, or the progress thread.

mod failure;
mod post;
pub(crate) mod poster;
mod queue;
pub(crate) mod requests;
mod waiting;

use std::cell::RefCell;
use std::sync::Arc;

use udeck_via::mem::{StableBuffer, UserMemory};
use udeck_via::{Block, Caps, Cq, Error as ViaError, NetAddress, Region, Vi};

use self::requests::{Queue, RequestTable};
use crate::error::{Error, Result};
use crate::exit_check::ExitCheck;
use crate::memory_accounting::PostboxAccount;
use crate::protocol::Protocol;
use crate::protocol::auto::Selector;
use crate::protocol::handshake::Pairs;
use crate::protocol::rdma_read::AnnouncedReads;
use crate::protocol::side::SendSide;
use crate::route::Route;
use crate::world_state::WorldState;

/// A failed post: why, and the message unless it was under way.
pub(crate) type Failed = (Error, Option<Block>);

/// One connection to a mailbox.
///
/// Its fields are dropped in their order: the VIs, then the completion queue that they report to, the world last.
pub(crate) struct Channel {
    side: SendSide,
    /// For handshakes.
    pairs: Pairs,
    /// By which protocol a message travels.
    selector: Selector,
    cq: Cq,
    /// Where the mailbox is.
    to: NetAddress,
    /// By which transport it was reached.
    route: Box<Route>,
    mailbox: String,
    owner: u32,
    number: u32,
    queue: Queue,
    requests: RequestTable,
    /// Messages that the mailbox reads.
    announced_reads: AnnouncedReads,
    /// From when on the connection is broken.
    exit_check: RefCell<Option<Box<ExitCheck>>>,
    /// Whether a call that did not wait would have waited for what nobody tells of: memory, or the mailbox's reading.
    #[cfg(feature = "async")]
    has_to_look: std::cell::Cell<bool>,
    /// Says to others what waits in the queue.
    account: Arc<PostboxAccount>,
    /// That of `side`, for the order in which they are dropped.
    _world: Arc<WorldState>,
}

/// What a channel leads to, and from where.
pub(crate) struct Target {
    pub mailbox: String,
    /// Its rank.
    pub owner: u32,
    /// The postbox's.
    pub number: u32,
}

impl Channel {
    pub fn new(vi: Vi, cq: Cq, world: Arc<WorldState>, to: NetAddress, target: Target, route: Route) -> Self {
        let counters = world.counters(&target.mailbox);
        let Target { mailbox, owner, number } = target;
        let account = world.accounting().open_postbox(&mailbox, owner, vi.lent_memory());
        let selector = Selector::new(&world.config().auto, vi.nic().caps());
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
            queue: Queue::default(),
            requests: RequestTable::default(),
            announced_reads: AnnouncedReads::default(),
            exit_check: RefCell::default(),
            #[cfg(feature = "async")]
            has_to_look: std::cell::Cell::default(),
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

    /// By which transport it was reached, and why by no better one.
    pub fn route(&self) -> &Route {
        &self.route
    }

    /// By which protocol a message travels.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Makes memory of the program's known to the NIC, or finds that it is still known.
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

    /// Why a post that must not hold its thread cannot be by `handshake`.
    pub fn would_block_thread(&self) -> Error {
        Error::WouldBlockThread { name: self.mailbox.clone(), rank: self.owner as usize }
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
