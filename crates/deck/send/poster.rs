//! A postbox without its type: the channel, its place while messages wait, and the protocol that is set.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use udeck_via::mem::{SharedBytes, StableBuffer, UserMemory};
use udeck_via::{Block, Region};

use super::requests::RequestId;
use super::{BlockFailure, Channel};
use crate::error::{Error, Result, Titled, check_process};
use crate::progress::{Advance, Slot};
use crate::protocol::auto::{Dispatch, Selector};
use crate::protocol::message_block::MessageBlock;
use crate::protocol::{MAX_INLINE, Protocol};
use crate::route::Route;
use crate::stats::Counters;
use crate::stats::trace;
use crate::wait_policy::WaitPolicy;
use crate::world_state::WorldState;

/// Maximum number of the program's buffers that a postbox keeps until the program takes them back.
const MAX_RETURNED: usize = 64;

/// A postbox of any type.
pub struct Poster {
    slot: RefCell<ChannelSlot>,
    dispatch: Cell<Dispatch>,
    selector: Selector,
    route: Box<Route>,
    world: Arc<WorldState>,
    name: String,
    /// The mailbox's rank, and the postbox's number.
    owner: u32,
    number: u32,
    counters: Arc<Counters>,
    returned: RefCell<VecDeque<Returned>>,
}

/// Place of the channel: owned by the postbox, so that posting needs no lock; or shared with the helper while
/// messages wait for the mailbox's answer.
enum ChannelSlot {
    /// Owned by the postbox; nothing is queued in the channel.
    Own(Box<Channel>),
    Shared(Arc<Slot<Channel>>),
    /// Transient: the channel is being moved.
    Moving,
}

/// Memory of the program that has come back, with its tag.
pub(crate) struct Returned {
    pub region: Region,
    pub tag: u32,
}

impl Poster {
    pub(crate) fn new(world: &Arc<WorldState>, name: &str, channel: Channel) -> Self {
        let route = channel.route().clone();
        Poster {
            dispatch: Cell::new(channel.selector().dispatch(world.config().protocol)),
            selector: *channel.selector(),
            route: Box::new(route),
            owner: channel.owner(),
            number: channel.number(),
            counters: channel.counters().clone(),
            slot: RefCell::new(ChannelSlot::Own(Box::new(channel))),
            world: world.clone(),
            name: name.to_owned(),
            returned: RefCell::default(),
        }
    }

    /// The mailbox's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The selector of a message's protocol.
    pub(crate) fn selector(&self) -> &Selector {
        &self.selector
    }

    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    pub(crate) fn world(&self) -> &Arc<WorldState> {
        &self.world
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.dispatch.get().protocol
    }

    pub(crate) fn set_protocol(&self, protocol: Protocol) -> Result {
        self.world.check()?;
        let dispatch = self.with_channel(|channel| {
            channel.check(protocol).map(|()| channel.selector().dispatch(protocol))
        })??;
        self.dispatch.set(dispatch);
        Ok(())
    }

    /// Sets a protocol until the returned guard is dropped.
    pub(crate) fn set_protocol_for_now(&self, protocol: Protocol) -> Result<Restore<'_>> {
        let usual = Restore(&self.dispatch, self.dispatch.get());
        self.set_protocol(protocol).map(|()| usual)
    }

    // ---- posting ----

    /// Posts a message that has no other owner.
    #[inline]
    pub(crate) fn post_block(
        &self,
        block: Block,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, BlockFailure> {
        if trace::is_on() {
            self.post_block_recorded(block, policy)
        } else {
            self.post_any_block(block, policy)
        }
    }

    #[cold]
    #[inline(never)]
    fn post_block_recorded(
        &self,
        block: Block,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, BlockFailure> {
        let message = (block.len(), block.notes()[0]);
        self.recorded(message, move || self.post_any_block(block, policy))
    }

    #[inline]
    fn post_any_block(&self, block: Block, policy: WaitPolicy) -> Result<Option<RequestId>, BlockFailure> {
        let block = match block.len() {
            0..=MAX_INLINE => match self.post_short_block(block) {
                None => return Ok(None),
                Some(block) => block,
            },
            _ => block,
        };
        self.post_long_block(block, policy)
    }

    /// Posts a short message. The block comes back if it was not posted: in a register, unlike a result that
    /// holds an error.
    fn post_short_block(&self, block: Block) -> Option<Block> {
        if self.post_short(block.bytes(), block.notes()[0]) { None } else { Some(block) }
    }

    /// Posts a message on the fast path: it is short, and can be sent at once.
    #[inline]
    fn post_short(&self, bytes: &[u8], tag: u32) -> bool {
        self.dispatch.get().is_short(bytes.len())
            && match &mut *self.slot.borrow_mut() {
                ChannelSlot::Own(channel) => channel.post_short(bytes, tag),
                _ => false,
            }
    }

    #[inline(never)]
    fn post_long_block(&self, block: Block, policy: WaitPolicy) -> Result<Option<RequestId>, BlockFailure> {
        let posted = match &mut *self.slot.borrow_mut() {
            ChannelSlot::Own(channel) if self.dispatch.get().is_handed_off(block.len()) => {
                channel.post_handed_off(block)
            }
            _ => Err(block),
        };
        match posted {
            Ok(()) => Ok(None),
            Err(block) => self.post_block_slow(block, policy),
        }
    }

    #[inline(never)]
    fn post_block_slow(&self, block: Block, policy: WaitPolicy) -> Result<Option<RequestId>, BlockFailure> {
        if let Err(error) = self.world.check() {
            return Err((error, Some(block)));
        }
        let posted =
            self.post_slow(|channel, protocol| channel.post(MessageBlock::Own(block), protocol, policy));
        posted.map_err(|(error, block)| (error, block.and_then(MessageBlock::into_own)))
    }

    /// Posts a message of which the caller keeps an owner, with the tag in its notes.
    pub(crate) fn post_shared(&self, bytes: &SharedBytes, policy: WaitPolicy) -> Result<Option<RequestId>> {
        self.world.check()?;
        let post = || {
            let block = MessageBlock::Shared(bytes.clone());
            let posted = self.post_slow(|channel, protocol| channel.post(block, protocol, policy));
            posted.map_err(|(error, _)| error)
        };
        if trace::is_on() { self.recorded((bytes.len(), bytes.notes()[0]), post) } else { post() }
    }

    /// Posts a copy. May also wait for the copy's memory.
    #[inline]
    pub(crate) fn post_copy(&self, bytes: &[u8], tag: u32, policy: WaitPolicy) -> Result<Option<RequestId>> {
        if trace::is_on() {
            return self.recorded((bytes.len(), tag), move || self.post_copy_in(bytes, tag, policy));
        }
        self.post_copy_in(bytes, tag, policy)
    }

    #[inline(always)]
    fn post_copy_in(&self, bytes: &[u8], tag: u32, policy: WaitPolicy) -> Result<Option<RequestId>> {
        if self.post_short(bytes, tag) { Ok(None) } else { self.post_copy_slow(bytes, tag, policy) }
    }

    /// Posts a message by `post`, and records it in the trace if it was accepted: its length in bytes, and its
    /// tag. Each way to post calls this once, if tracing is on.
    #[cold]
    #[inline(never)]
    fn recorded<R, E>(
        &self,
        (bytes, tag): (usize, u32),
        post: impl FnOnce() -> Result<R, E>,
    ) -> Result<R, E> {
        let (start, number) = (trace::begin(), self.counters.messages_posted());
        let posted = post()?;
        trace::posted(&trace::Posted {
            start,
            rank: self.world.rank(),
            peer: self.owner,
            postbox: self.number,
            number,
            mailbox: &self.name,
            protocol: self.selector.plan(self.protocol(), bytes).protocol,
            bytes,
            tag,
        });
        Ok(posted)
    }

    /// Posts copies of messages of `each` bytes (not 0) that lie one after another in `bytes`. Returns how
    /// many were posted, and the error of the next one.
    pub(crate) fn post_each(&self, bytes: &[u8], each: usize, policy: WaitPolicy) -> (usize, Result) {
        let mut rest = bytes;
        let posted = |rest: &[u8]| (bytes.len() - rest.len()) / each;
        // The trace records each message, so a traced run posts one by one.
        let at_once = !trace::is_on();
        while !rest.is_empty() {
            rest = if at_once { &rest[self.post_short_run(rest, each) * each..] } else { rest };
            let Some((next, behind)) = rest.split_at_checked(each) else { break };
            // The run stopped: there is no room, or there is an error that the usual way reports.
            if let Err(error) = self.post_copy(next, 0, policy) {
                return (posted(rest), Err(error));
            }
            rest = behind;
        }
        (posted(rest), Ok(()))
    }

    fn post_short_run(&self, bytes: &[u8], each: usize) -> usize {
        match &mut *self.slot.borrow_mut() {
            ChannelSlot::Own(channel) if self.dispatch.get().is_short(each) => {
                channel.post_short_run(bytes, each)
            }
            _ => 0,
        }
    }

    #[inline(never)]
    fn post_copy_slow(&self, bytes: &[u8], tag: u32, policy: WaitPolicy) -> Result<Option<RequestId>> {
        self.world.check()?;
        // A shared channel was not tried yet, and may have nothing queued any more.
        let is_shared = matches!(&*self.slot.borrow(), ChannelSlot::Shared(_));
        let is_untried = is_shared && self.dispatch.get().is_short(bytes.len());
        self.post_slow(|channel, protocol| {
            if is_untried && !channel.has_queued() && channel.post_short(bytes, tag) {
                return Ok(None);
            }
            channel.post_copy(bytes, tag, protocol, policy)
        })
    }

    /// Posts on the slow path. A channel in which messages wait is then shared with the helper.
    fn post_slow<R>(&self, post: impl FnOnce(&mut Channel, Protocol) -> R) -> R {
        let mut slot = self.slot.borrow_mut();
        if let ChannelSlot::Own(channel) = &mut *slot {
            let result = post(channel, self.protocol());
            if channel.has_queued() {
                slot.share(&self.world);
            }
            return result;
        }
        slot.visit(&self.world, |channel| post(channel, self.protocol()))
    }

    /// Calls `act` on the channel, wherever it is. Nothing is posted.
    ///
    /// # Errors
    /// This process is a forked child, in which the channel's lock may be held for ever.
    pub(crate) fn with_channel<R>(&self, act: impl FnOnce(&mut Channel) -> R) -> Result<R> {
        check_process()?;
        Ok(self.on_channel(act))
    }

    /// Like [`Poster::with_channel`], after its check.
    pub(crate) fn on_channel<R>(&self, act: impl FnOnce(&mut Channel) -> R) -> R {
        let mut slot = self.slot.borrow_mut();
        match &mut *slot {
            ChannelSlot::Own(channel) => act(channel),
            _ => slot.visit(&self.world, act),
        }
    }

    /// Counts the bytes of a copy that the caller has made.
    pub(crate) fn count_copy(&self, bytes: usize) {
        if bytes > 0 {
            self.counters.copied(bytes);
        }
    }

    // ---- memory of the program ----

    /// Registers memory that will be posted here.
    #[allow(clippy::result_large_err, reason = "refused memory comes back by value; refusals are rare")]
    pub(crate) fn register<B: StableBuffer>(
        &self,
        memory: UserMemory<B>,
    ) -> Result<Region, (Error, UserMemory<B>)> {
        if let Err(error) = self.world.check() {
            return Err((error, memory));
        }
        let registered = self.on_channel(|channel| channel.register(memory));
        registered.map_err(|(error, memory)| {
            let what = format!("registering a message to {}", Titled(&self.name));
            (Error::via(what, error), memory)
        })
    }

    /// Checks that another buffer may come back.
    pub(crate) fn check_returned(&self) -> Result {
        if self.returned.borrow().len() < MAX_RETURNED {
            return Ok(());
        }
        Err(Error::ReturnQueueFull { name: self.name.clone(), count: MAX_RETURNED })
    }

    pub(crate) fn give_back(&self, returned: Returned) {
        self.returned.borrow_mut().push_back(returned);
    }

    /// Takes the buffer that came back first.
    pub(crate) fn take_returned(&self) -> Option<Returned> {
        self.returned.borrow_mut().pop_front()
    }
}

impl Advance for Channel {
    fn has_queued(&self) -> bool {
        Channel::has_queued(self)
    }

    fn progress(&mut self) -> bool {
        Channel::progress(self)
    }
}

impl ChannelSlot {
    /// Shares the channel with the helper.
    #[cold]
    fn share(&mut self, world: &Arc<WorldState>) {
        if let ChannelSlot::Own(channel) = std::mem::replace(self, ChannelSlot::Moving) {
            *self = ChannelSlot::Shared(world.progress().adopt(channel));
        }
    }

    /// Calls `act` on the shared channel, and takes the channel back if nothing waits any more.
    #[cold]
    fn visit<R>(&mut self, world: &Arc<WorldState>, act: impl FnOnce(&mut Channel) -> R) -> R {
        let ChannelSlot::Shared(slot) = &*self else {
            unreachable!("a postbox is used by one thread at a time")
        };
        let (result, back) = world.progress().visit(slot, act);
        if let Some(channel) = back {
            *self = ChannelSlot::Own(channel);
        }
        result
    }
}

impl Drop for Poster {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        if let ChannelSlot::Shared(slot) = &*self.slot.borrow() {
            self.world.progress().orphan(slot);
        }
    }
}

/// Guard that restores a postbox's protocol.
pub(crate) struct Restore<'a>(&'a Cell<Dispatch>, Dispatch);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}
