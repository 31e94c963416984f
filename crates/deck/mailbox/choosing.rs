//! Retrieving into the program's own memory, and messages of one rank or with one tag.

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
use crate::trace;

/// What [`Mailbox::retrieve_into`] has put into the program's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retrieved {
    /// How many elements. What lies behind them in the buffer has not changed.
    pub len: usize,
    /// The rank that posted the message.
    pub source: usize,
    /// Its tag.
    pub tag: u32,
}

/// Messages of one rank, with one tag, or both. Others that come before it are set aside, and later retrieves take them in their
/// order, whatever they ask for.
impl<T: Payload> Mailbox<T> {
    /// The next message that `rank` posts. Waits for it, at most the world's deadline (`DECK_DEADLINE`). From now on the rank counts as
    /// [expected](Mailbox::expect). That it has finished ends this call, too.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve`], and [`Error::PeerLost`] or [`Error::RankFinished`] as soon as `rank` has ended and nothing of it
    /// is left; [`Error::SetAsideFull`] when too much came that it did not ask for; [`Error::NoSuchRank`].
    pub fn retrieve_from(&self, rank: usize) -> Result<Received<T>> {
        self.retrieve_matching(Match::source(rank))
    }

    /// As [`Mailbox::retrieve_from`], waiting at most `limit`.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve_from`].
    pub fn retrieve_from_timeout(&self, rank: usize, limit: Duration) -> Result<Received<T>> {
        self.retrieve_matching_timeout(Match::source(rank), limit)
    }

    /// As [`Mailbox::retrieve_from`], if a message of `rank` is there.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve_from`], but for the deadline.
    pub fn try_retrieve_from(&self, rank: usize) -> Result<Option<Received<T>>> {
        self.try_retrieve_matching(Match::source(rank))
    }

    /// The next message with this tag. Waits for it, at most the world's deadline (`DECK_DEADLINE`).
    ///
    /// # Errors
    /// As [`Mailbox::retrieve`]; [`Error::SetAsideFull`] when too much came that it did not ask for.
    pub fn retrieve_tagged(&self, tag: u32) -> Result<Received<T>> {
        self.retrieve_matching(Match::tag(tag))
    }

    /// As [`Mailbox::retrieve_tagged`], waiting at most `limit`.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve_tagged`].
    pub fn retrieve_tagged_timeout(&self, tag: u32, limit: Duration) -> Result<Received<T>> {
        self.retrieve_matching_timeout(Match::tag(tag), limit)
    }

    /// As [`Mailbox::retrieve_tagged`], if such a message is there.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve_tagged`], but for the deadline.
    pub fn try_retrieve_tagged(&self, tag: u32) -> Result<Option<Received<T>>> {
        self.try_retrieve_matching(Match::tag(tag))
    }

    /// The next message of those that `matching` names. Waits for it, at most the world's deadline (`DECK_DEADLINE`).
    ///
    /// The messages that come before it are set aside, at most [`crate::Config::set_aside`] bytes of them (`DECK_SET_ASIDE`): while they
    /// are, they keep the memory that they lie in.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve`]; [`Error::SetAsideFull`] when too much came that it did not ask for. If it names a rank, also as
    /// [`Mailbox::retrieve_from`].
    pub fn retrieve_matching(&self, matching: Match) -> Result<Received<T>> {
        self.retrieve_matching_timeout(matching, self.usual_limit())
    }

    /// As [`Mailbox::retrieve_matching`], waiting at most `limit`.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve_matching`].
    pub fn retrieve_matching_timeout(&self, matching: Match, limit: Duration) -> Result<Received<T>> {
        if matching == Match::ANY {
            return self.retrieve_timeout(limit);
        }
        self.check_rank(matching)?;
        let (start, deadline) = (trace::begin(), Deadline::after(limit));
        let mut inbox = self.inbox.borrow_mut();
        let mut received = Received::new(Parcel::NONE);
        if let Ok(parcel) = inbox.next_chosen(Choice { matching, room: None }, deadline)? {
            *received.parcel_mut() = parcel;
        }
        self.give_out(&mut inbox, received.parcel_mut())?;
        self.tell(start, &received);
        Ok(received)
    }

    /// As [`Mailbox::retrieve_matching`], if such a message is there. Sets 256 others aside at most: behind more there may be one that the
    /// next call finds.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve_matching`], but for the deadline.
    pub fn try_retrieve_matching(&self, matching: Match) -> Result<Option<Received<T>>> {
        self.world.progress_other_postboxes();
        or_none(self.retrieve_matching_timeout(matching, Duration::ZERO))
    }

    /// Shows the next message of those that `matching` names to `take`, as bytes: retrieved if `take` gives `Ok`. One that it refuses
    /// stays where it is, and is the next one again. Waits for it, at most `limit`. `take` cannot use the mailbox.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve_matching`]. The inner one is that of `take`.
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
            if start != 0 {
                trace::retrieved(start, self.world.rank(), &self.name, parcel);
            }
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

/// Into memory of the program's own.
impl<T: Pod> Mailbox<T> {
    /// Retrieves into the caller's buffer, and says how many elements that were, and whose. One copy; [`Mailbox::retrieve`] needs none.
    ///
    /// # Errors
    /// [`Error::TooSmall`] when no message fits that is the first of its postbox (of 256, if there are more): it stays where
    /// it is. Otherwise as
    /// [`Mailbox::retrieve`].
    pub fn retrieve_into(&self, to: &mut [T]) -> Result<Retrieved> {
        self.retrieve_into_timeout(to, self.usual_limit())
    }

    /// As [`Mailbox::retrieve_into`], if a message is there.
    ///
    /// # Errors
    /// [`Error::TooSmall`], and as [`Mailbox::try_retrieve`].
    pub fn try_retrieve_into(&self, to: &mut [T]) -> Result<Option<Retrieved>> {
        self.try_retrieve_matching_into(Match::ANY, to)
    }

    /// As [`Mailbox::retrieve_into`], waiting at most `limit`.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve_into`].
    pub fn retrieve_into_timeout(&self, to: &mut [T], limit: Duration) -> Result<Retrieved> {
        self.retrieve_matching_into_timeout(Match::ANY, to, limit)
    }

    /// Retrieves the next message of those that `matching` names into the caller's buffer: what MPI calls a receive.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve_into`] and [`Mailbox::retrieve_matching`]. A message that is too long for the buffer
    /// stays.
    pub fn retrieve_matching_into(&self, matching: Match, to: &mut [T]) -> Result<Retrieved> {
        self.retrieve_matching_into_timeout(matching, to, self.usual_limit())
    }

    /// As [`Mailbox::retrieve_matching_into`], if such a message is there.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve_matching_into`], but for the deadline.
    pub fn try_retrieve_matching_into(&self, matching: Match, to: &mut [T]) -> Result<Option<Retrieved>> {
        self.world.progress_other_postboxes();
        or_none(self.retrieve_matching_into_timeout(matching, to, Duration::ZERO))
    }

    /// As [`Mailbox::retrieve_matching_into`], waiting at most `limit`.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve_matching_into`].
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
                if start != 0 {
                    trace::retrieved(start, self.world.rank(), &self.name, &parcel);
                }
                Ok(Retrieved { len: bytes.len() / T::SIZE, source: parcel.rank as usize, tag: parcel.tag })
            }
            Err((bytes, rank)) => {
                Err(Error::TooSmall { needed: bytes.div_ceil(T::SIZE), have: to.len(), rank: rank as usize })
            }
        }
    }
}

/// `None`: the time was up, which was none.
fn or_none<R>(retrieved: Result<R>) -> Result<Option<R>> {
    match retrieved {
        Err(Error::Deadline { .. }) => Ok(None),
        other => other.map(Some),
    }
}
