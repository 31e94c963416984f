//! Mailboxes, from which messages are retrieved.

mod retrieval;
#[cfg(feature = "async")]
pub(crate) mod tasks;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use udeck_boot::family;
use udeck_via::Deadline;
use udeck_via::mem::Fill;
use udeck_via::transport::Found;

use crate::error::{Error, Result};
use crate::mailbox_options::MailboxOptions;
use crate::parcel::{Parcel, Stored};
use crate::payload::Payload;
use crate::received::Received;
use crate::recv::Inbox;
use crate::stats::trace;
use crate::turns::Turns;
use crate::wait_policy::WaitPolicy;
use crate::world_state::WorldState;
pub use retrieval::{Retrieval, Retrieved};

/// A named mailbox. Its owner retrieves the messages that all its postboxes post.
///
#[cfg_attr(not(doctest), doc = include_str!("examples/mailbox.md"))]
///
/// # Use
///
/// The messages of one postbox keep their order. Across postboxes delivery is fair, not chronological. A
/// mailbox may move to another thread, but only one thread uses it at a time. Dropping it destroys it: its
/// postboxes then fail with [`Error::MailboxGone`].
pub struct Mailbox<T: Payload> {
    inbox: RefCell<Inbox>,
    world: Arc<WorldState>,
    name: String,
    /// The name under which the name service knows this mailbox.
    registered: String,
    waker: u64,
    /// Turn counter of [`crate::select`]: higher when it was selected later.
    turn: Cell<u64>,
    items: PhantomData<fn() -> T>,
}

impl<T: Payload> Mailbox<T> {
    #[doc(alias = "deck_mbox_create")]
    pub(crate) fn create(
        world: &Arc<WorldState>,
        registered: String,
        options: &MailboxOptions,
    ) -> Result<Self> {
        let name = family::parts(&registered).0.to_owned();
        let inbox = Inbox::open(world, &registered, options.level)
            .map_err(|error| world.taken_or(&registered, error))?;
        world.advertise(&registered, T::kind(), T::SIZE, options)?;
        let (world, waker) = (world.clone(), world.exit_log().add_waker(inbox.handle()));
        let (inbox, turn) = (RefCell::new(inbox), Cell::default());
        Ok(Mailbox { inbox, world, name, registered, waker, turn, items: PhantomData })
    }

    /// The mailbox's name, or its family's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Declares that these ranks post here. If one of them is lost, a wait says so ([`Error::PeerLost`]),
    /// even if it has made no postbox yet.
    pub fn expect(&self, ranks: impl IntoIterator<Item = usize>) {
        self.inbox.borrow_mut().expect(ranks);
    }

    /// Returns the next message. Waits for it, at most the world's deadline (`DECK_DEADLINE`).
    ///
    /// The death of a rank concerns a mailbox if the rank has or had a postbox of it, or was declared by
    /// [`Mailbox::expect`]. The loss of any other rank ends no wait while somebody is left who could post:
    /// the error at the deadline names that rank, and [`crate::World::rank_exits`] reports it at once. When
    /// all other ranks have ended, all losses are reported.
    ///
    /// # Errors
    /// [`Error::PeerLost`] once for each rank that concerns this mailbox; [`Error::Deadline`] says whom the
    /// call waited for, and which ranks are lost; [`Error::NobodyLeft`] when all other ranks have ended, and
    /// all their messages were retrieved.
    #[doc(alias = "deck_mbox_retrv")]
    #[inline]
    pub fn retrieve(&self) -> Result<Received<T>> {
        // Filled in place so that it moves once, into the caller: returning it inside a result would move it
        // again.
        let mut received = Received::new(Parcel::NONE);
        // Not by `traced`: on this path its result costs 20 instructions.
        if trace::is_on() {
            self.retrieve_recorded(&mut received)?;
        } else if let Err(found) = self.take_short(&mut received) {
            self.retrieve_slow(found, &mut received)?;
        }
        Ok(received)
    }

    #[cold]
    #[inline(never)]
    fn retrieve_recorded(&self, to: &mut Received<T>) -> Result {
        let start = trace::begin();
        self.take_short(to).or_else(|found| self.retrieve_slow(found, to))?;
        self.record(start, to.parcel());
        Ok(())
    }

    #[inline(never)]
    fn retrieve_slow(&self, found: Found, to: &mut Received<T>) -> Result {
        let mut inbox = self.inbox.borrow_mut();
        if !inbox.next_slow(found, to.parcel_mut(), false)? && !inbox.wait_in_place(to.parcel_mut())? {
            // Reads the clock only now, when no message comes soon.
            let deadline = Deadline::after(self.world.config().deadline);
            inbox.wait_for_next(to.parcel_mut(), deadline)?;
        }
        self.give_out(&mut inbox, to.parcel_mut())
    }

    /// Returns the next message if one has arrived. Looks at 64 arrivals at most: behind more arrivals that
    /// are no messages (announcements, for example) there may be a message that the next call finds.
    ///
    /// # Errors
    /// [`Error::PeerLost`] once for each rank whose connection to this mailbox broke, when the launcher has
    /// said that the rank did not finish. The call asks the launcher, and does not wait for the answer.
    pub fn try_retrieve(&self) -> Result<Option<Received<T>>> {
        let mut received = Received::new(Parcel::NONE);
        // Not by `then_some`, which moves the empty message, too.
        Ok(if self.try_retrieve_in_place(&mut received)? { Some(received) } else { None })
    }

    /// Like [`Mailbox::try_retrieve`], but waits the few microseconds in which a running peer answers
    /// ([`Inbox::wait_in_place`]). For use before a wait that reads the clock. Retrieves into `received`,
    /// which must be empty: a message that is returned is moved once more.
    pub(crate) fn retrieve_soon(&self, received: &mut Received<T>) -> Result<bool> {
        self.traced(received, |received| {
            self.world.progress_other_postboxes();
            if self.take_now(received)? {
                return Ok(true);
            }
            let mut inbox = self.inbox.borrow_mut();
            if !inbox.wait_in_place(received.parcel_mut())? {
                return Ok(false);
            }
            self.give_out(&mut inbox, received.parcel_mut()).map(|()| true)
        })
    }

    /// Like [`Mailbox::try_retrieve`], but retrieves into `received`, which must be empty.
    pub(crate) fn try_retrieve_in_place(&self, received: &mut Received<T>) -> Result<bool> {
        self.traced(received, |received| {
            self.world.progress_other_postboxes();
            self.take_now(received)
        })
    }

    /// Like [`Mailbox::try_retrieve_in_place`], for a few postboxes that each have a message now and then
    /// ([`Inbox::next_in_turn`]).
    pub(crate) fn try_retrieve_in_turn(&self, received: &mut Received<T>) -> Result<bool> {
        self.traced(received, |received| {
            let mut inbox = self.inbox.borrow_mut();
            if inbox.next_in_turn(received.parcel_mut())? {
                return self.give_out(&mut inbox, received.parcel_mut()).map(|()| true);
            }
            drop(inbox);
            self.world.progress_other_postboxes();
            self.take_now(received)
        })
    }

    /// Takes the messages that have arrived, at most `most`, and passes each to `each`: the quickest way to
    /// read many short messages, which are taken by one poll. Returns their number; does not wait. `each` may
    /// use this mailbox, too. Messages that arrive meanwhile are taken as well, so only `most` bounds the
    /// call. Up to 15 messages count as read ([`crate::Postbox::flush`]) before `each` has seen the first of
    /// them.
    ///
    /// # Errors
    /// The errors of [`Mailbox::try_retrieve`]. `each` has seen the messages before the error.
    pub fn drain(&self, most: usize, mut each: impl FnMut(&mut Received<T>)) -> Result<usize> {
        self.world.progress_other_postboxes();
        // The trace records each message, so a traced call takes no runs.
        let (mut taken, runs) = (0, !trace::is_on());
        let mut received = Received::new(Parcel::NONE);
        while taken < most {
            if !self.take_of_run(&mut received) {
                match self.drain_step(if runs { most - taken } else { 0 }, &mut received)? {
                    DrainStep::Run => continue,
                    DrainStep::Message => {}
                    DrainStep::Nothing => break,
                }
            }
            each(&mut received);
            received.empty();
            taken += 1;
        }
        Ok(taken)
    }

    /// Takes a run of at most `most` messages (0: none), or the next single message into `received`.
    #[inline(never)]
    fn drain_step(&self, most: usize, received: &mut Received<T>) -> Result<DrainStep> {
        if self.inbox.borrow_mut().take_run(most) > 0 {
            return Ok(DrainStep::Run);
        }
        let found = self.traced(received, |received| self.take_now(received))?;
        Ok(if found { DrainStep::Message } else { DrainStep::Nothing })
    }

    /// Takes the next message of a run into `received`, which must be empty. A message that does not fit this
    /// mailbox's type is put back, for the slow path.
    #[inline(always)]
    fn take_of_run(&self, received: &mut Received<T>) -> bool {
        if udeck_via::is_forked() {
            return false;
        }
        let mut inbox = self.inbox.borrow_mut();
        let Some(len) = inbox.next_of_run(received.parcel_mut()) else { return false };
        if T::ALIGN > align_of::<u64>() || !len.is_multiple_of(T::SIZE) {
            received.parcel_mut().number = inbox.number_of_run();
            put_back(&mut inbox, received);
            return false;
        }
        inbox.counters().retrieved(len);
        true
    }

    /// Takes the next message, if one has arrived, into `received`, which must be empty.
    #[inline]
    fn take_now(&self, received: &mut Received<T>) -> Result<bool> {
        match self.take_short(received) {
            Ok(()) => Ok(true),
            Err(found) => self.take_now_slow(found, received),
        }
    }

    #[inline(never)]
    fn take_now_slow(&self, found: Found, received: &mut Received<T>) -> Result<bool> {
        let mut inbox = self.inbox.borrow_mut();
        if !inbox.next_slow(found, received.parcel_mut(), true)? {
            self.world.check()?;
            return Ok(false);
        }
        self.give_out(&mut inbox, received.parcel_mut()).map(|()| true)
    }

    /// Returns the next message, waiting at most `limit`.
    ///
    /// # Errors
    /// The errors of [`Mailbox::retrieve`].
    pub fn retrieve_timeout(&self, limit: Duration) -> Result<Received<T>> {
        let mut received = Received::new(Parcel::NONE);
        self.traced(&mut received, |received| {
            let mut inbox = self.inbox.borrow_mut();
            inbox.next(received.parcel_mut(), Deadline::after(limit))?;
            self.give_out(&mut inbox, received.parcel_mut()).map(|()| true)
        })?;
        Ok(received)
    }

    /// Iterates over messages as they arrive, until nobody is left who could post: [`Error::NobodyLeft`] ends
    /// the iteration. Each item is a [`Mailbox::retrieve`]. An error that every later call would repeat
    /// ([`Error::WorldFinished`]) is the last item.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { mailbox: self, limit: None, is_over: false }
    }

    /// Like [`Mailbox::iter`], but waits at most `limit` for each: a [`Mailbox::retrieve_timeout`].
    pub fn iter_timeout(&self, limit: Duration) -> Iter<'_, T> {
        Iter { mailbox: self, limit: Some(limit), is_over: false }
    }

    /// Takes the next message into `received`, which must be empty, on the fast path: the message is short,
    /// and the next one of a burst. `Err` is the argument for [`Inbox::next_slow`].
    fn take_short(&self, received: &mut Received<T>) -> std::result::Result<(), Found> {
        if T::ALIGN > align_of::<u64>() {
            return Err(Found::Nothing);
        }
        let mut inbox = self.inbox.borrow_mut();
        let len = inbox.next_of_burst(received.parcel_mut())?;
        if !len.is_multiple_of(T::SIZE) {
            return Err(put_back(&mut inbox, received));
        }
        inbox.counters().retrieved(len);
        Ok(())
    }

    /// The turns by which threads that share this mailbox behind a lock are heard ([`crate::in_turn`]).
    pub fn turns(&self) -> Arc<Turns> {
        self.inbox.borrow().turns().clone()
    }

    pub(crate) fn inbox(&self) -> &RefCell<Inbox> {
        &self.inbox
    }

    /// Turn counter of [`crate::select`].
    pub(crate) fn turn(&self) -> &Cell<u64> {
        &self.turn
    }

    /// How long a retrieve waits unless its caller says otherwise.
    pub(crate) fn usual_limit(&self) -> Duration {
        self.world.config().deadline
    }

    /// Whether a connection is being accepted at this moment.
    pub(crate) fn is_admitting(&self) -> bool {
        self.inbox.borrow().is_admitting()
    }

    /// Retrieves by `retrieve`, and records the message that it has put into `to` in the trace, if there is
    /// one. Each way to retrieve into a [`Received`] calls this once; [`Mailbox::retrieve`] and the ways of
    /// `retrieval` call [`record`](Self::record) themselves. Without tracing it is one branch.
    #[inline(always)]
    fn traced(
        &self,
        to: &mut Received<T>,
        retrieve: impl FnOnce(&mut Received<T>) -> Result<bool>,
    ) -> Result<bool> {
        if trace::is_on() { self.recorded(to, retrieve) } else { retrieve(to) }
    }

    #[cold]
    #[inline(never)]
    fn recorded(
        &self,
        to: &mut Received<T>,
        retrieve: impl FnOnce(&mut Received<T>) -> Result<bool>,
    ) -> Result<bool> {
        let start = trace::begin();
        let found = retrieve(to)?;
        if found {
            self.record(start, to.parcel());
        }
        Ok(found)
    }

    /// Records a message that was retrieved since `start` ([`trace::begin`]).
    fn record(&self, start: u64, parcel: &Parcel) {
        if start != 0 {
            trace::retrieved(start, self.world.rank(), &self.name, parcel);
        }
    }

    /// Turns a retrieve's result into an item of [`Iter`] or of a stream. Sets `is_over` if every later item
    /// would be the same error.
    fn item(&self, next: Result<Received<T>>, is_over: &mut bool) -> Option<Result<Received<T>>> {
        *is_over = match &next {
            Err(Error::WorldFinished) => true,
            Err(_) => udeck_via::is_forked(),
            Ok(_) => false,
        };
        match next {
            Err(Error::NobodyLeft { .. }) => None,
            next => Some(next),
        }
    }

    /// Checks a parcel's length and alignment, and counts it.
    #[inline]
    fn give_out(&self, inbox: &mut Inbox, parcel: &mut Parcel) -> Result {
        let len = parcel.bytes().len();
        check_length::<T>(parcel, len)?;
        if !parcel.is_aligned(T::ALIGN) {
            self.align(inbox, parcel)?;
        }
        inbox.counters().retrieved(len);
        Ok(())
    }

    /// Copies the message to aligned memory. If there is no memory for that, the message stays the next one.
    #[cold]
    fn align(&self, inbox: &mut Inbox, parcel: &mut Parcel) -> Result {
        match self.world.block_for_message(parcel.bytes().len(), Fill::Keep, WaitPolicy::None) {
            Ok(mut block) => {
                block.bytes_mut().copy_from_slice(parcel.bytes());
                parcel.stored = Stored::Owned(block);
                Ok(())
            }
            Err(error) => {
                inbox.put_back(std::mem::replace(parcel, Parcel::NONE));
                Err(error)
            }
        }
    }
}

/// Outcome of one poll by [`Mailbox::drain`].
enum DrainStep {
    /// Messages for [`Mailbox::take_of_run`].
    Run,
    Message,
    Nothing,
}

/// Makes the message the next one again, to be found on the slow path.
#[cold]
#[inline(never)]
fn put_back<T: Payload>(inbox: &mut Inbox, received: &mut Received<T>) -> Found {
    inbox.put_back(std::mem::replace(received.parcel_mut(), Parcel::NONE));
    Found::Nothing
}

/// Checks that the length is a whole number of elements. Every parcel given out passes here once, or
/// [`Mailbox::take_short`].
#[inline]
fn check_length<T: Payload>(parcel: &Parcel, bytes: usize) -> Result {
    if bytes.is_multiple_of(T::SIZE) {
        return Ok(());
    }
    Err(Error::WrongLength { rank: parcel.rank as usize, bytes, kind: T::kind() })
}

impl<T: Payload> Drop for Mailbox<T> {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        self.world.exit_log().remove_waker(self.waker);
        self.world.withdraw(&self.registered);
    }
}

impl<T: Payload> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mailbox({:?} of {}, {})", self.name, T::kind(), self.world.config().receive)
    }
}

/// Iterator over messages as they arrive ([`Mailbox::iter`], [`Mailbox::iter_timeout`]).
#[derive(Debug)]
pub struct Iter<'a, T: Payload> {
    mailbox: &'a Mailbox<T>,
    /// Limit of each wait; `None`: the world's deadline.
    limit: Option<Duration>,
    is_over: bool,
}

impl<T: Payload> Iterator for Iter<'_, T> {
    type Item = Result<Received<T>>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let next = match self.limit {
            None => self.mailbox.retrieve(),
            Some(limit) => self.mailbox.retrieve_timeout(limit),
        };
        self.mailbox.item(next, &mut self.is_over)
    }
}
