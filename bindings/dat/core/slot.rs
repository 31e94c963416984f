//! Handles: addresses of slots that are never freed, but used again. So a handle that the program has kept too long finds a slot
//! of its kind or none, and never memory of something else.

#![allow(unsafe_code, reason = "C's handles are addresses; a place is found again by its own")]

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};

/// A slot that a handle points to. The registry reads the first word, which points to the provider's calls.
#[repr(C)]
pub struct Slot<T: 'static> {
    provider: AtomicUsize,
    /// The pool's kind while the slot is in use, else 0.
    kind: AtomicU32,
    id: u32,
    /// `dat_set_consumer_context`.
    pub context: AtomicU64,
    held: Mutex<Option<T>>,
}

impl<T> Slot<T> {
    /// Returns the handle that the program has.
    pub fn handle(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    /// Index of the slot in its pool.
    pub fn id(&self) -> u64 {
        self.id.into()
    }

    /// The object, while it lives.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.held.lock()
    }
}

impl<T: Clone> Slot<T> {
    /// The object, while it lives.
    pub fn get(&self) -> Option<T> {
        self.held.lock().clone()
    }
}

/// All slots of one kind.
pub struct Pool<T: 'static> {
    kind: u32,
    slots: RwLock<Vec<&'static Slot<T>>>,
    free: Mutex<Vec<u32>>,
}

impl<T> Pool<T> {
    /// Makes a pool. `kind` tells it from other pools, and is not 0.
    pub const fn new(kind: u32) -> Self {
        Pool { kind, slots: RwLock::new(Vec::new()), free: Mutex::new(Vec::new()) }
    }

    /// Adds an object. `make` gets its slot, which is still empty.
    pub fn insert(&self, provider: usize, make: impl FnOnce(&'static Slot<T>) -> T) -> &'static Slot<T> {
        let free = self.free.lock().pop();
        let slot = match free {
            Some(id) => self.slots.read()[id as usize],
            None => {
                let mut slots = self.slots.write();
                let slot: &'static Slot<T> = Box::leak(Box::new(Slot {
                    provider: AtomicUsize::new(0),
                    kind: AtomicU32::new(0),
                    id: slots.len() as u32,
                    context: AtomicU64::new(0),
                    held: Mutex::new(None),
                }));
                slots.push(slot);
                slot
            }
        };
        let made = make(slot);
        slot.context.store(0, Ordering::Relaxed);
        slot.provider.store(provider, Ordering::Relaxed);
        *slot.held.lock() = Some(made);
        slot.kind.store(self.kind, Ordering::Release);
        slot
    }

    /// Takes the object out, if `may` says that it can go.
    ///
    /// # Errors
    /// The error of `may`; `gone` if the slot has no object.
    pub fn remove<E>(
        &self,
        slot: &'static Slot<T>,
        gone: E,
        may: impl FnOnce(&mut T) -> Result<(), E>,
    ) -> Result<T, E> {
        let mut held = slot.held.lock();
        let Some(mut object) = held.take() else { return Err(gone) };
        if let Err(why) = may(&mut object) {
            *held = Some(object);
            return Err(why);
        }
        slot.kind.store(0, Ordering::Release);
        drop(held);
        self.free.lock().push(slot.id);
        Ok(object)
    }

    /// The slot with this index.
    #[inline]
    pub fn by_id(&self, id: u64) -> Option<&'static Slot<T>> {
        self.slots.read().get(usize::try_from(id).ok()?).copied()
    }

    /// Like [`Pool::find`], by a search: the handle may be any number.
    pub fn by_handle(&self, handle: usize) -> Option<&'static Slot<T>> {
        let in_use = |slot: &&&'static Slot<T>| slot.kind.load(Ordering::Acquire) == self.kind;
        self.slots.read().iter().filter(in_use).find(|slot| slot.handle() == handle).copied()
    }

    /// The slot of this handle, if it is of this kind and in use.
    ///
    /// # Safety
    /// NULL, or a handle that a call of this library has given, of any kind, in use or not.
    #[inline]
    pub unsafe fn find(&self, handle: usize) -> Option<&'static Slot<T>> {
        if handle == 0 || !handle.is_multiple_of(align_of::<Slot<T>>()) {
            return None;
        }
        let slot = handle as *const Slot<T>;
        // SAFETY: a slot of some kind: slots are never freed, and all begin alike (`repr(C)`, fields of fixed size first).
        let kind = unsafe { &(*slot).kind };
        // SAFETY: this pool's kind, so a slot of this pool.
        (kind.load(Ordering::Acquire) == self.kind).then(|| unsafe { &*slot })
    }
}

/// The kind of a handle, 0 if it is not in use.
///
/// # Safety
/// As [`Pool::find`], and not NULL.
pub unsafe fn kind_of(handle: usize) -> u32 {
    let slot = handle as *const Slot<()>;
    // SAFETY: as in `find`.
    unsafe { &(*slot).kind }.load(Ordering::Acquire)
}

/// The consumer's context of a handle.
///
/// # Safety
/// As [`kind_of`].
pub unsafe fn context_of<'a>(handle: usize) -> &'a AtomicU64 {
    let slot = handle as *const Slot<()>;
    // SAFETY: as in `find`; slots are never freed.
    unsafe { &(*slot).context }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_finds_what_lives_and_is_of_its_kind() {
        static NUMBERS: Pool<u32> = Pool::new(3);
        static WORDS: Pool<String> = Pool::new(4);
        let one = NUMBERS.insert(7, |_| 1);
        let word = WORDS.insert(7, |_| "word".into());
        // SAFETY: NULL, and handles of ours, throughout.
        let (number, other) = unsafe { (NUMBERS.find(one.handle()), NUMBERS.find(word.handle())) };
        assert_eq!((number.unwrap().get(), other.is_none()), (Some(1), true));
        // SAFETY: as above.
        assert_eq!(unsafe { (kind_of(word.handle()), NUMBERS.find(0).is_none()) }, (4, true));
        assert_eq!(NUMBERS.remove(one, "gone", |_| Err("in use")), Err("in use"));
        assert_eq!(NUMBERS.remove(one, "gone", |_| Ok(())), Ok(1));
        assert_eq!(NUMBERS.remove(one, "gone", |_| Ok(())), Err("gone"));
        // SAFETY: as above.
        assert!(unsafe { NUMBERS.find(one.handle()) }.is_none());
        assert_eq!(NUMBERS.insert(7, |_| 2).handle(), one.handle(), "used again");
    }
}
