//! Long waits, published to the launcher, which reports who waits for whom (`deckrun --watchdog`,
//! `--status`).
//!
//! A wait is timed from its beginning, and published when it is found to have lasted for [`LONG`]. Until then
//! it costs a reading of the clock, which it takes anyway.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use udeck_boot::waits::{Call, Entry, LONG, Wait};
use udeck_via::Deadline;

use crate::error::{Error, Result, is_internal};
use crate::interrupt;
use crate::stats::trace;
use crate::world_state::WorldState;

/// Shortest wait that is recorded in the trace, in nanoseconds: longer than a poll.
const MIN_TRACED: u64 = 1000;

/// A wait of one call.
pub(crate) struct LongWait {
    since: Deadline,
    /// Start time for the trace; 0 without a trace.
    traced: u64,
    on: &'static str,
    /// The published wait, if it has lasted, with the version that its caller gave it.
    published: Option<(u64, Option<Entry>)>,
    /// Time of the last check for a signal.
    asked: Deadline,
}

impl LongWait {
    /// Begins a wait now. `on` is its name in the trace.
    #[inline]
    pub fn begin(on: &'static str) -> Self {
        let since = Deadline::now();
        LongWait { since, traced: trace::begin(), on, published: None, asked: since }
    }

    pub fn elapsed(&self) -> Duration {
        self.since.since()
    }

    /// Returns until when to sleep: at most until the wait has to be published, or a signal may have come.
    #[inline]
    pub fn slice(&self, deadline: Deadline) -> Deadline {
        match self.published {
            None => deadline.min(self.since.later_by(LONG)),
            Some(_) if interrupt::is_possible() => deadline.min(self.asked.later_by(LONG)),
            Some(_) => deadline,
        }
    }

    /// Publishes the wait if it has lasted, and again if `version` has changed. To be called when a sleep was
    /// in vain.
    pub fn publish_if_long(&mut self, world: &WorldState, version: u64, wait: impl FnOnce() -> Wait) {
        let is_known = self.published.as_ref().is_some_and(|(known, _)| *known == version);
        if !is_known && self.elapsed() >= LONG {
            self.publish(world, version, &wait());
        }
    }

    /// Checks whether the wait has to end. To be called when a sleep was in vain.
    ///
    /// # Errors
    /// [`Error::Interrupted`]: a signal ends the wait. The errors of [`WorldState::check`]: another thread
    /// ends this rank's part in the job.
    #[inline]
    pub fn check_interrupt(&mut self, world: &WorldState) -> Result {
        world.check_wait()?;
        if interrupt::is_possible() { self.ask() } else { Ok(()) }
    }

    #[cold]
    fn ask(&mut self) -> Result {
        if self.asked.since() < LONG {
            return Ok(());
        }
        self.asked = Deadline::now();
        interrupt::check()
    }

    /// Keeps the wait unpublished: it may sleep for as long as it likes.
    pub fn keep(&mut self) {
        self.published.get_or_insert((0, None));
    }

    #[cold]
    fn record(&self) {
        if udeck_trace::now() - self.traced >= MIN_TRACED {
            trace::waited(self.traced, self.on);
        }
    }

    #[cold]
    fn publish(&mut self, world: &WorldState, version: u64, wait: &Wait) {
        // Dropped first, so that the place of the former entry becomes free.
        self.published = None;
        self.published = Some((version, publish(world, wait, self.elapsed())));
    }
}

impl Drop for LongWait {
    #[inline]
    fn drop(&mut self) {
        if self.traced != 0 {
            self.record();
        }
    }
}

thread_local! {
    /// The world for which this thread waits in another package.
    static WAITS_FOR: RefCell<Option<Arc<WorldState>>> = const { RefCell::new(None) };
}

/// Runs `body`, which waits in another package. Passes it a function to call about ten times a second:
/// whether the wait has to end.
///
/// # Errors
/// The errors of [`LongWait::check_interrupt`].
pub(crate) fn asking<R>(world: &Arc<WorldState>, body: impl FnOnce(fn() -> bool) -> Result<R>) -> Result<R> {
    let before = WAITS_FOR.replace(Some(world.clone()));
    let ended = body(is_to_end);
    WAITS_FOR.set(before);
    match ended {
        Err(Error::Interrupted) => Err(world.check_wait().err().unwrap_or(Error::Interrupted)),
        ended => ended,
    }
}

fn is_to_end() -> bool {
    let is_over = |world: &WorldState| world.check_wait().is_err();
    WAITS_FOR.with_borrow(|world| world.as_deref().is_some_and(is_over)) || interrupt::is_pending()
}

/// Publishes a wait that has lasted for `lasted`, until the returned entry is dropped.
pub(crate) fn publish(world: &WorldState, wait: &Wait, lasted: Duration) -> Option<Entry> {
    world.client().waits().publish(wait, lasted)
}

/// Describes a wait at a mailbox that only its owner can end.
#[cold]
pub(crate) fn for_owner(call: Call, mailbox: &str, owner: u32) -> Wait {
    match is_internal(mailbox) {
        true => Wait { call: Call::Barrier, name: String::new(), ranks: vec![owner], open: false },
        false => Wait { call, name: mailbox.to_owned(), ranks: vec![owner], open: false },
    }
}
