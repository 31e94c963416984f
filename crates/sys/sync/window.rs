//! Windows: memory that a peer may write or read by itself, and how its owner takes it back.
//!
//! The owner publishes [`Entry`]s, each under a handle. A peer announces at its [`Gate`] the handle of the window that it
//! enters, looks the entry up, copies, and leaves. To withdraw, the owner clears the entry and waits until no peer is inside
//! that had announced *this* handle. A peer inside another window holds nothing up.
//!
//! ```text
//! gate   0        32                64
//!        | handle | number of access |     handle 0: outside
//! ```
//!
//! # Memory ordering
//! `SYNC POINT gate`: the peer stores the handle in its gate, fences SeqCst, loads the entry; the owner clears the entry,
//! fences SeqCst, loads the gates. Either the peer sees the entry gone, or the owner sees the peer inside and waits.
//! Leaving stores with Release, and so does entering: the owner, which loads with Acquire, may see the next access before
//! it has seen the end of the former, and has to know either way that the former's copy is over before the memory is
//! reused. (A relaxed store does not continue the release sequence of the store before it.) On x86 both are plain stores;
//! on aarch64 the fence of entering costs more than its `stlr`.
//!
//! # Hostility
//! A peer that lies (copies without announcing it, or announces another window than it uses) spoils only window memory
//! of its own job; see SAFETY.md. A peer that announces a window for ever holds up that window, one per connection.
//! An owner that lies can make a writer write only within the owner's own landing memory: the caller checks
//! bounds after [`AccessGuard::look_up`].

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, Shared, fence};

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

/// A peer's announcement of the window that it is inside. It lies in memory that the peer writes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Gate(AtomicU64);

// SAFETY: atomics only.
unsafe impl Shared for Gate {}

/// A peer's access to a window: it ends when this is dropped.
#[derive(Debug)]
#[must_use = "an access is over when this is dropped"]
pub struct AccessGuard<'a> {
    gate: &'a Gate,
    handle: u32,
}

/// A peer's access to a window, as the owner saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessEpoch(u64);

/// Content of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The owner's protection tag.
    pub tag: u32,
    /// Start of the window in the owner's memory; `rights` tells the segment.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Rights of peers there: bits whose meaning is the caller's.
    pub rights: u32,
}

impl Entry {
    /// Publishes `exposed` under `handle` (not 0). The owner calls this.
    pub fn expose(&self, handle: u32, exposed: Exposed) {
        self.tag.store(exposed.tag, Ordering::Relaxed);
        self.offset.store(exposed.offset, Ordering::Relaxed);
        self.len.store(exposed.len, Ordering::Relaxed);
        self.rights.store(exposed.rights, Ordering::Relaxed);
        self.handle.store(handle, Ordering::Release);
    }

    /// Withdraws the entry. The owner calls this, and may reuse the entry only when every access that [`Gate::access_in`] shows
    /// for its handle afterwards is over.
    pub fn withdraw(&self) {
        self.handle.store(0, Ordering::Relaxed);
        // SYNC POINT gate, owner's half.
        fence(Ordering::SeqCst);
    }
}

impl AccessGuard<'_> {
    /// Content of the announced window, if this is its entry. Handle 0 finds nothing: a withdrawn entry holds 0, beside its
    /// former content.
    pub fn look_up(&self, entry: &Entry) -> Option<Exposed> {
        (self.handle != OUTSIDE && entry.handle.load(Ordering::Acquire) == self.handle).then(|| Exposed {
            tag: entry.tag.load(Ordering::Relaxed),
            offset: entry.offset.load(Ordering::Relaxed),
            len: entry.len.load(Ordering::Relaxed),
            rights: entry.rights.load(Ordering::Relaxed),
        })
    }
}

impl Drop for AccessGuard<'_> {
    fn drop(&mut self) {
        self.gate.leave();
    }
}

/// Handle of a peer that is outside of all windows.
const OUTSIDE: u32 = 0;
/// One access, in a gate's word.
const ONE_ACCESS: u64 = 1 << 32;

impl Gate {
    /// Enters the window `handle`, and no other. The peer calls this.
    pub fn enter(&self, handle: u32) -> AccessGuard<'_> {
        let next = (self.0.load(Ordering::Relaxed) & !u64::from(u32::MAX)).wrapping_add(ONE_ACCESS);
        // SYNC POINT gate: the copies of the access before are over.
        self.0.store(next | u64::from(handle), Ordering::Release);
        // SYNC POINT gate, peer's half.
        fence(Ordering::SeqCst);
        AccessGuard { gate: self, handle }
    }

    fn leave(&self) {
        let now = self.0.load(Ordering::Relaxed);
        // SYNC POINT gate: after the copy.
        self.0.store(now & !u64::from(u32::MAX), Ordering::Release);
    }

    /// The peer's access to the window `handle`, if it is inside that one. The owner calls this after [`Entry::withdraw`].
    pub fn access_in(&self, handle: u32) -> Option<AccessEpoch> {
        let now = self.position();
        (now as u32 == handle && handle != OUTSIDE).then_some(AccessEpoch(now))
    }

    /// Whether an access is over. A later one to the same window is another. The owner calls this.
    pub fn is_over(&self, epoch: AccessEpoch) -> bool {
        self.position() != epoch.0
    }

    /// Whether the peer is inside any window. The owner calls this.
    pub fn is_occupied(&self) -> bool {
        self.position() as u32 != OUTSIDE
    }

    fn position(&self) -> u64 {
        // SYNC POINT gate: the copies of an access that is over.
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const EXPOSED: Exposed = Exposed { tag: 1, offset: 64, len: 128, rights: 2 };

    #[test]
    fn what_was_withdrawn_has_no_handle() {
        let (entry, gate) = (Entry::default(), Gate::default());
        assert_eq!(gate.enter(0).look_up(&entry), None);
        entry.expose(7, EXPOSED);
        entry.withdraw();
        assert_eq!((gate.enter(0).look_up(&entry), gate.enter(7).look_up(&entry)), (None, None));
    }

    #[test]
    fn a_peer_inside_is_seen_until_it_leaves() {
        let (entry, gate) = (Entry::default(), Gate::default());
        entry.expose(7, EXPOSED);
        let guard = gate.enter(7);
        assert_eq!(guard.look_up(&entry), Some(EXPOSED));
        entry.withdraw();
        let epoch = gate.access_in(7).expect("inside");
        assert!(gate.is_occupied() && !gate.is_over(epoch));
        drop(guard);
        assert!(gate.is_over(epoch) && !gate.is_occupied());
        let again = gate.enter(7);
        assert_eq!(again.look_up(&entry), None);
        assert!(gate.is_over(epoch), "a later access is another one");
    }

    /// A stopped process is inside one window, not in all of them.
    #[test]
    fn a_peer_is_inside_the_window_that_it_named_and_in_no_other() {
        let (entries, gate) = ([Entry::default(), Entry::default()], Gate::default());
        entries[0].expose(7, EXPOSED);
        entries[1].expose(8, EXPOSED);
        let guard = gate.enter(8);
        assert_eq!(guard.look_up(&entries[0]), None, "it goes nowhere else");
        entries[0].withdraw();
        assert_eq!(gate.access_in(7), None);
        entries[1].withdraw();
        assert!(gate.access_in(8).is_some() && gate.is_occupied());
        drop(guard);
        assert_eq!(gate.access_in(0), None, "nobody is inside nothing");
    }

    /// The gate lies in memory that peers can write: a peer that enters is inside whatever the word was before, and each
    /// access differs from the one before.
    #[test]
    fn whoever_enters_is_inside() {
        for there in [0, 7, u64::MAX, u64::MAX << 32] {
            let gate = Gate(AtomicU64::new(there));
            let accesses = [(); 3].map(|()| {
                let _guard = gate.enter(7);
                gate.access_in(7).expect("inside")
            });
            assert!(
                accesses[0] != accesses[1] && accesses[1] != accesses[2] && !gate.is_occupied(),
                "{there}"
            );
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    const ANY: Exposed = Exposed { tag: 1, offset: 0, len: 4, rights: 1 };

    /// Two windows of one owner with their memory, and a peer's gate.
    struct Shop {
        entries: [Entry; 2],
        gate: Gate,
        memory: [UnsafeCell<u32>; 2],
    }
    // SAFETY: the model under test decides who may touch the memory; loom reports it if it is wrong.
    unsafe impl Sync for Shop {}

    /// The handle of window `number`.
    fn handle(number: usize) -> u32 {
        7 + number as u32
    }

    impl Shop {
        fn open() -> Arc<Self> {
            let shop = Shop {
                entries: [Entry::default(), Entry::default()],
                gate: Gate::default(),
                memory: [UnsafeCell::new(0), UnsafeCell::new(0)],
            };
            shop.entries.iter().enumerate().for_each(|(number, entry)| entry.expose(handle(number), ANY));
            Arc::new(shop)
        }

        /// Lets the peer write into the window, if it is still exposed.
        fn write(&self, number: usize) {
            let guard = self.gate.enter(handle(number));
            if guard.look_up(&self.entries[number]).is_some() {
                // SAFETY: the window is exposed, and we are inside.
                self.memory[number].with_mut(|value| unsafe { *value = 1 });
            }
        }

        /// Lets the owner take the window back, and write there itself.
        fn take_back(&self, number: usize) {
            self.entries[number].withdraw();
            if let Some(epoch) = self.gate.access_in(handle(number)) {
                while !self.gate.is_over(epoch) {
                    thread::yield_now();
                }
            }
            // SAFETY: the window is withdrawn, and no peer is inside, so the memory is ours alone.
            self.memory[number].with_mut(|value| unsafe { *value = 2 });
        }
    }

    /// Runs `owner`, while `peer` runs on a thread of its own.
    fn model(
        owner: impl Fn(&Shop) + Send + Sync + 'static,
        peer: impl Fn(&Shop) + Copy + Send + Sync + 'static,
    ) {
        loom::model(move || {
            let shop = Shop::open();
            let thread = thread::spawn({
                let shop = shop.clone();
                move || peer(&shop)
            });
            owner(&shop);
            thread.join().unwrap();
        });
    }

    /// Memory taken back is written by nobody else. Fails if either fence of SYNC POINT `gate` is removed, or the
    /// Release of `leave` or the Acquire of `position` is.
    #[test]
    fn loom_window_is_quiet_after_withdrawal() {
        model(|shop| shop.take_back(0), |shop| shop.write(0));
    }

    /// A peer that goes from one window to the next has left the first, and its accesses there are over. Fails if the Release
    /// of `enter` is weakened: the owner may see the second access without the end of the first.
    #[test]
    fn loom_window_is_quiet_when_its_peer_is_inside_another() {
        let peer = |shop: &Shop| {
            shop.write(0);
            shop.write(1);
        };
        model(|shop| shop.take_back(0), peer);
    }

    /// Each window is taken back by itself, in whatever order its peer enters them.
    #[test]
    fn loom_windows_are_taken_back_one_by_one() {
        let owner = |shop: &Shop| {
            shop.take_back(0);
            shop.take_back(1);
        };
        let peer = |shop: &Shop| {
            shop.write(1);
            shop.write(0);
        };
        model(owner, peer);
    }

    /// The owner does not wait for a peer that stays inside another window: it would wait for ever.
    #[test]
    fn loom_window_does_not_wait_for_who_is_inside_another() {
        loom::model(|| {
            let shop = Shop::open();
            let peer = thread::spawn({
                let shop = shop.clone();
                move || std::mem::forget(shop.gate.enter(handle(1)))
            });
            shop.take_back(0);
            peer.join().unwrap();
            assert!(shop.gate.access_in(handle(1)).is_some());
        });
    }

    /// A window is taken back, and its entry shows another piece of memory under another handle, while a peer is about to
    /// enter the old one: each content that the peer finds belongs to its handle, whole. Fails if either fence of SYNC POINT
    /// `gate` is removed: the peer in the old one is still inside when the entry is written anew.
    #[test]
    fn loom_window_that_is_exposed_again_is_another() {
        const AGAIN: Exposed = Exposed { tag: 2, offset: 1, len: 8, rights: 3 };
        let owner = |shop: &Shop| {
            shop.take_back(0);
            // SAFETY: the memory is not exposed yet.
            shop.memory[1].with_mut(|value| unsafe { *value = 3 });
            shop.entries[0].expose(handle(2), AGAIN);
        };
        let peer = |shop: &Shop| {
            let guard = shop.gate.enter(handle(0));
            if let Some(found) = guard.look_up(&shop.entries[0]) {
                assert_eq!(found, ANY);
                // SAFETY: the window is exposed, and we are inside.
                shop.memory[0].with_mut(|value| unsafe { *value = 1 });
            }
            drop(guard);
            let guard = shop.gate.enter(handle(2));
            if let Some(found) = guard.look_up(&shop.entries[0]) {
                assert_eq!(found, AGAIN);
                // SAFETY: the window is exposed, and we are inside.
                shop.memory[1].with_mut(|value| unsafe { *value = 1 });
            }
        };
        model(owner, peer);
    }

    /// A peer enters the window again, while the owner waits for the end of its access: the second time it finds nothing, and
    /// the owner does not mistake the second access for the first. Fails if either fence of SYNC POINT `gate` is removed, or
    /// the Release of `enter` is: the owner may see the second access without the end of the first.
    #[test]
    fn loom_window_is_quiet_when_its_peer_comes_again() {
        let peer = |shop: &Shop| {
            shop.write(0);
            shop.write(0);
        };
        model(|shop| shop.take_back(0), peer);
    }
}
