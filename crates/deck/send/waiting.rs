//! Waits at a channel: flush, request handles, and tasks.

use std::time::{Duration, Instant};

use udeck_boot::waits::Call;
use udeck_via::{Deadline, Error as ViaError};

use super::Channel;
use super::depth::READ_PAUSES;
use super::post::mailbox_is_full;
use super::requests::RequestId;
use crate::error::{Error, Result};
use crate::long_wait::{LongWait, for_owner};
use crate::wait_policy::WaitPolicy;

/// Interval at which a wait checks whether the launcher has reported the owner's end.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Name of the operation in errors of a wait for one message.
const DELIVERING: &str = "delivering a message";

impl Channel {
    /// Deadline of a wait that begins now.
    pub(super) fn until(&self, policy: WaitPolicy) -> Option<Deadline> {
        policy.until(self.side.world.config().deadline)
    }

    /// Sleeps until the peer has done something. Sleeps briefly if other channels have work that this thread
    /// should do, and never longer than the interval after which the owner's end is checked.
    ///
    /// # Errors
    /// The errors of [`LongWait::check_interrupt`].
    pub(super) fn wait(&mut self, deadline: Deadline, wait: &mut LongWait, call: Call) -> Result {
        self.side.counters.waited();
        let world = &self.side.world;
        let sleeps = world.oversubscribed() && !world.lacks_progress() && self.waits_for_turn();
        let deadline = self.until_turn(deadline);
        let until = wait.slice(deadline.min(Deadline::after(EXIT_CHECK_INTERVAL)));
        let until = if sleeps {
            // The progress thread serves other postboxes, and other ranks need the processor.
            self.cq.sleep_at_once();
            until
        } else {
            world.slice(until)
        };
        self.cq.wait(until, || world.progress_other_postboxes() || world.is_wait_over());
        wait.publish_if_long(world, 0, || for_owner(call, &self.mailbox, self.owner));
        wait.check_interrupt(world)
    }

    /// Waits until everything posted here has been read by the mailbox's owner.
    pub fn flush(&mut self, deadline: Deadline) -> Result {
        let (start, mut wait) = (Instant::now(), LongWait::begin("a flush"));
        let [mut pause, longest] = READ_PAUSES;
        loop {
            self.progress();
            self.undelivered()?;
            if !self.has_queued() {
                // Takes a grant that was asked for ahead: untaken, it would end each wait at once. The next
                // poll reports an error.
                self.take_all_answers().ok();
                self.side.vi.request_send_notify();
                match self.side.vi.unread() {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) => {
                        return Err(self.translate_for("flushing", error, WaitPolicy::Until(deadline)));
                    }
                }
            }
            self.check_owner_alive()?;
            if deadline.passed() {
                self.require_polling();
                return Err(self.too_late("flushing", start, &mailbox_is_full()));
            }
            self.wait(deadline.min(Deadline::after(pause)), &mut wait, Call::Flush)?;
            pause = longest.min(pause * 2);
        }
    }

    // ---- handles ----

    /// Whether the poster's part of a message is over, successfully or not.
    pub fn is_request_done(&self, id: RequestId) -> bool {
        !self.queue.has(id)
    }

    /// Result of a message that is over. A failure is reported once.
    ///
    /// # Errors
    /// [`Error::Deadline`]: the message failed, and the reason is not known yet.
    pub fn request_result(&mut self, id: RequestId, deadline: Deadline) -> Result {
        let Some(error) = self.requests.take_failure(id) else { return Ok(()) };
        let Error::PeerLost { how, .. } = &error else { return Err(error) };
        let settled = self.broken(DELIVERING, how.clone(), WaitPolicy::Until(deadline));
        if matches!(settled, Error::Deadline { .. }) {
            self.requests.fail(id, error);
        }
        Err(settled)
    }

    /// Waits until the poster's part of a message is over.
    ///
    /// # Errors
    /// [`Error::Deadline`]: the poster's part is not over.
    pub fn wait_for_request(&mut self, id: RequestId, deadline: Deadline) -> Result {
        let (start, mut wait) = (Instant::now(), LongWait::begin("a message to be sent"));
        loop {
            // Request a notification of room, poll once more, then wait.
            self.side.vi.request_send_notify();
            self.progress();
            if self.is_request_done(id) {
                return Ok(());
            }
            self.check_owner_alive()?;
            if deadline.passed() {
                return Err(self.too_late(DELIVERING, start, &self.obstacle()));
            }
            self.wait(deadline, &mut wait, Call::Post)?;
        }
    }

    /// Translates the end of the connection for the holder of a request.
    pub(super) fn loss(&self, error: &ViaError) -> Error {
        match error {
            ViaError::Closed => self.translate(ViaError::Closed, WaitPolicy::None),
            // How the owner ended is found out when the holder asks.
            ViaError::Lost(how) => self.loss_so_far(how),
            ViaError::InvalidState { what, state } => match self.broken_connection() {
                Some(how) => self.loss_so_far(&how),
                None => self.translate(ViaError::InvalidState { what, state: *state }, WaitPolicy::None),
            },
            other => Error::Undelivered {
                count: 1,
                name: self.mailbox.clone(),
                rank: self.owner as usize,
                why: other.to_string(),
            },
        }
    }

    /// Drops a request whose handle was dropped: a failure is then reported like those of other messages.
    pub fn forget_request(&mut self, id: RequestId) {
        if let Some(waiting) = self.queue.find(id) {
            waiting.is_held = false;
        } else if let Some(error) = self.requests.take_failure(id) {
            self.note_undelivered(1, &error.to_string());
        }
    }

    // ---- tasks ----

    /// Marks that a waiting task has to poll by itself: it will get no notification.
    pub(super) fn require_polling(&self) {
        #[cfg(feature = "async")]
        self.needs_polling.set(true);
    }
}

#[cfg(feature = "async")]
mod tasks {
    use std::time::Instant;

    use udeck_via::CqHandle;
    use udeck_via::transport::Armed;

    use super::Channel;
    use crate::wait_policy::MEMORY_PAUSE;

    /// Polls that exceed the number of entries that the connection's two work queues put on their completion
    /// queue while nothing new comes.
    const POLLS: usize = 8;

    impl Channel {
        /// Requests a notification of room. Called before the last try; [`Channel::arm`] is called after it.
        pub fn ask_for_room(&mut self) {
            // Drains notifications from before the last try, which would not be news after it.
            for _ in 0..POLLS {
                if self.cq.poll().is_none() {
                    break;
                }
            }
            self.side.vi.request_send_notify();
        }

        /// Arms the completion queue, to be woken by whatever the peer does from now on. Also returns a time
        /// at which to poll anyway: there may be no notification if others move the queue along, memory has
        /// to become free, or messages have to be read.
        pub fn arm(&mut self) -> (Armed, Option<Instant>) {
            let unheard = self.has_queued() || self.needs_polling.get();
            (self.cq.arm(), unheard.then(|| Instant::now() + MEMORY_PAUSE))
        }

        pub fn handle(&self) -> CqHandle {
            self.cq.handle()
        }
    }
}
