//! Bursts: messages of one connection, taken one after another without asking the completion queue in between.
//!
//! A connection that the queue has named has another message more often than not, and asking costs as much as taking. A burst
//! is as long as a completion queue's own burst, and that counts what is taken here: so the other connections wait no longer for
//! it. While there is a burst, nothing is set aside and no connection waits: whatever might come before its next message ends it.

/// Messages of a burst, besides the one that the completion queue has named.
const LENGTH: u32 = 15;

#[derive(Debug, Default)]
pub(super) struct Burst {
    /// Messages that may still be taken.
    left: u32,
    /// That might be taken in all.
    length: u32,
    /// Of `left`, while messages that were taken as one run are given out ([`super::set_aside`]): then none may overtake them.
    suspended: u32,
    /// Whose they are.
    pub connection: usize,
}

impl Burst {
    /// Of a connection that the completion queue has named; `false`: there may be none.
    #[inline]
    pub fn of(connection: usize, may_be: bool) -> Self {
        let length = if may_be { LENGTH } else { 0 };
        Burst { left: length, length, suspended: 0, connection }
    }

    #[inline]
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Another message is taken.
    #[inline]
    pub fn take(&mut self) {
        self.left -= 1;
    }

    /// How many messages may be taken.
    #[inline]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// So many messages are taken, and no other until they are given out ([`Burst::resume`]). None: the burst goes on, with what is no
    /// short message, or over a transport that takes them one by one.
    #[inline]
    pub fn suspend(&mut self, taken: u32) {
        if taken == 0 {
            return;
        }
        (self.left, self.suspended) = (0, self.left.saturating_sub(taken));
    }

    /// What [`Burst::suspend`] was for is given out.
    #[inline]
    pub fn resume(&mut self) {
        (self.left, self.suspended) = (self.left + self.suspended, 0);
    }

    /// How many messages it had, besides the one that was named.
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

    /// A run of no message (another transport, a longer message) does not suspend the burst, which goes on one by one.
    #[test]
    fn a_run_that_found_nothing_leaves_the_burst() {
        let mut burst = Burst::of(0, true);
        burst.resume();
        burst.suspend(0);
        assert!(!burst.is_over(), "the next look asks the completion queue for each message");
    }
}
