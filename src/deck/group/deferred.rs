//! What threads leave to the one that has the group's end, for which they do not wait: dropped requests, and tasks to wake.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Waker;

use parking_lot::Mutex;

use super::kind::Signature;

/// A thread that defers something tries to take the end afterwards, and a thread that gives the end back looks here afterwards. So one of
/// them sees to it.
#[derive(Default)]
pub(crate) struct Deferred {
    /// Whether there is anything.
    any: AtomicBool,
    all: Mutex<Items>,
}

#[derive(Default)]
pub(super) struct Items {
    /// Requests that are to leave the group.
    pub dropped: Vec<Signature>,
    /// Tasks that wait for the end: each with its request.
    pub tasks: Vec<(Signature, Waker)>,
}

impl Deferred {
    pub fn drop_request(&self, call: Signature) {
        self.change(|all| {
            all.tasks.retain(|(of, _)| *of != call);
            all.dropped.push(call);
        });
    }

    #[cfg(feature = "async")]
    pub fn wake_task(&self, call: Signature, waker: &Waker) {
        self.change(|all| {
            all.tasks.retain(|(of, _)| *of != call);
            all.tasks.push((call, waker.clone()));
        });
    }

    #[inline]
    pub fn is_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub fn take(&self) -> Items {
        self.change(std::mem::take)
    }

    /// What concerns a thread that keeps the end.
    pub fn take_dropped(&self) -> Vec<Signature> {
        self.change(|all| std::mem::take(&mut all.dropped))
    }

    fn change<R>(&self, act: impl FnOnce(&mut Items) -> R) -> R {
        let mut all = self.all.lock();
        let result = act(&mut all);
        self.any.store(!all.dropped.is_empty() || !all.tasks.is_empty(), Ordering::Relaxed);
        drop(all);
        // Ordered before the look at the end's lock that follows.
        fence(Ordering::SeqCst);
        result
    }
}
