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
