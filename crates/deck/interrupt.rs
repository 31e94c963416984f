//! Waits that a signal may end: for languages that handle signals between two of their own instructions, like
//! Python.

use std::cell::Cell;
use std::time::{Duration, Instant};

use udeck_boot::waits::LONG;

use crate::error::{Error, Result};

/// Interval between two calls of the check.
const PAUSE: Duration = LONG;

thread_local! {
    static CHECK: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
    /// Time of the last check by a wait that does not keep the time itself.
    static ASKED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Runs `body`. Waits in it, on this thread, call `check` about ten times a second, and end with
/// [`Error::Interrupted`] when it returns `true`: retrieving, selecting, posting, flushing, waiting for
/// memory, connecting, and collective calls. (An interrupted collective call leaves its group unusable, like
/// any that failed. A post gives its message back, as at a deadline.)
///
/// For bindings of other languages, whose signal handlers run only when they are called.
pub fn interruptible<R>(check: fn() -> bool, body: impl FnOnce() -> R) -> R {
    let _before = Before(CHECK.replace(Some(check)));
    body()
}

/// Guard that restores the former check, also after a panic.
struct Before(Option<fn() -> bool>);

impl Drop for Before {
    fn drop(&mut self) {
        CHECK.set(self.0);
    }
}

/// Whether a check is set.
#[inline]
pub(crate) fn is_possible() -> bool {
    CHECK.get().is_some()
}

/// Calls the check, if one is set.
///
/// # Errors
/// [`Error::Interrupted`].
pub(crate) fn check() -> Result {
    match CHECK.get() {
        Some(check) if check() => Err(Error::Interrupted),
        _ => Ok(()),
    }
}

/// Whether a signal ends the wait: for a wait that polls often, and does not keep the time itself.
pub(crate) fn is_pending() -> bool {
    if ASKED.get().is_some_and(|asked| asked.elapsed() < PAUSE) {
        return false;
    }
    ASKED.set(Some(Instant::now()));
    check().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_within_the_body_only() {
        assert!(!is_possible() && check().is_ok());
        interruptible(
            || true,
            || {
                assert!(matches!(check(), Err(Error::Interrupted)));
                interruptible(|| false, || assert!(is_possible() && check().is_ok()));
                assert!(check().is_err(), "the outer one again");
            },
        );
        assert!(!is_possible());
    }

    #[test]
    fn a_wait_that_looks_often_asks_seldom() {
        thread_local!(static TIMES: Cell<u32> = const { Cell::new(0) });
        let counted = || {
            TIMES.set(TIMES.get() + 1);
            false
        };
        let begun = Instant::now();
        interruptible(counted, || (0..1000).for_each(|_| assert!(!is_pending())));
        let at_most = 1 + (begun.elapsed().as_millis() / PAUSE.as_millis()) as u32;
        assert!(TIMES.get() >= 1 && TIMES.get() <= at_most, "{} times", TIMES.get());
    }
}
