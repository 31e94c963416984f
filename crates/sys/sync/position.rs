//! Message counters: 64 bits in memory, 32 on the wire.
//!
//! A connection counts its messages for as long as it lives. 32 bits wrap after minutes, and a comparison of wrapped counts is
//! wrong as soon as they are 2³¹ apart: a receiver may keep one message for longer than that. 64 bits never wrap. The wire and
//! shared memory carry the low half, which is widened again beside a count that the reader knows.

/// Number of messages before this one on its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u64);

impl Position {
    /// Position of the first message.
    pub const START: Position = Position(0);

    /// The position `messages` later.
    ///
    /// # Panics
    /// Never in practice: a connection that carries a thousand million messages a second reaches 2⁶⁴ after 584 years.
    #[inline]
    #[must_use]
    pub const fn plus(self, messages: u64) -> Self {
        Position(self.0 + messages)
    }

    /// Number of messages between an earlier position and this one. `None`: it is not earlier.
    #[inline]
    pub fn since(self, earlier: Position) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }

    /// The low half, as on the wire.
    #[inline]
    pub const fn narrow(self) -> u32 {
        self.0 as u32
    }

    /// The last position up to this one, itself included, whose low half is `narrow`. `None`: there has been none.
    #[inline]
    pub fn widen(self, narrow: u32) -> Option<Position> {
        self.0.checked_sub(u64::from(self.narrow().wrapping_sub(narrow))).map(Position)
    }

    /// All positions up to this one whose low half is `narrow`, the last first: one in 2³² messages.
    pub fn all_of(self, narrow: u32) -> impl Iterator<Item = Position> {
        std::iter::successors(self.widen(narrow), |at| at.0.checked_sub(1 << 32).map(Position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAP: u64 = 1 << 32;

    fn at(messages: u64) -> Position {
        Position::START.plus(messages)
    }

    #[test]
    fn the_low_half_is_widened_to_the_last_position_that_has_it() {
        let now = at(3 * LAP + 5);
        assert_eq!(now.widen(5), Some(now));
        assert_eq!(now.widen(4), Some(at(3 * LAP + 4)));
        assert_eq!(now.widen(6), Some(at(2 * LAP + 6)), "what is later in this lap has not been yet");
        assert_eq!(at(5).widen(6), None, "nor in any");
        assert_eq!(at(5).widen(0), Some(Position::START));
    }

    #[test]
    fn all_positions_of_a_low_half_are_found() {
        let all: Vec<_> = at(2 * LAP + 5).all_of(5).collect();
        assert_eq!(all, [at(2 * LAP + 5), at(LAP + 5), at(5)]);
        assert_eq!(at(4).all_of(5).count(), 0);
    }

    #[test]
    fn order_holds_beyond_a_lap() {
        assert!(at(LAP + 1) > at(2), "as wrapped counts it would be smaller");
        assert_eq!(at(LAP + 1).since(at(2)), Some(LAP - 1));
        assert_eq!(at(2).since(at(LAP + 1)), None);
    }
}
