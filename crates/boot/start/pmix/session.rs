//! What this process has joined: once, and until it ends.
//!
//! PMIx can be left and joined again, by its documentation. Tried, it cannot: in 5.0.11 the second `PMIx_Finalize` frees what the
//! first one has freed, and with 4.2.2 Open MPI 4.1's `MPI_Init` fails after somebody else has left. So this process leaves when
//! it exits, and worlds that follow each other share what the first one has joined.
//!
//! ```text
//!   New ──► Joining ──► Joined ◄──► InOrder ── the process exits: PMIx_Finalize
//!              │         worlds come and go
//!              └──────► Failed, for ever: the library counts a failed call, and answers the next one with "done"
//! ```
//!
//! A process that exits in between has not left, and its launcher ends the job. That is what a rank does that ends too early.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use udeck_sys::Deadline;

use super::ask::ask;
use super::ffi::{Library, Proc, at_exit};
use crate::start::StartError;

/// How long the end of the process may take longer where the launcher's daemon does not answer.
const LEAVING: Duration = Duration::from_secs(5);

/// Who this process is, and by which library.
#[derive(Clone, Debug)]
pub(super) struct Joined {
    pub(super) library: Library,
    pub(super) me: Proc,
    pub(super) size: u32,
    pub(super) title: String,
}

/// Of this process. Tests have others.
pub(super) static SESSION: Session = Session::new();

#[derive(Debug)]
pub(super) struct Session {
    state: Mutex<State>,
    /// A call has not returned: the process does not wait for another one when it exits.
    stuck: AtomicBool,
    /// How many worlds have joined.
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

    /// What was joined before; otherwise `join` is called, once. Also the number of the world that joins, from 1.
    ///
    /// # Errors
    /// `join`'s, now or then. `None`: another thread is joining, or the process exits.
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

    /// `Ok(None)`: nothing yet, and the caller is to join.
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

    /// This rank has ended in order, unless it joins again.
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
        // Not when the exit comes in the middle of a change, on the very thread that makes it.
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

/// Who has joined: a child that it forks has not.
static PROCESS: AtomicU32 = AtomicU32::new(0);

extern "C" fn exits() {
    if PROCESS.load(Ordering::Relaxed) == process::id() {
        SESSION.leave(Deadline::after(LEAVING));
    }
}
