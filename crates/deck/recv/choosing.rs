//! Retrieving a message that the program chooses: of a rank, with a tag, or one that fits into its buffer.
//! Messages before it are set aside, in their order, for later retrieves.

use std::collections::BTreeSet;
use std::time::Instant;

use udeck_via::Deadline;

use super::Inbox;
use crate::error::{Error, Result, check_process};
use crate::matching::Match;
use crate::parcel::{Parcel, TooLong};

/// Bound of the messages that are taken out of their rings in search of one that fits: messages too long for
/// the program's buffer, and messages behind them. After this many, the call reports that the buffer is too
/// small.
const MAX_PASSED_OVER: usize = 256;
/// Messages that are set aside between two checks of the clock.
const MESSAGES_PER_CLOCK_CHECK: usize = 256;

/// Filter of a retrieve that chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub matching: Match,
    /// Length in bytes of the program's buffer, if it has one.
    pub room: Option<usize>,
}

/// State of one call's search: the messages that it has passed over.
struct Search {
    choice: Choice,
    /// Postboxes, by rank and number, of which a matching message that does not fit was passed over: none
    /// behind it may be taken.
    blocked: BTreeSet<(u32, u32)>,
    /// The first message that did not fit.
    too_long: Option<TooLong>,
}

impl Search {
    fn new(choice: Choice) -> Self {
        Search { choice, blocked: BTreeSet::new(), too_long: None }
    }

    /// Whether this message is taken. Called once for each message, in their order.
    fn takes(&mut self, parcel: &Parcel) -> bool {
        if !self.choice.matching.takes(parcel.rank, parcel.tag) {
            return false;
        }
        let Some(room) = self.choice.room else { return true };
        let (postbox, len) = ((parcel.rank, parcel.postbox), parcel.bytes().len());
        if len <= room && !self.blocked.contains(&postbox) {
            return true;
        }
        self.blocked.insert(postbox);
        self.too_long.get_or_insert((len, parcel.rank));
        false
    }
}

impl Inbox {
    /// Returns the oldest message that matches. A matching message that does not fit stays at the head of its
    /// postbox, and only that postbox waits.
    ///
    /// An inner `Err` is the oldest matching message if none fits.
    pub fn next_chosen(&mut self, choice: Choice, deadline: Deadline) -> Result<Result<Parcel, TooLong>> {
        let is_any = choice.matching == Match::ANY;
        // A handshake asks for room before its tag is known. A call that chooses by tag therefore gets any
        // message, and sets it aside if need be.
        self.buffer_len = choice.room.filter(|_| is_any);
        self.wanted = choice.matching;
        // A wait for one rank has to hear of its loss, even if the rank has no postbox yet.
        self.sender_ranks.extend(choice.matching.rank().map(|rank| rank as u32));
        let found = self.choose(choice, deadline);
        (self.buffer_len, self.too_long, self.wanted) = (None, None, Match::ANY);
        found
    }

    /// Passes the oldest matching message to `take`. A message that `take` refuses keeps its place.
    pub fn offer<R, E>(
        &mut self,
        matching: Match,
        deadline: Deadline,
        take: impl FnOnce(&Parcel) -> std::result::Result<R, E>,
    ) -> Result<std::result::Result<R, E>> {
        self.check_set_aside()?;
        let is_meant = |parcel: &Parcel| matching.takes(parcel.rank, parcel.tag);
        if let Some(place) = self.set_aside.find(is_meant)
            && let Some(parcel) = self.set_aside.at(place)
        {
            let taken = take(parcel);
            if taken.is_ok() {
                self.set_aside.take(place);
            }
            return Ok(taken);
        }
        let mut newest = Parcel::NONE;
        if let Ok(parcel) = self.next_chosen(Choice { matching, room: None }, deadline)? {
            newest = parcel;
        }
        let taken = take(&newest);
        if taken.is_err() {
            self.pass_over(newest);
        }
        Ok(taken)
    }

    /// Checks that this process did not fork: messages that were set aside belong to the parent.
    fn check_set_aside(&self) -> Result {
        if self.set_aside.is_empty() { Ok(()) } else { check_process() }
    }

    fn choose(&mut self, choice: Choice, deadline: Deadline) -> Result<Result<Parcel, TooLong>> {
        self.check_set_aside()?;
        let mut search = Search::new(choice);
        if let Some(place) = self.set_aside.find(|parcel| search.takes(parcel))
            && let Some(parcel) = self.set_aside.take(place)
        {
            return Ok(Ok(parcel));
        }
        let start = Instant::now();
        for passed_over in 1.. {
            if let Some(too_long) = self.too_long.take() {
                return Ok(Err(too_long));
            }
            if self.set_aside.len() >= MAX_PASSED_OVER
                && let Some(too_long) = search.too_long
            {
                return Ok(Err(too_long));
            }
            let parcel = match self.poll_more(passed_over, start, deadline)? {
                Some(parcel) => parcel,
                None => match self.too_long.take().or(search.too_long) {
                    Some(too_long) => return Ok(Err(too_long)),
                    None => {
                        let mut parcel = Parcel::NONE;
                        if !self.wait_in_place(&mut parcel)? && !self.wait_for_any(&mut parcel, deadline)? {
                            continue;
                        }
                        parcel
                    }
                },
            };
            if search.takes(&parcel) {
                return Ok(Ok(parcel));
            }
            self.pass_over(parcel);
            // The message may be for a thread that asks for the mailbox. A call that does not wait holds no
            // turn.
            if !deadline.passed() {
                self.check_turn(|| start.elapsed())?;
            }
        }
        unreachable!("it ends with a message, or an error")
    }

    /// Polls for another message, unless too many bytes were passed over already.
    fn poll_more(
        &mut self,
        passed_over: usize,
        start: Instant,
        deadline: Deadline,
    ) -> Result<Option<Parcel>> {
        let limit = self.world.config().set_aside;
        if self.set_aside.weight() > limit {
            return Err(self.set_aside_is_full(limit));
        }
        // A peer that floods the mailbox with other messages holds no call beyond its deadline.
        if passed_over.is_multiple_of(MESSAGES_PER_CLOCK_CHECK) && deadline.passed() {
            return Err(self.too_late(start.elapsed()));
        }
        self.poll_all()
    }

    #[cold]
    fn set_aside_is_full(&self, limit: usize) -> Error {
        Error::SetAsideFull {
            name: self.name.clone(),
            wanted: self.wanted,
            limit,
            messages: self.set_aside.by_rank().into_iter().map(|(rank, n)| (rank as usize, n)).collect(),
        }
    }
}
