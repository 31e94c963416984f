//! Who sleeps beside the socket.
//!
//! A thread that parks in a completion queue, or waits for an answer to its call, watches the socket itself, beside its own
//! bell. The helper watches it only while none of these does and nobody polls; otherwise it *stands by*: it sleeps beside
//! its bell alone, and is rung when the last sleeper leaves.
//!
//! Who watches is [`LeaderFollower`]'s, where it is proven that the socket is never without.

use std::io;
use std::time::Duration;

use udeck_session::poll::Bell;
use udeck_sys::atomic::{AtomicBool, Ordering};
use udeck_sys::job_time;
use udeck_sys::leader_follower::LeaderFollower;

use crate::core::Core;

/// Longest sleep of anybody beside the socket.
const LONGEST: Duration = Duration::from_millis(100);

/// See the module.
pub struct Rest {
    /// The helper's.
    bell: Bell,
    watch: LeaderFollower,
    /// It sleeps at all, and not for a nap only.
    asleep: AtomicBool,
}

impl Rest {
    /// # Errors
    /// The kernel's: no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Rest { bell: Bell::new()?, watch: LeaderFollower::default(), asleep: AtomicBool::new(false) })
    }

    /// Wakes the helper.
    pub fn rouse(&self) {
        self.bell.ring();
    }

    /// Somebody wants to be called earlier than all others.
    pub fn earlier(&self) {
        // Who naps looks soon enough; who sleeps was told a later time.
        if self.asleep.load(Ordering::Relaxed) {
            self.rouse();
        }
    }

    /// Sleeps until `bell` is rung, something came, or somebody is to be called; at most `limit`. May return early.
    pub fn sleep(&self, core: &Core, bell: &Bell, limit: Duration) {
        let limit = core.timers.wait(job_time(), limit.min(LONGEST));
        self.watch.enter();
        if bell.sleep(Some(&core.socket), limit) {
            core.socket.note_trouble();
        }
        if self.watch.leave() {
            self.rouse();
        }
    }

    /// The helper sleeps: beside the socket, unless others do.
    pub fn watch(&self, core: &Core, limit: Duration) {
        self.asleep.store(true, Ordering::Relaxed);
        let others = self.watch.follow();
        let limit = core.timers.wait(job_time(), limit);
        if self.bell.sleep(Some(&core.socket).filter(|_| !others), limit) {
            core.socket.note_trouble();
        }
        self.watch.stop_following();
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// The helper lets those who look do so.
    pub fn nap(&self, limit: Duration) {
        self.bell.sleep(None::<&Bell>, limit);
    }
}
