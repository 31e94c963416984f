//! Waiting at several mailboxes at once, and for ranks that end.

use std::cell::{Cell, RefCell, RefMut};
use std::fmt::Write as _;
use std::ptr;
use std::time::Duration;

use udeck_boot::waits::{Call, Wait};
use udeck_via::{Cno, Cq, CqEntry, Deadline};

use crate::error::{Error, Result, check_process};
use crate::exits::rank_exits::RankExits;
use crate::long_wait::LongWait;
use crate::mailbox::Mailbox;
use crate::payload::Payload;
use crate::recv::{Inbox, WaitConditions};
use crate::world_state::WorldState;

/// An object that [`select`] can wait on: a [`Mailbox`] of any type, or the [`RankExits`] of a world.
///
/// Sealed.
pub trait Selectable: sealed::SealedSelect {}

impl<T: Payload> Selectable for Mailbox<T> {}
impl Selectable for RankExits {}

impl<T: Payload> sealed::SealedSelect for Mailbox<T> {
    fn entry(&self) -> SelectEntry<'_> {
        SelectEntry { watched: Watched::Mailbox(self.inbox()), turn: self.turn(), limit: self.usual_limit() }
    }
}

impl sealed::SealedSelect for RankExits {
    fn entry(&self) -> SelectEntry<'_> {
        let limit = self.world().config().deadline;
        SelectEntry { watched: Watched::RankExits(self), turn: self.turn(), limit }
    }
}

mod sealed {
    pub trait SealedSelect {
        fn entry(&self) -> super::SelectEntry<'_>;
    }
}

/// A mailbox, or the exits of ranks, as [`select`] sees it.
pub struct SelectEntry<'a> {
    watched: Watched<'a>,
    /// Turn counter, raised at each selection: the entry with the lowest value has waited longest.
    turn: &'a Cell<u64>,
    /// Deadline of the entry's world.
    limit: Duration,
}

#[derive(Clone, Copy)]
enum Watched<'a> {
    Mailbox(&'a RefCell<Inbox>),
    RankExits(&'a RankExits),
}

/// Waits until one of the mailboxes has a message, or until a rank has ended if [`RankExits`] are in the
/// list. Waits at most the deadline of the first one's world (`DECK_DEADLINE`). Returns the index in
/// `mailboxes`. The message is not taken: [`Mailbox::try_retrieve`] on that mailbox is sure to return one.
/// [`RankExits::try_next`] says which rank has ended.
///
/// Fair: of the mailboxes that have a message, it returns the one that was returned least recently. A sleep
/// takes one thread, however many mailboxes there are (more than 128, or on Linux before 5.16: one thread
/// each).
///
/// # Errors
/// The errors of [`Mailbox::retrieve`], of all mailboxes: [`Error::PeerLost`] once for each rank that dies,
/// also in the names of the others; [`Error::NobodyLeft`] when nobody can post to any; [`Error::Deadline`]
/// says whom the call waited for, and at which mailboxes. [`Error::InvalidArgument`] if there are no mailboxes.
pub fn select(mailboxes: &[&dyn Selectable]) -> Result<usize> {
    let limit = mailboxes.first().map_or(Duration::ZERO, |first| first.entry().limit);
    select_timeout(mailboxes, limit)
}

/// Like [`select`], but waits at most `limit`.
///
/// # Errors
/// The errors of [`select`].
pub fn select_timeout(mailboxes: &[&dyn Selectable], limit: Duration) -> Result<usize> {
    let mut selection = Selection::of(mailboxes)?;
    // Reads the clock only if no mailbox has a message at once.
    match selection.named(|all| all.poll(false))? {
        Some(at) => Ok(at),
        None => selection.wait(Deadline::after(limit)),
    }
}

/// Like [`select`], but does not wait: returns `None` if no mailbox has a message.
///
/// # Errors
/// [`Error::PeerLost`] once for each rank that dies; [`Error::InvalidArgument`] if there are no mailboxes.
pub fn try_select(mailboxes: &[&dyn Selectable]) -> Result<Option<usize>> {
    let mut selection = Selection::of(mailboxes)?;
    let found = selection.named(|all| all.poll(true))?;
    if found.is_none() {
        selection.world().map_or(Ok(()), WorldState::check)?;
    }
    Ok(found)
}

/// The mailboxes of one call, the least recently selected one first.
struct Selection<'a> {
    places: Vec<Place<'a>>,
}

struct Place<'a> {
    /// Index in the caller's list.
    at: usize,
    turn: &'a Cell<u64>,
    source: Source<'a>,
}

/// One thing that is polled, and slept on.
enum Source<'a> {
    Mailbox(RefMut<'a, Inbox>),
    RankExits(&'a RankExits, RefMut<'a, Cq>),
}

impl<'a> Source<'a> {
    fn of(watched: Watched<'a>) -> Self {
        match watched {
            Watched::Mailbox(inbox) => Source::Mailbox(inbox.borrow_mut()),
            Watched::RankExits(exits) => Source::RankExits(exits, exits.cq()),
        }
    }

    fn has_next(&mut self, thoroughly: bool) -> Result<bool> {
        match self {
            Source::Mailbox(inbox) => inbox.has_next(thoroughly),
            Source::RankExits(exits, _) => check_process().map(|()| exits.peek().is_some()),
        }
    }

    fn has_at(&mut self, entry: CqEntry) -> Result<bool> {
        match self {
            Source::Mailbox(inbox) => inbox.has_at(entry),
            Source::RankExits(..) => self.has_next(false),
        }
    }

    fn check_exits(&mut self) -> Result {
        match self {
            Source::Mailbox(inbox) => inbox.check_exits(),
            Source::RankExits(exits, _) => {
                exits.world().check()?;
                match exits.peek().is_none() && exits.world().is_deserted() {
                    true => Err(Error::NobodyLeft { name: self.name() }),
                    false => Ok(()),
                }
            }
        }
    }

    fn is_turn_over(&self) -> bool {
        match self {
            Source::Mailbox(inbox) => inbox.is_turn_over(),
            Source::RankExits(..) => false,
        }
    }

    fn poll_interval(&self) -> Option<Duration> {
        match self {
            Source::Mailbox(inbox) => inbox.poll_interval(),
            Source::RankExits(..) => None,
        }
    }

    /// Adds its queues to the queues to sleep on.
    fn watch<'b>(&'b mut self, queues: &mut Vec<&'b mut Cq>) -> WaitConditions<'b> {
        match self {
            Source::Mailbox(inbox) => {
                let (own, conditions) = inbox.queues_to_wait_on();
                queues.extend(own);
                conditions
            }
            Source::RankExits(exits, cq) => {
                queues.push(cq);
                WaitConditions::rank_exits(exits.world(), exits.seen())
            }
        }
    }

    fn name(&self) -> String {
        match self {
            Source::Mailbox(inbox) => inbox.name().to_owned(),
            Source::RankExits(..) => "ranks that end".into(),
        }
    }

    fn possible_senders(&self) -> String {
        match self {
            Source::Mailbox(inbox) => inbox.possible_senders(),
            Source::RankExits(..) => "a rank".into(),
        }
    }
}

impl<'a> Selection<'a> {
    fn of(mailboxes: &'a [&'a dyn Selectable]) -> Result<Self> {
        let mut entries: Vec<_> = mailboxes.iter().map(|mailbox| mailbox.entry()).enumerate().collect();
        if entries.is_empty() {
            let why = "the list of mailboxes is empty: name one at least".into();
            return Err(Error::InvalidArgument { what: "selecting among mailboxes".into(), why });
        }
        // Entries of the same mailbox share a turn counter, so its address finds duplicates.
        entries.sort_by_key(|(_, entry)| ptr::from_ref(entry.turn).addr());
        // A mailbox that is listed twice is named by its first place.
        entries.dedup_by(|(_, one), (_, other)| ptr::eq(one.turn, other.turn));
        entries.sort_by_key(|(at, entry)| (entry.turn.get(), *at));
        let place = |(at, entry): (usize, SelectEntry<'a>)| Place {
            at,
            turn: entry.turn,
            source: Source::of(entry.watched),
        };
        Ok(Selection { places: entries.into_iter().map(place).collect() })
    }

    /// Runs `find`, and returns the caller's index of the place found. A loss that is reported here counts as
    /// reported at all of them.
    fn named(&mut self, find: impl FnOnce(&mut Self) -> Result<Option<usize>>) -> Result<Option<usize>> {
        match find(self) {
            Ok(Some(found)) => {
                let latest = self.places.iter().map(|place| place.turn.get()).max();
                self.places[found].turn.set(latest.unwrap_or(0) + 1);
                Ok(Some(self.places[found].at))
            }
            Err(Error::PeerLost { rank, how }) => {
                for place in &mut self.places {
                    if let Source::Mailbox(inbox) = &mut place.source {
                        inbox.mark_reported(rank as u32);
                    }
                }
                Err(Error::PeerLost { rank, how })
            }
            other => other,
        }
    }

    /// Returns the first place that has a message. `thoroughly`: the caller will not wait for a message that
    /// this poll misses.
    fn poll(&mut self, thoroughly: bool) -> Result<Option<usize>> {
        for (found, place) in self.places.iter_mut().enumerate() {
            if place.source.has_next(thoroughly)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<usize> {
        let mut wait = LongWait::begin("several mailboxes");
        loop {
            let found = self.named(|all| {
                all.check_exits()?;
                match all.sleep(wait.slice(deadline))? {
                    Some((found, entry)) if all.places[found].source.has_at(entry)? => Ok(Some(found)),
                    _ => all.poll(true),
                }
            })?;
            if let Some(at) = found {
                return Ok(at);
            }
            if deadline.passed() {
                return Err(self.too_late(wait.elapsed()));
            }
            if let Some(world) = self.world() {
                wait.publish_if_long(world, 0, || self.waits_for());
                wait.check_interrupt(world)?;
            }
            if self.places.iter().any(|place| place.source.is_turn_over()) {
                return Err(Error::TurnOver { waited: wait.elapsed(), wait: Box::new(self.waits_for()) });
            }
        }
    }

    /// Sleeps until any of the queues has news.
    fn sleep(&mut self, deadline: Deadline) -> Result<Option<(usize, CqEntry)>> {
        let again = self.places.iter().filter_map(|place| place.source.poll_interval()).min();
        let deadline = again.map_or(deadline, |pause| deadline.min(Deadline::after(pause)));
        let (mut queues, mut places): (Vec<&mut Cq>, Vec<usize>) = Default::default();
        let mut conditions: Vec<WaitConditions<'_>> = Vec::new();
        for (at, place) in self.places.iter_mut().enumerate() {
            conditions.push(place.source.watch(&mut queues));
            places.resize(queues.len(), at);
        }
        let slices = conditions.iter().map(|conditions| conditions.world().slice(deadline));
        let until = slices.min().unwrap_or(deadline);
        let changed = || conditions.iter().any(WaitConditions::has_changed);
        // A fresh notifier begins at the first queue, whose turn it is.
        let news = Cno::default().wait(&mut queues, until, changed);
        let named = |(queue, entry): (usize, CqEntry)| (places[queue], entry);
        news.map(|news| news.map(named)).map_err(|error| Error::via("selecting among mailboxes", error))
    }

    /// Checks ranks that ended: each lost rank is an error once. Once nobody is left for any mailbox, waiting
    /// is an error as well.
    fn check_exits(&mut self) -> Result {
        let mut left = false;
        for place in &mut self.places {
            match place.source.check_exits() {
                Ok(()) => left = true,
                Err(Error::NobodyLeft { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if left {
            return Ok(());
        }
        let names: Vec<_> = self.in_order().iter().map(|place| place.source.name()).collect();
        Err(Error::NobodyLeft { name: names.join(", ") })
    }

    fn in_order(&self) -> Vec<&Place<'a>> {
        let mut places: Vec<_> = self.places.iter().collect();
        places.sort_by_key(|place| place.at);
        places
    }

    fn world(&self) -> Option<&WorldState> {
        self.places.first().map(|place| match &place.source {
            Source::Mailbox(inbox) => inbox.world(),
            Source::RankExits(exits, _) => exits.world(),
        })
    }

    /// Describes this wait for the report of who waits for whom.
    fn waits_for(&self) -> Wait {
        let mut all = Wait { call: Call::Select, name: String::new(), ranks: Vec::new(), open: true };
        for place in self.in_order() {
            if let Source::Mailbox(inbox) = &place.source {
                let wait = inbox.waits_for(Call::Select);
                let comma = if all.name.is_empty() { "" } else { ", " };
                let _ = write!(all.name, "{comma}{}", wait.name);
                all.ranks.extend(wait.ranks);
            }
        }
        all.ranks.sort_unstable();
        all.ranks.dedup();
        all
    }

    #[cold]
    fn too_late(&self, waited: Duration) -> Error {
        let (mut what, mut whom) = (String::from("selecting among mailboxes"), String::new());
        for (nth, place) in self.in_order().iter().enumerate() {
            let (name, senders) = (place.source.name(), place.source.possible_senders());
            let _ = write!(what, "{} {name:?}", if nth == 0 { "" } else { "," });
            let _ = write!(whom, "{}{senders} in {name:?}", if nth == 0 { "" } else { ", or " });
        }
        Error::Deadline { what, waited, whom }
    }
}
