//! Retrieves that choose: messages of one rank or with one tag, a limit of the wait, and the program's own
//! memory.

use std::fmt;
use std::time::Duration;

use bytemuck::Pod;
use udeck_via::{Deadline, copy_bytes};

use super::{Mailbox, check_length};
use crate::error::{Error, Result};
use crate::matching::Match;
use crate::parcel::Parcel;
use crate::payload::Payload;
use crate::received::Received;
use crate::recv::choosing::Choice;
use crate::stats::trace;

/// Description of a message that a retrieve has put into the program's buffer ([`Mailbox::retrieve_into`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retrieved {
    /// Number of elements written. The rest of the buffer has not changed.
    pub len: usize,
    /// The rank that posted the message.
    pub source: usize,
    /// The message's tag.
    pub tag: u32,
}

/// A retrieve that was not called yet: which message it takes, and how long it waits.
///
/// ```
/// # use std::time::Duration;
/// # fn step(inbox: &udeck_deck::Mailbox<f64>, row: &mut [f64]) -> udeck_deck::Result {
/// let edge = inbox.from(3).tagged(7).retrieve()?;      // of rank 3, with tag 7
/// let news = inbox.tagged(9).try_retrieve()?;          // `None` if there is none
/// let soon = inbox.from(3).within(Duration::from_secs(1)).retrieve()?;
/// let told = inbox.from(3).tagged(7).retrieve_into(row)?;
/// # Ok(()) }
/// ```
///
/// Messages that arrive before the wanted one are set aside, at most [`crate::Config::set_aside`] bytes of them
/// (`DECK_SET_ASIDE`); later retrieves that match them take them in their order. A message that is set aside
/// keeps the memory that it lies in. [`Mailbox::retrieve_async`] takes the same filters in a task.
#[must_use = "nothing is retrieved before `retrieve` or one of its kind is called"]
pub struct Retrieval<'a, T: Payload> {
    mailbox: &'a Mailbox<T>,
    matching: Match,
    /// Limit of the wait; `None`: the world's deadline.
    limit: Option<Duration>,
}

/// Retrieving messages of one rank, with one tag, or both.
impl<T: Payload> Mailbox<T> {
    /// Chooses messages that `rank` posts. From the first wait on, the rank counts as
    /// [expected](Mailbox::expect), and the wait also ends when `rank` finishes.
    pub fn from(&self, rank: usize) -> Retrieval<'_, T> {
        self.matching(Match::source(rank))
    }

    /// Chooses messages with this tag.
    pub fn tagged(&self, tag: u32) -> Retrieval<'_, T> {
        self.matching(Match::tag(tag))
    }

    /// Chooses messages that `matching` names, for filters that are values.
    pub fn matching(&self, matching: Match) -> Retrieval<'_, T> {
        Retrieval { mailbox: self, matching, limit: None }
    }

    /// Chooses any message, and waits at most `limit` for it.
    pub fn within(&self, limit: Duration) -> Retrieval<'_, T> {
        self.matching(Match::ANY).within(limit)
    }

    /// Returns the next message that `rank` posts: `from(rank).retrieve()`.
    ///
    /// # Errors
    /// The errors of [`Retrieval::retrieve`].
    pub fn retrieve_from(&self, rank: usize) -> Result<Received<T>> {
        self.from(rank).retrieve()
    }

    /// Returns the next message with this tag: `tagged(tag).retrieve()`.
    ///
    /// # Errors
    /// The errors of [`Retrieval::retrieve`].
    pub fn retrieve_tagged(&self, tag: u32) -> Result<Received<T>> {
        self.tagged(tag).retrieve()
    }

    pub(super) fn retrieve_chosen(&self, matching: Match, deadline: Deadline) -> Result<Received<T>> {
        self.check_rank(matching)?;
        let mut received = Received::new(Parcel::NONE);
        self.traced(&mut received, |received| {
            let mut inbox = self.inbox.borrow_mut();
            if let Ok(parcel) = inbox.next_chosen(Choice { matching, room: None }, deadline)? {
                *received.parcel_mut() = parcel;
            }
            self.give_out(&mut inbox, received.parcel_mut()).map(|()| true)
        })?;
        Ok(received)
    }

    fn check_rank(&self, matching: Match) -> Result {
        let size = self.world.size();
        match matching.rank() {
            Some(rank) if rank >= size => Err(Error::NoSuchRank { rank, size }),
            _ => Ok(()),
        }
    }
}

impl<'a, T: Payload> Retrieval<'a, T> {
    /// Narrows the choice to messages that `rank` posts.
    pub fn from(self, rank: usize) -> Retrieval<'a, T> {
        Retrieval { matching: self.matching.and_source(rank), ..self }
    }

    /// Narrows the choice to messages with this tag.
    pub fn tagged(self, tag: u32) -> Retrieval<'a, T> {
        Retrieval { matching: self.matching.and_tag(tag), ..self }
    }

    /// Waits at most `limit`, instead of the world's deadline (`DECK_DEADLINE`).
    pub fn within(self, limit: Duration) -> Retrieval<'a, T> {
        Retrieval { limit: Some(limit), ..self }
    }

    /// Returns the next chosen message. Waits for it.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve`]; [`Error::SetAsideFull`] if too many other messages came. If the
    /// choice names a rank, also [`Error::PeerLost`] or [`Error::RankFinished`] as soon as that rank has ended
    /// and none of its messages is left, and [`Error::NoSuchRank`].
    pub fn retrieve(self) -> Result<Received<T>> {
        let limit = self.limit.unwrap_or_else(|| self.mailbox.usual_limit());
        if self.matching == Match::ANY {
            return self.mailbox.retrieve_timeout(limit);
        }
        self.mailbox.retrieve_chosen(self.matching, Deadline::after(limit))
    }

    /// Returns the next chosen message, or `None` if none has arrived. Does not wait, whatever limit is set.
    /// Sets 256 others aside at most: behind more there may be one that the next call finds.
    ///
    /// # Errors
    /// The errors of [`Retrieval::retrieve`], except the deadline.
    pub fn try_retrieve(self) -> Result<Option<Received<T>>> {
        if self.matching == Match::ANY {
            return self.mailbox.try_retrieve();
        }
        self.mailbox.world.progress_other_postboxes();
        or_none(self.mailbox.retrieve_chosen(self.matching, Deadline::after(Duration::ZERO)))
    }

    /// Passes the bytes of the next chosen message to `take`, and retrieves the message if `take` returns `Ok`.
    /// A message that `take` refuses stays where it is, and is the next one again. Waits for the message.
    /// `take` cannot use the mailbox.
    ///
    /// # Errors
    /// The errors of [`Retrieval::retrieve`]. The inner error is that of `take`.
    pub fn retrieve_if<R, E>(
        self,
        take: impl FnOnce(&[u8], Retrieved) -> std::result::Result<R, E>,
    ) -> Result<std::result::Result<R, E>> {
        let (mailbox, deadline) = (self.mailbox, self.deadline());
        mailbox.check_rank(self.matching)?;
        mailbox.world.progress_other_postboxes();
        let start = trace::begin();
        let mut inbox = mailbox.inbox.borrow_mut();
        let offered = inbox.offer(self.matching, deadline, |parcel| {
            let bytes = parcel.bytes();
            if let Err(error) = check_length::<T>(parcel, bytes.len()) {
                return Ok(Err(error));
            }
            let retrieved =
                Retrieved { len: bytes.len() / T::SIZE, source: parcel.rank as usize, tag: parcel.tag };
            let value = take(bytes, retrieved)?;
            mailbox.record(start, parcel);
            Ok(Ok((value, bytes.len())))
        })?;
        match offered {
            Ok(taken) => {
                let (value, len) = taken?;
                inbox.counters().retrieved(len);
                Ok(Ok(value))
            }
            Err(refused) => Ok(Err(refused)),
        }
    }

    fn deadline(&self) -> Deadline {
        Deadline::after(self.limit.unwrap_or_else(|| self.mailbox.usual_limit()))
    }
}

/// Retrieving into memory of the program.
impl<T: Pod> Mailbox<T> {
    /// Retrieves the next message into the caller's buffer, and returns its length and sender. Makes one
    /// copy; [`Mailbox::retrieve`] makes none.
    ///
    /// # Errors
    /// [`Error::TooSmall`] if none of the next messages fits, one for each postbox (256 at most are looked
    /// at). The messages stay where they are. Otherwise the errors of [`Mailbox::retrieve`].
    pub fn retrieve_into(&self, to: &mut [T]) -> Result<Retrieved> {
        self.matching(Match::ANY).retrieve_into(to)
    }

    /// Like [`Mailbox::retrieve_into`], but does not wait: returns `None` if no message has arrived.
    ///
    /// # Errors
    /// [`Error::TooSmall`], and the errors of [`Mailbox::try_retrieve`].
    pub fn try_retrieve_into(&self, to: &mut [T]) -> Result<Option<Retrieved>> {
        self.matching(Match::ANY).try_retrieve_into(to)
    }
}

impl<T: Pod> Retrieval<'_, T> {
    /// Retrieves the next chosen message into the caller's buffer. Waits for it. MPI calls this a receive.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve_into`] and [`Retrieval::retrieve`]. A message that is too long for the
    /// buffer stays.
    pub fn retrieve_into(self, to: &mut [T]) -> Result<Retrieved> {
        let Retrieval { mailbox, matching, .. } = self;
        mailbox.check_rank(matching)?;
        let (start, deadline) = (trace::begin(), self.deadline());
        let mut inbox = mailbox.inbox.borrow_mut();
        let room = Some(std::mem::size_of_val(to));
        match inbox.next_chosen(Choice { matching, room }, deadline)? {
            Ok(parcel) => {
                let bytes = parcel.bytes();
                check_length::<T>(&parcel, bytes.len())?;
                copy_bytes(&mut bytemuck::cast_slice_mut(to)[..bytes.len()], bytes);
                inbox.counters().retrieved(bytes.len());
                inbox.counters().copied(bytes.len());
                mailbox.record(start, &parcel);
                Ok(Retrieved { len: bytes.len() / T::SIZE, source: parcel.rank as usize, tag: parcel.tag })
            }
            Err((bytes, rank)) => {
                Err(Error::TooSmall { needed: bytes.div_ceil(T::SIZE), have: to.len(), rank: rank as usize })
            }
        }
    }

    /// Like [`Retrieval::retrieve_into`], but does not wait, whatever limit is set: returns `None` if no such
    /// message has arrived.
    ///
    /// # Errors
    /// The errors of [`Retrieval::retrieve_into`], except the deadline.
    pub fn try_retrieve_into(self, to: &mut [T]) -> Result<Option<Retrieved>> {
        self.mailbox.world.progress_other_postboxes();
        or_none(self.within(Duration::ZERO).retrieve_into(to))
    }
}

impl<T: Payload> Clone for Retrieval<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Payload> Copy for Retrieval<'_, T> {}

impl<T: Payload> fmt::Debug for Retrieval<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retrieval")
            .field("mailbox", &self.mailbox)
            .field("matching", &self.matching)
            .field("limit", &self.limit)
            .finish()
    }
}

/// Turns the error of a passed deadline into `None`, for calls whose limit is zero.
pub(super) fn or_none<R>(retrieved: Result<R>) -> Result<Option<R>> {
    match retrieved {
        Err(Error::Deadline { .. }) => Ok(None),
        other => other.map(Some),
    }
}
