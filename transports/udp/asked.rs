//! Requests that were heard: each is remembered, with its answer, for as long as the same one may come again. There is a bounded
//! number of places; when they are taken, whoever has most of them loses its oldest. If that one comes again, it is taken for
//! a new one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::greeting::EPOCH;
use crate::shares::{Origin, Shares};

/// How long a request is remembered: longer than its cookie is good.
pub const MEMORY: Duration = Duration::from_secs(2 * EPOCH + 1);
/// Requests that are remembered; of callers that know the secret, and are where they say.
pub const REQUESTS: usize = 65_536;

/// Who asks, and by which number.
pub type Key = (SocketAddr, u64);

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum State {
    Pending,
    Answered(Vec<u8>),
    Withdrawn,
}

/// See the module.
#[derive(Default)]
pub struct Asked {
    requests: HashMap<Key, Request>,
    /// In the order in which they came, by their numbers.
    order: BTreeMap<u64, (Instant, Key)>,
    /// The numbers of each caller's.
    of: HashMap<Origin, BTreeSet<u64>>,
    shares: Shares,
    last: u64,
}

struct Request {
    number: u64,
    origin: Origin,
    state: State,
}

impl Asked {
    pub fn get(&mut self, key: &Key) -> Option<&mut State> {
        self.requests.get_mut(key).map(|request| &mut request.state)
    }

    /// One that is not remembered yet.
    pub fn note(&mut self, now: Instant, origin: Origin, key: Key) {
        if self.requests.len() >= REQUESTS {
            let largest = self.shares.largest().and_then(|origin| self.of.get(&origin)?.first().copied());
            if let Some((_, key)) = largest.and_then(|oldest| self.order.get(&oldest).copied()) {
                self.remove(&key);
            }
        }
        self.last += 1;
        let number = self.last;
        self.requests.insert(key, Request { number, origin, state: State::Pending });
        self.order.insert(number, (now, key));
        self.of.entry(origin).or_default().insert(number);
        self.shares.add(origin);
    }

    /// Those that are too old to come again.
    pub fn forget(&mut self, now: Instant) {
        while let Some((_, &(since, key))) = self.order.first_key_value()
            && since + MEMORY <= now
        {
            self.remove(&key);
        }
    }

    pub fn remove(&mut self, key: &Key) {
        let Some(Request { number, origin, .. }) = self.requests.remove(key) else { return };
        self.order.remove(&number);
        self.shares.remove(origin);
        if let Some(numbers) = self.of.get_mut(&origin) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.of.remove(&origin);
            }
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        let each: usize = self.of.values().map(BTreeSet::len).sum();
        assert_eq!((self.order.len(), each), (self.requests.len(), self.requests.len()));
        self.requests.len()
    }

    #[cfg(test)]
    pub fn pending(&self) -> usize {
        self.requests.values().filter(|request| request.state == State::Pending).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> Key {
        ("10.0.0.1:9".parse().unwrap(), number)
    }

    #[test]
    fn who_asks_most_gives_way_and_loses_its_oldest() {
        let (mut asked, now) = (Asked::default(), Instant::now());
        let [few, many, new] = [1, 2, 3].map(Origin::Rank);
        asked.note(now, few, key(0));
        (1..REQUESTS as u64).for_each(|number| asked.note(now, many, key(number)));
        asked.note(now, new, key(1 << 40));
        assert_eq!(asked.len(), REQUESTS);
        assert!(asked.get(&key(0)).is_some() && asked.get(&key(1 << 40)).is_some(), "of others");
        assert!(asked.get(&key(1)).is_none() && asked.get(&key(2)).is_some(), "the oldest of many");
        asked.note(now, many, key(1 << 41));
        assert!(asked.get(&key(2)).is_none() && asked.get(&key(1 << 41)).is_some(), "its own");
        asked.forget(now + MEMORY);
        assert_eq!((asked.len(), asked.shares.largest()), (0, None));
    }
}
