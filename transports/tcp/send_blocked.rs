//! Send-blocked links: posted data wait for the socket, either for room in it or for the peer's report that it has
//! taken earlier data.
//!
//! The thread that posted usually waits at another completion queue then, for an answer. So any thread whose poll
//! finds nothing serves one of these links, in turn. The helper would serve them, too, but a spinning thread leaves
//! it the processor late. The helper is for when no thread polls.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Numbers of the send-blocked links, each at most once.
#[derive(Default)]
pub struct SendBlocked {
    count: AtomicUsize,
    links: Mutex<VecDeque<u64>>,
}

impl SendBlocked {
    /// Adds a link. The caller adds each link once, until it is removed.
    pub fn add(&self, link: u64) {
        let mut links = self.links.lock();
        links.push_back(link);
        self.count.store(links.len(), Ordering::Relaxed);
    }

    pub fn remove(&self, link: u64) {
        let mut links = self.links.lock();
        links.retain(|other| *other != link);
        self.count.store(links.len(), Ordering::Relaxed);
    }

    /// Returns the link whose turn it is.
    #[inline]
    pub fn next(&self) -> Option<u64> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.rotate()
    }

    #[cold]
    fn rotate(&self) -> Option<u64> {
        let mut links = self.links.lock();
        let next = links.pop_front()?;
        links.push_back(next);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_take_turns_until_they_are_taken_out() {
        let send_blocked = SendBlocked::default();
        assert_eq!(send_blocked.next(), None);
        [3, 5].into_iter().for_each(|link| send_blocked.add(link));
        assert_eq!([(); 4].map(|()| send_blocked.next()), [3, 5, 3, 5].map(Some));
        send_blocked.remove(3);
        assert_eq!([(); 2].map(|()| send_blocked.next()), [5, 5].map(Some));
        send_blocked.remove(5);
        assert_eq!(send_blocked.next(), None);
    }
}
