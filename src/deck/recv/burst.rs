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
    /// Whose they are.
    pub connection: usize,
}

impl Burst {
    /// Of a connection that the completion queue has named; `false`: there may be none.
    #[inline]
    pub fn of(connection: usize, may_be: bool) -> Self {
        let length = if may_be { LENGTH } else { 0 };
        Burst { left: length, length, connection }
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

    /// How many messages it had, besides the one that was named.
    #[inline]
    pub fn end(&mut self) -> u32 {
        let taken = self.length - self.left;
        (self.left, self.length) = (0, 0);
        taken
    }
}
