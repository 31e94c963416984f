//! The next message, if it can be had without waiting: the fast path, and its exits to slower ones.
//!
//! `next_*` are called by retrieves, `poll*` poll the completion queues, `receive_*` take arrivals of one
//! connection.

use udeck_via::transport::{Arrival, Body, Found};
use udeck_via::{LentSlice, PollBudget};

use super::Inbox;
use super::completion_queues::Burst;
use crate::error::{Result, check_process};
use crate::parcel::{Parcel, Stored};
use crate::protocol::ReceiveModel;
use crate::wire::{self, Malformed};

impl Inbox {
    /// Puts the next message into `parcel`, which must be empty, if it is a short one of the burst, and
    /// returns its length in bytes. Otherwise the `Err` is the argument for [`Inbox::next_slow`].
    #[inline]
    pub fn next_of_burst(&mut self, parcel: &mut Parcel) -> std::result::Result<usize, Found> {
        if self.burst.is_over() {
            return Err(Found::Nothing);
        }
        let Some(Some(connection)) = self.connections.get_mut(self.burst.connection) else {
            return Err(Found::Nothing);
        };
        let Stored::Inline(place) = &mut parcel.stored else { return Err(Found::Nothing) };
        self.burst.take();
        let found = connection.side.vi.arrival_short(place);
        let Found::Short(immediate) = found else { return Err(found) };
        let len = wire::short_len(place).ok_or(found)?;
        self.counters.copied(len);
        connection.set_source(immediate, len, parcel);
        Ok(len)
    }

    /// Takes at most `most` short messages of the burst by one poll, and returns their number.
    /// [`Inbox::next_of_run`] gives them out.
    #[inline]
    pub fn take_run(&mut self, most: usize) -> usize {
        if !self.set_aside.is_empty() {
            return 0;
        }
        self.burst.resume();
        let most = most.min(self.burst.left() as usize);
        if most == 0 {
            return 0;
        }
        let Some(Some(connection)) = self.connections.get_mut(self.burst.connection) else { return 0 };
        let taken = self.set_aside.take_run(connection, most, &self.counters);
        self.burst.suspend(taken as u32);
        taken
    }

    /// Puts the next message of the run into `parcel`, which must be empty, and returns its length in bytes.
    /// Its sequence number is not set ([`Inbox::number_of_run`]).
    #[inline(always)]
    pub fn next_of_run(&mut self, parcel: &mut Parcel) -> Option<usize> {
        self.set_aside.next_of_run(parcel)
    }

    /// Sequence number of the message that [`Inbox::next_of_run`] gave out last.
    pub fn number_of_run(&self) -> u32 {
        self.set_aside.number_of_run()
    }

    /// Puts the next message into `parcel`, if there is one, after a failed [`Inbox::next_of_burst`]. `all`
    /// has the meaning of [`Inbox::try_next`]'s.
    #[inline(always)]
    pub fn next_slow(&mut self, found: Found, parcel: &mut Parcel, all: bool) -> Result<bool> {
        if found != Found::Nothing && self.receive_long(found, self.burst.connection, parcel)? {
            return Ok(true);
        }
        self.try_next(parcel, all)
    }

    /// Puts the next message into `parcel`, if there is one. `all`: the caller will not wait for a message
    /// that this poll leaves out.
    pub fn try_next(&mut self, parcel: &mut Parcel, all: bool) -> Result<bool> {
        if self.set_aside.is_empty() {
            return self.poll(parcel, all);
        }
        // Messages that were set aside belong to the parent in a process that forked.
        check_process()?;
        self.next_set_aside(parcel);
        Ok(true)
    }

    #[cold]
    fn next_set_aside(&mut self, to: &mut Parcel) {
        if let Some(parcel) = self.set_aside.pop_front() {
            *to = parcel;
        }
    }

    // ---- polling the completion queues ----

    /// Puts a message into `parcel` if one can be had without waiting. `all` has the meaning of
    /// [`Inbox::try_next`]'s.
    #[inline]
    pub(super) fn poll(&mut self, parcel: &mut Parcel, all: bool) -> Result<bool> {
        self.queues.passed_over(self.burst.end());
        if self.model != ReceiveModel::CompletionQueue || !self.waiting.is_empty() {
            return Ok(parcel.fill(self.poll_slow()?));
        }
        // The budget bounds a peer whose arrivals are no messages: a waiting caller checks its deadline, and
        // polls again.
        let mut budget = PollBudget::once();
        while budget.take()
            && let Some(entry) = self.queues.poll(all)
        {
            if self.receive_at(entry.context, parcel)? {
                return Ok(true);
            }
            if self.too_long.is_some() {
                break;
            }
            if !self.waiting.is_empty() {
                return Ok(parcel.fill(self.poll_slow()?));
            }
        }
        Ok(false)
    }

    /// Like [`Inbox::poll`], for all queues, where speed does not matter.
    pub(super) fn poll_all(&mut self) -> Result<Option<Parcel>> {
        let mut parcel = Parcel::NONE;
        Ok(self.poll(&mut parcel, true)?.then_some(parcel))
    }

    /// Polls where the completion queue alone does not find every message.
    #[cold]
    fn poll_slow(&mut self) -> Result<Option<Parcel>> {
        self.report_checked_exits()?;
        if let Some(parcel) = self.serve_waiting()? {
            return Ok(Some(parcel));
        }
        if let Some(parcel) = self.receive_from_notified()? {
            return Ok(Some(parcel));
        }
        if self.too_long.is_some() {
            return Ok(None);
        }
        if self.model == ReceiveModel::WorkQueues {
            return self.poll_work_queues();
        }
        // The budget bounds blocked connections, which the queue reports again and again, perhaps alone.
        let mut budget = PollBudget::once();
        while budget.take()
            && let Some(entry) = self.queues.poll(true)
        {
            if let Some(parcel) = self.receive_at_slow(entry.context)? {
                return Ok(Some(parcel));
            }
            if self.too_long.is_some() {
                break;
            }
        }
        Ok(None)
    }

    // ---- receiving from one connection ----

    /// Receives from a connection that was reported. Returns whether there is a message, which then is in
    /// `parcel`.
    #[inline]
    pub(super) fn receive_at(&mut self, context: u64, parcel: &mut Parcel) -> Result<bool> {
        let context = context as usize;
        if !matches!(self.connections.get(context), Some(Some(_))) {
            self.add_accepted();
        }
        let Some(Some(connection)) = self.connections.get_mut(context) else {
            return Ok(parcel.fill(self.receive_data(context as u64)?));
        };
        if connection.is_blocked() {
            connection.notified_while_blocked = true;
            let found = if connection.awaits_data() {
                self.receive_data(context as u64)?
            } else {
                self.serve_waiting()?
            };
            return Ok(parcel.fill(found));
        }
        let found = connection.side.vi.arrival_short(parcel.inline_mut());
        if found == Found::Nothing { Ok(false) } else { self.receive_found(found, context, parcel) }
    }

    /// Processes the result of polling a connection; a short message is in `parcel` already. Returns whether
    /// there is a message.
    #[inline(always)]
    pub(super) fn receive_found(
        &mut self,
        found: Found,
        context: usize,
        parcel: &mut Parcel,
    ) -> Result<bool> {
        let Some(Some(connection)) = self.connections.get_mut(context) else { return Ok(false) };
        let is_message = connection.complete_short(found, parcel, &self.counters).is_some();
        self.begin_burst(context);
        if is_message { Ok(true) } else { self.receive_long(found, context, parcel) }
    }

    /// Like [`Inbox::receive_at`], where speed does not matter.
    #[cold]
    pub(super) fn receive_at_slow(&mut self, context: u64) -> Result<Option<Parcel>> {
        let mut parcel = Parcel::NONE;
        Ok(self.receive_at(context, &mut parcel)?.then_some(parcel))
    }

    #[inline]
    fn begin_burst(&mut self, connection: usize) {
        let may_be = self.model == ReceiveModel::CompletionQueue
            && self.waiting.is_empty()
            && self.set_aside.is_empty()
            && self.buffer_len.is_none();
        self.burst = Burst::of(connection, may_be);
    }

    /// Receives an arrival that is not a short message. Returns whether there is a message, which then is in
    /// `parcel`.
    #[inline(always)]
    fn receive_long(&mut self, found: Found, context: usize, parcel: &mut Parcel) -> Result<bool> {
        let Some(Some(connection)) = self.connections.get_mut(context) else { return Ok(false) };
        if found == Found::Other
            && let Some((immediate, lent)) = connection.side.vi.arrival_lent(parcel.inline_mut())
        {
            if wire::is_hand_off(parcel.inline_mut()) {
                connection.set_source(immediate, lent.len(), parcel);
                parcel.stored = Stored::Lent(lent);
                return Ok(true);
            }
            return self.receive_lent_slow(context, immediate, lent, parcel);
        }
        self.receive_slow(found, context, parcel)
    }

    /// Receives a lent message whose head lies in `parcel`.
    #[inline(never)]
    fn receive_lent_slow(
        &mut self,
        context: usize,
        immediate: Option<u32>,
        lent: LentSlice,
        parcel: &mut Parcel,
    ) -> Result<bool> {
        let body = Body::Lent(*parcel.inline_mut(), lent.into());
        Ok(parcel.fill(self.receive(context, Arrival { immediate, body })?))
    }

    #[inline(never)]
    fn receive_slow(&mut self, found: Found, context: usize, parcel: &mut Parcel) -> Result<bool> {
        let Some(Some(connection)) = self.connections.get_mut(context) else { return Ok(false) };
        let arrival = match found {
            Found::Short(immediate) => {
                Ok(Some(Arrival { immediate, body: Body::Inline(*parcel.inline_mut()) }))
            }
            Found::Nothing | Found::Other => connection.side.vi.arrival(),
        };
        let found = match arrival {
            Ok(None) => None,
            Ok(Some(arrival)) => self.receive(context, arrival)?,
            Err(error) => self.end_with(context, error)?,
        };
        Ok(parcel.fill(found))
    }

    /// Receives an arrival that is more than a short message.
    #[inline(never)]
    fn receive(&mut self, context: usize, arrival: Arrival) -> Result<Option<Parcel>> {
        let Some(Some(connection)) = self.connections.get_mut(context) else { return Ok(None) };
        match connection.receive(arrival, &self.world, &self.counters) {
            Ok(None) if connection.is_unfinished() => {
                self.burst.end();
                self.waiting.unfinished.push_back(context);
                Ok(None)
            }
            Ok(None) => {
                self.burst.end();
                self.serve(context)
            }
            Ok(parcel) => Ok(parcel),
            Err(Malformed) => self.end_malformed(context),
        }
    }
}
