//! Barrier among the members of a segment, which knows the missing members.
//!
//! Each member counts the barriers that it has come to, in its own row. A barrier is complete when all rows have its number;
//! each member sees that for itself. So the rows show the missing members, and a member that dies after it has come holds up
//! nobody.
//!
//! # Sync points
//! * `arrive`: writes of a member before it came are seen by those that have found the barrier complete.
//! * `last`: each member stores its number, fences SeqCst, and looks at all others'. The last one, in the order of the
//!   fences, finds all there and wakes the sleepers, so some member does. (Without the fence two members may each miss the
//!   other's number.)

use crate::sync::atomic::{Ordering, fence};
use crate::sync::member_table::MemberTable;

impl MemberTable<'_> {
    /// Notes that member `me` has come to barrier `number`: one more than the one before, from 1 on, wrapping. Returns
    /// whether all are there, and the sleepers are to be woken ([`Head::barriers`](crate::sync::member_table::Head::barriers)).
    #[must_use]
    pub fn arrive(self, me: u32, number: u32) -> bool {
        // SYNC POINT arrive: publishes earlier writes.
        self.rows[me as usize].arrived.store(number, Ordering::Release);
        // SYNC POINT last: own number before the others'.
        fence(Ordering::SeqCst);
        self.is_complete(number)
    }

    /// Whether all members have come to barrier `number`.
    #[inline]
    pub fn is_complete(self, number: u32) -> bool {
        (0..self.rows.len()).all(|member| self.has_arrived(member, number))
    }

    /// Whether this member has come to barrier `number`.
    #[inline]
    pub fn has_arrived(self, member: usize, number: u32) -> bool {
        // SYNC POINT arrive: sees earlier writes.
        let arrived = self.rows[member].arrived.load(Ordering::Acquire);
        (arrived.wrapping_sub(number) as i32) >= 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::member_table::{Head, Row};

    #[test]
    fn the_last_one_completes_it_and_the_missing_are_known() {
        let (head, rows) = (Head::default(), [Row::default(), Row::default(), Row::default()]);
        let table = MemberTable { head: &head, rows: &rows };
        // The numbers cross their wrap-around, too.
        for start in [0, u32::MAX - 1] {
            rows.iter().for_each(|row| row.arrived.store(start, Ordering::Relaxed));
            for number in (1..=3).map(|nth| start.wrapping_add(nth)) {
                assert!(!table.arrive(2, number) && !table.arrive(0, number));
                assert_eq!([0, 1, 2].map(|member| table.has_arrived(member, number)), [true, false, true]);
                assert!(table.arrive(1, number) && table.is_complete(number));
            }
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
        written: [UnsafeCell<u32>; 2],
    }
    // SAFETY: the model under test decides who may touch the cells; loom reports it if it is wrong.
    unsafe impl Sync for Model {}

    impl Model {
        fn new() -> Arc<Model> {
            let written = [UnsafeCell::new(0), UnsafeCell::new(0)];
            Arc::new(Model { head: Head::default(), rows: Default::default(), written })
        }

        fn table(&self) -> MemberTable<'_> {
            MemberTable { head: &self.head, rows: &self.rows }
        }
    }

    /// Behind a barrier each member sees the other's earlier writes. Fails if either half of SYNC POINT `arrive` is weakened
    /// to Relaxed.
    #[test]
    fn loom_barrier_publishes() {
        loom::model(|| {
            let model = Model::new();
            let pass = |model: &Model, me: usize| {
                // SAFETY: nobody else touches it before the barrier.
                model.written[me].with_mut(|written| unsafe { *written = 7 });
                // The barrier's fence alone would order the writes; a member that looks again later has no fence.
                if !model.table().arrive(me as u32, 1) {
                    while !model.table().is_complete(1) {
                        thread::yield_now();
                    }
                }
                // SAFETY: written before the barrier only.
                model.written[1 - me].with(|written| assert_eq!(unsafe { *written }, 7));
            };
            let other = model.clone();
            let other = thread::spawn(move || pass(&other, 1));
            pass(&model, 0);
            other.join().unwrap();
        });
    }

    /// At least one member finds that all are there. Fails if the fence of SYNC POINT `last` is removed.
    #[test]
    fn loom_barrier_has_a_last_one() {
        loom::model(|| {
            let model = Model::new();
            let other = model.clone();
            let other = thread::spawn(move || other.table().arrive(1, 1));
            let ours = model.table().arrive(0, 1);
            assert!(ours | other.join().unwrap(), "both sleep, and nobody wakes them");
        });
    }
}
