//! Mailboxes: where messages are retrieved.

mod choosing;
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
use crate::trace;
use crate::turns::Turns;
use crate::wait_policy::WaitPolicy;
use crate::world_state::WorldState;
pub use choosing::Retrieved;

/// A named mailbox. Its owner retrieves what all its postboxes post.
///
#[cfg_attr(not(doctest), doc = include_str!("examples/mailbox.md"))]
///
/// # Use
///
/// The messages of one postbox keep their order. Across postboxes delivery is fair, not chronological. A mailbox may move to another
/// thread; one thread at a time uses it. Dropping it destroys it: its postboxes then fail with [`Error::MailboxGone`].
pub struct Mailbox<T: Payload> {
    inbox: RefCell<Inbox>,
    world: Arc<WorldState>,
    name: String,
    /// What the name service knows it by.
    registered: String,
    waker: u64,
    /// When it was selected.
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

    /// Its name, or that of its family.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Declares that these ranks post here: if one is lost, a wait says so ([`Error::PeerLost`]), although it has made no
    /// postbox yet.
    pub fn expect(&self, ranks: impl IntoIterator<Item = usize>) {
        self.inbox.borrow_mut().expect(ranks);
    }

    /// The next message. Waits for it, at most the world's deadline (`DECK_DEADLINE`).
    ///
    /// Of the ranks that die, those concern a mailbox that have or had a postbox of it, or were declared to
    /// ([`Mailbox::expect`]). The loss of another ends no wait while somebody is left who could post; the error at the deadline
    /// names it, and [`crate::World::rank_exits`] tells of it at once. When all other ranks have ended, all losses are told.
    ///
    /// # Errors
    /// [`Error::PeerLost`] once for each of those ranks; [`Error::Deadline`] says who was waited for, and which ranks are lost;
    /// [`Error::NobodyLeft`] when all other ranks have ended, and all that they posted was retrieved.
    #[doc(alias = "deck_mbox_retrv")]
    #[inline]
    pub fn retrieve(&self) -> Result<Received<T>> {
        // So that it is moved once, in the caller: whoever returns it inside a result moves it again.
        let mut received = Received::new(Parcel::NONE);
        if trace::is_on() {
            self.retrieve_traced(&mut received)?;
        } else if let Err(found) = self.take_short(&mut received) {
            self.retrieve_slow(found, &mut received)?;
        }
        Ok(received)
    }

    #[cold]
    #[inline(never)]
    fn retrieve_traced(&self, to: &mut Received<T>) -> Result {
        let start = trace::begin();
        if let Err(found) = self.take_short(to) {
            self.retrieve_slow(found, to)?;
        }
        self.tell(start, to);
        Ok(())
    }

    /// Retrieves a message by value, and tells the trace.
    fn traced(&self, retrieve: impl FnOnce() -> Result<Received<T>>) -> Result<Received<T>> {
        let start = trace::begin();
        let received = retrieve()?;
        self.tell(start, &received);
        Ok(received)
    }

    /// As [`Mailbox::traced`], into `to`, and only if there was one.
    #[cold]
    #[inline(never)]
    fn traced_into(
        &self,
        to: &mut Received<T>,
        retrieve: impl FnOnce(&mut Received<T>) -> Result<bool>,
    ) -> Result<bool> {
        let start = trace::begin();
        let found = retrieve(to)?;
        if found {
            self.tell(start, to);
        }
        Ok(found)
    }

    #[cold]
    pub(crate) fn tell(&self, start: u64, received: &Received<T>) {
        if start == 0 {
            return;
        }
        trace::retrieved(start, self.world.rank(), &self.name, received.parcel());
    }

    #[inline(never)]
    fn retrieve_slow(&self, found: Found, to: &mut Received<T>) -> Result {
        let mut inbox = self.inbox.borrow_mut();
        if !inbox.next_slow(found, to.parcel_mut(), false)? && !inbox.wait_in_place(to.parcel_mut())? {
            // The clock is read only now that nothing comes soon.
            let deadline = Deadline::after(self.world.config().deadline);
            inbox.wait_for_next(to.parcel_mut(), deadline)?;
        }
        self.give_out(&mut inbox, to.parcel_mut())
    }

    /// The next message, if one is there. Looks at 64 arrivals at most: behind more that are no messages (announcements,
    /// say) there may be one that the next call finds.
    ///
    /// # Errors
    /// [`Error::PeerLost`] once for each rank whose connection here is seen to break: when the launcher has said that it did not
    /// finish, which is asked for and not waited for.
    pub fn try_retrieve(&self) -> Result<Option<Received<T>>> {
        self.world.progress_other_postboxes();
        self.taken_now()
    }

    /// As [`Mailbox::try_retrieve`], but waits for the few microseconds in which an answer comes from a peer that runs
    /// ([`Inbox::wait_in_place`]): before a wait that reads the clock. Into `received`, which holds nothing: whoever returns a message
    /// moves it.
    pub(crate) fn retrieve_soon(&self, received: &mut Received<T>) -> Result<bool> {
        match trace::is_on() {
            true => self.traced_into(received, |received| self.retrieve_soon_untold(received)),
            false => self.retrieve_soon_untold(received),
        }
    }

    fn retrieve_soon_untold(&self, received: &mut Received<T>) -> Result<bool> {
        self.world.progress_other_postboxes();
        if self.take_now_untold(received)? {
            return Ok(true);
        }
        let mut inbox = self.inbox.borrow_mut();
        if !inbox.wait_in_place(received.parcel_mut())? {
            return Ok(false);
        }
        self.give_out(&mut inbox, received.parcel_mut()).map(|()| true)
    }

    /// As [`Mailbox::try_retrieve`], into `received`, which holds nothing.
    pub(crate) fn try_retrieve_in_place(&self, received: &mut Received<T>) -> Result<bool> {
        self.world.progress_other_postboxes();
        self.take_now(received)
    }

    /// As [`Mailbox::try_retrieve_in_place`], where each of a few postboxes has a message now and then ([`Inbox::next_in_turn`]).
    pub(crate) fn try_retrieve_in_turn(&self, received: &mut Received<T>) -> Result<bool> {
        let start = trace::begin();
        let mut inbox = self.inbox.borrow_mut();
        if !inbox.next_in_turn(received.parcel_mut())? {
            drop(inbox);
            return self.try_retrieve_in_place(received);
        }
        self.give_out(&mut inbox, received.parcel_mut())?;
        if start != 0 {
            self.tell(start, received);
        }
        Ok(true)
    }

    /// Takes the messages that are there, at most `most`, and shows each to `each`: the quickest way to read many short ones, which
    /// are taken by one look. Returns how many there were; does not wait. `each` may use this mailbox, too. What comes meanwhile is
    /// taken as well, so `most` is what bounds the call, and not how many there were at first. Up to 15 messages count as read
    /// ([`crate::Postbox::flush`]) before `each` has seen the first of them.
    ///
    /// # Errors
    /// As [`Mailbox::try_retrieve`]. `each` has seen what came before.
    pub fn drain(&self, most: usize, each: impl FnMut(&mut Received<T>)) -> Result<usize> {
        if trace::is_on() { self.drain_as::<true>(most, each) } else { self.drain_as::<false>(most, each) }
    }

    /// `TRACED`: decided once for the call, because one more look for each message can be measured.
    #[inline(always)]
    fn drain_as<const TRACED: bool>(
        &self,
        most: usize,
        mut each: impl FnMut(&mut Received<T>),
    ) -> Result<usize> {
        self.world.progress_other_postboxes();
        let mut received = Received::new(Parcel::NONE);
        let mut taken = 0;
        while taken < most {
            let start = if TRACED { trace::begin() } else { 0 };
            if self.take_of_run(&mut received) {
                if TRACED {
                    received.parcel_mut().number = self.inbox.borrow().number_of_run();
                }
            } else {
                match self.look_again(most - taken, &mut received)? {
                    Look::Run => continue,
                    Look::Message => {}
                    Look::Nothing => break,
                }
            }
            if TRACED {
                self.tell(start, &received);
            }
            each(&mut received);
            received.empty();
            taken += 1;
        }
        Ok(taken)
    }

    /// Takes a run of at most `most` messages, or the next one into `received`.
    #[inline(never)]
    fn look_again(&self, most: usize, received: &mut Received<T>) -> Result<Look> {
        if self.inbox.borrow_mut().take_run(most) > 0 {
            return Ok(Look::Run);
        }
        Ok(if self.take_now_untold(received)? { Look::Message } else { Look::Nothing })
    }

    /// The next message of a run, into `received`, which holds nothing. What is no message of this mailbox goes the longer way.
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

    /// The next message, if one is there. (By value: for those whose speed is elsewhere.)
    fn taken_now(&self) -> Result<Option<Received<T>>> {
        let mut received = Received::new(Parcel::NONE);
        Ok(if self.take_now(&mut received)? { Some(received) } else { None })
    }

    /// The next message, if one is there, into `received`, which holds nothing.
    #[inline]
    fn take_now(&self, received: &mut Received<T>) -> Result<bool> {
        match trace::is_on() {
            true => self.traced_into(received, |received| self.take_now_untold(received)),
            false => self.take_now_untold(received),
        }
    }

    #[inline]
    fn take_now_untold(&self, received: &mut Received<T>) -> Result<bool> {
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

    /// The next message, waiting at most `limit`.
    ///
    /// # Errors
    /// As [`Mailbox::retrieve`].
    pub fn retrieve_timeout(&self, limit: Duration) -> Result<Received<T>> {
        self.traced(|| self.retrieve_timeout_untold(limit))
    }

    fn retrieve_timeout_untold(&self, limit: Duration) -> Result<Received<T>> {
        let mut inbox = self.inbox.borrow_mut();
        let mut received = Received::new(Parcel::NONE);
        inbox.next(received.parcel_mut(), Deadline::after(limit))?;
        self.give_out(&mut inbox, received.parcel_mut())?;
        Ok(received)
    }

    /// Messages as they come, until nobody is left who could post: [`Error::NobodyLeft`] ends them. Each is a [`Mailbox::retrieve`]. Of the
    /// errors that every later call would give, too ([`Error::WorldFinished`]), the first one is the last item.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { mailbox: self, limit: None, is_over: false }
    }

    /// As [`Mailbox::iter`], waiting at most `limit` for each: a [`Mailbox::retrieve_timeout`].
    pub fn iter_timeout(&self, limit: Duration) -> Iter<'_, T> {
        Iter { mailbox: self, limit: Some(limit), is_over: false }
    }

    /// Fills `received`, which holds nothing, with what most messages are, if one is there: short, and the next one of a
    /// burst. `Err`: what [`Inbox::next_slow`] has to be told.
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

    /// How threads that share it are heard, where it is behind a lock ([`crate::in_turn`]).
    pub fn turns(&self) -> Arc<Turns> {
        self.inbox.borrow().turns().clone()
    }

    pub(crate) fn inbox(&self) -> &RefCell<Inbox> {
        &self.inbox
    }

    /// Grows when it is selected.
    pub(crate) fn turn(&self) -> &Cell<u64> {
        &self.turn
    }

    /// How long a retrieve waits unless it says otherwise.
    pub(crate) fn usual_limit(&self) -> Duration {
        self.world.config().deadline
    }

    /// Whether a connection is being accepted at this moment.
    pub(crate) fn is_admitting(&self) -> bool {
        self.inbox.borrow().is_admitting()
    }

    /// A retrieve's result as an item of [`Iter`] or of a stream. `is_over`: every later one would be the same error.
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

    /// Checks a parcel, and counts it.
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

    /// Copies the message to where it is aligned. Without memory for that, it stays the next one.
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

/// What a look of [`Mailbox::drain`] found.
enum Look {
    /// Messages that [`Mailbox::take_of_run`] gives out.
    Run,
    Message,
    Nothing,
}

/// It is the next one again, and found by the longer way.
#[cold]
#[inline(never)]
fn put_back<T: Payload>(inbox: &mut Inbox, received: &mut Received<T>) -> Found {
    inbox.put_back(std::mem::replace(received.parcel_mut(), Parcel::NONE));
    Found::Nothing
}

/// Every parcel that is given out passes here once, or [`Mailbox::take_short`].
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

/// Messages as they come ([`Mailbox::iter`], [`Mailbox::iter_timeout`]).
#[derive(Debug)]
pub struct Iter<'a, T: Payload> {
    mailbox: &'a Mailbox<T>,
    /// `None`: the world's.
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
