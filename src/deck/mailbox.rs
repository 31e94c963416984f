//! Mailboxes: where messages are retrieved.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use udeck_via::Deadline;
use udeck_via::mem::Fill;

use crate::channel::Patience;
use crate::error::{Error, Result};
use crate::inbox::Inbox;
use crate::item::Item;
use crate::received::{Parcel, Received, Stored};
use crate::world::Shared;

/// A named mailbox. Its owner retrieves what all its postboxes post.
///
/// Order is kept per postbox; across postboxes delivery is fair, not chronological. May move to another thread, and is
/// used by one at a time. Dropping it destroys it: its postboxes then fail with [`Error::MailboxGone`].
pub struct Mailbox<T: Item> {
    inbox: RefCell<Inbox>,
    world: Arc<Shared>,
    name: String,
    waker: u64,
    items: PhantomData<fn() -> T>,
}

impl<T: Item> Mailbox<T> {
    #[doc(alias = "deck_mbox_create")]
    pub(crate) fn create(world: &Arc<Shared>, name: &str) -> Result<Self> {
        let inbox = Inbox::open(world, name)?;
        world.advertise::<T>(name)?;
        let waker = world.add_waker(inbox.handle());
        let (world, name) = (world.clone(), name.to_owned());
        Ok(Mailbox { inbox: RefCell::new(inbox), world, name, waker, items: PhantomData })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next message. Waits for it, at most the world's deadline (`DECK_DEADLINE`).
    ///
    /// # Errors
    /// [`Error::PeerLost`] once for each rank that dies; [`Error::Deadline`] says who was waited for;
    /// [`Error::NobodyLeft`] when all other ranks have ended.
    #[doc(alias = "deck_mbox_retrv")]
    #[inline]
    pub fn retrieve(&self) -> Result<Received<T>> {
        // The deadline's clock is read only once there is nothing to take.
        match self.take(Patience::None) {
            Err(Error::WouldBlock { .. }) => self.retrieve_within(self.world.config().deadline),
            other => other,
        }
    }

    /// The next message, if one is there.
    ///
    /// # Errors
    /// [`Error::PeerLost`] once for each rank that dies.
    pub fn try_retrieve(&self) -> Result<Option<Received<T>>> {
        self.world.help_others();
        match self.take(Patience::None) {
            Ok(received) => Ok(Some(received)),
            Err(Error::WouldBlock { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The next message, waiting at most `limit`.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve`].
    pub fn retrieve_within(&self, limit: Duration) -> Result<Received<T>> {
        self.take(Patience::Until(Deadline::after(limit)))
    }

    /// Messages as they come, for ever: combine with `take`. Each is a [`Mailbox::retrieve`].
    pub fn iter(&self) -> Iter<'_, T> {
        Iter(self)
    }

    #[inline]
    fn take(&self, patience: Patience) -> Result<Received<T>> {
        let mut inbox = self.inbox.borrow_mut();
        let parcel = inbox.next(patience)?;
        let parcel = self.check(parcel)?;
        inbox.counters().retrieved(parcel.bytes().len());
        Ok(Received::new(parcel))
    }

    /// A message of this type, aligned. Every parcel passes here once.
    #[inline]
    fn check(&self, mut parcel: Parcel) -> Result<Parcel> {
        let bytes = parcel.bytes();
        if !bytes.len().is_multiple_of(T::SIZE) {
            return Err(Error::WrongLength {
                from: parcel.from as usize,
                bytes: bytes.len(),
                kind: T::kind(),
            });
        }
        if !bytes.as_ptr().addr().is_multiple_of(T::ALIGN) {
            // Inline bytes are aligned to 8, everything else to 64.
            let mut block = self.world.allocate_or_error(bytes.len(), Fill::Keep)?;
            block.bytes_mut().copy_from_slice(bytes);
            parcel.stored = Stored::Owned(block);
        }
        Ok(parcel)
    }
}

impl<T: Pod> Mailbox<T> {
    /// Retrieves into the caller's buffer; returns the number of elements and the sender. One copy.
    ///
    /// # Errors
    /// [`Error::TooSmall`] when no message fits that is the first of its postbox: it stays where it is. Otherwise as
    /// [`Mailbox::retrieve`].
    pub fn retrieve_into(&self, to: &mut [T]) -> Result<(usize, usize)> {
        let patience = Patience::Until(Deadline::after(self.world.config().deadline));
        let mut inbox = self.inbox.borrow_mut();
        let room = std::mem::size_of_val(to);
        match inbox.next_that(patience, |parcel| parcel.bytes().len() <= room)? {
            Ok(parcel) => {
                let parcel = self.check(parcel)?;
                let items: &[T] = bytemuck::cast_slice(parcel.bytes());
                to[..items.len()].copy_from_slice(items);
                inbox.counters().retrieved(parcel.bytes().len());
                inbox.counters().copied(parcel.bytes().len());
                Ok((items.len(), parcel.from as usize))
            }
            Err((bytes, from)) => {
                Err(Error::TooSmall { needed: bytes.div_ceil(T::SIZE), have: to.len(), from: from as usize })
            }
        }
    }
}

impl<T: Item> Drop for Mailbox<T> {
    fn drop(&mut self) {
        self.world.remove_waker(self.waker);
        self.world.withdraw(&self.name);
    }
}

impl<T: Item> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mailbox({:?} of {})", self.name, T::kind())
    }
}

/// Messages as they come ([`Mailbox::iter`]).
#[derive(Debug)]
pub struct Iter<'a, T: Item>(&'a Mailbox<T>);

impl<T: Item> Iterator for Iter<'_, T> {
    type Item = Result<Received<T>>;
    fn next(&mut self) -> Option<Self::Item> {
        Some(self.0.retrieve())
    }
}
