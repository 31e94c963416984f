//! Posts that return at once, and the handles that wait for their messages.

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

/// Handle of a message that was given to a postbox ([`Postbox::post_nonblocking`]), and whose poster's part
/// may not be over.
///
/// The poster's part is over when nothing that the poster does can affect the message any more: by `eager`
/// and `hand-off`, when the message is in the mailbox's ring; by `rdma-read`, when it has been announced
/// there; by `rdma-write`, when it is in the receiver's memory; by `copy`, when its last fragment is in the
/// ring. The mailbox's owner may not have retrieved the message yet ([`Postbox::flush`] waits for that).
/// Later failures are reported as [`crate::Error::Undelivered`].
///
/// The library moves the message along while the program waits for anything, and by a thread of its own while
/// the program computes. The program need not poll the handle.
///
/// Dropping the handle changes nothing for the message. It is delivered; if that fails, the postbox's next
/// call says so ([`crate::Error::Undelivered`]), as for messages posted otherwise. A failure that the handle
/// has reported is not reported again.
#[must_use = "a dropped handle reports nothing; later failures are reported as `Undelivered`"]
pub struct PostRequest<'a, T: Payload> {
    postbox: &'a Postbox<T>,
    /// The request; `None` when it is over and its result was reported.
    request: Option<RequestId>,
}

impl<T: Payload> Postbox<T> {
    /// Posts a message without waiting for anything. If there is no room for it, or others wait already, it
    /// waits in the postbox's queue, together with whatever is posted after it. Hence messages arrive in the
    /// order of posting, whether by this call or by [`Postbox::post`].
    ///
    /// The queue is the same as [`Postbox::post`]'s. When it is full, or the mailbox's depth is reached
    /// ([`crate::MailboxOptions::depth`]), `post` waits and this call fails.
    ///
    /// # Errors
    /// The message comes back with [`crate::Error::WouldBlock`] if the queue is full or the depth is reached
    /// (or, for a slice and for [`crate::ExternalBuf`], if there is no memory for the copy), or while the launcher is asked whether
    /// the rank of a broken connection is lost or has finished; with [`crate::Error::WouldBlockThread`] if
    /// [`Protocol::Handshake`] is set; and with [`crate::Error::PeerLost`] or [`crate::Error::MailboxGone`].
    /// [`crate::Error::Undelivered`] reports earlier messages without a handle.
    pub fn post_nonblocking<M: Postable<T>>(
        &self,
        message: M,
    ) -> Result<PostRequest<'_, T>, PostError<M::Unposted>> {
        let request = message.post_to(self.poster(), WaitPolicy::Queue).map_err(unposted)?;
        Ok(PostRequest { postbox: self, request })
    }

    /// Posts like [`Postbox::post_nonblocking`], but this one message by `protocol`, whatever protocol is
    /// set.
    ///
    /// # Errors
    /// The message comes back with [`crate::Error::Unsupported`], which names the missing capability and the
    /// protocols that are possible; otherwise the errors of [`Postbox::post_nonblocking`].
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
    /// Whether the poster's part is over, successfully or not. If so, [`PostRequest::wait`] does not wait for
    /// the message any more; if the connection broke, it may wait up to a second for the launcher to say how
    /// the rank ended. Moves messages along, and does not block.
    pub fn is_done(&self) -> bool {
        self.request.is_none_or(|id| {
            self.postbox.poster().with_channel(|channel| channel.is_request_done(id)).unwrap_or(true)
        })
    }

    /// Waits until the poster's part is over, at most the world's deadline (`DECK_DEADLINE`).
    ///
    /// # Errors
    /// [`crate::Error::Refused`] by the mailbox, in its words; [`crate::Error::PeerLost`];
    /// [`crate::Error::MailboxGone`] if the mailbox ended while the message waited (the message does not come
    /// back; the program can make it again); [`crate::Error::Deadline`] says whom the call waited for: the
    /// mailbox's owner, and the message goes on waiting, without its handle; or the launcher, to say how the
    /// rank ended, and the message has failed. Failures after the deadline, or unreported ones, are reported
    /// by the postbox's next call ([`crate::Error::Undelivered`]).
    pub fn wait(mut self) -> Result {
        self.wait_timeout(self.postbox.usual_limit())
    }

    /// Like [`PostRequest::wait`], but waits at most `limit`. After [`crate::Error::Deadline`] the handle can
    /// still be used; after any other result, later calls return `Ok`.
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
