//! Waiting for a message, and looking for one by either receive model.

use std::collections::BTreeSet;
use std::time::Duration;

use udeck_boot::waits::{Call, Wait};
use udeck_via::transport::Found;
use udeck_via::{Deadline, Pause, Spinner, missed};

use super::Inbox;
use super::accept::DATA;
use crate::error::{Error, Result, Titled, counted, is_internal};
use crate::long_wait::LongWait;
use crate::matching::Match;
use crate::parcel::Parcel;
use crate::protocol::ReceiveModel;
use crate::wait_policy::MEMORY_PAUSE;

/// So soon it looks at first for a message that is being read, then half as often each time.
const FIRST_READ_PAUSE: Duration = Duration::from_micros(20);

/// How often a wait looks where the last message came from before it waits in general: for about 3 µs, in which a peer that runs
/// has answered.
const LOOKS_IN_PLACE: u32 = 768;
/// Connections that one look in turn asks.
const MOST_IN_TURN: usize = 16;
/// Looks there between two at whatever else there may be.
const LOOKS_AT_ONE: u32 = 16;

/// Of one wait, which may sleep many times.
struct WaitPauses {
    /// How soon it looks again for a message that is being read.
    read_pause: Duration,
    /// It has asked the work queues for as long as waiting spins.
    has_spun: bool,
}

/// A rank that has ended, and for whose messages the program waits.
struct EndedSource {
    rank: u32,
    /// `None`: it has finished.
    how_lost: Option<String>,
}

impl Inbox {
    /// Puts a message into `parcel` that comes soon by the connection that had the last one: looks at that one itself, so
    /// that a message is in its place as soon as it is seen. `false`: nothing came, or something came elsewhere.
    pub fn wait_in_place(&mut self, parcel: &mut Parcel) -> Result<bool> {
        for _ in 0..LOOKS_IN_PLACE / LOOKS_AT_ONE {
            let Some(context) = self.sole_active() else { return Ok(false) };
            let Some(Some(connection)) = self.connections.get_mut(context) else { return Ok(false) };
            if connection.is_blocked() {
                return Ok(false);
            }
            for _ in 0..LOOKS_AT_ONE {
                let found = connection.side.vi.arrival_short(parcel.place());
                if found != Found::Nothing {
                    return self.receive_found(found, context, parcel);
                }
                missed();
            }
        }
        Ok(false)
    }

    /// Puts a message into `parcel` that one of the connections has, asked in turn: quicker than the completion queue where each has a
    /// message now and then, and few are there. `false` says nothing: [`Inbox::try_next`] sees all that there is.
    pub fn next_in_turn(&mut self, parcel: &mut Parcel) -> Result<bool> {
        if !self.is_quiet() {
            return Ok(false);
        }
        for _ in 0..self.connections.len().min(MOST_IN_TURN) {
            self.turn = (self.turn + 1) % self.connections.len();
            let Some(Some(connection)) = self.connections.get_mut(self.turn) else { continue };
            if connection.is_blocked() {
                continue;
            }
            let found = connection.side.vi.arrival_short(parcel.place());
            if found != Found::Nothing {
                return self.receive_found(found, self.turn, parcel);
            }
        }
        Ok(false)
    }

    /// The connection that had the last message, while nothing else is to be looked after.
    fn sole_active(&mut self) -> Option<usize> {
        if self.is_quiet() { self.queues.sole_active().map(|context| context as usize) } else { None }
    }

    /// Whether a wait has to look for nothing but messages: no rank has ended since this mailbox told of all that it has to.
    fn is_quiet(&self) -> bool {
        self.model == ReceiveModel::CompletionQueue
            && self.waiting.is_empty()
            && self.set_aside.is_empty()
            && self.buffer_len.is_none()
            && self.world.exit_log().version() == self.exits_seen
            && !self.acceptor.has_failed()
            && !self.world.has_pending_progress()
    }

    /// Waits for a message, into `parcel`.
    #[cold]
    pub fn wait_for_next(&mut self, parcel: &mut Parcel, deadline: Deadline) -> Result {
        while !self.wait_for_any(parcel, deadline)? {}
        Ok(())
    }

    /// Waits for a message, into `parcel`; `false`: for one that was refused as too long.
    #[cold]
    pub(super) fn wait_for_any(&mut self, parcel: &mut Parcel, deadline: Deadline) -> Result<bool> {
        let mut wait = LongWait::begin("a message");
        let mut pauses = WaitPauses { read_pause: FIRST_READ_PAUSE, has_spun: false };
        loop {
            self.report_exits()?;
            if self.pause(parcel, wait.slice(deadline), &mut pauses)? || self.poll(parcel, true)? {
                return Ok(true);
            }
            if self.too_long.is_some() {
                return Ok(false);
            }
            if deadline.passed() {
                return Err(self.too_late(wait.elapsed()));
            }
            self.check_turn(|| wait.elapsed())?;
            wait.check_interrupt(&self.world)?;
            // A barrier tells by itself for whom it waits.
            if is_internal(&self.name) {
                wait.keep();
            } else {
                wait.look(&self.world, u64::from(self.accepted_seen), || self.waits_for(Call::Retrieve));
            }
        }
    }

    #[cold]
    pub(super) fn too_late(&self, waited: Duration) -> Error {
        let what = format!("retrieving{} from {}", self.wanted, Titled(&self.name));
        Error::Deadline { what, waited, whom: self.whom() }
    }

    /// Waits until there may be a message; whether that is in `parcel` already.
    fn pause(&mut self, parcel: &mut Parcel, deadline: Deadline, pauses: &mut WaitPauses) -> Result<bool> {
        if self.has_blocked_connections() {
            // The completion queue would name such a connection at once.
            let pause = if self.is_reading() { pauses.read_pause } else { MEMORY_PAUSE };
            pauses.read_pause = MEMORY_PAUSE.min(pauses.read_pause * 2);
            std::thread::sleep(pause.min(deadline.remaining()));
            self.world.progress_other_postboxes();
            return Ok(false);
        }
        if self.model == ReceiveModel::WorkQueues
            && !std::mem::replace(&mut pauses.has_spun, true)
            && let Some(found) = self.spin(deadline)?
        {
            return Ok(parcel.fill(Some(found)));
        }
        let until = self.looks_again().map_or(deadline, |pause| deadline.min(Deadline::after(pause)));
        let (queues, around) = self.queues_around();
        let news = queues.wait(around.world().slice(until), || around.has_changed());
        let entry = news.map_err(|error| Error::via(format!("waiting at {}", Titled(&self.name)), error))?;
        entry.map_or(Ok(false), |entry| self.receive_at(entry.context, parcel))
    }

    /// Asks the work queues for as long as waiting spins. If that was in vain, the completion queue need not spin, too.
    fn spin(&mut self, deadline: Deadline) -> Result<Option<Parcel>> {
        let mut spinner = Spinner::with_habit(self.world.oversubscribed(), self.habit).with_long_looks();
        loop {
            let found = self.poll_work_queues()?;
            if found.is_some() || self.is_polling_blocked() {
                self.habit = spinner.found();
                return Ok(found);
            }
            if deadline.passed() {
                self.habit = spinner.gave_up();
                return Ok(None);
            }
            self.world.progress_other_postboxes();
            if spinner.pause() == Pause::Sleep {
                self.habit = spinner.found();
                self.queues.sleep_at_once();
                return Ok(None);
            }
        }
    }

    /// Whether looking further has to wait: for memory, or for the program to hear that its buffer is too small.
    #[inline]
    pub(super) fn is_polling_blocked(&self) -> bool {
        !self.waiting.is_empty() || self.too_long.is_some()
    }

    /// Asks every VI's own queue once, beginning behind the one that had something last.
    pub(super) fn poll_work_queues(&mut self) -> Result<Option<Parcel>> {
        if self.acceptor.accepted() != self.accepted_seen {
            self.add_accepted();
        }
        // Where the program's looks are what moves a NIC's bytes, it has to be looked at.
        if let Some(entry) = self.queues.poll_seldom()
            && let Some(parcel) = self.receive_at_slow(entry.context)?
        {
            return Ok(Some(parcel));
        }
        for _ in 0..self.connections.len() {
            let context = self.turn as u64;
            self.turn = (self.turn + 1) % self.connections.len();
            let found = match self.receive_at_slow(context)? {
                None if self.too_long.is_none() => self.receive_data(context | DATA)?,
                found => found,
            };
            if found.is_some() || self.too_long.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// How soon to look again although nothing was heard: memory that is waited for may come free.
    pub fn looks_again(&self) -> Option<Duration> {
        (!self.waiting.is_empty()).then_some(MEMORY_PAUSE)
    }

    /// Ranks that ended: each lost one is an error once, if it has posted here, is expected to, or nobody is left; and when nobody is, so is waiting.
    pub(super) fn report_exits(&mut self) -> Result {
        self.world.check()?;
        if self.acceptor.has_failed() {
            let failed = |error| Error::via(format!("waiting at {}", Titled(&self.name)), error);
            self.world.nics().iter().try_for_each(|world_nic| world_nic.nic.check()).map_err(failed)?;
        }
        self.report_checked_exits()?;
        // First: who ends after that is seen to have.
        let version = self.world.exit_log().version();
        if version == 0 {
            return Ok(());
        }
        if self.acceptor.accepted() != self.accepted_seen {
            self.add_accepted();
        }
        let (ended, is_deserted) = (self.ended_source(), self.world.is_deserted());
        // In this order: who has finished had its connections accepted, and what is accepted has come.
        let is_open = self.acceptor.is_admitting() || self.acceptor.accepted() != self.accepted_seen;
        self.exits_open |= is_open;
        if let Some(ended) = ended.filter(|_| !is_open) {
            self.check_source(ended)?;
        }
        let (sender_ranks, reported) = (&self.sender_ranks, &self.reported);
        let concerns = |rank| !reported.contains(&rank) && (is_deserted || sender_ranks.contains(&rank));
        if let Some((rank, how)) = self.world.exit_log().find_lost(concerns) {
            self.reported.insert(rank);
            return Err(Error::PeerLost { rank: rank as usize, how });
        }
        if is_deserted && !is_open && self.connections.iter().all(Option::is_none) {
            return Err(Error::NobodyLeft { name: self.name.clone() });
        }
        // Only now: until all is told, each wait comes here first.
        if self.exits_seen != version || self.exits_open != is_open {
            (self.exits_seen, self.exits_open) = (version, is_open);
            self.turns.ring_all();
        }
        Ok(())
    }

    /// The rank whose messages the program waits for, if it is one.
    fn wanted_rank(&self) -> Option<u32> {
        self.wanted.rank().map(|rank| rank as u32)
    }

    /// The rank whose messages the program waits for, if it is one and has ended: and how.
    fn ended_source(&self) -> Option<EndedSource> {
        let (rank, log) = (self.wanted_rank()?, self.world.exit_log());
        let how_lost = log.how_lost(rank);
        (how_lost.is_some() || log.has_finished(rank)).then_some(EndedSource { rank, how_lost })
    }

    /// Ends a wait for messages of a rank of which none can come any more. (Its loss was told before, or is now.)
    fn check_source(&mut self, EndedSource { rank, how_lost }: EndedSource) -> Result {
        if self.connected().any(|connected| connected == rank) {
            return Ok(());
        }
        let Some(how) = how_lost else {
            return Err(Error::RankFinished { rank: rank as usize, name: self.name.clone() });
        };
        self.reported.insert(rank);
        Err(Error::PeerLost { rank: rank as usize, how })
    }

    /// Whether a connection is being accepted: of a rank that has finished there may be messages to come.
    pub fn is_admitting(&self) -> bool {
        self.acceptor.is_admitting()
    }

    /// A wait here, for others to know.
    pub fn waits_for(&self, call: Call) -> Wait {
        if let Some(rank) = self.wanted_rank() {
            return Wait { call, name: self.name.clone(), ranks: vec![rank], open: false };
        }
        let mut ranks: BTreeSet<u32> = self.connected().collect();
        ranks.extend(&self.sender_ranks);
        let log = self.world.exit_log();
        ranks.retain(|rank| log.how_lost(*rank).is_none() && !log.has_finished(*rank));
        Wait { call, name: self.name.clone(), ranks: ranks.into_iter().collect(), open: true }
    }

    fn connected(&self) -> impl Iterator<Item = u32> + '_ {
        self.connections.iter().flatten().map(|connection| connection.side.rank)
    }

    /// Who could post, and who cannot any more.
    pub(super) fn whom(&self) -> String {
        let (mut whom, lost) = (self.who_could_post(), self.world.exit_log().lost_in_words());
        if !lost.is_empty() {
            whom = format!("{whom}; {lost}");
        }
        if self.wanted != Match::ANY && !self.set_aside.is_empty() {
            whom = format!("{whom}; set aside meanwhile: {}", counted(self.set_aside.by_rank()));
        }
        whom
    }

    fn who_could_post(&self) -> String {
        if let Some(shortage) = self.shortage() {
            return shortage;
        }
        if let Some(rank) = self.wanted_rank() {
            let has_postbox = self.connected().any(|connected| connected == rank);
            let not_yet = if has_postbox { "" } else { " (it has no postbox of it)" };
            return format!("rank {rank} to post{not_yet}");
        }
        let ranks: BTreeSet<u32> = self.connected().collect();
        let ranks: Vec<u32> = ranks.into_iter().collect();
        match ranks.len() {
            0 if self.accepted_seen == 0 => "any rank (none has made a postbox of it yet)".into(),
            0 => "any rank (all postboxes of it are gone)".into(),
            _ => format!("{} to post", udeck_boot::Ranks(&ranks)),
        }
    }
}

#[cfg(test)]
mod tests;
