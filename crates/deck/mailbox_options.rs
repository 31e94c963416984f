//! How a mailbox is made.

use udeck_via::ServiceLevel;

/// What a mailbox asks of those who post to it ([`crate::World::mailbox_with`]). As made by `new` or `default`, it asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MailboxOptions {
    /// The bound of what waits at each postbox, in bytes ([`crate::World::mailbox_with_queue`] says what counts); `None`: what the
    /// postbox's rank allows.
    pub queue: Option<usize>,
    /// The level of the messages that are posted here, unless a postbox has one of its own ([`crate::World::postbox_at`]).
    pub level: ServiceLevel,
}

impl MailboxOptions {
    /// Nothing is asked for.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// With this bound.
    #[must_use]
    pub fn queue(self, bytes: usize) -> Self {
        MailboxOptions { queue: Some(bytes), ..self }
    }

    /// With this level: its messages go before, or behind, others of the same sender, by the shares that `DECK_LEVELS` gives them, or
    /// that the network has. [`crate::Postbox::route`] and `DECK_EXPLAIN` say where a level counts for nothing.
    #[must_use]
    pub fn level(self, level: ServiceLevel) -> Self {
        MailboxOptions { level, ..self }
    }
}
