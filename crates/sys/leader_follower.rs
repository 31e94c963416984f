//! Who watches something that many may watch and one must: those who sleep beside it, or, while there are none, a helper.
//!
//! A helper that finds others asleep there *stands by*: it need not watch, and is rung when the last of them leaves.
//!
//! # Sync points
//! * `watch`: the helper says that it stands by, fences SeqCst, and looks at the number of sleepers; who leaves takes
//!   itself off that number, fences SeqCst, and looks whether the helper stands by. Of two such pairs at least one side
//!   sees the other's: the helper sees that nobody is left, or it is rung.

use crate::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// See the module.
#[derive(Debug, Default)]
pub struct LeaderFollower {
    sleepers: AtomicU32,
    follows: AtomicBool,
}

impl LeaderFollower {
    /// Somebody goes to sleep beside it. ([`LeaderFollower::leave`] follows.)
    pub fn enter(&self) {
        // A helper that does not see it yet watches, too.
        self.sleepers.fetch_add(1, Ordering::Relaxed);
    }

    /// Somebody has slept there. `true`: nobody is left, and the helper is to be rung.
    #[must_use]
    pub fn leave(&self) -> bool {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        // SYNC POINT watch, the sleeper's half.
        fence(Ordering::SeqCst);
        self.follows.load(Ordering::Relaxed) && self.sleepers.load(Ordering::Relaxed) == 0
    }

    /// The helper goes to sleep. `true`: others watch, and it is rung when they do not any more; `false`: it is to watch.
    #[must_use]
    pub fn follow(&self) -> bool {
        self.follows.store(true, Ordering::Relaxed);
        // SYNC POINT watch, the helper's half.
        fence(Ordering::SeqCst);
        let others = self.sleepers.load(Ordering::Relaxed) > 0;
        self.follows.store(others, Ordering::Relaxed);
        others
    }

    /// The helper is awake.
    pub fn stop_following(&self) {
        self.follows.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_rings_a_helper_that_stands_by() {
        let watch = LeaderFollower::default();
        assert!(!watch.follow(), "nobody else watches");
        watch.enter();
        assert!(!watch.leave(), "the helper watches itself");
        watch.enter();
        watch.enter();
        assert!(watch.follow());
        assert_eq!((watch.leave(), watch.leave()), (false, true));
        watch.enter();
        assert!(watch.follow());
        watch.stop_following();
        assert!(!watch.leave(), "it is awake");
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A helper that leaves the watch to others is rung when the last of them has left. Fails if either fence of SYNC POINT
    /// `watch` is removed.
    #[test]
    fn loom_leader_follower_leaves_nobody_without_a_watch() {
        for sleepers in 1..=2 {
            loom::model(move || {
                let watch = Arc::new(LeaderFollower::default());
                (0..sleepers).for_each(|_| watch.enter());
                let leaving: Vec<_> = (0..sleepers)
                    .map(|_| {
                        let watch = watch.clone();
                        thread::spawn(move || watch.leave())
                    })
                    .collect();
                let others = watch.follow();
                let rung = leaving.into_iter().fold(false, |rung, sleeper| sleeper.join().unwrap() | rung);
                assert!(!others || rung, "all have left, and the helper was not rung");
            });
        }
    }
}
