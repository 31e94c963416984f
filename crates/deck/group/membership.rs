//! One member's part of a group: its state, and its engine for messages.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
#[cfg(feature = "async")]
use std::task::Waker;

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use udeck_via::{Deadline, Error as ViaError, PreferredCpu, is_forked};

use super::deferred::Items;
use super::engine::Engine;
use super::join::{agree, invalid};
use super::kind::Signature;
use super::layout::{Agreed, Layout};
use super::state::{GroupState, mailbox_name};
use super::waiting::Clock;
use crate::error::{Error, Quoted, Result};
use crate::mailbox::Mailbox;
use crate::mailbox_options::MailboxOptions;
use crate::world_state::WorldState;

/// One member's part of a group.
pub(crate) struct Membership {
    pub state: GroupState,
    /// Locked by a blocking call as long as it lasts, and by a request while it moves on. A thread that holds
    /// the lock may take it again: a call made by an operator finds the engine borrowed, and gets an error.
    engine: ReentrantMutex<RefCell<Engine>>,
}

/// A group's engine while this thread holds its lock. (The fields are dropped in this order.)
pub(super) struct TakenEngine<'a> {
    engine: ReentrantMutexGuard<'a, RefCell<Engine>>,
    _given_back: GivenBack<'a>,
}

/// Guard dropped after the engine has been released.
struct GivenBack<'a>(&'a Membership);

impl Deref for TakenEngine<'_> {
    type Target = RefCell<Engine>;

    #[inline]
    fn deref(&self) -> &RefCell<Engine> {
        &self.engine
    }
}

impl Drop for GivenBack<'_> {
    #[inline]
    fn drop(&mut self) {
        fence(Ordering::SeqCst);
        if self.0.state.deferred().is_any() {
            self.0.handle_deferred();
        }
    }
}

impl Membership {
    /// The engine, for a part of a call whose thread holds the lock.
    #[inline]
    pub fn lock(&self) -> ReentrantMutexGuard<'_, RefCell<Engine>> {
        self.engine.lock()
    }

    #[inline]
    fn taken<'a>(&'a self, engine: ReentrantMutexGuard<'a, RefCell<Engine>>) -> TakenEngine<'a> {
        TakenEngine { engine, _given_back: GivenBack(self) }
    }

    /// Removes a request from the group, now or as soon as the engine is free.
    #[cold]
    pub fn drop_request(&self, call: Signature) {
        self.state.deferred().drop_request(call);
        self.handle_deferred();
    }

    /// Wakes the task that awaits a request when the engine may be free.
    #[cfg(feature = "async")]
    #[cold]
    pub fn wake_later(&self, call: Signature, waker: &Waker) {
        self.state.deferred().wake_task(call, waker);
        self.handle_deferred();
    }

    /// Does deferred work, unless a thread (perhaps this one) holds the engine: that thread does it when it
    /// releases the engine. A thread that has taken the engine more than once releases it with its first
    /// guard.
    #[cold]
    fn handle_deferred(&self) {
        while self.state.deferred().is_any() && !is_forked() && !self.engine.is_owned_by_current_thread() {
            let Some(engine) = self.engine.try_lock() else { return };
            let Items { dropped, tasks } = self.state.deferred().take();
            engine.borrow_mut().drop_requests(&self.state, dropped);
            drop(engine);
            tasks.into_iter().for_each(|(_, waker)| waker.wake());
            fence(Ordering::SeqCst);
        }
    }

    /// Takes the engine for a call. Waits while another thread has it, at most the call's limit.
    ///
    /// # Errors
    /// The errors of [`WorldState::check`], before the lock. [`Error::Deadline`]; [`Error::InvalidArgument`]: the call
    /// was made from within another one; [`Error::Interrupted`].
    #[inline]
    pub fn enter(&self, call: Signature, clock: &mut Clock) -> Result<TakenEngine<'_>> {
        self.state.world().check()?;
        let engine = match self.engine.try_lock() {
            Some(engine) => self.taken(engine),
            None => self.wait_to_enter(call, clock)?,
        };
        self.check_apart(call, &engine)?;
        Ok(engine)
    }

    #[cold]
    fn wait_to_enter(&self, call: Signature, clock: &mut Clock) -> Result<TakenEngine<'_>> {
        loop {
            if let Some(engine) = self.engine.try_lock_for(clock.pause()) {
                let engine = self.taken(engine);
                // The call that held the engine may have ended because its world ends, which fails the group.
                self.state.world().check_wait()?;
                return Ok(engine);
            }
            if clock.has_passed() {
                let whom = "another thread of this rank, which is in a call of the group".into();
                return Err(Error::Deadline { what: self.state.title(call), waited: clock.elapsed(), whom });
            }
            clock.check_interrupt(self.state.world())?;
        }
    }

    /// Like [`Membership::enter`], without waiting. `None`: another thread has the engine.
    pub fn try_enter(&self, call: Signature) -> Result<Option<TakenEngine<'_>>> {
        self.state.world().check()?;
        let Some(engine) = self.engine.try_lock() else { return Ok(None) };
        let engine = self.taken(engine);
        self.check_apart(call, &engine)?;
        Ok(Some(engine))
    }

    #[inline]
    fn check_apart(&self, call: Signature, engine: &RefCell<Engine>) -> Result {
        if engine.try_borrow_mut().is_ok() { Ok(()) } else { Err(self.state.nested_call(call)) }
    }
}

/// Description of a group that this rank makes with others.
pub(crate) struct NewGroup {
    /// Name in the program; empty: the group of all ranks.
    pub name: String,
    /// Identifier that is the same at all members, and differs from any other group's.
    pub id: String,
    /// Ranks in the world, by member.
    pub ranks: Vec<usize>,
    /// Settings that all members know already; `None`: the first member decides them.
    pub agreed: Option<Agreed>,
}

/// Makes this rank's part of the group. (The members have not met.) Waits for the first member's settings
/// until the deadline.
pub(super) fn make(world: &Arc<WorldState>, new_group: NewGroup, deadline: Deadline) -> Result<Membership> {
    let NewGroup { name, id, ranks, agreed } = new_group;
    let me = ranks.iter().position(|rank| *rank == world.rank());
    let me = me.ok_or_else(|| invalid(&name, format!("rank {} is no member", world.rank())))?;
    let inbox = || {
        let inbox = Mailbox::create(world, mailbox_name(&id, world.rank()), &MailboxOptions::new());
        inbox.map_err(|error| no_place(&name, error))
    };
    let agreed = || agreed.map_or_else(|| agree(world, &name, &id, &ranks, me, deadline), Ok);
    // A member makes its mailbox after it has waited for the first one. Otherwise others would find the
    // mailbox, and lose it if this member gave up.
    let (inbox, agreed) = match me {
        0 => (inbox()?, agreed()?),
        _ => {
            let agreed = agreed()?;
            (inbox()?, agreed)
        }
    };
    inbox.expect(ranks.iter().copied()); // a lost rank makes no call
    let layout = Layout::new(ranks.clone(), me, world.client().welcome(), agreed);
    let home = layout.plan().is_by_turns().then(|| PreferredCpu::nth(world.rank()));
    let engine = Engine::new(inbox, ranks.len(), home);
    let state = GroupState::new(world.clone(), name, id, layout);
    Ok(Membership { state, engine: ReentrantMutex::new(RefCell::new(engine)) })
}

/// The error if there is no place for the group's mailbox: a rank has as many as its NICs have completion
/// queues for.
#[cold]
fn no_place(name: &str, error: Error) -> Error {
    let Error::Via { source, .. } = error else { return error };
    let title = format!("making group {}", Quoted(name));
    let what = match *source {
        ViaError::Full { .. } => {
            format!("{title} (each group and each mailbox takes a place: drop groups that are not needed)")
        }
        _ => title,
    };
    Error::Via { what, source }
}
