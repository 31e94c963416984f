//! Counting semaphore among the members of a segment, whose permits come back from a dead member.
//!
//! The segment has the total, and the number of permits that each member holds; the difference is the number of free permits.
//! Each change is one store, so a member that dies in the middle leaves nothing half done: it holds a permit or it does not.
//! Permits are taken under the segment's [lock](crate::sync::robust_lock) and given back without it.
//!
//! # Sync points
//! * `permit`: writes of a holder before it gave a permit back are seen by the member that takes it.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::member_table::MemberTable;

/// Upper bound of permits: sums of the members' values cannot overflow.
pub const MAX_PERMITS: u32 = 1 << 20;

impl MemberTable<'_> {
    /// Number of free permits.
    pub fn free_permits(self) -> i64 {
        let held: i64 = self.rows.iter().map(|row| i64::from(held(&row.held))).sum();
        i64::from(self.head.total.load(Ordering::Relaxed) as i32) - held
    }

    /// Whether this member holds a permit.
    pub fn holds_permits(self, member: u32) -> bool {
        held(&self.rows[member as usize].held) > 0
    }

    /// Takes a permit for member `me`, which holds the lock. `false`: none is free.
    #[must_use]
    pub fn take_permit(self, me: u32) -> bool {
        let free = self.free_permits() > 0;
        if free {
            self.rows[me as usize].held.fetch_add(1, Ordering::Relaxed);
        }
        free
    }

    /// Gives back a permit that member `me` holds. Returns whether a waiter is to be woken
    /// ([`Head::permits`](crate::sync::member_table::Head::permits)).
    #[must_use]
    pub fn give_permit(self, me: u32) -> bool {
        // SYNC POINT permit: publishes earlier writes.
        self.rows[me as usize].held.fetch_sub(1, Ordering::Release);
        self.head.permits.raise()
    }

    /// Destroys a permit of member `me`, which holds the lock: there is one less. The order of the stores matters: if the
    /// member dies in between, the permit does not come back, as if it had died afterwards.
    pub fn forget_permit(self, me: u32) {
        self.head.total.fetch_sub(1, Ordering::Relaxed);
        self.rows[me as usize].held.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds permits, for a member that holds the lock. `false`: there would be too many.
    #[must_use]
    pub fn add_permits(self, more: u32) -> bool {
        let total = self.head.total.load(Ordering::Relaxed) as i32;
        let sum = i64::from(total) + i64::from(more);
        let fits = sum <= i64::from(MAX_PERMITS);
        if fits {
            self.head.total.store(sum as i32 as u32, Ordering::Relaxed);
        }
        fits
    }

    /// Takes back the permits of a dead member, for a member that holds the lock. Returns their number.
    pub fn reclaim_permits(self, dead: u32) -> u32 {
        let row = &self.rows[dead as usize].held;
        let held = held(row).max(0);
        if held > 0 {
            row.store(0, Ordering::Relaxed);
        }
        held as u32
    }
}

fn held(row: &AtomicU32) -> i32 {
    // SYNC POINT permit: sees earlier writes.
    row.load(Ordering::Acquire) as i32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::member_table::{Head, Row};

    #[test]
    fn a_dead_members_permits_come_back_and_forgotten_ones_do_not() {
        let (head, rows) = (Head::default(), [Row::default(), Row::default()]);
        let table = MemberTable { head: &head, rows: &rows };
        assert!(!table.take_permit(0), "none yet");
        assert!(table.add_permits(3) && !table.add_permits(MAX_PERMITS));
        assert!(
            table.take_permit(0) && table.take_permit(1) && table.take_permit(1) && !table.take_permit(0)
        );
        assert!(!table.give_permit(0), "nobody sleeps");
        assert_eq!(table.free_permits(), 1);
        table.forget_permit(1);
        assert_eq!((table.free_permits(), table.reclaim_permits(1), table.reclaim_permits(1)), (1, 1, 0));
        assert_eq!(table.free_permits(), 2, "one of three is gone for good");
    }

    /// The member dies between the two stores of `forget_permit`: the effect is as after both.
    #[test]
    fn who_dies_while_it_forgets_a_permit_has_forgotten_it() {
        let (head, rows) = (Head::default(), [Row::default()]);
        let table = MemberTable { head: &head, rows: &rows };
        assert!(table.add_permits(2) && table.take_permit(0));
        head.total.fetch_sub(1, Ordering::Relaxed);
        assert_eq!((table.reclaim_permits(0), table.free_permits()), (1, 1));
    }

    #[test]
    fn any_words_are_some_state() {
        let (head, rows) = (Head::default(), [Row::default(), Row::default()]);
        let table = MemberTable { head: &head, rows: &rows };
        for word in [u32::MAX, 1 << 31, (1 << 31) - 1, 1] {
            head.total.store(word, Ordering::Relaxed);
            rows.iter().for_each(|row| row.held.store(word, Ordering::Relaxed));
            let _ = (table.free_permits(), table.take_permit(0), table.give_permit(0), table.add_permits(1));
            table.forget_permit(1);
            table.reclaim_permits(1);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use crate::sync::member_table::{Head, Row};
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    struct Model {
        head: Head,
        rows: [Row; 2],
        data: UnsafeCell<u32>,
    }
    // SAFETY: the model under test decides who may touch the data; loom reports it if it is wrong.
    unsafe impl Sync for Model {}

    /// One permit is held by one member at a time, and each sees the writes of the one before. Fails if either half of SYNC
    /// POINT `permit` is weakened to Relaxed.
    #[test]
    fn loom_semaphore_excludes_and_publishes() {
        loom::model(|| {
            let model = Model { head: Head::default(), rows: Default::default(), data: UnsafeCell::new(0) };
            let model = Arc::new(model);
            let table = |model: &Model| -> bool {
                MemberTable { head: &model.head, rows: &model.rows }.add_permits(1)
            };
            assert!(table(&model));
            let work = |model: &Model, me: u32| {
                let table = MemberTable { head: &model.head, rows: &model.rows };
                let mut taken = false;
                while !taken {
                    if model.head.lock.try_lock(me, false) {
                        taken = table.take_permit(me);
                        let _ = model.head.lock.unlock();
                    }
                    if !taken {
                        thread::yield_now();
                    }
                }
                // SAFETY: this thread holds the only permit.
                model.data.with_mut(|data| unsafe { *data += 1 });
                let _ = table.give_permit(me);
            };
            let other = model.clone();
            let other = thread::spawn(move || work(&other, 1));
            work(&model, 0);
            other.join().unwrap();
        });
    }
}
