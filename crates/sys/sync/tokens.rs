//! Tokens: the way back of lent buffers from the borrower to the lender.
//!
//! A lender numbers the buffers it has lent on one connection (tokens, fewer than the lane has slots); the
//! borrower returns tokens here in whatever order it finishes, from whichever thread drops the message. The
//! lane is a ring of 4-byte entries, 16 to a cache line. It cannot overflow, because no more tokens exist than
//! slots; so there is no flow control, and the lender reads the lane only when it needs a token.
//!
//! ```text
//! entry  0       16      32
//!        | token | lap   |     lap counts from 1; zero means never written
//! ```
//!
//! # Memory ordering
//! `SYNC POINT token`: [`Returner::give_back`] stores the entry with Release after the borrower's last read of
//! the buffer; [`Collector::collect`] loads it with Acquire before the lender reuses the buffer.
//!
//! # Hostility
//! The lender believes no token: [`Collector::collect`] yields raw numbers, and the caller checks that each is
//! one it lent on this connection and has not had back.

use crate::os::fault;
use crate::sync::atomic::{AtomicU32, Ordering};

/// Number of slots of a lane: exactly the bound of buffers that are lent at once. More would be wasteful.
#[cfg(not(loom))]
pub const SLOTS: u32 = 64;
/// Number of slots of a lane (small under loom).
#[cfg(loom)]
pub const SLOTS: u32 = 2;

/// Place of a lane's entries.
pub trait Lane {
    /// The entry at `index < SLOTS`.
    fn entry(&self, index: u32) -> &AtomicU32;
}

#[inline]
fn encode(token: u16, position: u32) -> u32 {
    let lap = (position / SLOTS % 0xffff) + 1;
    lap << 16 | u32::from(token)
}

/// The borrower's end: any number of threads.
#[derive(Debug)]
pub struct Returner<L> {
    lane: L,
    /// Next position; private to the borrowing process.
    next: AtomicU32,
}

impl<L: Lane> Returner<L> {
    /// The borrower's end of a fresh (zeroed) lane.
    pub fn new(lane: L) -> Self {
        Returner { lane, next: AtomicU32::new(0) }
    }

    /// Number of tokens that were returned so far, modulo 2^32.
    #[inline]
    pub fn returned(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns `token`. The caller does not touch the lent buffer afterwards.
    pub fn give_back(&self, token: u16) {
        let position = self.next.fetch_add(1, Ordering::Relaxed);
        fault::point("release.claimed");
        // SYNC POINT token: after the borrower's last read.
        self.lane.entry(position % SLOTS).store(encode(token, position), Ordering::Release);
        fault::point("release.published");
    }
}

/// The lender's end. Exactly one per lane.
#[derive(Debug)]
pub struct Collector<L> {
    lane: L,
    next: u32,
}

impl<L: Lane> Collector<L> {
    /// The lender's end of a fresh (zeroed) lane.
    pub fn new(lane: L) -> Self {
        Collector { lane, next: 0 }
    }

    /// Takes the next token that came back. Positions wrap after 2^32 returns; a lap number is reused after 65,535 laps.
    #[inline]
    pub fn collect(&mut self) -> Option<u16> {
        // SYNC POINT token: the borrower's reads are over.
        let entry = self.lane.entry(self.next % SLOTS).load(Ordering::Acquire);
        let token = entry as u16;
        (entry == encode(token, self.next)).then(|| {
            self.next = self.next.wrapping_add(1);
            token
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(loom)]
    use loom::sync::Arc;
    #[cfg(not(loom))]
    use std::sync::Arc;

    impl Lane for Arc<Vec<AtomicU32>> {
        fn entry(&self, index: u32) -> &AtomicU32 {
            &self[index as usize]
        }
    }

    fn lane() -> Arc<Vec<AtomicU32>> {
        Arc::new((0..SLOTS).map(|_| AtomicU32::new(0)).collect())
    }

    /// Both ends compute the same lap number; all slots of a lap have the same, and no position is too great for it.
    #[cfg(not(loom))]
    #[test]
    fn the_lap_changes_with_the_first_slot() {
        let laps = [0, SLOTS - 1, SLOTS, 2 * SLOTS - 1, u32::MAX].map(|position| encode(5, position) >> 16);
        assert_eq!(laps, [1, 1, 2, 2, u32::MAX / SLOTS % 0xffff + 1]);
    }

    #[cfg(not(loom))]
    #[test]
    fn prop_tokens_come_back_over_many_laps() {
        let lane = lane();
        let (returner, mut collector) = (Returner::new(lane.clone()), Collector::new(lane));
        for round in 0..200_000u32 {
            let batch = round % SLOTS + 1;
            (0..batch).for_each(|token| returner.give_back(token as u16));
            (0..batch).for_each(|token| assert_eq!(collector.collect(), Some(token as u16)));
            assert_eq!(collector.collect(), None);
        }
    }

    /// Two threads drop their messages while the lender waits to reuse both buffers: it sees each token once,
    /// and the borrower's reads happened before. Fails if SYNC POINT `token` is weakened to Relaxed.
    #[cfg(loom)]
    #[test]
    fn loom_release_orders_the_borrowers_reads() {
        use loom::cell::UnsafeCell;
        use loom::thread;
        struct Buffers([UnsafeCell<u32>; 2]);
        // SAFETY: the model under test decides who may touch which buffer; loom reports it if it is wrong.
        unsafe impl Sync for Buffers {}
        loom::model(|| {
            let lane = lane();
            let buffers = Arc::new(Buffers([UnsafeCell::new(7), UnsafeCell::new(7)]));
            let returner = Arc::new(Returner::new(lane.clone()));
            let borrowers: Vec<_> = (0..2u16)
                .map(|token| {
                    let (returner, buffers) = (returner.clone(), buffers.clone());
                    thread::spawn(move || {
                        // SAFETY: the token has not been returned yet.
                        buffers.0[token as usize].with(|value| assert_eq!(unsafe { *value }, 7));
                        returner.give_back(token);
                    })
                })
                .collect();
            let mut collector = Collector::new(lane);
            let mut back = 0;
            while back < 2 {
                match collector.collect() {
                    Some(token) => {
                        back += 1;
                        // SAFETY: the borrower gave the token back, the buffer is the lender's again.
                        buffers.0[token as usize].with_mut(|value| unsafe { *value = 8 });
                    }
                    None => thread::yield_now(),
                }
            }
            borrowers.into_iter().for_each(|b| b.join().unwrap());
        });
    }
}
