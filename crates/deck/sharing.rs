//! Objects that ranks of one host share beside messages: segments, locked segments and semaphores.
//!
//! The memory and the protocols in it belong to `udeck_sys::shared_memory`; `udeck_via::segments` passes the
//! memory to the ranks. This folder has the waits: with deadlines, with the ranks that they wait for, and
//! with how those ranks ended.
//!
//! | file | contents |
//! |---|---|
//! | `segment`, `mutex`, `semaphore` | the objects, as programs see them |
//! | here | what the three have in common: the lock and the barrier, as ranks see them |
//! | `attach` | making an object, attaching to it, and which ranks may share it |
//! | `wait` | spinning, sleeping, and checking the ranks that are waited for |
//! | `service` | a rank's list of its shared objects |

mod attach;
pub(crate) mod mutex;
pub(crate) mod segment;
pub(crate) mod semaphore;
pub(crate) mod service;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use udeck_boot::waits::Call;
use udeck_via::segments::{Abandoned, LockGuard, MemberState, SharedMemory};

use self::wait::{CheckResult, WaitContext, wait};
use crate::error::{Error, Result};
use crate::world_state::WorldState;

/// A shared object as one of its members sees it.
pub(crate) struct Shared {
    pub(crate) world: Arc<WorldState>,
    pub(crate) memory: SharedMemory,
    pub(crate) name: String,
    /// Name of the object in errors.
    pub(crate) what: String,
    /// The ranks that share it, by member.
    pub(crate) ranks: Vec<usize>,
    barrier: Mutex<BarrierState>,
}

/// State of this rank in a segment's barriers.
struct BarrierState {
    /// Number of the barrier that this rank enters next, or is in.
    number: u32,
    /// Whether this rank has entered the barrier, and its deadline passed before all others had.
    is_waiting: bool,
}

/// Reaction to a lock that its holder abandoned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfAbandoned {
    Error,
    Take,
}

impl Shared {
    pub fn rank_of(&self, member: u32) -> usize {
        self.ranks[member as usize]
    }

    pub fn check(&self) -> Result {
        self.world.check()
    }

    pub fn deadline(&self) -> Duration {
        self.world.config().deadline
    }

    // ---- the lock ----

    pub fn lock(&self, limit: Duration, if_abandoned: IfAbandoned) -> Result<LockGuard<'_>> {
        self.world.check()?;
        let waits = WaitContext { shared: self, call: Call::Lock, what: "locking", limit };
        let guard = wait(
            &waits,
            |has_slept| self.memory.try_lock(has_slept),
            |limit| self.memory.sleep_on_lock(limit),
            || self.check_holder(),
        )?;
        self.check_abandoned(guard, if_abandoned)
    }

    pub fn try_lock(&self) -> Result<LockGuard<'_>> {
        self.world.check()?;
        let guard = self.memory.try_lock(false).or_else(|| self.memory.steal_lock());
        let busy = || {
            let whom = self.memory.lock_holder().map_or("its holder".into(), |holder| self.whom(holder));
            Error::WouldBlock { what: "locking a shared segment", whom }
        };
        self.check_abandoned(guard.ok_or_else(busy)?, IfAbandoned::Error)
    }

    fn check_abandoned<'a>(&self, guard: LockGuard<'a>, if_abandoned: IfAbandoned) -> Result<LockGuard<'a>> {
        match guard.abandoned() {
            Some(by) if if_abandoned == IfAbandoned::Error => {
                drop(guard);
                Err(self.abandoned(by))
            }
            _ => Ok(guard),
        }
    }

    #[cold]
    fn abandoned(&self, by: Abandoned) -> Error {
        let rank = self.ranks.get(by.member as usize).copied().unwrap_or(usize::MAX);
        let is_dead = self.memory.state(by.member).is_none();
        let how = match self.world.exit_log().how_lost(rank as u32) {
            _ if by.panicked => "a thread of it panicked".into(),
            Some(how) => format!("it was lost: {how}"),
            // The kernel was faster than the launcher, which knows more.
            None if is_dead => format!("it was lost: {}", wait::how_ended(&self.world, rank as u32)),
            None => "it ended".into(),
        };
        Error::Abandoned { what: self.what.clone(), rank, how }
    }

    /// The rank that may have left the data half written.
    pub fn abandoned_by(&self, guard: &LockGuard<'_>) -> Option<usize> {
        guard.abandoned().and_then(|by| self.ranks.get(by.member as usize).copied())
    }

    /// Checks the holder of a lock that was not free for a while: it may be dead.
    pub fn check_holder(&self) -> Result<CheckResult<LockGuard<'_>>> {
        if let Some(guard) = self.memory.steal_lock() {
            return Ok(CheckResult::Done(guard));
        }
        let holder = self.memory.lock_holder();
        let ranks = holder.map(|holder| self.rank_of(holder) as u32).into_iter().collect();
        let whom = holder.map_or("its holder".into(), |holder| self.whom(holder));
        Ok(CheckResult::Awaits { ranks, open: false, whom })
    }

    /// A member that holds the lock, in words.
    fn whom(&self, holder: u32) -> String {
        let rank = self.rank_of(holder);
        if holder == self.memory.me() {
            return format!(
                "rank {rank}, this rank itself, which holds the lock (on another thread, or on this one)"
            );
        }
        match self.world.exit_log().how_lost(rank as u32) {
            // The kernel says that some process still has the member's memory.
            Some(how) => format!(
                "rank {rank}, which held its lock and is lost ({how}), but a process that it forked lives"
            ),
            None => format!("rank {rank}, which holds its lock"),
        }
    }

    // ---- the barrier ----

    pub fn barrier(&self, limit: Duration) -> Result {
        self.world.check()?;
        let waits = WaitContext { shared: self, call: Call::Barrier, what: "the barrier of", limit };
        let mut state = self.barrier.lock();
        let (table, number, me) = (self.memory.table(), state.number, self.memory.me());
        let events = &table.head.barriers;
        if !state.is_waiting && table.arrive(me, number) {
            self.memory.raise(events);
        }
        state.is_waiting = true;
        let seen = std::cell::Cell::new(0);
        wait(
            &waits,
            |_| {
                seen.set(events.now());
                table.is_complete(number).then_some(())
            },
            |limit| self.memory.sleep_on(events, seen.get(), limit),
            || self.check_missing(number),
        )?;
        *state = BarrierState { number: number.wrapping_add(1), is_waiting: false };
        Ok(())
    }

    /// Checks the members missing at a barrier for a while: some may be dead, or have dropped the segment.
    fn check_missing(&self, number: u32) -> Result<CheckResult<()>> {
        let table = self.memory.table();
        let missing = |member: &u32| !table.has_arrived(*member as usize, number);
        let members = (0..self.memory.members()).filter(missing);
        let mut ranks = Vec::new();
        for member in members {
            let rank = self.rank_of(member);
            let state = self.memory.state(member);
            // The member entered the barrier before it ended.
            if table.has_arrived(member as usize, number) {
                continue;
            }
            if let Some(how) = self.how_ended(rank, state) {
                return Err(Error::PeerLost { rank, how });
            }
            ranks.push(rank as u32);
        }
        let whom = udeck_boot::Ranks(&ranks).to_string();
        Ok(CheckResult::Awaits { ranks, open: false, whom })
    }

    /// How a rank ended that will not come any more.
    fn how_ended(&self, rank: usize, state: Option<MemberState>) -> Option<String> {
        let log = self.world.exit_log();
        match state {
            None => Some(wait::how_ended(&self.world, rank as u32)),
            Some(MemberState::Left) if log.how_lost(rank as u32).is_none() => {
                Some(format!("it has dropped {}", self.what))
            }
            _ => log.how_lost(rank as u32).or_else(|| {
                let has_finished = state == Some(MemberState::Absent) && log.has_finished(rank as u32);
                has_finished.then(|| format!("it finished without coming to {}", self.what))
            }),
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} among ranks {:?}", self.what, self.ranks)
    }
}
