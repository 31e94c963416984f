//! Tests of the cache against a model that is too simple to be wrong.

use proptest::prelude::*;

use super::*;

const WHOSE: &str = "which the test allows";

fn bounds(entries: usize, bytes: usize) -> Bounds {
    Bounds { entries, bytes: (bytes, WHOSE) }
}

fn id(number: u64) -> Identity {
    Identity(number)
}

/// Acquires a registration that is not there; returns the evicted ones.
fn miss(cache: &mut Cache<u64>, number: u64, bytes: usize, bounds: Bounds) -> Vec<u64> {
    match cache.acquire(id(number), bytes, bounds).unwrap() {
        Acquired::Miss { evicted } => evicted,
        Acquired::Hit(_) => panic!("{number} is there"),
    }
}

#[test]
fn the_longest_unused_goes_first() {
    let (mut cache, bounds) = (Cache::default(), bounds(3, 100));
    for number in 0..3 {
        assert_eq!(miss(&mut cache, number, 10, bounds), []);
    }
    for number in [1, 0, 2] {
        cache.release(id(number), number);
    }
    assert_eq!(cache.acquire(id(1), 10, bounds).unwrap(), Acquired::Hit(1));
    cache.release(id(1), 1);
    assert_eq!(miss(&mut cache, 3, 90, bounds), [0, 2], "1 was used last, and 10 + 90 bytes fit");
    assert_eq!(cache.usage().evictions, 2);
}

#[test]
fn what_is_in_use_stays() {
    let (mut cache, bounds) = (Cache::default(), bounds(2, 100));
    miss(&mut cache, 0, 60, bounds);
    let error = cache.acquire(id(1), 41, bounds).unwrap_err().to_string();
    assert!(error.contains("41 bytes beside 60 in use") && error.contains(WHOSE), "{error}");
    miss(&mut cache, 1, 0, bounds);
    let error = cache.acquire(id(2), 0, bounds).unwrap_err().to_string();
    assert!(error.contains("2 registrations are in use"), "{error}");
    assert!(matches!(cache.acquire(id(0), 60, bounds), Err(Error::InUse { .. })));
    assert_eq!(cache.invalidate(id(0)), None);
    cache.release(id(1), 1);
    assert!(cache.acquire(id(2), 41, bounds).is_err());
    assert_eq!(cache.usage().entries, 2, "what cannot help is not evicted");
}

#[test]
fn what_could_not_be_made_was_never_there() {
    let (mut cache, bounds) = (Cache::<u64>::default(), bounds(1, 100));
    miss(&mut cache, 0, 60, bounds);
    cache.cancel(id(0));
    assert_eq!(cache.usage(), CacheUse::default());
    assert_eq!(miss(&mut cache, 0, 100, bounds), []);
}

#[derive(Clone, Debug)]
enum Step {
    Acquire(u64),
    Release(u64),
    Cancel(u64),
    Invalidate(u64),
    /// The memory of this number is freed, and other memory takes its place.
    Renew(u64),
}

const NUMBERS: u64 = 8;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..NUMBERS).prop_map(Step::Acquire),
        4 => (0..NUMBERS).prop_map(Step::Release),
        1 => (0..NUMBERS).prop_map(Step::Cancel),
        1 => (0..NUMBERS).prop_map(Step::Invalidate),
        1 => (0..NUMBERS).prop_map(Step::Renew),
    ];
    prop::collection::vec(step, 1..120)
}

/// A model of the cache: a list, the longest unused first.
#[derive(Default)]
struct Model {
    idle: Vec<(Identity, usize)>,
    in_use: Vec<(Identity, usize)>,
    /// Counts that the cache should have. Entries and bytes are those in the lists.
    expected: CacheUse,
}

impl Model {
    fn bytes(entries: &[(Identity, usize)]) -> usize {
        entries.iter().map(|(_, bytes)| bytes).sum()
    }

    fn take(list: &mut Vec<(Identity, usize)>, identity: Identity) -> Option<(Identity, usize)> {
        let at = list.iter().position(|(other, _)| *other == identity)?;
        Some(list.remove(at))
    }

    /// Acquires a registration. `None` when it is in use or has no room; otherwise the evicted ones, and whether it was there.
    fn acquire(&mut self, identity: Identity, bytes: usize, bounds: Bounds) -> Option<(Vec<Identity>, bool)> {
        if self.in_use.iter().any(|(other, _)| *other == identity) {
            return None;
        }
        if let Some(entry) = Self::take(&mut self.idle, identity) {
            self.in_use.push(entry);
            self.expected.hits += 1;
            return Some((Vec::new(), true));
        }
        if self.in_use.len() == bounds.entries || Self::bytes(&self.in_use) + bytes > bounds.bytes.0 {
            return None;
        }
        let mut evicted = Vec::new();
        while self.idle.len() + self.in_use.len() == bounds.entries
            || Self::bytes(&self.idle) + Self::bytes(&self.in_use) + bytes > bounds.bytes.0
        {
            evicted.push(self.idle.remove(0).0);
        }
        self.expected.misses += 1;
        self.expected.evictions += evicted.len() as u64;
        self.in_use.push((identity, bytes));
        Some((evicted, false))
    }

    fn usage(&self) -> CacheUse {
        CacheUse {
            entries: self.idle.len() + self.in_use.len(),
            bytes: Self::bytes(&self.idle) + Self::bytes(&self.in_use),
            in_use: self.in_use.len(),
            bytes_in_use: Self::bytes(&self.in_use),
            ..self.expected
        }
    }
}

proptest! {
    /// The cache has the same hits, the same evictions in the same order and the same counts as the model; bounds hold; a new
    /// registration never hits one that another allocation left there.
    #[test]
    fn prop_the_cache_is_the_model(entries in 1usize..6, bytes in 1usize..200, sizes in prop::collection::vec(0usize..100, NUMBERS as usize), steps in steps()) {
        let bounds = bounds(entries, bytes);
        let (mut cache, mut model) = (Cache::<Identity>::default(), Model::default());
        let mut identities: Vec<_> = (0..NUMBERS).map(id).collect();
        let mut fresh = NUMBERS;
        for step in steps {
            let (Step::Acquire(number) | Step::Release(number) | Step::Cancel(number) | Step::Invalidate(number)
            | Step::Renew(number)) = step;
            let identity = identities[number as usize];
            let in_use = model.in_use.iter().any(|(other, _)| *other == identity);
            match step {
                Step::Acquire(_) => {
                    let size = sizes[number as usize];
                    let expected = model.acquire(identity, size, bounds);
                    match (cache.acquire(identity, size, bounds), expected) {
                        (Ok(Acquired::Hit(found)), Some((_, true))) => prop_assert_eq!(found, identity),
                        (Ok(Acquired::Miss { evicted }), Some((expected, false))) => prop_assert_eq!(evicted, expected),
                        (Err(_), None) => {}
                        (got, expected) => prop_assert!(false, "{:?} instead of {:?}", got, expected),
                    }
                }
                Step::Release(_) if in_use => {
                    cache.release(identity, identity);
                    let entry = Model::take(&mut model.in_use, identity);
                    model.idle.extend(entry);
                }
                Step::Cancel(_) if in_use => {
                    cache.cancel(identity);
                    Model::take(&mut model.in_use, identity);
                    model.expected.misses -= 1;
                }
                Step::Invalidate(_) | Step::Renew(_) => {
                    let there = Model::take(&mut model.idle, identity).is_some();
                    model.expected.invalidations += u64::from(there);
                    prop_assert_eq!(cache.invalidate(identity), there.then_some(identity));
                    if let Step::Renew(_) = step && !in_use {
                        identities[number as usize] = id(fresh);
                        fresh += 1;
                    }
                }
                Step::Release(_) | Step::Cancel(_) => {}
            }
            let usage = cache.usage();
            prop_assert_eq!(usage, model.usage());
            prop_assert!(usage.entries <= bounds.entries && usage.bytes <= bounds.bytes.0);
            prop_assert!(usage.in_use <= usage.entries && usage.bytes_in_use <= usage.bytes);
        }
    }
}
