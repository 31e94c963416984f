//! What waits at a channel: flush, handles, and tasks.

use std::time::{Duration, Instant};

use udeck_boot::waits::Call;
use udeck_via::{Deadline, Error as ViaError};

use super::Channel;
use super::post::mailbox_is_full;
use super::requests::RequestId;
use crate::error::{Error, Result};
use crate::long_wait::{LongWait, for_owner};
use crate::wait_policy::WaitPolicy;

/// So often a wait looks whether the launcher has told of the owner's end.
const LOOK_UP: Duration = Duration::from_millis(500);

/// A mailbox does not tell of each message that it reads, which would cost every retrieve: a flush looks so often, at
/// first and in the long run.
const FLUSH_PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// What a wait for one message does.
const DELIVERING: &str = "delivering a message";

impl Channel {
    /// The end of a wait that begins now.
    pub(super) fn until(&self, policy: WaitPolicy) -> Option<Deadline> {
        policy.until(self.side.world.config().deadline)
    }

    /// Sleeps until the peer has done something, briefly if other channels have work that this thread should do, and no
    /// longer than its end may be news.
    ///
    /// # Errors
    /// The errors of [`LongWait::check_interrupt`].
    pub(super) fn wait(&mut self, deadline: Deadline, wait: &mut LongWait, call: Call) -> Result {
        self.side.counters.waited();
        let world = &self.side.world;
        let sleeps = world.oversubscribed() && !world.lacks_progress() && self.waits_for_turn();
        let deadline = self.until_turn(deadline);
        let until = wait.slice(deadline.min(Deadline::after(LOOK_UP)));
        let until = if sleeps {
            // Other postboxes have the progress thread, and other ranks the processor.
            self.cq.sleep_at_once();
            until
        } else {
            world.slice(until)
        };
        self.cq.wait(until, || world.progress_other_postboxes() || world.is_wait_over());
        wait.look(world, 0, || for_owner(call, &self.mailbox, self.owner));
        wait.check_interrupt(world)
    }

    /// Waits until everything posted here has been read by the mailbox's owner.
    pub fn flush(&mut self, deadline: Deadline) -> Result {
        let (start, mut wait) = (Instant::now(), LongWait::begin("a flush"));
        let [mut pause, longest] = FLUSH_PAUSES;
        loop {
            self.progress();
            self.undelivered()?;
            if !self.has_queued() {
                // A grant that was asked for ahead: untaken, it would end each wait at once. What an error means, the next look says.
                self.take_all_answers().ok();
                self.side.vi.request_send_notify();
                match self.side.vi.unread() {
                    Ok(0) => return Ok(()),
                    Ok(_) => {}
                    Err(error) => return Err(self.meaning("flushing", error, WaitPolicy::Until(deadline))),
                }
            }
            self.is_awaited()?;
            if deadline.passed() {
                self.looks_for_more();
                return Err(self.too_late("flushing", start, &mailbox_is_full()));
            }
            self.wait(deadline.min(Deadline::after(pause)), &mut wait, Call::Flush)?;
            pause = longest.min(pause * 2);
        }
    }

    // ---- handles ----

    /// Whether the poster's part of a message is over, well or not.
    pub fn is_request_done(&self, id: RequestId) -> bool {
        !self.queue.has(id)
    }

    /// What became of a message that is over. Tells a failure once.
    ///
    /// # Errors
    /// [`Error::Deadline`]: it failed, and why is not known yet.
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
    /// [`Error::Deadline`]: it is not.
    pub fn wait_for_request(&mut self, id: RequestId, deadline: Deadline) -> Result {
        let (start, mut wait) = (Instant::now(), LongWait::begin("a message to be sent"));
        loop {
            // Ask to be told of room, look once more, then wait.
            self.side.vi.request_send_notify();
            self.progress();
            if self.is_request_done(id) {
                return Ok(());
            }
            self.is_awaited()?;
            if deadline.passed() {
                return Err(self.too_late(DELIVERING, start, &self.obstacle()));
            }
            self.wait(deadline, &mut wait, Call::Post)?;
        }
    }

    /// What the end of the connection means to the holder of a handle.
    pub(super) fn loss(&self, error: &ViaError) -> Error {
        match error {
            ViaError::Closed => self.translate(ViaError::Closed, WaitPolicy::None),
            // What it was is found out when the holder asks.
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

    /// Nobody holds the handle any more: a failure is told like those of other messages.
    pub fn forget_request(&mut self, id: RequestId) {
        if let Some(waiting) = self.queue.find(id) {
            waiting.is_held = false;
        } else if let Some(error) = self.requests.take_failure(id) {
            self.note_undelivered(1, &error.to_string());
        }
    }

    // ---- tasks ----

    /// A task that waits has to look by itself: nobody tells it.
    pub(super) fn looks_for_more(&self) {
        #[cfg(feature = "async")]
        self.has_to_look.set(true);
    }
}

#[cfg(feature = "async")]
mod tasks {
    use std::time::Instant;

    use udeck_via::CqHandle;
    use udeck_via::transport::Armed;

    use super::Channel;
    use crate::wait_policy::MEMORY_PAUSE;

    /// More entries than the connection's two work queues put on their completion queue while nothing new comes.
    const LOOKS: usize = 8;

    impl Channel {
        /// Asks to be told of room. Call it before the last try, and [`Channel::arm`] after it.
        pub fn ask_for_room(&mut self) {
            // News that came before that try are none after it.
            for _ in 0..LOOKS {
                if self.cq.poll().is_none() {
                    break;
                }
            }
            self.side.vi.request_send_notify();
        }

        /// Gets ready to be woken by whatever the peer does from now on, and no later than the second says: where others move
        /// the queue along, memory has to come free, or messages have to be read, nobody may tell.
        pub fn arm(&mut self) -> (Armed, Option<Instant>) {
            let unheard = self.has_queued() || self.has_to_look.get();
            (self.cq.arm(), unheard.then(|| Instant::now() + MEMORY_PAUSE))
        }

        pub fn handle(&self) -> CqHandle {
            self.cq.handle()
        }
    }
}
