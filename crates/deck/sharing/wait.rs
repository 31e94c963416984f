//! Waiting in shared memory: spinning, yielding, then sleeping in slices, with checks of the awaited ranks in
//! between.
//!
//! A death wakes nobody. Hence a wait checks for the dead after each slice: a death is noticed within
//! [`SLICE`].

use std::time::Duration;

use udeck_boot::waits::{Call, Wait};
use udeck_via::{Deadline, Pause, Spinner};

use super::Shared;
use crate::error::{Error, Result};
use crate::exits::check::{Verdict, check_exit};
use crate::long_wait::LongWait;
use crate::world_state::WorldState;

/// Longest sleep without a check of the other ranks.
const SLICE: Duration = Duration::from_millis(50);

/// Description of a wait, and its limit.
pub(crate) struct WaitContext<'a> {
    pub shared: &'a Shared,
    pub call: Call,
    /// Action of the call, such as `locking`; the object's name follows.
    pub what: &'static str,
    pub limit: Duration,
}

/// Result of a check of the other ranks.
pub(crate) enum CheckResult<R> {
    /// The wait is over.
    Done(R),
    /// The wait goes on.
    Awaits {
        /// Ranks that can each end the wait.
        ranks: Vec<u32>,
        /// Whether others can end it, too.
        open: bool,
        /// All of them, in words.
        whom: String,
    },
}

/// Waits until `attempt` returns something. `attempt` is told whether this call has slept. `check` is called
/// when a sleep was in vain.
#[inline]
pub(crate) fn wait<R>(
    waits: &WaitContext<'_>,
    mut attempt: impl FnMut(bool) -> Option<R>,
    sleep: impl Fn(Duration),
    check: impl FnMut() -> Result<CheckResult<R>>,
) -> Result<R> {
    match attempt(false) {
        Some(found) => Ok(found),
        None => wait_long(waits, attempt, sleep, check),
    }
}

#[cold]
fn wait_long<R>(
    waits: &WaitContext<'_>,
    mut attempt: impl FnMut(bool) -> Option<R>,
    sleep: impl Fn(Duration),
    mut check: impl FnMut() -> Result<CheckResult<R>>,
) -> Result<R> {
    let world = &*waits.shared.world;
    let (mut known, deadline) = (LongWait::begin("shared memory"), Deadline::after(waits.limit));
    let mut spinner = Spinner::new(world.oversubscribed());
    while !deadline.passed() && spinner.pause() == Pause::Again {
        if let Some(found) = attempt(false) {
            return Ok(found);
        }
    }
    loop {
        sleep(SLICE.min(deadline.remaining()));
        if let Some(found) = attempt(true) {
            return Ok(found);
        }
        let (ranks, open, whom) = match check()? {
            CheckResult::Done(found) => return Ok(found),
            CheckResult::Awaits { ranks, open, whom } => (ranks, open, whom),
        };
        if deadline.passed() {
            let what = format!("{} {}", waits.what, waits.shared.what);
            return Err(Error::Deadline { what, waited: known.elapsed(), whom });
        }
        // Other ranks are waited for, which is published, too.
        let version =
            ranks.iter().fold(ranks.len() as u64, |sum, rank| sum.wrapping_mul(31) + u64::from(*rank));
        known.publish_if_long(world, version, || Wait {
            call: waits.call,
            name: waits.shared.name.clone(),
            ranks,
            open,
        });
        known.check_interrupt(world)?;
    }
}

/// How a rank whose process is dead ended, in the launcher's words if it has any.
#[cold]
pub(crate) fn how_ended(world: &WorldState, rank: u32) -> String {
    let how = "its process has ended".to_owned();
    match check_exit(rank, how.clone(), world, Deadline::after(crate::exits::check::MAX_WAIT)) {
        Verdict::Lost(how) => how,
        Verdict::Finished => "it has finished".into(),
        Verdict::Pending => how,
    }
}
