//! Postboxes, to which messages are posted.

#[cfg(feature = "async")]
pub(crate) mod tasks;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use udeck_via::Deadline;

use crate::error::{PostEachError, PostError, Result};
use crate::payload::Payload;
use crate::postable::{Postable, unposted};
use crate::protocol::Protocol;
use crate::protocol::auto::Choice;
use crate::route::Route;
use crate::send::Channel;
use crate::send::poster::Poster;
use crate::send::requests::RequestId;
use crate::wait_policy::WaitPolicy;
use crate::world_state::WorldState;

/// One end of a connection to a mailbox (DECK's clone of it), for posting.
///
#[cfg_attr(not(doctest), doc = include_str!("examples/postbox.md"))]
///
/// # Use
///
/// The messages of one postbox arrive in the order of posting, whatever protocols carry them. A postbox may
/// move to another thread, but only one thread uses it at a time, so threads that post have a postbox each.
/// Dropping it loses nothing that was posted.
pub struct Postbox<T: Payload> {
    poster: Poster,
    payload: PhantomData<fn(T)>,
}

impl<T: Payload> Postbox<T> {
    pub(crate) fn new(world: &Arc<WorldState>, name: &str, channel: Channel) -> Self {
        Postbox { poster: Poster::new(world, name, channel), payload: PhantomData }
    }

    pub(crate) fn poster(&self) -> &Poster {
        &self.poster
    }

    /// The mailbox's name.
    pub fn name(&self) -> &str {
        self.poster.name()
    }

    /// Sets the protocol of later posts by this postbox.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] names the missing capability and the protocols that are possible.
    pub fn set_protocol(&self, protocol: Protocol) -> Result {
        self.poster.set_protocol(protocol)
    }

    /// Posts a message: moves it. Returns as soon as the message is accepted. A message that the connection
    /// has no room for waits in the postbox's queue, and travels without the program's help. If the queue is
    /// full (4 MiB, `DECK_QUEUE`, or what the mailbox says: [`crate::World::mailbox_with_queue`]), or as many
    /// messages wait for the receiver as the mailbox allows ([`crate::MailboxOptions::depth`]), the call waits
    /// for a place, at most the world's deadline (`DECK_DEADLINE`).
    ///
    /// # Errors
    /// The message comes back with [`crate::Error::PeerLost`], [`crate::Error::MailboxGone`] or
    /// [`crate::Error::Deadline`]; [`crate::Error::Undelivered`] reports earlier messages. By
    /// [`Protocol::Handshake`] the call waits until the message was received. Then the message comes back
    /// with [`crate::Error::ReceiverBufferTooSmall`] as well, and does not come back at a deadline that
    /// passes while it is being received. An [`crate::ExternalBuf`] also comes back with
    /// [`crate::Error::TooLarge`], [`crate::Error::ReturnQueueFull`], or the NIC's error of registering it.
    #[doc(alias = "deck_mbox_post")]
    #[inline]
    pub fn post<M: Postable<T>>(&self, message: M) -> Result<(), PostError<M::Unposted>> {
        message.post_to(&self.poster, WaitPolicy::Usual).map(drop).map_err(unposted)
    }

    /// Posts if no waiting is needed. A place in the postbox's queue is enough. (The call asks whether the
    /// message is accepted, not whether the receiver keeps up. A mailbox with a depth
    /// ([`crate::MailboxOptions::depth`]) accepts no message while as many wait for the receiver.)
    ///
    /// # Errors
    /// The message comes back with [`crate::Error::WouldBlock`] if the queue is full or the mailbox's depth
    /// is reached, for a slice and for [`crate::ExternalBuf`] also if there is no memory for the copy, or
    /// while the launcher is asked whether the rank of a broken connection is lost or has finished; otherwise
    /// the errors of [`Postbox::post`].
    pub fn try_post<M: Postable<T>>(&self, message: M) -> Result<(), PostError<M::Unposted>> {
        message.post_to(&self.poster, WaitPolicy::None).map(drop).map_err(unposted)
    }

    /// Posts like [`Postbox::post`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`Postbox::post`].
    pub fn post_timeout<M: Postable<T>>(
        &self,
        message: M,
        limit: Duration,
    ) -> Result<(), PostError<M::Unposted>> {
        let policy = WaitPolicy::Until(Deadline::after(limit));
        message.post_to(&self.poster, policy).map(drop).map_err(unposted)
    }

    /// Posts this one message by `protocol`, whatever protocol is set. Otherwise like [`Postbox::post`].
    ///
    /// # Errors
    /// The message comes back with [`crate::Error::Unsupported`], which names the missing capability and the
    /// protocols that are possible. By [`Protocol::Handshake`] it comes back also with
    /// [`crate::Error::ReceiverBufferTooSmall`], which says how much room the receiver had. Otherwise the
    /// errors of [`Postbox::post`].
    pub fn post_with<M: Postable<T>>(
        &self,
        protocol: Protocol,
        message: M,
    ) -> Result<(), PostError<M::Unposted>> {
        self.post_to_with(protocol, message, WaitPolicy::Usual).map(drop)
    }

    /// Posts this one message by `protocol`.
    pub(crate) fn post_to_with<M: Postable<T>>(
        &self,
        protocol: Protocol,
        message: M,
        policy: WaitPolicy,
    ) -> Result<Option<RequestId>, PostError<M::Unposted>> {
        match self.poster.set_protocol_for_now(protocol) {
            Ok(_until_posted) => message.post_to(&self.poster, policy).map_err(unposted),
            Err(error) => Err(PostError { error, message: Some(message.unposted()) }),
        }
    }

    /// Posts each element as a message of its own: a copy, without a tag. The quickest way to post many short
    /// messages: over shared memory, elements of up to 40 bytes (a multiple of 8) go in batches. Other
    /// elements are posted one after another. Waits for each like [`Postbox::post`].
    ///
    /// # Errors
    /// The errors of [`Postbox::post`]; [`PostEachError`] says how many were posted before. They stay posted.
    pub fn post_each(&self, messages: &[T]) -> Result<(), PostEachError>
    where
        T: Pod,
    {
        self.post_each_by(messages, WaitPolicy::Usual)
    }

    /// Like [`Postbox::post_each`], but waits at most `limit` in all.
    ///
    /// # Errors
    /// The errors of [`Postbox::post_each`].
    pub fn post_each_timeout(&self, messages: &[T], limit: Duration) -> Result<(), PostEachError>
    where
        T: Pod,
    {
        self.post_each_by(messages, WaitPolicy::Until(Deadline::after(limit)))
    }

    fn post_each_by(&self, messages: &[T], policy: WaitPolicy) -> Result<(), PostEachError>
    where
        T: Pod,
    {
        match self.poster.post_each(bytemuck::cast_slice(messages), T::SIZE, policy) {
            (_, Ok(())) => Ok(()),
            (posted, Err(error)) => Err(PostEachError { posted, error }),
        }
    }

    /// Explains by which protocol a message of `len` bytes would travel if it were posted now, and why.
    pub fn explain(&self, len: usize) -> Choice {
        self.poster.selector().explain(self.poster.protocol(), len)
    }

    /// The transport of this postbox's messages, and why no better one is used. It never changes.
    pub fn route(&self) -> Route {
        self.poster.route().clone()
    }

    /// Adds bytes that the caller copied into a message posted here to [`crate::Stats::bytes_copied`], where
    /// the library counts its own copies. For bindings of other languages.
    pub fn count_copy(&self, bytes: usize) {
        self.poster.count_copy(bytes);
    }

    /// How long a post waits unless its caller says otherwise.
    pub(crate) fn usual_limit(&self) -> Duration {
        self.poster.world().config().deadline
    }

    /// Waits until the mailbox's owner has read everything posted here, at most the world's deadline. The
    /// owner need not call the library again: messages that its retrieves have taken are read, whatever it
    /// does now. A message that the owner has looked at and left for later ([`crate::Mailbox::retrieve_into`]
    /// found it too long) counts as read. So do up to 15 messages that a [`crate::Mailbox::drain`] is about
    /// to pass on.
    ///
    /// # Errors
    /// [`crate::Error::MailboxGone`] and [`crate::Error::PeerLost`]: the mailbox ended with messages of this
    /// postbox unread. Their number is not known, except for those that still waited here
    /// ([`crate::Error::Undelivered`]). [`crate::Error::Deadline`]: some messages are still unread.
    pub fn flush(&self) -> Result {
        self.flush_timeout(self.usual_limit())
    }

    /// Like [`Postbox::flush`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`Postbox::flush`].
    pub fn flush_timeout(&self, limit: Duration) -> Result {
        self.poster.world().check()?;
        let deadline = Deadline::after(limit);
        self.poster.with_channel(|channel| channel.flush(deadline))?
    }
}

impl<T: Payload> fmt::Debug for Postbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postbox({:?} of {}, {})", self.name(), T::kind(), self.poster.protocol())
    }
}
