//! Waiting at several mailboxes at once, and for ranks that end.

use std::cell::{Cell, RefCell, RefMut};
use std::fmt::Write as _;
use std::ptr;
use std::time::Duration;

use udeck_boot::waits::{Call, Wait};
use udeck_via::{Cno, Cq, CqEntry, Deadline, Error as ViaError};

use crate::error::{Error, Result, check_process};
use crate::long_wait::LongWait;
use crate::mailbox::Mailbox;
use crate::payload::Payload;
use crate::rank_exits::RankExits;
use crate::recv::{Inbox, WaitConditions};
use crate::world_state::WorldState;

/// What [`select`] waits at: a [`Mailbox`] of any type, or the [`RankExits`] of a world.
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

/// A mailbox, or what else is waited at, as [`select`] sees it.
pub struct SelectEntry<'a> {
    watched: Watched<'a>,
    /// Grows when it is selected: the one with the least has waited longest.
    turn: &'a Cell<u64>,
    /// The world's deadline.
    limit: Duration,
}

#[derive(Clone, Copy)]
enum Watched<'a> {
    Mailbox(&'a RefCell<Inbox>),
    RankExits(&'a RankExits),
}

/// Waits until one of the mailboxes has a message, at most the world's deadline (`DECK_DEADLINE`, of the first one's
/// world); returns its place in `mailboxes`. The message is not taken: [`Mailbox::try_retrieve`] there is sure to give one.
/// Likewise until a rank has ended, where [`RankExits`] are in the list: [`RankExits::try_next`] says which.
///
/// Fair: of those that have a message, the one is named that was not for the longest time. A sleep takes one thread,
/// however many mailboxes there are (more than 128, or on Linux before 5.16: one each).
///
/// # Errors
/// As [`Mailbox::retrieve`], of all of them: [`Error::PeerLost`] once for each rank that dies, also in the names of the
/// others; [`Error::NobodyLeft`] when nobody can post to any; [`Error::Deadline`] says who was waited for, and where.
/// [`Error::Via`] when there are no mailboxes.
pub fn select(mailboxes: &[&dyn Selectable]) -> Result<usize> {
    let limit = mailboxes.first().map_or(Duration::ZERO, |first| first.entry().limit);
    select_timeout(mailboxes, limit)
}

/// As [`select`], waiting at most `limit`.
///
/// # Errors
/// As [`select`].
pub fn select_timeout(mailboxes: &[&dyn Selectable], limit: Duration) -> Result<usize> {
    let mut selection = Selection::of(mailboxes)?;
    // The clock is read only once there is nothing to name.
    match selection.named(|all| all.look(false))? {
        Some(at) => Ok(at),
        None => selection.wait(Deadline::after(limit)),
    }
}

/// As [`select`], without waiting: `None` when no mailbox has a message.
///
/// # Errors
/// [`Error::PeerLost`] once for each rank that dies; [`Error::Via`] when there are no mailboxes.
pub fn try_select(mailboxes: &[&dyn Selectable]) -> Result<Option<usize>> {
    let mut selection = Selection::of(mailboxes)?;
    let found = selection.named(|all| all.look(true))?;
    if found.is_none() {
        selection.world().map_or(Ok(()), WorldState::check)?;
    }
    Ok(found)
}

/// The mailboxes of one call, the one that was named least recently first.
struct Selection<'a> {
    places: Vec<Place<'a>>,
}

struct Place<'a> {
    /// In the caller's list.
    at: usize,
    turn: &'a Cell<u64>,
    source: Source<'a>,
}

/// What is looked at, and slept on.
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

    fn looks_again(&self) -> Option<Duration> {
        match self {
            Source::Mailbox(inbox) => inbox.looks_again(),
            Source::RankExits(..) => None,
        }
    }

    /// Its queues are among those to sleep on.
    fn watch<'b>(&'b mut self, queues: &mut Vec<&'b mut Cq>) -> WaitConditions<'b> {
        match self {
            Source::Mailbox(inbox) => {
                let (own, around) = inbox.queues_and_around();
                queues.extend(own);
                around
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
            let nothing = ViaError::InvalidParameter("there are none in the list".into());
            return Err(Error::via("selecting among mailboxes", nothing));
        }
        // Each has a turn of its own.
        entries.sort_by_key(|(_, entry)| ptr::from_ref(entry.turn).addr());
        // One that is listed twice is named by its first place.
        entries.dedup_by(|(_, one), (_, other)| ptr::eq(one.turn, other.turn));
        entries.sort_by_key(|(at, entry)| (entry.turn.get(), *at));
        let place = |(at, entry): (usize, SelectEntry<'a>)| Place {
            at,
            turn: entry.turn,
            source: Source::of(entry.watched),
        };
        Ok(Selection { places: entries.into_iter().map(place).collect() })
    }

    /// The caller's name for the place that `find` finds. A loss that is told here is told for all.
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
                        inbox.was_told_of(rank as u32);
                    }
                }
                Err(Error::PeerLost { rank, how })
            }
            other => other,
        }
    }

    /// The first that has a message. `thoroughly`: nobody will wait for one that this look leaves out.
    fn look(&mut self, thoroughly: bool) -> Result<Option<usize>> {
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
                    _ => all.look(true),
                }
            })?;
            if let Some(at) = found {
                return Ok(at);
            }
            if deadline.passed() {
                return Err(self.too_late(wait.elapsed()));
            }
            if let Some(world) = self.world() {
                wait.look(world, 0, || self.waits_for());
                wait.check_interrupt(world)?;
            }
            if self.places.iter().any(|place| place.source.is_turn_over()) {
                return Err(Error::TurnOver { waited: wait.elapsed(), wait: Box::new(self.waits_for()) });
            }
        }
    }

    /// Waits for news of any of their queues.
    fn sleep(&mut self, deadline: Deadline) -> Result<Option<(usize, CqEntry)>> {
        let again = self.places.iter().filter_map(|place| place.source.looks_again()).min();
        let deadline = again.map_or(deadline, |pause| deadline.min(Deadline::after(pause)));
        let (mut queues, mut places): (Vec<&mut Cq>, Vec<usize>) = Default::default();
        let mut around: Vec<WaitConditions<'_>> = Vec::new();
        for (at, place) in self.places.iter_mut().enumerate() {
            around.push(place.source.watch(&mut queues));
            places.resize(queues.len(), at);
        }
        let slices = around.iter().map(|around| around.world().slice(deadline));
        let until = slices.min().unwrap_or(deadline);
        let changed = || around.iter().any(WaitConditions::has_changed);
        // A fresh one begins at the first queue, whose turn it is.
        let news = Cno::default().wait(&mut queues, until, changed);
        let named = |(queue, entry): (usize, CqEntry)| (places[queue], entry);
        news.map(|news| news.map(named)).map_err(|error| Error::via("selecting among mailboxes", error))
    }

    /// Ranks that ended: each lost one is an error once; when nobody is left for any mailbox, so is waiting.
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

    /// The wait, for others to know.
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
