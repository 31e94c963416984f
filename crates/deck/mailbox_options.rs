//! Options of a new mailbox.

use udeck_via::ServiceLevel;

/// Requirements of a mailbox on its posters ([`crate::World::mailbox_with`]). `new` and `default` require
/// nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MailboxOptions {
    /// Bound of each postbox's queue, in bytes ([`crate::World::mailbox_with_queue`] says what counts);
    /// `None`: what the postbox's rank allows.
    pub queue: Option<usize>,
    /// Maximum number of messages of each postbox that wait for the receiver ([`MailboxOptions::depth`]); `None`:
    /// as many as the connection and the queue hold.
    pub depth: Option<u32>,
    /// Service level of messages to this mailbox, unless a postbox has its own
    /// ([`crate::World::postbox_at`]).
    pub level: ServiceLevel,
}

impl MailboxOptions {
    /// Makes options that require nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the bound of each postbox's queue, in bytes.
    #[must_use]
    pub fn queue(self, bytes: usize) -> Self {
        MailboxOptions { queue: Some(bytes), ..self }
    }

    /// Sets how many messages of each postbox may wait for the receiver: posted, and not yet retrieved. 0 counts
    /// as 1. A further [`Postbox::post`](crate::Postbox::post) waits until the receiver has taken one,
    /// [`Postbox::try_post`](crate::Postbox::try_post) returns [`Error::WouldBlock`](crate::Error::WouldBlock).
    /// So a fast stage of a pipeline is at most `messages` ahead of the next one, over any transport.
    ///
    /// ```
    /// # use udeck_deck::MailboxOptions;
    /// let frames = MailboxOptions::new().depth(4);    // each postbox is at most 4 messages ahead
    /// # assert_eq!(frames.depth, Some(4));
    /// ```
    ///
    /// A message that the receiver holds ([`Received`](crate::Received)) does not count any more. Nor does one
    /// that the mailbox has taken before the program sees it: set aside by a retrieve for another rank or tag,
    /// found by [`select`](crate::select), or in a run of up to 15 that a [`drain`](crate::Mailbox::drain)
    /// passes on. An announced message counts twice until its announcement was seen, and a message by `copy`
    /// counts 1 and its unread fragments of 64 KiB; so a post may wait with fewer messages. Each post is counted, so no message takes the fast
    /// path; a poster that sleeps polls for a place at least once in a millisecond.
    #[must_use]
    pub fn depth(self, messages: u32) -> Self {
        MailboxOptions { depth: Some(messages), ..self }
    }

    /// Sets the service level. It orders messages before or behind others of the same sender, by the shares
    /// of `DECK_LEVELS` or of the network. [`crate::Postbox::route`] and `DECK_EXPLAIN` say where a level has
    /// no effect.
    #[must_use]
    pub fn level(self, level: ServiceLevel) -> Self {
        MailboxOptions { level, ..self }
    }
}
