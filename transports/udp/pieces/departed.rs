//! Messages that have left, at their sender: of which nothing more is to be heard.

use std::collections::VecDeque;

/// By number, from the first of which something is to be heard.
#[derive(Debug, Default)]
pub struct Departed {
    first: u64,
    ways: VecDeque<Way>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// Pieces of which it is not known whether they arrived.
    pending: u32,
    /// All have left.
    whole: bool,
    /// One was lost, or is thought to be.
    lost: bool,
}

impl Departed {
    /// A piece of `message` has left. `last`: all of the message has.
    pub fn left(&mut self, message: u64, last: bool) {
        let Some(at) = message.checked_sub(self.first) else { return };
        while self.ways.len() as u64 <= at {
            self.ways.push_back(Way::default());
        }
        let way = &mut self.ways[at as usize];
        way.pending += 1;
        way.whole |= last;
    }

    /// A piece of `message` has arrived, or was given up.
    pub fn settled(&mut self, message: u64, lost: bool) {
        let way = message.checked_sub(self.first).and_then(|at| self.ways.get_mut(at as usize));
        // One that was thought to be lost may turn out to have arrived.
        if let Some(way) = way.filter(|way| way.pending > 0) {
            way.pending -= 1;
            way.lost |= lost;
        }
    }

    /// If messages were lost and nothing more is to be heard of any up to there: the number behind the last of them.
    pub fn given_up(&mut self) -> Option<u64> {
        let mut upto = None;
        while let Some(Way { pending: 0, whole: true, lost }) = self.ways.front() {
            let lost = *lost;
            self.ways.pop_front();
            self.first += 1;
            upto = if lost { Some(self.first) } else { upto };
        }
        upto
    }

    /// Messages of which something is to be heard, or which lie behind one.
    pub fn len(&self) -> usize {
        self.ways.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ways.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_given_up_when_nothing_is_to_be_heard_of_it_and_those_before() {
        let mut departed = Departed::default();
        for (message, pieces) in [(0, 1), (1, 3), (2, 1), (3, 2)] {
            (1..=pieces).for_each(|piece| departed.left(message, piece == pieces));
        }
        departed.left(4, false);
        departed.settled(2, true);
        departed.settled(1, true);
        departed.settled(1, false);
        assert_eq!(departed.given_up(), None, "of message 0 something is to be heard");
        departed.settled(0, false);
        assert_eq!(departed.given_up(), None, "and of 1");
        departed.settled(1, false);
        assert_eq!(departed.given_up(), Some(3));
        assert_eq!(departed.given_up(), None, "once");
        departed.settled(2, false);
        departed.settled(3, false);
        departed.settled(3, false);
        assert_eq!((departed.given_up(), departed.len()), (None, 1), "3 has arrived");
        departed.settled(4, true);
        assert_eq!(departed.given_up(), None, "the rest of it is to leave");
        departed.left(4, true);
        departed.settled(4, false);
        assert_eq!((departed.given_up(), departed.is_empty()), (Some(5), true));
    }
}
