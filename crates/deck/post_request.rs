//! Posts that return at once, and the handles by which their messages are waited for.

use std::fmt;
use std::time::Duration;

use udeck_via::Deadline;

use crate::error::{PostError, Result};
use crate::payload::Payload;
use crate::postable::{Postable, unposted};
use crate::postbox::Postbox;
use crate::protocol::Protocol;
use crate::send::requests::RequestId;
use crate::wait_policy::WaitPolicy;

/// A message that was given to a postbox ([`Postbox::post_nonblocking`]), and whose poster's part may not be over.
///
/// It is over when nothing that the poster does can matter to the message any more: by `eager` and `hand-off`, when it is
/// in the mailbox's ring; by `rdma-read`, when it has been announced there; by `rdma-write`, when it is in the receiver's
/// memory; by `copy`, when its last fragment is in the ring. The mailbox's owner may not have retrieved it then
/// ([`Postbox::flush`] waits for that), and what goes wrong later is told as [`crate::Error::Undelivered`].
///
/// The library moves the message along while the program waits for anything, and by a thread of its own while the
/// program computes; nobody has to ask its handle.
///
/// Dropping the handle changes nothing for the message: it is delivered, and if that fails, the postbox's next call says
/// so ([`crate::Error::Undelivered`]), as for messages posted otherwise. What a handle has told is not told again.
#[must_use = "a handle that is dropped tells nothing: what goes wrong is told as `Undelivered` then"]
pub struct PostRequest<'a, T: Payload> {
    postbox: &'a Postbox<T>,
    /// `None`: it is over, and all is told.
    request: Option<RequestId>,
}

impl<T: Payload> Postbox<T> {
    /// Posts a message without waiting for anything: where there is no room for it, or others wait already, it waits in a
    /// queue of the postbox, together with whatever is posted after it. So messages arrive in the order of posting,
    /// whether by this or by [`Postbox::post`].
    ///
    /// The queue is that of [`Postbox::post`], which waits where this call fails: when it is full.
    ///
    /// # Errors
    /// The message comes back with [`crate::Error::WouldBlock`] when the queue is full (or, for a slice and for
    /// [`crate::ExternalBuf`], when there is no memory for the copy), also while the launcher is asked whether the rank of a
    /// connection that broke is lost or has finished; with [`crate::Error::WouldBlockThread`] where
    /// [`Protocol::Handshake`] is set, and with [`crate::Error::PeerLost`] or [`crate::Error::MailboxGone`];
    /// [`crate::Error::Undelivered`] tells of earlier messages without a handle.
    pub fn post_nonblocking<M: Postable<T>>(
        &self,
        message: M,
    ) -> Result<PostRequest<'_, T>, PostError<M::Unposted>> {
        let request = message.post_to(self.poster(), WaitPolicy::Queue).map_err(unposted)?;
        Ok(PostRequest { postbox: self, request })
    }

    /// As [`Postbox::post_nonblocking`], this one message by `protocol`, whatever is set.
    ///
    /// # Errors
    /// The message comes back with [`crate::Error::Unsupported`], which names the missing ability and the protocols that
    /// are possible; otherwise as [`Postbox::post_nonblocking`].
    pub fn post_nonblocking_with<M: Postable<T>>(
        &self,
        protocol: Protocol,
        message: M,
    ) -> Result<PostRequest<'_, T>, PostError<M::Unposted>> {
        let request = self.post_to_with(protocol, message, WaitPolicy::Queue)?;
        Ok(PostRequest { postbox: self, request })
    }
}

impl<T: Payload> PostRequest<'_, T> {
    /// Whether the poster's part is over, well or not. Then [`PostRequest::wait`] does not wait for the message any more; if the
    /// connection broke, it may, up to a second, for the launcher's word of what became of the rank. Moves things along, and
    /// does not block.
    pub fn is_done(&self) -> bool {
        self.request.is_none_or(|id| {
            self.postbox.poster().with_channel(|channel| channel.is_request_done(id)).unwrap_or(true)
        })
    }

    /// Waits until the poster's part is over, at most the world's deadline (`DECK_DEADLINE`).
    ///
    /// # Errors
    /// What became of this message: [`crate::Error::Refused`] by the mailbox, in its words; [`crate::Error::PeerLost`],
    /// [`crate::Error::MailboxGone`] while it waited (whoever made it can make it again: it does not come back);
    /// [`crate::Error::Deadline`] says for whom it waited: for the mailbox's owner, and the message goes on waiting, without
    /// its handle; or for the launcher, to say what became of the rank, and the message has failed. What goes wrong after a
    /// deadline, or has gone wrong, the postbox's next call tells ([`crate::Error::Undelivered`]).
    pub fn wait(mut self) -> Result {
        self.wait_timeout(self.postbox.usual_limit())
    }

    /// Like [`PostRequest::wait`], but waits at most `limit`. After [`crate::Error::Deadline`] the handle can be used on; after
    /// another end it says no more than that all is over.
    ///
    /// # Errors
    /// The errors of [`PostRequest::wait`].
    pub fn wait_timeout(&mut self, limit: Duration) -> Result {
        let Some(id) = self.request else { return Ok(()) };
        let deadline = Deadline::after(limit);
        let outcome = self.postbox.poster().with_channel(|channel| {
            channel.wait_for_request(id, deadline).map(|()| channel.request_result(id, deadline))
        })??;
        if !matches!(outcome, Err(crate::Error::Deadline { .. })) {
            self.request = None;
        }
        outcome
    }
}

impl<T: Payload> Drop for PostRequest<'_, T> {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        if let Some(id) = self.request {
            let _ = self.postbox.poster().with_channel(|channel| channel.forget_request(id));
        }
    }
}

impl<T: Payload> fmt::Debug for PostRequest<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostRequest({:?}, {})", self.postbox, if self.is_done() { "done" } else { "under way" })
    }
}
