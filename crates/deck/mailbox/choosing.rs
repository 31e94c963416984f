//! Retrieving into the program's own memory, and retrieving messages of one rank or with one tag.

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

/// Description of a message that [`Mailbox::retrieve_into`] has put into the program's buffer.
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

/// Retrieving messages of one rank, with one tag, or both. Messages that arrive before the wanted one are set
/// aside; later retrieves that match them take them in their order.
impl<T: Payload> Mailbox<T> {
    /// Returns the next message that `rank` posts. Waits for it, at most the world's deadline
    /// (`DECK_DEADLINE`). From now on the rank counts as [expected](Mailbox::expect). The call also ends when
    /// `rank` finishes.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve`], and [`Error::PeerLost`] or [`Error::RankFinished`] as soon as
    /// `rank` has ended and none of its messages is left; [`Error::SetAsideFull`] if too many other messages
    /// came; [`Error::NoSuchRank`].
    pub fn retrieve_from(&self, rank: usize) -> Result<Received<T>> {
        self.retrieve_matching(Match::source(rank))
    }

    /// Like [`Mailbox::retrieve_from`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve_from`].
    pub fn retrieve_from_timeout(&self, rank: usize, limit: Duration) -> Result<Received<T>> {
        self.retrieve_matching_timeout(Match::source(rank), limit)
    }

    /// Like [`Mailbox::retrieve_from`], but does not wait: returns `None` if no message of `rank` has
    /// arrived.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve_from`], except the deadline.
    pub fn try_retrieve_from(&self, rank: usize) -> Result<Option<Received<T>>> {
        self.try_retrieve_matching(Match::source(rank))
    }

    /// Returns the next message with this tag. Waits for it, at most the world's deadline (`DECK_DEADLINE`).
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve`]; [`Error::SetAsideFull`] if too many other messages came.
    pub fn retrieve_tagged(&self, tag: u32) -> Result<Received<T>> {
        self.retrieve_matching(Match::tag(tag))
    }

    /// Like [`Mailbox::retrieve_tagged`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve_tagged`].
    pub fn retrieve_tagged_timeout(&self, tag: u32, limit: Duration) -> Result<Received<T>> {
        self.retrieve_matching_timeout(Match::tag(tag), limit)
    }

    /// Like [`Mailbox::retrieve_tagged`], but does not wait: returns `None` if no such message has arrived.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve_tagged`], except the deadline.
    pub fn try_retrieve_tagged(&self, tag: u32) -> Result<Option<Received<T>>> {
        self.try_retrieve_matching(Match::tag(tag))
    }

    /// Returns the next message that `matching` names. Waits for it, at most the world's deadline
    /// (`DECK_DEADLINE`).
    ///
    /// Messages that arrive before it are set aside, at most [`crate::Config::set_aside`] bytes of them
    /// (`DECK_SET_ASIDE`). A message that is set aside keeps the memory that it lies in.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve`]; [`Error::SetAsideFull`] if too many other messages came. If
    /// `matching` names a rank, also the errors of [`Mailbox::retrieve_from`].
    pub fn retrieve_matching(&self, matching: Match) -> Result<Received<T>> {
        self.retrieve_matching_timeout(matching, self.usual_limit())
    }

    /// Like [`Mailbox::retrieve_matching`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve_matching`].
    pub fn retrieve_matching_timeout(&self, matching: Match, limit: Duration) -> Result<Received<T>> {
        if matching == Match::ANY {
            return self.retrieve_timeout(limit);
        }
        self.check_rank(matching)?;
        let deadline = Deadline::after(limit);
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

    /// Like [`Mailbox::retrieve_matching`], but does not wait: returns `None` if no such message has arrived.
    /// Sets 256 others aside at most: behind more there may be one that the next call finds.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve_matching`], except the deadline.
    pub fn try_retrieve_matching(&self, matching: Match) -> Result<Option<Received<T>>> {
        self.world.progress_other_postboxes();
        or_none(self.retrieve_matching_timeout(matching, Duration::ZERO))
    }

    /// Passes the bytes of the next message that `matching` names to `take`, and retrieves the message if
    /// `take` returns `Ok`. A message that `take` refuses stays where it is, and is the next one again. Waits
    /// for the message, at most `limit`. `take` cannot use the mailbox.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve_matching`]. The inner error is that of `take`.
    pub fn retrieve_matching_if<R, E>(
        &self,
        matching: Match,
        limit: Duration,
        take: impl FnOnce(&[u8], Retrieved) -> std::result::Result<R, E>,
    ) -> Result<std::result::Result<R, E>> {
        self.check_rank(matching)?;
        self.world.progress_other_postboxes();
        let (start, deadline) = (trace::begin(), Deadline::after(limit));
        let mut inbox = self.inbox.borrow_mut();
        let offered = inbox.offer(matching, deadline, |parcel| {
            let bytes = parcel.bytes();
            if let Err(error) = check_length::<T>(parcel, bytes.len()) {
                return Ok(Err(error));
            }
            let retrieved =
                Retrieved { len: bytes.len() / T::SIZE, source: parcel.rank as usize, tag: parcel.tag };
            let value = take(bytes, retrieved)?;
            self.record(start, parcel);
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

    fn check_rank(&self, matching: Match) -> Result {
        let size = self.world.size();
        match matching.rank() {
            Some(rank) if rank >= size => Err(Error::NoSuchRank { rank, size }),
            _ => Ok(()),
        }
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
        self.retrieve_into_timeout(to, self.usual_limit())
    }

    /// Like [`Mailbox::retrieve_into`], but does not wait: returns `None` if no message has arrived.
    ///
    /// # Errors
    /// [`Error::TooSmall`], and the errors of [`Mailbox::try_retrieve`].
    pub fn try_retrieve_into(&self, to: &mut [T]) -> Result<Option<Retrieved>> {
        self.try_retrieve_matching_into(Match::ANY, to)
    }

    /// Like [`Mailbox::retrieve_into`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve_into`].
    pub fn retrieve_into_timeout(&self, to: &mut [T], limit: Duration) -> Result<Retrieved> {
        self.retrieve_matching_into_timeout(Match::ANY, to, limit)
    }

    /// Retrieves the next message that `matching` names into the caller's buffer. MPI calls this a receive.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve_into`] and [`Mailbox::retrieve_matching`]. A message that is too long for the buffer
    /// stays.
    pub fn retrieve_matching_into(&self, matching: Match, to: &mut [T]) -> Result<Retrieved> {
        self.retrieve_matching_into_timeout(matching, to, self.usual_limit())
    }

    /// Like [`Mailbox::retrieve_matching_into`], but does not wait: returns `None` if no such message has
    /// arrived.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve_matching_into`], except the deadline.
    pub fn try_retrieve_matching_into(&self, matching: Match, to: &mut [T]) -> Result<Option<Retrieved>> {
        self.world.progress_other_postboxes();
        or_none(self.retrieve_matching_into_timeout(matching, to, Duration::ZERO))
    }

    /// Like [`Mailbox::retrieve_matching_into`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve_matching_into`].
    pub fn retrieve_matching_into_timeout(
        &self,
        matching: Match,
        to: &mut [T],
        limit: Duration,
    ) -> Result<Retrieved> {
        self.check_rank(matching)?;
        let (start, deadline) = (trace::begin(), Deadline::after(limit));
        let mut inbox = self.inbox.borrow_mut();
        let room = Some(std::mem::size_of_val(to));
        match inbox.next_chosen(Choice { matching, room }, deadline)? {
            Ok(parcel) => {
                let bytes = parcel.bytes();
                check_length::<T>(&parcel, bytes.len())?;
                copy_bytes(&mut bytemuck::cast_slice_mut(to)[..bytes.len()], bytes);
                inbox.counters().retrieved(bytes.len());
                inbox.counters().copied(bytes.len());
                self.record(start, &parcel);
                Ok(Retrieved { len: bytes.len() / T::SIZE, source: parcel.rank as usize, tag: parcel.tag })
            }
            Err((bytes, rank)) => {
                Err(Error::TooSmall { needed: bytes.div_ceil(T::SIZE), have: to.len(), rank: rank as usize })
            }
        }
    }
}

/// Turns the error of a passed deadline into `None`, for calls whose limit is zero.
fn or_none<R>(retrieved: Result<R>) -> Result<Option<R>> {
    match retrieved {
        Err(Error::Deadline { .. }) => Ok(None),
        other => other.map(Some),
    }
}
