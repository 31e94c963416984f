//! The ends of other ranks, as events that a program can wait for.

use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::sync::Arc;

use udeck_via::Cq;

use crate::error::{Error, Result};
use crate::rank_exits::Ended;
use crate::world_state::WorldState;

/// The other ranks that end, one after another ([`crate::World::endings`]). [`crate::select`] waits for the next one, beside
/// mailboxes or alone.
pub struct Endings {
    world: Arc<WorldState>,
    /// Given out.
    told: Cell<usize>,
    /// [`RankExits::seen`] at the last look.
    seen: Cell<u64>,
    cq: RefCell<Cq>,
    waker: u64,
    turn: Cell<u64>,
}

impl Endings {
    pub(crate) fn new(world: &Arc<WorldState>) -> Result<Self> {
        let mut cq = Cq::new(world.nic()).map_err(|error| Error::via("waiting for ranks that end", error))?;
        cq.set_oversubscribed(world.oversubscribed());
        let waker = world.exits().add_waker(cq.handle());
        let (told, seen, turn) = (Cell::default(), Cell::default(), Cell::default());
        Ok(Endings { world: world.clone(), told, seen, cq: RefCell::new(cq), waker, turn })
    }

    /// The next rank that has ended, if there is one. Does not wait.
    pub fn try_next(&self) -> Option<Ended> {
        if udeck_via::is_forked() {
            return None; // whose memory says what its parent knew
        }
        let next = self.peek();
        self.told.set(self.told.get() + usize::from(next.is_some()));
        next
    }

    /// The same, to be given out again.
    pub(crate) fn peek(&self) -> Option<Ended> {
        // First: who ends after that is seen to have.
        self.seen.set(self.world.exits().seen());
        self.world.exits().after(self.told.get())
    }

    pub(crate) fn world(&self) -> &WorldState {
        &self.world
    }

    /// [`RankExits::seen`] at the last look.
    pub(crate) fn seen(&self) -> u64 {
        self.seen.get()
    }

    /// Grows when it is selected.
    pub(crate) fn turn(&self) -> &Cell<u64> {
        &self.turn
    }

    pub(crate) fn cq(&self) -> RefMut<'_, Cq> {
        self.cq.borrow_mut()
    }
}

impl Drop for Endings {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        self.world.exits().remove_waker(self.waker);
    }
}

impl fmt::Debug for Endings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endings({} told)", self.told.get())
    }
}
