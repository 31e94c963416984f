//! Table of the objects behind C's structures, found by number and generation.
//!
//! The number of a removed object is detected, because its place has another generation since the removal. Generations begin at a
//! different number in each table, a number that no memory contains by accident. A structure that was never created is therefore
//! detected, too. Places are never freed, so reading one needs no lock; the object in it has a lock.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use udeck::via::check_process;

use super::error::{CallError, FAILED, Result, TIMED_OUT, failure, invalid};

/// Places in the table itself, and in the first chunk; each further chunk has twice as many.
const FIRST: u32 = 64;
const CHUNKS: usize = 24;
/// Value of a seal that was not set. It is not 0, because a zeroed structure would have the seal 0.
const NO_SEAL: u64 = 0x9c1f_6b2e_d35a_8407;
/// Longest wait for another thread's call with the same object: longer than such calls wait by default.
pub(super) const BUSY: Duration = Duration::from_secs(700);

/// Table of the objects of one kind.
#[repr(C)]
pub(super) struct Table<T> {
    /// Places of the first objects; most programs need no more. (They come first, so that a place's address is
    /// a multiple of its number.)
    first: [Slot<T>; FIRST as usize],
    /// The structure's name in C.
    pub what: &'static str,
    /// First generation of each place.
    magic: u32,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    places: Mutex<Places>,
}

/// A place of an object, in cache lines of its own, because threads use different objects.
#[repr(align(64))]
struct Slot<T> {
    value: Mutex<Option<T>>,
    /// Generation of the place, counted from the table's magic number. It changes while the lock is held.
    generation: AtomicU32,
    /// Check value that the table's owner set for the object in this place.
    seal: AtomicU64,
}

impl<T> Slot<T> {
    const fn empty(generation: u32) -> Self {
        Slot {
            value: Mutex::new(None),
            generation: AtomicU32::new(generation),
            seal: AtomicU64::new(NO_SEAL),
        }
    }
}

struct Places {
    free: Vec<u32>,
    used: u32,
    /// Address of each of C's structures, with the number that was written there. The table keeps them because nobody may
    /// read the bytes of a structure that was never created.
    structures: Option<HashMap<usize, u64>>,
}

/// An object in exclusive use.
#[derive(Debug)]
pub(super) struct Locked<'a, T>(MutexGuard<'a, Option<T>>);

impl<T> Locked<'_, T> {
    /// The object. (Its number is given out only after it was stored, and changes when it is taken out.)
    #[inline(always)]
    pub fn get(&mut self) -> Option<&mut T> {
        self.0.as_mut()
    }
}

impl<T> Table<T> {
    /// An empty table, whose objects have the name `what` in C.
    pub const fn new(what: &'static str, magic: u32) -> Self {
        let places = Places { free: Vec::new(), used: 0, structures: None };
        // Copying a value with interior mutability takes a loop in a `const fn`.
        let mut first = [const { Slot::empty(0) }; FIRST as usize];
        let mut at = 0;
        while at < first.len() {
            first[at].generation = AtomicU32::new(magic);
            at += 1;
        }
        Table { what, magic, first, chunks: [const { OnceLock::new() }; CHUNKS], places: Mutex::new(places) }
    }

    /// Stores an object for the structure at this address, and returns its number, which is never 0.
    pub fn insert(&self, value: T, structure: usize) -> Result<u64> {
        let mut places = self.places()?;
        let index = match places.free.pop() {
            Some(index) => index,
            None => {
                let index = places.used;
                if index >= FIRST {
                    let chunk = self.chunks.get(place(index).0);
                    let chunk = chunk.ok_or_else(|| invalid(format!("too many {}s", self.what)))?;
                    chunk.get_or_init(|| new_chunk(index, self.magic));
                }
                places.used += 1;
                index
            }
        };
        let slot = self.slot(index).expect("just made");
        *slot.value.lock() = Some(value);
        let number = u64::from(slot.generation.load(Ordering::Relaxed)) << 32 | u64::from(index);
        places.structures.get_or_insert_default().insert(structure, number);
        Ok(number)
    }

    /// Sets an object's check value, which [`Table::is_sealed`] compares.
    pub fn seal(&self, number: u64, seal: u64) {
        if let Some(slot) = self.find(number) {
            slot.seal.store(seal, Ordering::Relaxed);
        }
    }

    /// Whether the object in this place has this check value.
    #[inline(always)]
    pub fn is_sealed(&self, number: u64, seal: u64) -> bool {
        self.slot(number as u32).is_some_and(|slot| slot.seal.load(Ordering::Relaxed) == seal)
    }

    /// Number of the object that was last made for the structure at this address, if that object still exists.
    pub fn made_at(&self, structure: usize) -> Result<Option<u64>> {
        let number = self.places()?.structures.as_ref().and_then(|all| all.get(&structure).copied());
        Ok(number.filter(|number| self.find(*number).is_some()))
    }

    /// Locks the object of this number; waits for another thread's call that uses it, at most `limit`.
    #[inline(always)]
    pub fn lock(&self, number: u64, limit: Option<Duration>) -> Result<Locked<'_, T>> {
        let Some(slot) = self.slot(number as u32) else { return Err(self.missing()) };
        // The generation is compared before locking, too: the caller need not wait for a call that uses another
        // object in this place.
        if slot.generation.load(Ordering::Relaxed) != generation(number) {
            return Err(self.missing());
        }
        let guard = match slot.value.try_lock() {
            Some(guard) => guard,
            None => self.lock_in_use(slot, limit.unwrap_or(BUSY))?,
        };
        if slot.generation.load(Ordering::Relaxed) != generation(number) {
            return Err(self.missing());
        }
        Ok(Locked(guard))
    }

    /// Takes an object out for good.
    pub fn take_out(&self, mut used: Locked<'_, T>, number: u64, structure: usize) -> Result<T> {
        let slot = self.find(number).ok_or_else(|| self.missing())?;
        let value = used.0.take().ok_or_else(|| self.missing())?;
        slot.generation.store(generation(number).wrapping_add(1), Ordering::Relaxed);
        slot.seal.store(NO_SEAL, Ordering::Relaxed);
        drop(used);
        let mut places = self.places()?;
        places.free.push(number as u32);
        if let Some(structures) =
            places.structures.as_mut().filter(|all| all.get(&structure) == Some(&number))
        {
            structures.remove(&structure);
        }
        Ok(value)
    }

    /// Whether a call of another thread uses an object: the call has locked it, or `is_used` says so.
    pub fn is_in_use(&self, is_used: impl Fn(&T) -> bool) -> bool {
        let places = self.places.lock().used;
        (0..places).filter_map(|index| self.slot(index)).any(|slot| match slot.value.try_lock() {
            Some(value) => value.as_ref().is_some_and(&is_used),
            None => true,
        })
    }

    /// Takes out all objects that no other thread's call uses.
    pub fn clear(&self) {
        let used = self.places.lock().used;
        for index in 0..used {
            let Some(slot) = self.slot(index) else { continue };
            let number = u64::from(slot.generation.load(Ordering::Relaxed)) << 32 | u64::from(index);
            if let Some(value) = slot.value.try_lock() {
                drop(self.take_out(Locked(value), number, 0));
            }
        }
    }

    /// Waits for the thread that uses the object. A forked child has one thread, and the lock's holder would be the
    /// parent's.
    #[cold]
    #[inline(never)]
    fn lock_in_use<'a>(&self, slot: &'a Slot<T>, limit: Duration) -> Result<MutexGuard<'a, Option<T>>> {
        check()?;
        slot.value.try_lock_for(limit).ok_or_else(|| self.busy())
    }

    /// Locks the list of places. In a forked child the lock of another thread stays locked.
    fn places(&self) -> Result<MutexGuard<'_, Places>> {
        check()?;
        Ok(self.places.lock())
    }

    fn find(&self, number: u64) -> Option<&Slot<T>> {
        let slot = self.slot(number as u32)?;
        (slot.generation.load(Ordering::Relaxed) == generation(number)).then_some(slot)
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        self.first.get(index as usize).or_else(|| self.further(index))
    }

    #[inline(never)]
    fn further(&self, index: u32) -> Option<&Slot<T>> {
        let (chunk, at) = place(index);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    #[cold]
    #[inline(never)]
    fn busy(&self) -> CallError {
        failure(TIMED_OUT, format!("another thread of this rank is in a call with this {}", self.what))
    }

    #[cold]
    #[inline(never)]
    pub fn missing(&self) -> CallError {
        invalid(format!("the {} was not created, or was destroyed", self.what))
    }
}

/// # Errors
/// This process is a forked child: no object of the library belongs to it.
pub(super) fn check() -> Result {
    check_process().map_err(|error| failure(FAILED, error))
}

fn generation(number: u64) -> u32 {
    (number >> 32) as u32
}

/// The chunk of a place that is not in the table itself, and the index in this chunk.
fn place(index: u32) -> (usize, usize) {
    let chunk = index.max(FIRST).ilog2() - FIRST.ilog2();
    (chunk as usize, index as usize - ((FIRST as usize) << chunk))
}

fn new_chunk<T>(index: u32, magic: u32) -> Box<[Slot<T>]> {
    let (chunk, _) = place(index);
    (0..(FIRST as usize) << chunk).map(|_| Slot::empty(magic)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_object_is_not_found_again_in_its_place() {
        let table = Table::new("thing", 0x7468_0000);
        let first = table.insert('a', 0x10).unwrap();
        assert_eq!(*table.lock(first, None).unwrap().get().unwrap(), 'a');
        let remove = |number, structure| {
            table.lock(number, None).and_then(|used| table.take_out(used, number, structure))
        };
        assert_eq!(remove(first, 0x10).unwrap(), 'a');
        let second = table.insert('b', 0x10).unwrap();
        assert_eq!(first as u32, second as u32, "the same place");
        assert!(table.lock(first, None).is_err() && remove(first, 0x10).is_err());
        assert_eq!(*table.lock(second, None).unwrap().get().unwrap(), 'b');
        assert!(table.lock(0, None).is_err() && table.lock(u64::MAX, None).is_err());
    }

    #[test]
    fn places_fill_one_chunk_after_another() {
        assert_eq!(
            [place(64), place(127), place(128), place(255), place(256)].map(|(chunk, at)| chunk * 1000 + at),
            [0, 63, 1000, 1127, 2000]
        );
        assert!(place(u32::MAX).0 >= CHUNKS, "more than there can be");
        let table = Table::new("thing", 0x7468_0000);
        let numbers: Vec<u64> = (0..1000).map(|n| table.insert(n, n).unwrap()).collect();
        assert!(
            numbers
                .iter()
                .enumerate()
                .all(|(n, number)| table.lock(*number, None).unwrap().get() == Some(&mut n.clone()))
        );
    }

    #[test]
    fn a_structure_is_known_by_its_address_while_its_object_lives() {
        let table = Table::new("thing", 0x7468_0000);
        let number = table.insert((), 0x10).unwrap();
        assert_eq!((table.made_at(0x10).unwrap(), table.made_at(0x20).unwrap()), (Some(number), None));
        table.take_out(table.lock(number, None).unwrap(), number, 0x30).unwrap();
        assert_eq!(table.made_at(0x10).unwrap(), None);
    }

    #[test]
    fn a_seal_ends_with_its_object() {
        let table = Table::new("thing", 0x7468_0000);
        let number = table.insert((), 0x10).unwrap();
        table.seal(number, 7);
        assert!(table.is_sealed(number, 7) && !table.is_sealed(number, 8));
        table.take_out(table.lock(number, None).unwrap(), number, 0x10).unwrap();
        assert!(!table.is_sealed(number, 7) && !table.is_sealed(0, 0), "a structure of zeroes is none");
    }

    #[test]
    fn clearing_leaves_what_is_in_use() {
        let table = Table::new("thing", 0x7468_0000);
        let [busy, idle] = [1, 2].map(|n| table.insert(n, n as usize).unwrap());
        let used = table.lock(busy, None).unwrap();
        assert!(table.is_in_use(|_| false));
        table.clear();
        assert!(table.find(busy).is_some() && table.find(idle).is_none());
        let again = table.lock(busy, Some(Duration::ZERO));
        assert_eq!(again.expect_err("it is in use").code(), TIMED_OUT);
        drop(used);
        assert!(!table.is_in_use(|_| false) && table.is_in_use(|n| *n == 1) && !table.is_in_use(|n| *n == 2));
    }
}
