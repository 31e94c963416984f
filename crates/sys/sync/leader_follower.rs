//! Leader and followers: of several threads that may watch something, at least one must. Those that sleep beside it watch;
//! while there are none, a helper does.
//!
//! A helper that finds others asleep there *stands by*: it need not watch, and is rung when the last of them leaves.
//!
//! # Sync points
//! * `watch`: the helper notes that it stands by, fences SeqCst, and reads the number of sleepers; a leaving sleeper takes
//!   itself off that number, fences SeqCst, and reads whether the helper stands by. Of two such pairs at least one side sees
//!   the other's: the helper sees that no sleeper is left, or it is rung.

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// Elects the one thread that watches.
#[derive(Debug, Default)]
pub struct LeaderFollower {
    sleepers: AtomicU32,
    follows: AtomicBool,
}

impl LeaderFollower {
    /// Counts a thread that goes to sleep beside the watched thing. ([`LeaderFollower::leave`] follows.)
    pub fn enter(&self) {
        // A helper that does not see this yet watches, too.
        self.sleepers.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts off a thread that has slept there. `true`: no sleeper is left, and the helper is to be rung.
    #[must_use]
    pub fn leave(&self) -> bool {
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        // SYNC POINT watch, the sleeper's half.
        fence(Ordering::SeqCst);
        self.follows.load(Ordering::Relaxed) && self.sleepers.load(Ordering::Relaxed) == 0
    }

    /// Called when the helper goes to sleep. `true`: others watch, and the helper is rung when they do not any more; `false`:
    /// the helper has to watch.
    #[must_use]
    pub fn follow(&self) -> bool {
        self.follows.store(true, Ordering::Relaxed);
        // SYNC POINT watch, the helper's half.
        fence(Ordering::SeqCst);
        let others = self.sleepers.load(Ordering::Relaxed) > 0;
        self.follows.store(others, Ordering::Relaxed);
        others
    }

    /// Notes that the helper is awake.
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
