//! The launcher's reports of ranks that exited, and the queues that they wake.
//!
//! A mailbox reports lost ranks that have or had a postbox of it, or that it expects ([`crate::Mailbox::expect`]).
//! [`crate::RankExits`] reports all ranks that exit.
//!
//! The launcher tells every rank when a rank has finished or is lost. This file stores these events and wakes
//! the threads that wait at mailboxes. A rank thus learns of a loss even if it has no connection with the
//! lost rank.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use udeck_boot::Event;
use udeck_via::CqHandle;

/// A rank that has exited: finished, or lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankExit {
    /// The rank that has exited.
    pub rank: usize,
    /// How the rank has exited.
    pub how: ExitKind,
}

/// How a rank has exited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitKind {
    /// Finished by [`crate::World::finish`].
    Finished,
    /// Ended in another way, described in words.
    Lost(String),
}

/// All exit reports so far, and the queues that the next one wakes.
#[derive(Default)]
pub(crate) struct ExitLog {
    version: AtomicU64,
    ranks: Mutex<Ranks>,
    wakers: Mutex<HashMap<u64, CqHandle>>,
    next_waker: AtomicU64,
}

#[derive(Default)]
struct Ranks {
    lost: BTreeMap<u32, String>,
    done: BTreeSet<u32>,
    /// All ranks that have ended, in the order of the reports.
    in_order: Vec<u32>,
}

impl Ranks {
    fn ended(&self, rank: u32) -> RankExit {
        let how = self.lost.get(&rank).map_or(ExitKind::Finished, |how| ExitKind::Lost(how.clone()));
        RankExit { rank: rank as usize, how }
    }
}

impl ExitLog {
    /// Records a report, on the thread of the launcher's connection.
    pub fn record(&self, event: &Event) {
        let mut ranks = self.ranks.lock();
        match event {
            Event::RankLost { rank, how } => {
                ranks.lost.insert(*rank, how.clone());
                ranks.in_order.push(*rank);
            }
            Event::RankDone { rank } => {
                ranks.done.insert(*rank);
                ranks.in_order.push(*rank);
            }
            _ => {}
        }
        drop(ranks);
        self.version.fetch_add(1, Ordering::Release);
        self.wake();
    }

    /// Wakes all threads that wait at a mailbox.
    pub fn wake(&self) {
        self.wakers.lock().values().for_each(CqHandle::wake);
    }

    /// Version of the log, which grows with every rank that ends.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns a lost rank that satisfies `is_meant`, and how it was lost.
    pub fn find_lost(&self, is_meant: impl Fn(u32) -> bool) -> Option<(u32, String)> {
        if self.version() == 0 {
            return None;
        }
        let ranks = self.ranks.lock();
        let lost = ranks.lost.iter().find(|(rank, _)| is_meant(**rank));
        lost.map(|(rank, how)| (*rank, how.clone()))
    }

    /// The lost ranks, in words; empty if there are none.
    pub fn lost_in_words(&self) -> String {
        let ranks = self.ranks.lock();
        let words = ranks.lost.iter().map(|(rank, how)| format!("rank {rank} is lost: {how}"));
        words.collect::<Vec<_>>().join(", ")
    }

    /// The ranks that have ended, in the order of the reports, without the first `skipped`.
    pub fn in_order(&self, skipped: usize) -> Vec<RankExit> {
        let ranks = self.ranks.lock();
        ranks.in_order.iter().skip(skipped).map(|rank| ranks.ended(*rank)).collect()
    }

    /// The rank that ended next after the first `others`.
    pub fn after(&self, others: usize) -> Option<RankExit> {
        let ranks = self.ranks.lock();
        ranks.in_order.get(others).map(|rank| ranks.ended(*rank))
    }

    /// All lost ranks, sorted.
    pub fn lost(&self) -> Vec<usize> {
        self.ranks.lock().lost.keys().map(|rank| *rank as usize).collect()
    }

    /// How a lost rank was lost.
    pub fn how_lost(&self, rank: u32) -> Option<String> {
        self.ranks.lock().lost.get(&rank).cloned()
    }

    /// Whether a rank has finished in order.
    pub fn has_finished(&self, rank: u32) -> bool {
        self.ranks.lock().done.contains(&rank)
    }

    /// Number of ranks that have ended.
    pub fn count(&self) -> usize {
        let ranks = self.ranks.lock();
        ranks.lost.len() + ranks.done.len()
    }

    /// Wakes `waker` whenever a rank ends, until [`ExitLog::remove_waker`].
    pub fn add_waker(&self, waker: CqHandle) -> u64 {
        let id = self.next_waker.fetch_add(1, Ordering::Relaxed);
        self.wakers.lock().insert(id, waker);
        id
    }

    /// Reverts [`ExitLog::add_waker`].
    pub fn remove_waker(&self, id: u64) {
        self.wakers.lock().remove(&id);
    }
}
