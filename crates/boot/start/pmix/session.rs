//! The PMIx session of this process: joined once, and left when the process ends.
//!
//! By its documentation PMIx can be left and joined again. In tests it cannot: in 5.0.11 the second
//! `PMIx_Finalize` frees memory that the first one has freed, and with 4.2.2 Open MPI 4.1's `MPI_Init` fails
//! after other code has left. This process therefore leaves when it exits, and worlds that follow each other
//! share the session of the first one.
//!
//! ```text
//!   New ──► Joining ──► Joined ◄──► InOrder ── the process exits: PMIx_Finalize
//!              │         worlds come and go
//!              └──────► Failed, for ever: the library counts a failed call, and answers the next one with "done"
//! ```
//!
//! A process that exits in between has not left, and its launcher ends the job: this is the fate of a rank that
//! ends too early.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use udeck_sys::Deadline;

use super::ask::ask;
use super::ffi::{Library, Proc, at_exit};
use crate::start::StartError;

/// Additional time for the end of the process if the launcher's daemon does not answer.
const LEAVING: Duration = Duration::from_secs(5);

/// This process's rank, and the library that it joined by.
#[derive(Clone, Debug)]
pub(super) struct Joined {
    pub(super) library: Library,
    pub(super) me: Proc,
    pub(super) size: u32,
    pub(super) title: String,
}

/// The session of this process. Tests have others.
pub(super) static SESSION: Session = Session::new();

#[derive(Debug)]
pub(super) struct Session {
    state: Mutex<State>,
    /// A call has not returned: at its exit the process does not wait for another one.
    stuck: AtomicBool,
    /// Number of worlds that have joined.
    worlds: AtomicU32,
}

#[derive(Debug)]
enum State {
    New,
    Joining,
    Joined(Joined),
    InOrder(Joined),
    Failed(StartError),
    Left,
}

impl Session {
    pub(super) const fn new() -> Self {
        Session { state: Mutex::new(State::New), stuck: AtomicBool::new(false), worlds: AtomicU32::new(0) }
    }

    /// Returns the earlier session; without one calls `join`, once. Also returns the number of the world that
    /// joins, from 1.
    ///
    /// # Errors
    /// The error of `join`, now or earlier; `None` if another thread is joining, or the process exits.
    pub(super) fn join(
        &self,
        join: impl FnOnce() -> Result<Joined, StartError>,
    ) -> Result<(Joined, u32), Option<StartError>> {
        let joined = self.joined_before()?;
        let joined = joined.map_or_else(
            || {
                let joined = join();
                *self.state.lock() = match &joined {
                    Ok(joined) => State::Joined(joined.clone()),
                    Err(error) => State::Failed(error.clone()),
                };
                joined
            },
            Ok,
        )?;
        Ok((joined, 1 + self.worlds.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns `Ok(None)` if there is no session yet, and the caller is to join.
    fn joined_before(&self) -> Result<Option<Joined>, Option<StartError>> {
        let mut state = self.state.lock();
        let joined = match &*state {
            State::New => {
                *state = State::Joining;
                return Ok(None);
            }
            State::Joined(joined) | State::InOrder(joined) => joined.clone(),
            State::Failed(error) => return Err(Some(error.clone())),
            State::Joining | State::Left => return Err(None),
        };
        *state = State::Joined(joined.clone());
        Ok(Some(joined))
    }

    /// Notes that this rank has ended in order, unless it joins again.
    pub(super) fn end_in_order(&self) {
        let mut state = self.state.lock();
        if let State::Joined(joined) = &*state {
            *state = State::InOrder(joined.clone());
        }
    }

    pub(super) fn is_stuck(&self) {
        self.stuck.store(true, Ordering::Relaxed);
    }

    /// Leaves the job, if this rank has ended in order.
    pub(super) fn leave(&self, until: Deadline) {
        // The lock is taken if the exit comes in the middle of a change, on the very thread that makes it.
        let Some(mut state) = self.state.try_lock() else { return };
        if self.stuck.load(Ordering::Relaxed) {
            return;
        }
        match std::mem::replace(&mut *state, State::Left) {
            State::InOrder(joined) => _ = ask(until, move || joined.library.finalize()),
            other => *state = other,
        }
    }
}

/// Has [`SESSION`] leave when this process exits. To be called once.
pub(super) fn leave_at_exit() {
    PROCESS.store(process::id(), Ordering::Relaxed);
    at_exit(exits);
}

/// The process that has joined: a child that it forks has not.
static PROCESS: AtomicU32 = AtomicU32::new(0);

extern "C" fn exits() {
    if PROCESS.load(Ordering::Relaxed) == process::id() {
        SESSION.leave(Deadline::after(LEAVING));
    }
}
