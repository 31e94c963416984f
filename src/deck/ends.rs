//! Ranks that ended, and who wants to hear of it.
//!
//! The launcher tells every rank when one has finished or is lost; this keeps the news, and wakes whoever waits at a
//! mailbox, so that a rank learns of the loss of one that it has no connection with.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use udeck_boot::Event;
use udeck_via::CqHandle;

/// Ranks that ended, and who wants to be woken then.
#[derive(Default)]
pub(crate) struct Ends {
    seen: AtomicU64,
    ranks: Mutex<Ended>,
    wakers: Mutex<HashMap<u64, CqHandle>>,
    next_waker: AtomicU64,
}

#[derive(Default)]
struct Ended {
    lost: BTreeMap<u32, String>,
    done: BTreeSet<u32>,
}

impl Ends {
    /// News, on the launcher connection's thread.
    pub fn note(&self, event: &Event) {
        let mut ranks = self.ranks.lock();
        match event {
            Event::RankLost { rank, how } => {
                ranks.lost.insert(*rank, how.clone());
            }
            Event::RankDone { rank } => {
                ranks.done.insert(*rank);
            }
            _ => {}
        }
        drop(ranks);
        self.seen.fetch_add(1, Ordering::Release);
        for waker in self.wakers.lock().values() {
            waker.wake();
        }
    }

    /// Grows with every rank that ends.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    /// A lost rank that is not in `reported`, and what became of it.
    pub fn lost_beyond(&self, reported: &BTreeSet<u32>) -> Option<(u32, String)> {
        if self.seen() == 0 {
            return None;
        }
        let ranks = self.ranks.lock();
        let lost = ranks.lost.iter().find(|(rank, _)| !reported.contains(rank));
        lost.map(|(rank, how)| (*rank, how.clone()))
    }

    /// What became of a lost rank.
    pub fn how_lost(&self, rank: u32) -> Option<String> {
        self.ranks.lock().lost.get(&rank).cloned()
    }

    /// Whether a rank has finished in order.
    pub fn is_done(&self, rank: u32) -> bool {
        self.ranks.lock().done.contains(&rank)
    }

    /// How many ranks have ended, one way or the other.
    pub fn count(&self) -> usize {
        let ranks = self.ranks.lock();
        ranks.lost.len() + ranks.done.len()
    }

    /// Wakes `waker` whenever a rank ends, until [`Ends::remove_waker`].
    pub fn add_waker(&self, waker: CqHandle) -> u64 {
        let id = self.next_waker.fetch_add(1, Ordering::Relaxed);
        self.wakers.lock().insert(id, waker);
        id
    }

    /// Takes [`Ends::add_waker`] back.
    pub fn remove_waker(&self, id: u64) {
        self.wakers.lock().remove(&id);
    }
}
