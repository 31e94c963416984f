//! Runs: messages of one lane, taken one after another without asking the completion queue in between.
//!
//! Whom the queue has named has another message more often than not, and asking costs as much as taking. A run is as long
//! as a completion queue's own burst, and that counts what a run takes: so the other lanes wait no longer for it. While
//! there is a run, nothing is set aside or stalled: whatever might come before its next message ends it.

use udeck_via::LentSlice;
use udeck_via::transport::{Arrival, Body, Found};

use super::Inbox;
use super::lane::Lane;
use crate::error::Result;
use crate::protocol::ReceiveModel;
use crate::received::{Parcel, Stored};
use crate::stats::Counters;
use crate::wire;

/// Messages of a run, besides the one that the completion queue has named.
const LENGTH: u32 = 15;

/// A run.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// Messages that may still be taken.
    left: u32,
    /// That might be taken in all.
    length: u32,
    /// Whose they are.
    lane: usize,
}

impl Run {
    /// How many messages it had, besides the one that was named.
    #[inline]
    pub fn end(&mut self) -> u32 {
        let taken = self.length - self.left;
        (self.left, self.length) = (0, 0);
        taken
    }
}

impl Inbox {
    /// The completion queue has named a lane that had a message.
    #[inline]
    pub(super) fn begin_run(&mut self, lane: usize) {
        let may_run = self.model == ReceiveModel::CompletionQueue
            && self.stalled.is_empty()
            && self.set_aside.is_empty()
            && self.room.is_none();
        let length = if may_run { LENGTH } else { 0 };
        self.run = Run { left: length, length, lane };
    }

    /// Puts the next message into `parcel`, which holds none, if it is a short one of the run: how many bytes it has. If
    /// it is not, [`Inbox::next_otherwise`] has to be told what was found.
    #[inline]
    pub fn next_of_run(&mut self, parcel: &mut Parcel) -> std::result::Result<usize, Found> {
        if self.run.left == 0 {
            return Err(Found::Nothing);
        }
        let Some(Some(lane)) = self.lanes.get_mut(self.run.lane) else { return Err(Found::Nothing) };
        let Stored::Inline(place) = &mut parcel.stored else { return Err(Found::Nothing) };
        self.run.left -= 1;
        let found = lane.vi.arrival_short(place);
        let Found::Short(immediate) = found else { return Err(found) };
        let len = wire::short_len(place).ok_or(found)?;
        self.counters.copied(len);
        lane.name(immediate, parcel);
        Ok(len)
    }

    /// Puts the next message into `parcel`, if one is there, after a look of [`Inbox::next_of_run`]. `all` as of
    /// [`Inbox::try_next`].
    #[inline(always)]
    pub fn next_otherwise(&mut self, found: Found, parcel: &mut Parcel, all: bool) -> Result<bool> {
        if found != Found::Nothing && self.look_further(found, self.run.lane, parcel)? {
            return Ok(true);
        }
        self.try_next(parcel, all)
    }

    /// What a lane has that is no short message: whether it amounts to a message, which then is in `parcel`.
    #[inline(always)]
    pub(super) fn look_further(&mut self, found: Found, context: usize, parcel: &mut Parcel) -> Result<bool> {
        let Some(Some(lane)) = self.lanes.get_mut(context) else { return Ok(false) };
        if found == Found::Other
            && let Some((immediate, lent)) = lane.vi.arrival_lent(parcel.place())
        {
            if wire::is_hand_off(parcel.place()) {
                lane.name(immediate, parcel);
                parcel.stored = Stored::Lent(lent);
                return Ok(true);
            }
            return self.take_lent(context, immediate, lent, parcel);
        }
        self.look_further_still(found, context, parcel)
    }

    /// The head of what was lent lies in `parcel`.
    #[inline(never)]
    fn take_lent(
        &mut self,
        context: usize,
        immediate: Option<u32>,
        lent: LentSlice,
        parcel: &mut Parcel,
    ) -> Result<bool> {
        let body = Body::Lent(*parcel.place(), lent.into());
        Ok(parcel.fill(self.take(context, Arrival { immediate, body })?))
    }

    #[inline(never)]
    fn look_further_still(&mut self, found: Found, context: usize, parcel: &mut Parcel) -> Result<bool> {
        let Some(Some(lane)) = self.lanes.get_mut(context) else { return Ok(false) };
        let arrival = match found {
            Found::Short(immediate) => Ok(Some(Arrival { immediate, body: Body::Inline(*parcel.place()) })),
            Found::Nothing | Found::Other => lane.vi.arrival(),
        };
        let found = match arrival {
            Ok(None) => None,
            Ok(Some(arrival)) => self.take(context, arrival)?,
            Err(error) => self.end_with(context, error)?,
        };
        Ok(parcel.fill(found))
    }
}

impl Lane {
    /// Makes a message of what was received into `parcel`, if it is a short one: how many bytes it has.
    #[inline]
    pub fn name_short(&self, found: Found, parcel: &mut Parcel, counters: &Counters) -> Option<usize> {
        let (Found::Short(immediate), Stored::Inline(inline)) = (found, &parcel.stored) else { return None };
        let len = wire::short_len(inline)?;
        counters.copied(len);
        self.name(immediate, parcel);
        Some(len)
    }

    #[inline]
    fn name(&self, immediate: Option<u32>, parcel: &mut Parcel) {
        (parcel.from, parcel.postbox, parcel.tag) = (self.from, self.postbox, immediate.unwrap_or(0));
    }
}
