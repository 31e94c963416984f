//! Waiting for a message, and polling for one by either receive model.

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

/// Initial poll interval for a pending RDMA read; it doubles after each miss.
const FIRST_READ_PAUSE: Duration = Duration::from_micros(20);

/// Polls of the connection that had the last message, before a wait polls in general: about 3 µs, in which a
/// running peer has answered.
const POLLS_IN_PLACE: u32 = 768;
/// Maximum number of connections that one poll in turn tries.
const MAX_IN_TURN: usize = 16;
/// Polls of that connection between two polls of everything else.
const POLLS_PER_ROUND: u32 = 16;

/// Back-off state of one wait, which may sleep many times.
struct WaitPauses {
    /// Current poll interval for a message that is being read.
    read_pause: Duration,
    /// Whether the wait has polled the work queues for a full spin.
    has_spun: bool,
}

/// A rank that has ended while the program waits for its messages.
struct EndedSource {
    rank: u32,
    /// How the rank was lost; `None` if it has finished.
    how_lost: Option<String>,
}

impl Inbox {
    /// Puts a message into `parcel` that comes soon on the connection that had the last one. Polls that
    /// connection itself, so that a message is in its place as soon as it is seen. `false`: nothing came, or
    /// something came elsewhere.
    pub fn wait_in_place(&mut self, parcel: &mut Parcel) -> Result<bool> {
        for _ in 0..POLLS_IN_PLACE / POLLS_PER_ROUND {
            let Some(context) = self.sole_active() else { return Ok(false) };
            let Some(Some(connection)) = self.connections.get_mut(context) else { return Ok(false) };
            if connection.is_blocked() {
                return Ok(false);
            }
            for _ in 0..POLLS_PER_ROUND {
                let found = connection.side.vi.arrival_short(parcel.inline_mut());
                if found != Found::Nothing {
                    return self.receive_found(found, context, parcel);
                }
                missed();
            }
        }
        Ok(false)
    }

    /// Puts a message into `parcel` by polling the connections in turn. This is quicker than the completion
    /// queue for a few connections that each have a message now and then. `false` proves nothing:
    /// [`Inbox::try_next`] sees all messages.
    pub fn next_in_turn(&mut self, parcel: &mut Parcel) -> Result<bool> {
        if !self.is_quiet() {
            return Ok(false);
        }
        for _ in 0..self.connections.len().min(MAX_IN_TURN) {
            self.turn = (self.turn + 1) % self.connections.len();
            let Some(Some(connection)) = self.connections.get_mut(self.turn) else { continue };
            if connection.is_blocked() {
                continue;
            }
            let found = connection.side.vi.arrival_short(parcel.inline_mut());
            if found != Found::Nothing {
                return self.receive_found(found, self.turn, parcel);
            }
        }
        Ok(false)
    }

    /// The connection that had the last message, if nothing else needs attention.
    fn sole_active(&mut self) -> Option<usize> {
        if self.is_quiet() { self.queues.sole_active().map(|context| context as usize) } else { None }
    }

    /// Whether a wait has to poll for nothing but messages: no rank has ended since this mailbox reported all
    /// that it has to.
    fn is_quiet(&self) -> bool {
        self.model == ReceiveModel::CompletionQueue
            && self.waiting.is_empty()
            && self.set_aside.is_empty()
            && self.buffer_len.is_none()
            && self.world.exit_log().version() == self.exits_seen
            && !self.acceptor.has_failed()
            && !self.world.has_pending_progress()
    }

    /// Waits for a message, and puts it into `parcel`.
    #[cold]
    pub fn wait_for_next(&mut self, parcel: &mut Parcel, deadline: Deadline) -> Result {
        while !self.wait_for_any(parcel, deadline)? {}
        Ok(())
    }

    /// Waits for a message, and puts it into `parcel`. `false`: a message was refused as too long.
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
            // The library's own wait is not registered: a barrier reports by itself whom it waits for.
            if is_internal(&self.name) {
                wait.keep();
            } else {
                wait.publish_if_long(&self.world, u64::from(self.accepted_seen), || {
                    self.waits_for(Call::Retrieve)
                });
            }
        }
    }

    #[cold]
    pub(super) fn too_late(&self, waited: Duration) -> Error {
        let what = format!("retrieving{} from {}", self.wanted, Titled(&self.name));
        Error::Deadline { what, waited, whom: self.whom() }
    }

    /// Waits until there may be a message. Returns whether it is in `parcel` already.
    fn pause(&mut self, parcel: &mut Parcel, deadline: Deadline, pauses: &mut WaitPauses) -> Result<bool> {
        if self.has_blocked_connections() {
            // The completion queue would name a blocked connection at once.
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
        let until = self.poll_interval().map_or(deadline, |pause| deadline.min(Deadline::after(pause)));
        let (queues, conditions) = self.queues_and_conditions();
        let news = queues.wait(conditions.world().slice(until), || conditions.has_changed());
        let entry = news.map_err(|error| Error::via(format!("waiting at {}", Titled(&self.name)), error))?;
        entry.map_or(Ok(false), |entry| self.receive_at(entry.context, parcel))
    }

    /// Polls the work queues for as long as a wait spins. After a spin in vain, the completion queue need not
    /// spin, too.
    fn spin(&mut self, deadline: Deadline) -> Result<Option<Parcel>> {
        let mut spinner =
            Spinner::with_history(self.world.oversubscribed(), self.spin_history).with_long_looks();
        loop {
            let found = self.poll_work_queues()?;
            if found.is_some() || self.is_polling_blocked() {
                self.spin_history = spinner.found();
                return Ok(found);
            }
            if deadline.passed() {
                self.spin_history = spinner.gave_up();
                return Ok(None);
            }
            self.world.progress_other_postboxes();
            if spinner.pause() == Pause::Sleep {
                self.spin_history = spinner.found();
                self.queues.sleep_at_once();
                return Ok(None);
            }
        }
    }

    /// Whether polling on has to wait: for memory, or until the program hears that its buffer is too small.
    #[inline]
    pub(super) fn is_polling_blocked(&self) -> bool {
        !self.waiting.is_empty() || self.too_long.is_some()
    }

    /// Polls every VI's own queue once, beginning behind the one that had something last.
    pub(super) fn poll_work_queues(&mut self) -> Result<Option<Parcel>> {
        if self.acceptor.accepted() != self.accepted_seen {
            self.add_accepted();
        }
        // Some NICs move bytes only when their queue is polled.
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

    /// Interval after which to poll again although nothing was heard: memory that is waited for may become
    /// free.
    pub fn poll_interval(&self) -> Option<Duration> {
        (!self.waiting.is_empty()).then_some(MEMORY_PAUSE)
    }

    /// Reports ranks that ended. A lost rank is an error once, if it has posted here, is expected to, or if
    /// nobody is left. If nobody is left, waiting is an error as well.
    pub(super) fn report_exits(&mut self) -> Result {
        self.world.check()?;
        if self.acceptor.has_failed() {
            let failed = |error| Error::via(format!("waiting at {}", Titled(&self.name)), error);
            self.world.nics().iter().try_for_each(|world_nic| world_nic.nic.check()).map_err(failed)?;
        }
        self.report_checked_exits()?;
        // Reads the version first: a rank that ends later changes it.
        let version = self.world.exit_log().version();
        if version == 0 {
            return Ok(());
        }
        if self.acceptor.accepted() != self.accepted_seen {
            self.add_accepted();
        }
        let (ended, is_deserted) = (self.ended_source(), self.world.is_deserted());
        // In this order: a rank that has finished had its connections accepted, and an accepted connection
        // has arrived.
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
        // Set only now: until everything is reported, each wait checks here first.
        if self.exits_seen != version || self.exits_open != is_open {
            (self.exits_seen, self.exits_open) = (version, is_open);
            self.turns.ring_all();
        }
        Ok(())
    }

    /// The rank whose messages the program waits for, if the filter names one.
    fn wanted_rank(&self) -> Option<u32> {
        self.wanted.rank().map(|rank| rank as u32)
    }

    /// The rank whose messages the program waits for, if the filter names one and it has ended.
    fn ended_source(&self) -> Option<EndedSource> {
        let (rank, log) = (self.wanted_rank()?, self.world.exit_log());
        let how_lost = log.how_lost(rank);
        (how_lost.is_some() || log.has_finished(rank)).then_some(EndedSource { rank, how_lost })
    }

    /// Ends a wait for messages of an ended rank when none can come any more. (A loss was reported before, or
    /// is now.)
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

    /// Whether a connection is being accepted: it may bring messages of a rank that has finished.
    pub fn is_admitting(&self) -> bool {
        self.acceptor.is_admitting()
    }

    /// Describes a wait at this mailbox for the report of who waits for whom.
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

    /// The ranks that could post, and those that cannot any more, in words.
    pub(super) fn whom(&self) -> String {
        let (mut whom, lost) = (self.list_possible_senders(), self.world.exit_log().lost_in_words());
        if !lost.is_empty() {
            whom = format!("{whom}; {lost}");
        }
        if self.wanted != Match::ANY && !self.set_aside.is_empty() {
            whom = format!("{whom}; set aside meanwhile: {}", counted(self.set_aside.by_rank()));
        }
        whom
    }

    fn list_possible_senders(&self) -> String {
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
