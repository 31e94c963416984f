//! Trace of a thread's accesses to words of shared memory, for tests of the cost of a message.
//!
//! With the feature `access-trace`, [`crate::sync::atomic`]'s integers are these: the same operations, each noted with its address
//! while the thread [`trace`]s. Structures in shared memory consist of them only ([`crate::sync::atomic::Shared`]), and their words
//! cannot be reached in another way, so all accesses of a ring, a doorbell or a gate to shared memory are noted. Accesses to
//! bulk data are not (the bytes of a message that is lent or copied): a short message has none, it travels in its cell's
//! words.

use core::sync::atomic::{self, Ordering};
use std::cell::RefCell;

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Address of the word.
    pub address: usize,
    /// Whether the access wrote, or could have.
    pub wrote: bool,
}

thread_local! {
    static SEEN: RefCell<Option<Vec<Access>>> = const { RefCell::new(None) };
}

/// Runs `act`, and returns its accesses on this thread, in order.
pub fn trace<R>(act: impl FnOnce() -> R) -> (R, Vec<Access>) {
    SEEN.with_borrow_mut(|seen| *seen = Some(Vec::new()));
    let result = act();
    (result, SEEN.take().unwrap_or_default())
}

fn note<T>(word: &T, wrote: bool) {
    let access = Access { address: std::ptr::from_ref(word).addr(), wrote };
    SEEN.with_borrow_mut(|seen| {
        if let Some(seen) = seen {
            seen.push(access);
        }
    });
}

macro_rules! noted {
    ($name:ident, $int:ty) => {
        /// The integer of this name in [`core::sync::atomic`], whose accesses are noted.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(atomic::$name);

        #[allow(missing_docs, reason = "as in core")]
        impl $name {
            pub const fn new(value: $int) -> Self {
                $name(atomic::$name::new(value))
            }
            pub fn load(&self, order: Ordering) -> $int {
                note(self, false);
                self.0.load(order)
            }
            pub fn store(&self, value: $int, order: Ordering) {
                note(self, true);
                self.0.store(value, order);
            }
            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                note(self, true);
                self.0.swap(value, order)
            }
            pub fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                note(self, true);
                self.0.compare_exchange(current, new, success, failure)
            }
            pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                note(self, true);
                self.0.fetch_add(value, order)
            }
            pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                note(self, true);
                self.0.fetch_sub(value, order)
            }
            pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                note(self, true);
                self.0.fetch_or(value, order)
            }
        }
    };
}

noted!(AtomicU32, u32);
noted!(AtomicU64, u64);

impl AtomicU32 {
    /// The word itself, for a system call.
    pub(crate) fn raw(&self) -> &atomic::AtomicU32 {
        note(self, true);
        &self.0
    }
}
