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

    /// Sets the service level. It orders messages before or behind others of the same sender, by the shares
    /// of `DECK_LEVELS` or of the network. [`crate::Postbox::route`] and `DECK_EXPLAIN` say where a level has
    /// no effect.
    #[must_use]
    pub fn level(self, level: ServiceLevel) -> Self {
        MailboxOptions { level, ..self }
    }
}
