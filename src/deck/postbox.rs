//! Postboxes: where messages are posted.

#[cfg(feature = "async")]
pub(crate) mod tasks;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use udeck_via::mem::{StableBuffer, UserMemory};
use udeck_via::{Block, Deadline, Region};

use crate::adopted::Returns;
use crate::auto::Choice;
use crate::channel::{Channel, Failed, Patience, Ticket};
use crate::error::{Error, PostError, Result, Titled, check_process};
use crate::item::Item;
use crate::postable::Postable;
use crate::progress::Slot;
use crate::protocol::{MAX_INLINE, Protocol};
use crate::routes::Route;
use crate::shared::Shared;

/// One end of a connection to a mailbox (DECK's clone of it), for posting.
///
/// Messages of one postbox arrive in the order of posting, whatever protocols carry them. May move to another thread,
/// and is used by one at a time: threads that post have a postbox each. Dropping it loses nothing that was posted.
pub struct Postbox<T: Item> {
    home: RefCell<Home>,
    protocol: Cell<Protocol>,
    world: Arc<Shared>,
    name: String,
    returns: RefCell<Returns>,
    items: PhantomData<fn(T)>,
}

/// Where the channel is: with us, so that posting needs no lock; or where the helper can reach it too, while messages
/// wait for the mailbox's answer.
enum Home {
    Here(Box<Channel>),
    Shared(Arc<Slot>),
    /// Only for the moment of moving.
    Moving,
}

impl<T: Item> Postbox<T> {
    pub(crate) fn new(world: &Arc<Shared>, name: &str, channel: Channel) -> Self {
        Postbox {
            home: RefCell::new(Home::Here(Box::new(channel))),
            protocol: Cell::new(world.config().protocol),
            world: world.clone(),
            name: name.to_owned(),
            returns: RefCell::default(),
            items: PhantomData,
        }
    }

    /// The mailbox's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// From now on, posts here take this protocol.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] names the missing ability and the protocols that are possible.
    pub fn set_protocol(&self, protocol: Protocol) -> Result {
        check_process()?;
        self.with_channel(|channel| channel.check(protocol))?;
        self.protocol.set(protocol);
        Ok(())
    }

    /// Posts a message: moves it. Returns as soon as it is accepted; waits only for room, at most the world's deadline
    /// (`DECK_DEADLINE`).
    ///
    /// # Errors
    /// The message comes back with [`crate::Error::PeerLost`], [`crate::Error::MailboxGone`] or
    /// [`crate::Error::Deadline`]; [`crate::Error::Undelivered`] tells of earlier messages. By [`Protocol::Handshake`] it
    /// waits until the message was received, and comes back also with [`crate::Error::NoRoom`]; not at a deadline that
    /// passes while it is being received. An [`crate::Adopted`] one
    /// also with [`crate::Error::TooLarge`], [`crate::Error::Unclaimed`], or what the NIC has against registering it.
    #[doc(alias = "deck_mbox_post")]
    #[inline]
    pub fn post<M: Postable<T>>(&self, message: M) -> Result<(), PostError<M>> {
        message.post_to(self, Patience::Usual).map(drop)
    }

    /// Posts if that needs no waiting.
    ///
    /// # Errors
    /// The message comes back with [`crate::Error::WouldBlock`]; otherwise as [`Postbox::post`].
    pub fn try_post<M: Postable<T>>(&self, message: M) -> Result<(), PostError<M>> {
        message.post_to(self, Patience::None).map(drop)
    }

    /// Posts, waiting at most `limit`.
    ///
    /// # Errors
    /// As [`Postbox::post`].
    pub fn post_within<M: Postable<T>>(&self, message: M, limit: Duration) -> Result<(), PostError<M>> {
        message.post_to(self, Patience::Until(Deadline::after(limit))).map(drop)
    }

    /// Posts this one message by `protocol`, whatever is set; otherwise as [`Postbox::post`].
    ///
    /// # Errors
    /// The message comes back with [`crate::Error::Unsupported`], which names the missing ability and the protocols that
    /// are possible; by [`Protocol::Handshake`] also with [`crate::Error::NoRoom`], which says how much room the receiver
    /// had. Otherwise as [`Postbox::post`].
    pub fn post_by<M: Postable<T>>(&self, protocol: Protocol, message: M) -> Result<(), PostError<M>> {
        self.take_by(protocol, message, Patience::Usual).map(drop)
    }

    /// Takes this one message by `protocol`.
    pub(crate) fn take_by<M: Postable<T>>(
        &self,
        protocol: Protocol,
        message: M,
        patience: Patience,
    ) -> Result<Ticket, PostError<M>> {
        let usual = Restore(&self.protocol, self.protocol.get());
        if let Err(error) = self.set_protocol(protocol) {
            return Err(PostError { error, message: Some(message) });
        }
        let taken = message.post_to(self, patience);
        drop(usual);
        taken
    }

    /// What a message of `len` bytes would travel by if it were posted now, and why.
    pub fn explain(&self, len: usize) -> Choice {
        let auto = &self.world.config().auto;
        match self.protocol.get() {
            Protocol::Auto => auto.explain(len, self.with_channel(|channel| channel.caps())),
            protocol => Choice { protocol, why: "it is set for all messages of this postbox".into() },
        }
    }

    /// By which transport messages travel from here, and why by no better one. It stays the same.
    pub fn route(&self) -> Route {
        self.with_channel(|channel| channel.route().clone())
    }

    #[inline]
    pub(crate) fn post_block(&self, block: Block, patience: Patience) -> Result<Ticket, Failed> {
        let block = match block.len() {
            0..=MAX_INLINE => match self.post_short_block(block) {
                None => return Ok(None),
                Some(block) => block,
            },
            _ => block,
        };
        self.post_long(block, patience)
    }

    /// The block comes back (in a register, as a result that holds an error would not) if it was not posted.
    fn post_short_block(&self, block: Block) -> Option<Block> {
        if self.post_short(block.bytes(), block.notes()[0]) { None } else { Some(block) }
    }

    /// What most messages are: short, and quickly sent.
    #[inline]
    fn post_short(&self, bytes: &[u8], tag: u32) -> bool {
        match &mut *self.home.borrow_mut() {
            Home::Here(channel) => channel.post_short(bytes, tag, self.protocol.get()),
            _ => false,
        }
    }

    #[inline(never)]
    fn post_long(&self, block: Block, patience: Patience) -> Result<Ticket, Failed> {
        let posted = match &mut *self.home.borrow_mut() {
            Home::Here(channel) => channel.post_handed_off(block, self.protocol.get()),
            _ => Err(block),
        };
        match posted {
            Ok(()) => Ok(None),
            Err(block) => self.post_otherwise(block, patience),
        }
    }

    #[inline(never)]
    fn post_otherwise(&self, block: Block, patience: Patience) -> Result<Ticket, Failed> {
        if let Err(error) = check_process() {
            return Err((error, Some(block)));
        }
        self.post_with(|channel, protocol| channel.post(block, protocol, patience))
    }

    /// Posts a message that the caller keeps an owner of.
    pub(crate) fn post_shared_block(&self, block: &Arc<Block>, patience: Patience) -> Result<Ticket> {
        check_process()?;
        self.post_with(|channel, protocol| channel.post_shared(block, protocol, patience))
    }

    /// How long posts wait unless they say otherwise.
    pub(crate) fn usual_limit(&self) -> Duration {
        self.world.config().deadline
    }

    /// Posts a copy. May wait for the memory of it, too.
    #[inline]
    pub(crate) fn post_copy(&self, bytes: &[u8], tag: u32, patience: Patience) -> Result<Ticket> {
        if self.post_short(bytes, tag) {
            return Ok(None);
        }
        self.post_long_copy(bytes, tag, patience)
    }

    #[inline(never)]
    fn post_long_copy(&self, bytes: &[u8], tag: u32, patience: Patience) -> Result<Ticket> {
        check_process()?;
        self.post_with(|channel, protocol| channel.post_copy(bytes, tag, protocol, patience))
    }

    #[inline]
    fn post_with<R>(&self, post: impl FnOnce(&mut Channel, Protocol) -> R) -> R {
        let mut home = self.home.borrow_mut();
        if let Home::Here(channel) = &mut *home {
            let result = post(channel, self.protocol.get());
            if channel.has_queued() {
                home.share(&self.world);
            }
            return result;
        }
        home.post_shared(&self.world, |channel| post(channel, self.protocol.get()))
    }

    /// Registers memory that is to be posted here.
    #[allow(clippy::result_large_err, reason = "refused memory comes back by value; refusals are rare")]
    pub(crate) fn register<B: StableBuffer>(
        &self,
        memory: UserMemory<B>,
    ) -> Result<Region, (Error, UserMemory<B>)> {
        self.with_channel(|channel| channel.register(memory)).map_err(|(error, memory)| {
            let what = format!("registering a message to {}", Titled(&self.name));
            (Error::via(what, error), memory)
        })
    }

    pub(crate) fn returns(&self) -> &RefCell<Returns> {
        &self.returns
    }

    /// Waits until everything posted here has been read by the mailbox's owner, at most the world's deadline. The owner
    /// need not call the library again: what its retrieves have taken is read, whatever it does now. A message that it has
    /// looked at and left for later ([`crate::Mailbox::retrieve_into`] found it too long) counts as read.
    ///
    /// # Errors
    /// [`crate::Error::Undelivered`], [`crate::Error::PeerLost`], [`crate::Error::MailboxGone`],
    /// [`crate::Error::Deadline`].
    pub fn flush(&self) -> Result {
        self.flush_within(self.usual_limit())
    }

    /// As [`Postbox::flush`], waiting at most `limit`.
    ///
    /// # Errors
    /// As [`Postbox::flush`].
    pub fn flush_within(&self, limit: Duration) -> Result {
        check_process()?;
        let deadline = Deadline::after(limit);
        self.with_channel(|channel| channel.flush(deadline))
    }

    pub(crate) fn with_channel<R>(&self, act: impl FnOnce(&mut Channel) -> R) -> R {
        let mut home = self.home.borrow_mut();
        match &mut *home {
            Home::Here(channel) => act(channel),
            _ => home.post_shared(&self.world, act),
        }
    }
}

impl Home {
    /// Puts the channel where the helper can reach it.
    #[cold]
    fn share(&mut self, world: &Arc<Shared>) {
        if let Home::Here(channel) = std::mem::replace(self, Home::Moving) {
            *self = Home::Shared(world.progress().adopt(channel));
        }
    }

    /// Acts on the shared channel, and takes it back when nothing waits any more.
    #[cold]
    fn post_shared<R>(&mut self, world: &Arc<Shared>, act: impl FnOnce(&mut Channel) -> R) -> R {
        let Home::Shared(slot) = &*self else { unreachable!("a postbox is used by one thread at a time") };
        let (result, back) = world.progress().visit(slot, act);
        if let Some(channel) = back {
            *self = Home::Here(channel);
        }
        result
    }
}

/// Sets a postbox's protocol as it was before.
struct Restore<'a>(&'a Cell<Protocol>, Protocol);

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

impl<T: Item> Drop for Postbox<T> {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        if let Home::Shared(slot) = &*self.home.borrow() {
            self.world.progress().orphan(slot);
        }
    }
}

impl<T: Item> fmt::Debug for Postbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postbox({:?} of {}, {})", self.name, T::kind(), self.protocol.get())
    }
}
