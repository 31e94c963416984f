//! Quotas of a bounded resource: a bound for each user, and one for all together.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// Amounts taken, by each user and by all together.
#[derive(Debug)]
pub struct Quota<K> {
    most: u64,
    taken: Mutex<Usage<K>>,
}

#[derive(Debug)]
struct Usage<K> {
    all: u64,
    each: HashMap<K, u64>,
}

/// An amount that a user took at once. It is given back when this is dropped.
#[derive(Debug)]
pub struct Share<K: Hash + Eq> {
    quota: Arc<Quota<K>>,
    of: K,
    amount: u64,
}

/// Why nothing was taken, and the amount taken before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// The user itself has reached its bound.
    Own(u64),
    /// All together have reached their bound.
    All(u64),
}

impl<K: Hash + Eq + Clone> Quota<K> {
    /// A quota of `most` for all together.
    pub fn new(most: u64) -> Arc<Self> {
        Arc::new(Quota { most, taken: Mutex::new(Usage { all: 0, each: HashMap::new() }) })
    }

    /// Takes `amount` for the user `of`, whose bound is `own` in all.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub fn take(self: &Arc<Self>, of: K, amount: u64, own: u64) -> Result<Share<K>, Exceeded> {
        let mut taken = self.taken.lock();
        let (all, has) = (taken.all, taken.each.get(&of).copied().unwrap_or(0));
        if amount > own.saturating_sub(has) {
            return Err(Exceeded::Own(has));
        }
        if amount > self.most.saturating_sub(all) {
            return Err(Exceeded::All(all));
        }
        taken.all = all + amount;
        taken.each.insert(of.clone(), has + amount);
        Ok(Share { quota: self.clone(), of, amount })
    }
}

impl<K: Hash + Eq> Drop for Share<K> {
    fn drop(&mut self) {
        let mut taken = self.quota.taken.lock();
        taken.all -= self.amount;
        if let Some(has) = taken.each.get_mut(&self.of) {
            *has -= self.amount;
            if *has == 0 {
                taken.each.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_bound_and_all_have_one() {
        let quota = Quota::new(10);
        let first = quota.take("a", 4, 6).unwrap();
        assert_eq!(quota.take("a", 3, 6).unwrap_err(), Exceeded::Own(4));
        let second = quota.take("a", 2, 6).unwrap();
        assert_eq!(quota.take("b", 6, 6).unwrap_err(), Exceeded::All(6));
        let _other = quota.take("b", 4, 6).unwrap();
        drop((first, second));
        assert_eq!(quota.taken.lock().each.len(), 1, "who has nothing is forgotten");
        let _rest = quota.take("a", 6, 6).unwrap();
        assert_eq!(quota.take("c", u64::MAX, u64::MAX).unwrap_err(), Exceeded::All(10));
    }
}
