//! Work that a thread leaves to the thread that holds the group's engine, without waiting: dropped requests,
//! and tasks to wake.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Waker;

use parking_lot::Mutex;

use super::kind::Signature;

/// Deferred work. A thread that defers something tries to take the engine afterwards, and a thread that
/// releases the engine checks for deferred work afterwards. Thus one of them does the work.
#[derive(Default)]
pub(crate) struct Deferred {
    /// Whether there is any work.
    any: AtomicBool,
    all: Mutex<Items>,
}

#[derive(Default)]
pub(super) struct Items {
    /// Requests that are to leave the group.
    pub dropped: Vec<Signature>,
    /// Tasks that wait for the engine, each with its request.
    pub tasks: Vec<(Signature, Waker)>,
}

impl Deferred {
    pub fn drop_request(&self, call: Signature) {
        let _woken = self.change(|all| {
            all.dropped.push(call);
            all.take_task(call)
        });
    }

    #[cfg(feature = "async")]
    pub fn wake_task(&self, call: Signature, waker: &Waker) {
        let waker = waker.clone();
        let _former = self.change(|all| {
            let former = all.take_task(call);
            all.tasks.push((call, waker));
            former
        });
    }

    #[inline]
    pub fn is_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub fn take(&self) -> Items {
        self.change(std::mem::take)
    }

    /// Takes the dropped requests: the only work for a thread that keeps the engine.
    pub fn take_dropped(&self) -> Vec<Signature> {
        self.change(|all| std::mem::take(&mut all.dropped))
    }

    /// Changes the items. `act` clones, wakes and drops no waker: a waker is the program's code, which may
    /// call back into this object.
    fn change<R>(&self, act: impl FnOnce(&mut Items) -> R) -> R {
        let mut all = self.all.lock();
        let result = act(&mut all);
        self.any.store(!all.dropped.is_empty() || !all.tasks.is_empty(), Ordering::Relaxed);
        drop(all);
        // SeqCst: orders the change before the following check of the engine's lock.
        fence(Ordering::SeqCst);
        result
    }
}

impl Items {
    /// Removes the task that waits with a request: there is one at most.
    fn take_task(&mut self, call: Signature) -> Option<(Signature, Waker)> {
        let at = self.tasks.iter().position(|(of, _)| *of == call)?;
        Some(self.tasks.swap_remove(at))
    }
}

#[cfg(all(test, feature = "async"))]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;
    use crate::group::kind::Kind;

    /// A task's waker that, when dropped, defers a request to another thread, as a task's own request would.
    struct Dropping(Arc<Deferred>);

    impl Wake for Dropping {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Dropping {
        fn drop(&mut self) {
            assert!(self.0.all.try_lock().is_some(), "dropped with the lock held");
            self.0.drop_request(Signature::plain(Kind::Barrier).numbered(1));
        }
    }

    #[test]
    fn a_dropped_waker_may_drop_requests() {
        let deferred = Arc::new(Deferred::default());
        let call = Signature::plain(Kind::Barrier);
        let wake = || deferred.wake_task(call, &Arc::new(Dropping(deferred.clone())).into());
        wake();
        wake();
        assert_eq!(deferred.take_dropped().len(), 1);
        deferred.drop_request(call);
        assert_eq!(deferred.take_dropped().len(), 2);
        assert!(!deferred.is_any());
    }
}
