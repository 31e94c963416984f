//! Datagrams whose link somebody else works on at the moment: they wait for whoever gets to it first.
//!
//! Who reads the socket must not wait for a link. A program that posts in a loop leaves its lock hardly ever, and the reader
//! holds in its hands what that program waits for.

use std::collections::HashMap;

use parking_lot::Mutex;
use udeck_sys::atomic::{AtomicU32, Ordering};

/// At most so many. More are dropped, and sent again.
const MOST: u32 = 1024;

/// By link. Each link's are in the order in which they came.
#[derive(Default)]
pub struct Strays {
    count: AtomicU32,
    links: Mutex<HashMap<u64, Vec<Vec<u8>>>>,
}

impl Strays {
    pub fn add(&self, number: u64, datagram: &[u8]) {
        let mut links = self.links.lock();
        if self.count.load(Ordering::Relaxed) < MOST {
            links.entry(number).or_default().push(datagram.to_vec());
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Those of a link, for who holds its lock: before anything that came later.
    pub fn take(&self, number: u64) -> Vec<Vec<u8>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let strays = self.links.lock().remove(&number).unwrap_or_default();
        self.count.fetch_sub(strays.len() as u32, Ordering::Relaxed);
        strays
    }

    /// Calls `give` with each link that has some, once. A link that gets more meanwhile has its turn the next time: otherwise
    /// peers that send without end would never let go of the caller. Who adds some comes here afterwards, or rouses the
    /// helper.
    pub fn for_each_link(&self, give: impl FnMut(u64)) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let numbers: Vec<_> = self.links.lock().keys().copied().collect();
        numbers.into_iter().for_each(give);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_link_gets_its_own_in_order_and_few_are_kept() {
        let strays = Strays::default();
        let waiting = || {
            let mut links = Vec::new();
            strays.for_each_link(|link| links.push(link));
            links
        };
        assert_eq!(waiting(), []);
        strays.add(1, b"a");
        strays.add(2, b"b");
        strays.add(1, b"c");
        assert_eq!(strays.take(1), [b"a", b"c"]);
        assert_eq!((strays.take(1).len(), waiting()), (0, vec![2]));
        (0..2 * MOST).for_each(|_| strays.add(3, b"d"));
        assert_eq!(strays.take(3).len(), MOST as usize - 1);
        assert_eq!(strays.take(2), [b"b"]);
        assert_eq!(waiting(), []);
    }

    #[test]
    fn links_that_get_more_all_the_time_are_given_to_once() {
        let strays = Strays::default();
        (1..=100).for_each(|link| strays.add(link, b"first"));
        let mut given = Vec::new();
        strays.for_each_link(|link| {
            assert!(given.len() < 1000, "it goes on and on");
            given.push(link);
            assert_eq!(strays.take(link), [b"first"]);
            strays.add(link, b"later");
            strays.add(link + 1000, b"another");
        });
        given.sort_unstable();
        assert!(given.iter().copied().eq(1..=100), "{given:?}");
        let mut left = 0;
        strays.for_each_link(|link| left += strays.take(link).len());
        assert_eq!(left, 200);
    }
}
