//! Withdrawal of connection requests that wait for an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use udeck_sys::Deadline;

/// Poll interval of a waiting thread for a withdrawal.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Ends a [`crate::Vi::connect_unless`] in which another thread waits, within a tenth of a second. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Withdrawal(Arc<State>);

#[derive(Debug, Default)]
struct State {
    withdrawn: AtomicBool,
    ask: Option<fn() -> bool>,
}

impl Withdrawal {
    /// A withdrawal that the waiting thread itself decides: it calls `ask` before each sleep, and again after a tenth of a
    /// second or less. `true` withdraws the request.
    pub fn asking(ask: fn() -> bool) -> Withdrawal {
        Withdrawal(Arc::new(State { ask: Some(ask), ..State::default() }))
    }

    /// Withdraws the request.
    pub fn withdraw(&self) {
        self.0.withdrawn.store(true, Ordering::Release);
    }

    /// Whether [`Withdrawal::withdraw`] was called, or `ask` returned `true`.
    pub fn is_withdrawn(&self) -> bool {
        self.0.withdrawn.load(Ordering::Acquire)
    }

    /// Whether the request is withdrawn. For the waiting thread: this calls `ask`.
    pub fn ask(&self) -> bool {
        if !self.is_withdrawn() && self.0.ask.is_some_and(|ask| ask()) {
            self.withdraw();
        }
        self.is_withdrawn()
    }
}

/// End of a transport's wait for the answer to a connection request: the deadline, or the request's withdrawal
/// ([`crate::transport::Queues::until`]).
#[derive(Clone, Debug)]
pub struct Until {
    deadline: Deadline,
    withdrawal: Option<Withdrawal>,
}

impl Until {
    pub(crate) fn new(deadline: Deadline, withdrawal: Option<Withdrawal>) -> Until {
        Until { deadline, withdrawal }
    }

    /// Whether the wait is over.
    pub fn passed(&self) -> bool {
        self.deadline.passed() || self.withdrawal.as_ref().is_some_and(Withdrawal::ask)
    }

    /// Longest sleep before the next poll: shorter than until the deadline, if the request may be withdrawn.
    pub fn remaining(&self) -> Duration {
        let left = self.deadline.remaining();
        if self.withdrawal.is_some() { left.min(POLL_INTERVAL) } else { left }
    }

    /// End of that sleep, as a point on the monotonic clock.
    pub fn instant(&self) -> Instant {
        match &self.withdrawal {
            Some(_) => Deadline::after(self.remaining()).instant(),
            None => self.deadline.instant(),
        }
    }
}

impl From<Deadline> for Until {
    /// The end of a request that is not withdrawn before its deadline.
    fn from(deadline: Deadline) -> Until {
        Until::new(deadline, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_asked_until_it_withdraws() {
        use std::cell::Cell;
        thread_local!(static ASKED: Cell<u32> = const { Cell::new(0) });
        let asked = || ASKED.replace(ASKED.get() + 1) == 1;
        let withdrawal = Withdrawal::asking(asked);
        let until = Until::new(Deadline::after(Duration::MAX), Some(withdrawal.clone()));
        assert!(!until.passed() && until.remaining() <= POLL_INTERVAL && !withdrawal.is_withdrawn());
        assert!(until.passed() && withdrawal.is_withdrawn());
        assert!(until.passed() && ASKED.get() == 2, "it was withdrawn, and nobody is asked again");
    }

    #[test]
    fn who_waits_looks_again_and_sees_that_it_is_withdrawn() {
        let withdrawal = Withdrawal::default();
        let until = Until::new(Deadline::after(Duration::MAX), Some(withdrawal.clone()));
        assert!(!until.passed() && until.remaining() <= POLL_INTERVAL);
        assert!(until.instant() <= Instant::now() + POLL_INTERVAL);
        withdrawal.withdraw();
        assert!(until.passed());
        let until = Until::from(Deadline::after(Duration::from_secs(3600)));
        assert!(
            !until.passed()
                && until.remaining() > POLL_INTERVAL
                && until.instant() > Instant::now() + POLL_INTERVAL
        );
        assert!(Until::from(Deadline::now()).passed());
    }
}
