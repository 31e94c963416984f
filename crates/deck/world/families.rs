//! Families of mailboxes: each rank may have one of the same name, which others find by name and rank.

use std::time::Duration;

use udeck_boot::{Maker, family};
use udeck_via::{Deadline, ServiceLevel};

use super::{World, check_name};
use crate::connect::LookupMode;
use crate::error::{Error, Result, check_process};
use crate::mailbox::Mailbox;
use crate::mailbox_options::MailboxOptions;
use crate::payload::{Payload, check_payload};
use crate::postbox::Postbox;

impl World {
    /// Creates this rank's mailbox of a family: each rank may create one of the same name, and
    /// [`World::postbox_of`] finds it by name and rank. A program need not make up names where every rank has
    /// a mailbox.
    ///
    /// # Errors
    /// [`Error::NameTaken`] when this rank has created its mailbox of that name already; [`Error::BadName`].
    pub fn mailboxes<T: Payload>(&self, name: &str) -> Result<Mailbox<T>> {
        self.mailboxes_with(name, &MailboxOptions::new())
    }

    /// Creates this rank's mailbox of a family like [`World::mailboxes`], with the options of
    /// [`World::mailbox_with`]. They are this mailbox's own: other ranks may give others.
    ///
    /// ```
    /// # use udeck_deck::{MailboxOptions, World};
    /// # fn step(world: &World) -> udeck_deck::Result {
    /// let halo = world.mailboxes_with::<f64>("halo", &MailboxOptions::new().depth(4))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The errors of [`World::mailboxes`].
    pub fn mailboxes_with<T: Payload>(&self, name: &str, options: &MailboxOptions) -> Result<Mailbox<T>> {
        check_process()?;
        check_name(name)?;
        check_payload::<T>()?;
        Mailbox::create(&self.state, family::member(name, self.rank()), options)
    }

    /// Makes a postbox of the mailbox that `rank` makes by [`World::mailboxes`] with this name. Waits until
    /// the mailbox exists and accepts another connection, at most `DECK_SETUP_TIMEOUT`.
    ///
    /// # Errors
    /// The errors of [`World::postbox`], and [`Error::PeerLost`] or [`Error::MailboxGone`] as soon as the rank is lost or has finished;
    /// [`Error::NoSuchRank`].
    pub fn postbox_of<T: Payload>(&self, name: &str, rank: usize) -> Result<Postbox<T>> {
        self.postbox_of_timeout(name, rank, self.state.config().setup)
    }

    /// Like [`World::postbox_of`], but waits at most `limit` for the mailbox.
    ///
    /// # Errors
    /// The errors of [`World::postbox_of`].
    pub fn postbox_of_timeout<T: Payload>(
        &self,
        name: &str,
        rank: usize,
        limit: Duration,
    ) -> Result<Postbox<T>> {
        self.make_postbox_of(name, rank, None, Deadline::after(limit))
    }

    /// Makes a postbox like [`World::postbox_of`], with a service level like [`World::postbox_at`].
    ///
    /// # Errors
    /// The errors of [`World::postbox_of`].
    pub fn postbox_of_at<T: Payload>(
        &self,
        name: &str,
        rank: usize,
        level: ServiceLevel,
    ) -> Result<Postbox<T>> {
        self.make_postbox_of(name, rank, Some(level), Deadline::after(self.state.config().setup))
    }

    /// Makes a postbox like [`World::postbox_of`], if the mailbox exists. Does not wait for the mailbox.
    ///
    /// # Errors
    /// The errors of [`World::try_postbox`]; [`Error::NoSuchRank`].
    pub fn try_postbox_of<T: Payload>(&self, name: &str, rank: usize) -> Result<Postbox<T>> {
        let deadline = Deadline::after(self.state.config().setup);
        self.make_postbox(&self.member(name, rank)?, LookupMode::Now, None, deadline)
    }

    /// Makes a postbox of each rank's mailbox by [`World::mailboxes`] with this name, this rank's own
    /// included. Element `n` leads to rank `n`. Waits until all mailboxes exist, at most `DECK_SETUP_TIMEOUT`
    /// in all.
    ///
    /// # Errors
    /// The errors of [`World::postbox_of`], for the first rank that has one.
    pub fn postboxes<T: Payload>(&self, name: &str) -> Result<Vec<Postbox<T>>> {
        self.postboxes_timeout(name, self.state.config().setup)
    }

    /// Like [`World::postboxes`], but waits at most `limit` in all.
    ///
    /// # Errors
    /// The errors of [`World::postboxes`].
    pub fn postboxes_timeout<T: Payload>(&self, name: &str, limit: Duration) -> Result<Vec<Postbox<T>>> {
        let deadline = Deadline::after(limit);
        (0..self.size()).map(|rank| self.make_postbox_of(name, rank, None, deadline)).collect()
    }

    fn make_postbox_of<T: Payload>(
        &self,
        name: &str,
        rank: usize,
        level: Option<ServiceLevel>,
        deadline: Deadline,
    ) -> Result<Postbox<T>> {
        let mode = LookupMode::Of(Maker::Rank(rank as u32));
        self.make_postbox(&self.member(name, rank)?, mode, level, deadline)
    }

    /// The name under which the name service knows that rank's mailbox of the family `name`.
    fn member(&self, name: &str, rank: usize) -> Result<String> {
        check_name(name)?;
        let size = self.size();
        if rank >= size {
            return Err(Error::NoSuchRank { rank, size });
        }
        Ok(family::member(name, rank))
    }
}
