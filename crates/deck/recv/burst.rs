//! Bursts: messages taken from one connection in a row, without polling the completion queue in between.
//!
//! A connection that the queue has named has another message more often than not, and polling the queue costs
//! as much as taking a message. A burst is as long as a completion queue's own burst, and the queue counts
//! the messages taken here, so the other connections wait no longer because of it. While there is a burst,
//! nothing is set aside and no connection waits: any message that might come before the burst's next one ends
//! the burst.

/// Maximum number of messages in a burst, besides the one that the completion queue has named.
const LENGTH: u32 = 15;

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
        let length = if may_be { LENGTH } else { 0 };
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
