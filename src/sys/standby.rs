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
pub struct StandBy {
    sleepers: AtomicU32,
    stands_by: AtomicBool,
}

impl StandBy {
    /// Somebody goes to sleep beside it. ([`StandBy::leave`] follows.)
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
        self.stands_by.load(Ordering::Relaxed) && self.sleepers.load(Ordering::Relaxed) == 0
    }

    /// The helper goes to sleep. `true`: others watch, and it is rung when they do not any more; `false`: it is to watch.
    #[must_use]
    pub fn stand_by(&self) -> bool {
        self.stands_by.store(true, Ordering::Relaxed);
        // SYNC POINT watch, the helper's half.
        fence(Ordering::SeqCst);
        let others = self.sleepers.load(Ordering::Relaxed) > 0;
        self.stands_by.store(others, Ordering::Relaxed);
        others
    }

    /// The helper is awake.
    pub fn stop(&self) {
        self.stands_by.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_rings_a_helper_that_stands_by() {
        let standby = StandBy::default();
        assert!(!standby.stand_by(), "nobody else watches");
        standby.enter();
        assert!(!standby.leave(), "the helper watches itself");
        standby.enter();
        standby.enter();
        assert!(standby.stand_by());
        assert_eq!((standby.leave(), standby.leave()), (false, true));
        standby.enter();
        assert!(standby.stand_by());
        standby.stop();
        assert!(!standby.leave(), "it is awake");
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
    fn loom_standby_leaves_nobody_without_a_watch() {
        for sleepers in 1..=2 {
            loom::model(move || {
                let standby = Arc::new(StandBy::default());
                (0..sleepers).for_each(|_| standby.enter());
                let leaving: Vec<_> = (0..sleepers)
                    .map(|_| {
                        let standby = standby.clone();
                        thread::spawn(move || standby.leave())
                    })
                    .collect();
                let others = standby.stand_by();
                let rung = leaving.into_iter().fold(false, |rung, sleeper| sleeper.join().unwrap() | rung);
                assert!(!others || rung, "all have left, and the helper was not rung");
            });
        }
    }
}
