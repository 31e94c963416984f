//! Locks of rows, granted in the order of the requests. A request gets all of its rows at once or waits, so there is no deadlock
//! within a server. Between servers the order of the halves prevents one (`server`).

use crate::row::Key;
use std::collections::{HashMap, HashSet, VecDeque};

/// Holder of locks: a transaction of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// The transaction is coordinated here.
    Own(u32),
    /// The other server coordinates the transaction.
    Peer(u32),
}

#[derive(Clone, Debug, Default)]
pub struct Locks {
    held: HashMap<Holder, Vec<Key>>,
    locked: HashSet<Key>,
    waiting: VecDeque<(Holder, Vec<Key>)>,
}

impl Locks {
    /// Requests locks. Returns whether they were granted; otherwise a later [`Locks::release`] returns the
    /// holder.
    #[must_use]
    pub fn acquire(&mut self, holder: Holder, keys: Vec<Key>) -> bool {
        let mut wanted = self.waiting.iter().flat_map(|(_, keys)| keys);
        let blocked =
            keys.iter().any(|key| self.locked.contains(key)) || wanted.any(|key| keys.contains(key));
        if blocked {
            self.waiting.push_back((holder, keys));
            return false;
        }
        self.grant(holder, keys);
        true
    }

    fn grant(&mut self, holder: Holder, keys: Vec<Key>) {
        self.locked.extend(&keys);
        self.held.insert(holder, keys);
    }

    /// Releases the holder's locks, and withdraws its requests. Returns the holders that were granted locks by
    /// this, in order.
    #[must_use]
    pub fn release(&mut self, holder: Holder) -> Vec<Holder> {
        for key in self.held.remove(&holder).unwrap_or_default() {
            self.locked.remove(&key);
        }
        self.waiting.retain(|(waiting, _)| *waiting != holder);
        let mut granted = Vec::new();
        // No request overtakes another that waits for the same row.
        let mut wanted = HashSet::new();
        for (holder, keys) in std::mem::take(&mut self.waiting) {
            if keys.iter().any(|key| self.locked.contains(key) || wanted.contains(key)) {
                wanted.extend(keys.iter().copied());
                self.waiting.push_back((holder, keys));
            } else {
                self.grant(holder, keys);
                granted.push(holder);
            }
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::{Holder::Own, *};
    use crate::row::Table;

    fn key(index: u32) -> Key {
        Key { table: Table::Tuples, half: 0, index }
    }

    #[test]
    fn waiters_are_granted_in_order_and_nobody_overtakes() {
        let mut locks = Locks::default();
        assert!(locks.acquire(Own(1), vec![key(1)]));
        assert!(!locks.acquire(Own(2), vec![key(1), key(2)]));
        assert!(!locks.acquire(Own(3), vec![key(2)]), "2 was earlier, although the row is free");
        assert!(locks.acquire(Own(4), vec![key(3)]));
        assert_eq!(locks.release(Own(1)), [Own(2)]);
        assert_eq!(locks.release(Own(2)), [Own(3)]);
    }

    #[test]
    fn one_who_gives_up_waiting_makes_way() {
        let mut locks = Locks::default();
        assert!(locks.acquire(Own(1), vec![key(1)]));
        assert!(!locks.acquire(Own(2), vec![key(1), key(2)]));
        assert!(!locks.acquire(Own(3), vec![key(2)]));
        assert_eq!(locks.release(Own(2)), [Own(3)]);
    }
}
