//! The exits of other ranks, as events that a program can wait for.

use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::sync::Arc;

use udeck_via::Cq;

use crate::error::{Error, Result};
use crate::exits::log::RankExit;
use crate::world_state::WorldState;

/// Events of other ranks that end, one after another ([`crate::World::rank_exits`]). [`crate::select`] waits for
/// the next one, beside mailboxes or alone.
pub struct RankExits {
    world: Arc<WorldState>,
    /// Number of exits that were given out.
    given_out: Cell<usize>,
    /// [`ExitLog::version`] at the last poll.
    seen: Cell<u64>,
    cq: RefCell<Cq>,
    waker: u64,
    turn: Cell<u64>,
}

impl RankExits {
    pub(crate) fn new(world: &Arc<WorldState>) -> Result<Self> {
        let mut cq = Cq::new(world.nic()).map_err(|error| Error::via("waiting for ranks that end", error))?;
        cq.set_oversubscribed(world.oversubscribed());
        let waker = world.exit_log().add_waker(cq.handle());
        let (given_out, seen, turn) = (Cell::default(), Cell::default(), Cell::default());
        Ok(RankExits { world: world.clone(), given_out, seen, cq: RefCell::new(cq), waker, turn })
    }

    /// The next rank that has ended, if there is one. Does not wait.
    pub fn try_next(&self) -> Option<RankExit> {
        if udeck_via::is_forked() {
            return None; // the memory holds the parent's knowledge
        }
        let next = self.peek();
        self.given_out.set(self.given_out.get() + usize::from(next.is_some()));
        next
    }

    /// The next rank that has ended, without giving it out.
    pub(crate) fn peek(&self) -> Option<RankExit> {
        // Reads the version first: a rank that ends later changes it.
        self.seen.set(self.world.exit_log().version());
        self.world.exit_log().after(self.given_out.get())
    }

    pub(crate) fn world(&self) -> &WorldState {
        &self.world
    }

    /// [`ExitLog::version`] at the last poll.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.get()
    }

    /// Turn counter of [`crate::select`].
    pub(crate) fn turn(&self) -> &Cell<u64> {
        &self.turn
    }

    pub(crate) fn cq(&self) -> RefMut<'_, Cq> {
        self.cq.borrow_mut()
    }
}

impl Drop for RankExits {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        self.world.exit_log().remove_waker(self.waker);
    }
}

impl fmt::Debug for RankExits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RankExits({} given out)", self.given_out.get())
    }
}
