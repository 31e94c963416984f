//! Memory that a peer may write or read by itself, and how its owner takes it back.
//!
//! The owner publishes [`Entry`]s; a writer announces itself at its [`Gate`], looks the entry up, copies, and
//! leaves. To withdraw, the owner clears the entry and waits until no writer is inside that came before.
//!
//! # Memory ordering
//! `SYNC POINT gate`: the writer makes its gate odd, fences SeqCst, loads the entry; the owner clears the entry,
//! fences SeqCst, loads the gates. Either the writer sees the entry gone, or the owner sees the writer inside and
//! waits. Leaving stores with Release, the owner loads with Acquire: the copy is over before the memory is reused.
//!
//! # Hostility
//! A writer that lies (writes without announcing itself) spoils only window memory of its own job; see SAFETY.md.
//! An owner that lies can make a writer write only within the owner's own landing memory: the caller checks
//! bounds after [`Entry::look_up`].

use crate::atomic::{AtomicU32, AtomicU64, Ordering, Shared, fence};

/// One exposed piece of memory, in the owner's shared table.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Entry {
    handle: AtomicU32,
    tag: AtomicU32,
    offset: AtomicU64,
    len: AtomicU64,
    rights: AtomicU32,
}

// SAFETY: atomics only.
unsafe impl Shared for Entry {}

/// One writer's announcement. Odd: inside.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Gate(AtomicU64);

// SAFETY: atomics only.
unsafe impl Shared for Gate {}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The owner's protection tag.
    pub tag: u32,
    /// Start, in the owner's memory: which of its segments, `rights` say.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// What peers may do there: bits whose meaning is the caller's.
    pub rights: u32,
}

impl Entry {
    /// Owner: publishes `exposed` under `handle` (not 0).
    pub fn expose(&self, handle: u32, exposed: Exposed) {
        self.tag.store(exposed.tag, Ordering::Relaxed);
        self.offset.store(exposed.offset, Ordering::Relaxed);
        self.len.store(exposed.len, Ordering::Relaxed);
        self.rights.store(exposed.rights, Ordering::Relaxed);
        self.handle.store(handle, Ordering::Release);
    }

    /// Owner: withdraws the entry. It may be reused only when every gate [`Gate::is_clear_of`] what was seen now.
    pub fn withdraw(&self) {
        self.handle.store(0, Ordering::Relaxed);
        // SYNC POINT gate, owner's half.
        fence(Ordering::SeqCst);
    }

    /// Writer, inside its gate: what `handle` names, if this entry has that handle. Nothing has handle 0: an entry that
    /// was withdrawn holds it, beside what it exposed.
    pub fn look_up(&self, handle: u32) -> Option<Exposed> {
        (handle != 0 && self.handle.load(Ordering::Acquire) == handle).then(|| Exposed {
            tag: self.tag.load(Ordering::Relaxed),
            offset: self.offset.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            rights: self.rights.load(Ordering::Relaxed),
        })
    }
}

impl Gate {
    /// Writer: goes inside.
    pub fn enter(&self) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now | 1, Ordering::Relaxed);
        // SYNC POINT gate, writer's half.
        fence(Ordering::SeqCst);
    }

    /// Writer: goes out.
    pub fn leave(&self) {
        let now = self.0.load(Ordering::Relaxed);
        // SYNC POINT gate: after the copy.
        self.0.store((now | 1).wrapping_add(1), Ordering::Release);
    }

    /// Owner, after [`Entry::withdraw`]: where the writer stands.
    pub fn position(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether a writer that stood at `seen` cannot be inside any more with what it looked up then.
    pub fn is_clear_of(&self, seen: u64) -> bool {
        seen.is_multiple_of(2) || self.position() != seen
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_withdrawn_has_no_handle() {
        let entry = Entry::default();
        assert_eq!(entry.look_up(0), None);
        entry.expose(7, Exposed { tag: 1, offset: 64, len: 128, rights: 2 });
        entry.withdraw();
        assert_eq!((entry.look_up(0), entry.look_up(7)), (None, None));
    }

    #[test]
    fn a_writer_inside_is_seen_until_it_leaves() {
        let (entry, gate) = (Entry::default(), Gate::default());
        entry.expose(7, Exposed { tag: 1, offset: 64, len: 128, rights: 2 });
        gate.enter();
        assert_eq!(entry.look_up(7), Some(Exposed { tag: 1, offset: 64, len: 128, rights: 2 }));
        assert_eq!(entry.look_up(8), None);
        entry.withdraw();
        let seen = gate.position();
        assert!(!gate.is_clear_of(seen));
        gate.leave();
        assert!(gate.is_clear_of(seen));
        gate.enter();
        assert_eq!(entry.look_up(7), None);
        assert!(gate.is_clear_of(seen), "a later visit is another one");
    }

    #[test]
    fn no_two_visits_stand_at_the_same_place() {
        let gate = Gate::default();
        let visits: Vec<_> =
            std::iter::repeat_with(|| (gate.enter(), gate.position(), gate.leave()).1).take(3).collect();
        assert_eq!(visits, [1, 3, 5]);
    }

    /// The gate lies in memory that peers can write: a writer that goes in is inside whatever was there.
    #[test]
    fn whoever_enters_is_inside() {
        let gate = Gate(AtomicU64::new(7));
        gate.enter();
        assert!(!gate.is_clear_of(gate.position()));
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    struct Shop {
        entry: Entry,
        gate: Gate,
        memory: UnsafeCell<u32>,
    }
    // SAFETY: the model under test decides who may touch the memory; loom reports it if it is wrong.
    unsafe impl Sync for Shop {}

    /// Memory taken back is written by nobody else. Fails if either fence of SYNC POINT `gate` is removed, or the
    /// Release of `leave` is.
    #[test]
    fn loom_window_is_quiet_after_withdrawal() {
        loom::model(|| {
            let shop =
                Arc::new(Shop { entry: Entry::default(), gate: Gate::default(), memory: UnsafeCell::new(0) });
            shop.entry.expose(7, Exposed { tag: 1, offset: 0, len: 4, rights: 1 });
            let writer = {
                let shop = shop.clone();
                thread::spawn(move || {
                    shop.gate.enter();
                    if shop.entry.look_up(7).is_some() {
                        // SAFETY: exposed, and we are inside the gate.
                        shop.memory.with_mut(|value| unsafe { *value = 1 });
                    }
                    shop.gate.leave();
                })
            };
            shop.entry.withdraw();
            let seen = shop.gate.position();
            while !shop.gate.is_clear_of(seen) {
                thread::yield_now();
            }
            // SAFETY: withdrawn and clear: ours alone.
            shop.memory.with_mut(|value| unsafe { *value = 2 });
            writer.join().unwrap();
        });
    }
}
