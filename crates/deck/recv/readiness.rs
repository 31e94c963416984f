//! Polling for messages without taking them, for waits on several mailboxes and for tasks.

use std::time::Duration;

use udeck_boot::waits::Call;
use udeck_via::{Cq, CqEntry};

use super::Inbox;
use super::accept::Acceptor;
use super::completion_queues::CompletionQueues;
use crate::error::{Error, Result};
#[cfg(feature = "async")]
use crate::matching::Match;
use crate::parcel::Parcel;
use crate::turns::Turns;
use crate::world_state::WorldState;

/// Conditions that a wait at a mailbox checks besides its queues.
pub(crate) struct WaitConditions<'a> {
    world: &'a WorldState,
    /// The acceptor, and the number of connections accepted when the wait began.
    acceptor: Option<(&'a Acceptor, u32)>,
    /// Turns of the threads that share the mailbox.
    turns: Option<&'a Turns>,
    /// Version of the exit log when the wait began.
    exits_seen: u64,
    /// Whether reports of exits are incomplete until no connection is being accepted.
    exits_open: bool,
}

impl<'a> WaitConditions<'a> {
    /// Conditions of a wait for ranks that end: the exit log grows beyond `exits_seen`.
    pub fn rank_exits(world: &'a WorldState, exits_seen: u64) -> Self {
        WaitConditions { world, acceptor: None, turns: None, exits_seen, exits_open: false }
    }

    pub fn world(&self) -> &WorldState {
        self.world
    }

    /// Whether ranks have ended, connections were accepted, or a NIC has failed since. Progresses the
    /// messages of other postboxes.
    pub fn has_changed(&self) -> bool {
        let moved = self.world.progress_other_postboxes();
        let came = |(acceptor, came): (&Acceptor, u32)| {
            acceptor.accepted() != came
                || acceptor.has_failed()
                || (self.exits_open && !acceptor.is_admitting())
        };
        moved
            || self.world.exit_log().version() != self.exits_seen
            || self.acceptor.is_some_and(came)
            || self.turns.is_some_and(Turns::is_requested)
            || self.world.is_wait_over()
    }
}

impl Inbox {
    /// Whether there is a message; [`Inbox::try_next`] then returns it. `all`: the caller will not wait for a
    /// message that this poll leaves out.
    pub fn has_next(&mut self, all: bool) -> Result<bool> {
        if !self.set_aside.is_empty() {
            return Ok(true);
        }
        let mut parcel = Parcel::NONE;
        let found = self.poll(&mut parcel, all)?.then_some(parcel);
        Ok(self.keep(found))
    }

    /// Whether the work queue of `entry` has a message; [`Inbox::try_next`] then returns it.
    pub fn has_at(&mut self, entry: CqEntry) -> Result<bool> {
        let found = self.receive_at_slow(entry.context)?;
        Ok(self.keep(found))
    }

    fn keep(&mut self, found: Option<Parcel>) -> bool {
        self.burst.end();
        let Some(parcel) = found else { return false };
        self.pass_over(parcel);
        true
    }

    /// Reports ranks that ended, like a wait for the next message.
    pub fn check_exits(&mut self) -> Result {
        self.report_exits()
    }

    /// Reports ranks that ended, like a wait for the next message that matches: also the end of the rank that
    /// `wanted` names.
    #[cfg(feature = "async")]
    pub fn check_exits_for(&mut self, wanted: Match) -> Result {
        self.wanted = wanted;
        let checked = self.report_exits();
        self.wanted = Match::ANY;
        checked
    }

    /// Checks in a wait whether other threads are to have the mailbox now.
    ///
    /// # Errors
    /// [`Error::TurnOver`].
    #[inline]
    pub fn check_turn(&self, waited: impl FnOnce() -> Duration) -> Result {
        if !self.turns.is_requested() {
            return Ok(());
        }
        Err(Error::TurnOver { waited: waited(), wait: Box::new(self.waits_for(Call::Retrieve)) })
    }

    /// Whether other threads are to have the mailbox now.
    pub fn is_turn_over(&self) -> bool {
        self.turns.is_requested()
    }

    /// Notes that the loss of this rank was reported in this mailbox's name.
    pub fn mark_reported(&mut self, lost: u32) {
        self.reported.insert(lost);
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The ranks that could post, in words.
    pub fn possible_senders(&self) -> String {
        self.whom()
    }

    /// Prepares the queues so that another thread can sleep on them.
    #[cfg(feature = "async")]
    pub fn arm(&mut self) -> udeck_via::transport::Armed {
        self.queues.arm()
    }

    /// Handles of the queues, on which another thread sleeps after [`Inbox::arm`].
    #[cfg(feature = "async")]
    pub fn handles(&self) -> impl Iterator<Item = udeck_via::CqHandle> {
        self.queues.handles()
    }

    /// The queues to wait on, and the conditions to check meanwhile.
    pub fn queues_to_wait_on(&mut self) -> (impl Iterator<Item = &mut Cq>, WaitConditions<'_>) {
        let (queues, conditions) = self.queues_and_conditions();
        (queues.iter_mut(), conditions)
    }

    pub(super) fn queues_and_conditions(&mut self) -> (&mut CompletionQueues, WaitConditions<'_>) {
        let (world, acceptor) = (&*self.world, &*self.acceptor);
        let conditions = WaitConditions {
            world,
            acceptor: Some((acceptor, acceptor.accepted())),
            turns: Some(&self.turns),
            exits_seen: self.exits_seen,
            exits_open: self.exits_open,
        };
        (&mut self.queues, conditions)
    }
}
