//! Sleep of threads beside the NIC's socket.
//!
//! A thread that parks in a completion queue, or that waits for the answer to a connection request, polls the socket
//! and its own eventfd. The helper polls the socket only while no other thread does. Otherwise it *follows*: it
//! sleeps beside its own eventfd, and the last sleeper that leaves wakes it. [`LeaderFollower`] decides which thread
//! polls the socket, and has the proof that one always does. Of several waiting requests only one polls it, so that
//! a datagram wakes one thread and not all.

use std::io;
use std::time::Duration;

use udeck_session::nap;
use udeck_session::poll::Bell;
use udeck_sys::atomic::{AtomicBool, Ordering};
use udeck_sys::job_time;
use udeck_sys::leader_follower::LeaderFollower;

use crate::core::Core;

/// Upper bound of one sleep beside the socket.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// Threads that sleep beside the socket.
pub struct SocketWait {
    /// Eventfd of the helper.
    bell: Bell,
    leader_follower: LeaderFollower,
    /// The helper sleeps beside the socket or its eventfd, and does not merely pause.
    helper_asleep: AtomicBool,
    /// A thread that waits for the answer to a connection request polls the socket.
    an_asker_polls: AtomicBool,
}

impl SocketWait {
    /// # Errors
    /// The kernel's error: no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(SocketWait {
            bell: Bell::new()?,
            leader_follower: LeaderFollower::default(),
            helper_asleep: AtomicBool::new(false),
            an_asker_polls: AtomicBool::new(false),
        })
    }

    /// Wakes the helper.
    pub fn wake_helper(&self) {
        self.bell.ring();
    }

    /// Notes that a timer was armed that is due before all others.
    pub fn on_earlier_deadline(&self) {
        // A helper that naps beside a polling thread, which fires timers too, is not woken. A helper that sleeps has
        // a later timeout.
        if self.helper_asleep.load(Ordering::Relaxed) {
            self.wake_helper();
        }
    }

    /// Sleeps until `bell` is rung, a datagram arrives or a timer is due; at most `limit`. May return early.
    pub fn wait(&self, core: &Core, bell: &Bell, limit: Duration) {
        let limit = core.timers.wait(job_time(), limit.min(MAX_SLEEP));
        self.leader_follower.enter();
        if bell.sleep(Some(&core.socket), limit) {
            core.socket.set_error_pending();
        }
        if self.leader_follower.leave() {
            self.wake_helper();
        }
    }

    /// Sleeps as [`SocketWait::wait`], for a thread that waits for the answer to a connection request. Of many such
    /// threads, one polls the socket: otherwise each datagram of the process would wake them all. The thread that
    /// reads the socket rings the bell of the thread whose answer it finds.
    pub fn wait_for_answer(&self, core: &Core, bell: &Bell, limit: Duration) {
        if self.an_asker_polls.swap(true, Ordering::Relaxed) {
            // If the polling thread leaves meanwhile, the helper polls.
            bell.sleep(None::<&Bell>, limit);
        } else {
            self.wait(core, bell, limit);
            self.an_asker_polls.store(false, Ordering::Relaxed);
        }
    }

    /// Sleeps as the helper: beside the socket, unless other threads sleep there.
    pub fn helper_wait(&self, core: &Core, limit: Duration) {
        self.helper_asleep.store(true, Ordering::Relaxed);
        let others = self.leader_follower.follow();
        let limit = core.timers.wait(job_time(), limit);
        if self.bell.sleep(Some(&core.socket).filter(|_| !others), limit) {
            core.socket.set_error_pending();
        }
        self.leader_follower.stop_following();
        self.helper_asleep.store(false, Ordering::Relaxed);
    }

    /// Naps as the helper while another thread polls. That thread may stop polling before a timer is due.
    pub fn helper_pause(&self, core: &Core, limit: Duration) {
        let limit = core.timers.wait(job_time(), limit).max(nap::SHORTEST);
        self.bell.sleep(None::<&Bell>, limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::open;

    /// Datagrams and timers wake only the thread that polls.
    #[test]
    fn of_many_that_ask_one_polls_the_socket() {
        let (core, _nic) = open();
        let (bell, is_told) = (Bell::new().unwrap(), AtomicBool::new(false));
        core.socket_wait.an_asker_polls.store(true, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let asker = scope.spawn(|| {
                core.socket_wait.wait_for_answer(&core, &bell, Duration::from_secs(60));
                is_told.load(Ordering::Relaxed)
            });
            let stranger = std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap();
            for _ in 0..10 {
                stranger.send_to(b"nothing", core.address).unwrap();
                std::thread::sleep(3 * MAX_SLEEP / 10);
            }
            is_told.store(true, Ordering::Relaxed);
            bell.ring();
            assert!(asker.join().unwrap(), "it woke before its bell was rung");
        });
    }
}
