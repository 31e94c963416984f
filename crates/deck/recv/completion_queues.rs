//! A mailbox's completion queues: one for each of the world's NICs, and the order in which they are polled.
//!
//! With one NIC there is only one queue. With several, the first queue is polled each time. A poll of another
//! queue may be a system call, so the others are polled only
//!
//! * while they are *busy*: from the moment that a queue has named something until it has nothing more. Busy
//!   queues take turns, and name as many work queues in a turn as they have connections, so no postbox is
//!   favoured because of its NIC;
//! * at every 16th poll (or message that was taken without one), and in a wait by the rules of [`Cno`];
//! * if there is nothing else and the call is not going to wait.

use udeck_via::{Cno, Cq, CqEntry, CqHandle, Deadline, Error as ViaError};

use crate::nics::Nics;

/// Maximum number of messages in a burst, besides the one that the completion queue has named.
const BURST_LENGTH: u32 = 15;
/// Polls between two polls of queues that are not busy.
const POLLS_PER_QUIET_POLL: u32 = 16;

pub(super) struct CompletionQueues {
    first: Cq,
    /// Queues of the world's other NICs, in their order.
    others: Vec<Other>,
    /// Number of connections on each queue, beginning with the first.
    connections: Vec<u32>,
    /// Index of the queue whose turn it is; 0 is `first`.
    turn: usize,
    /// Number of entries that this queue may still name in its turn.
    left: u32,
    /// Polls, and messages taken without one, since queues that are not busy were polled.
    polls: u32,
}

struct Other {
    cq: Cq,
    busy: bool,
}

impl CompletionQueues {
    pub fn new(nics: &Nics, oversubscribed: bool) -> Result<Self, ViaError> {
        let mut first = Cq::new(&nics.first.nic)?;
        first.set_oversubscribed(oversubscribed);
        let other = |world_nic: &crate::nics::WorldNic| {
            let mut cq = Cq::new(&world_nic.nic)?;
            cq.set_oversubscribed(oversubscribed);
            cq.set_costly_poll(true);
            Ok(Other { cq, busy: false })
        };
        let others = nics.others.iter().map(other).collect::<Result<Vec<_>, ViaError>>()?;
        let connections = vec![0; 1 + others.len()];
        Ok(CompletionQueues { first, others, connections, turn: 0, left: 1, polls: 0 })
    }

    /// Handle of the first queue. Waking it wakes a thread that sleeps on all of them.
    pub fn handle(&self) -> CqHandle {
        self.first.handle()
    }

    /// Handles of all queues, in the order of the NICs.
    pub fn handles(&self) -> impl Iterator<Item = CqHandle> {
        std::iter::once(&self.first).chain(self.others.iter().map(|other| &other.cq)).map(Cq::handle)
    }

    /// All queues, for a wait that includes others, too.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Cq> {
        std::iter::once(&mut self.first).chain(self.others.iter_mut().map(|other| &mut other.cq))
    }

    /// Counts a connection that has come in by that NIC.
    pub fn connected(&mut self, world_nic: usize) {
        self.connections[world_nic] += 1;
    }

    /// Counts off a connection that has ended.
    pub fn disconnected(&mut self, world_nic: usize) {
        self.connections[world_nic] -= 1;
    }

    /// Returns a work queue that may have news. `all`: the caller will not wait for news that this poll
    /// leaves out.
    #[inline]
    pub fn poll(&mut self, all: bool) -> Option<CqEntry> {
        if self.others.is_empty() { self.first.poll() } else { self.poll_several(all) }
    }

    #[inline(never)]
    fn poll_several(&mut self, all: bool) -> Option<CqEntry> {
        if let Some(entry) = self.poll_seldom() {
            return Some(entry);
        }
        // The queue whose turn it is may have used its turn up: then it comes round once more.
        let again = usize::from(self.left == 0);
        for _ in 0..self.connections.len() + again {
            if self.left > 0
                && let Some(entry) = self.poll_busy()
            {
                self.left -= 1;
                return Some(entry);
            }
            self.turn = (self.turn + 1) % self.connections.len();
            self.left = self.connections[self.turn].max(1);
        }
        if all { self.poll_quiet() } else { None }
    }

    /// Polls the queue whose turn it is, if it is busy; the first queue always is.
    fn poll_busy(&mut self) -> Option<CqEntry> {
        let Some(at) = self.turn.checked_sub(1) else { return self.first.poll() };
        let other = &mut self.others[at];
        let entry = if other.busy { other.cq.poll() } else { None };
        other.busy = entry.is_some();
        entry
    }

    /// Polls the queues that are not busy. A queue that names something becomes busy.
    fn poll_quiet(&mut self) -> Option<CqEntry> {
        self.others.iter_mut().filter(|other| !other.busy).find_map(|other| {
            let entry = other.cq.poll();
            other.busy = entry.is_some();
            entry
        })
    }

    /// Counts a poll, and polls the queues that are not busy when it is time to.
    pub fn poll_seldom(&mut self) -> Option<CqEntry> {
        if self.others.is_empty() {
            return None;
        }
        self.polls += 1;
        if self.polls < POLLS_PER_QUIET_POLL {
            return None;
        }
        self.polls = 0;
        self.poll_quiet()
    }

    /// The connection that had the last message, if nothing else has come since and spinning for it pays.
    pub fn sole_active(&mut self) -> Option<u64> {
        if !self.others.is_empty() || self.first.is_oversubscribed() {
            return None;
        }
        self.first.sole_active().map(|entry| entry.context)
    }

    /// Counts messages of one connection that were taken without polling a queue.
    #[inline]
    pub fn passed_over(&mut self, messages: u32) {
        self.polls += messages;
    }

    /// Waits like [`Cq::wait`], on all queues.
    pub fn wait(
        &mut self,
        deadline: Deadline,
        until: impl FnMut() -> bool,
    ) -> Result<Option<CqEntry>, ViaError> {
        let found = match self.others.as_mut_slice() {
            [] => return Ok(self.first.wait(deadline, until)),
            // Avoids an allocation for the usual two queues.
            [other] => Cno::default().wait(&mut [&mut self.first, &mut other.cq], deadline, until)?,
            _ => {
                let mut all: Vec<&mut Cq> = self.iter_mut().collect();
                Cno::default().wait(&mut all, deadline, until)?
            }
        };
        let Some((at, entry)) = found else { return Ok(None) };
        if let Some(other) = at.checked_sub(1) {
            self.others[other].busy = true;
        }
        Ok(Some(entry))
    }

    /// Makes the next wait sleep at once: its caller has spun already.
    pub fn sleep_at_once(&mut self) {
        self.first.sleep_at_once();
    }

    /// Prepares all queues so that another thread can sleep on them.
    #[cfg(feature = "async")]
    pub fn arm(&mut self) -> udeck_via::transport::Armed {
        use udeck_via::transport::Armed;

        let mut all = self.first.arm();
        for other in &mut self.others {
            match (all, other.cq.arm()) {
                (Armed::Yes, armed) => all = armed,
                (_, Armed::News) => all = Armed::News,
                _ => {}
            }
        }
        all
    }
}

/// Messages taken from one connection in a row, without polling the completion queue in between.
///
/// A connection that the queue has named has another message more often than not, and polling the queue costs
/// as much as taking a message. A burst is as long as a completion queue's own burst, and the queue counts
/// the messages taken here, so the other connections wait no longer because of it. While there is a burst,
/// nothing is set aside and no connection waits: any message that might come before the burst's next one ends
/// the burst.
#[derive(Debug, Default)]
pub(super) struct Burst {
    /// Messages that may still be taken.
    left: u32,
    /// Upper bound of the burst, fixed when it began.
    length: u32,
    /// Part of `left` that is held back while a run of taken messages is given out ([`super::set_aside`]): no
    /// later message may overtake the run.
    suspended: u32,
    /// Context of the connection that the burst belongs to.
    pub connection: usize,
}

impl Burst {
    /// Begins a burst of a connection that the completion queue has named. `may_be` false: a burst of no
    /// messages.
    #[inline]
    pub fn of(connection: usize, may_be: bool) -> Self {
        let length = if may_be { BURST_LENGTH } else { 0 };
        Burst { left: length, length, suspended: 0, connection }
    }

    #[inline]
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Counts another message as taken.
    #[inline]
    pub fn take(&mut self) {
        self.left -= 1;
    }

    /// Number of messages that may still be taken.
    #[inline]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Suspends the burst after a run of `taken` messages, until they are given out ([`Burst::resume`]). An
    /// empty run does not suspend it: the next message is not short, or the transport takes messages one by
    /// one.
    #[inline]
    pub fn suspend(&mut self, taken: u32) {
        if taken == 0 {
            return;
        }
        (self.left, self.suspended) = (0, self.left.saturating_sub(taken));
    }

    /// Resumes the burst after the run of [`Burst::suspend`] was given out.
    #[inline]
    pub fn resume(&mut self) {
        (self.left, self.suspended) = (self.left + self.suspended, 0);
    }

    /// Ends the burst. Returns how many messages it had, besides the one that the queue named.
    #[inline]
    pub fn end(&mut self) -> u32 {
        let taken = self.length - self.left - self.suspended;
        (self.left, self.length, self.suspended) = (0, 0, 0);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that an empty run (another transport, a longer message) does not suspend the burst, which goes
    /// on one by one.
    #[test]
    fn a_run_that_found_nothing_leaves_the_burst() {
        let mut burst = Burst::of(0, true);
        burst.resume();
        burst.suspend(0);
        assert!(!burst.is_over(), "the next look asks the completion queue for each message");
    }
}
