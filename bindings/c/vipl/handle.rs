//! Handles, by which C names our objects. A handle is no address: it is an index and a generation, looked up in a table. So a
//! handle that is NULL, stale, of another kind or made up is found out, and never followed.
//!
//! ```text
//!   63..56  0
//!   55..24  generation of the place, from 1
//!   23..4   index of the place
//!   3..0    kind
//! ```
//!
//! An object's place has the object's lock: one lock both finds the handle valid and keeps the object until it is released. Places
//! are never freed, so looking one up takes no lock. A table has as many places as it ever had objects at a time.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};

/// A handle as C has it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle(pub *mut c_void);

// SAFETY: a number.
unsafe impl Send for Handle {}
// SAFETY: a number.
unsafe impl Sync for Handle {}

impl Handle {
    pub const NULL: Handle = Handle(std::ptr::null_mut());

    pub fn number(self) -> u64 {
        self.0 as usize as u64
    }

    pub fn of_number(number: u64) -> Handle {
        Handle(number as usize as *mut c_void)
    }
}

const PER_CHUNK: usize = 256;
const CHUNKS: usize = 4096;

struct Place<T>(Mutex<Held<T>>);

/// Never freed: a table is static.
type Chunk<T> = [Place<T>; PER_CHUNK];

struct Held<T> {
    generation: u32,
    object: Option<T>,
}

pub(super) struct Table<T> {
    kind: u64,
    chunks: [AtomicPtr<Chunk<T>>; CHUNKS],
    free: Mutex<Free>,
}

struct Free {
    places: Vec<usize>,
    next: usize,
}

impl<T> Table<T> {
    pub const fn new(kind: u64) -> Self {
        let free = Mutex::new(Free { places: Vec::new(), next: 0 });
        Table { kind, chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS], free }
    }

    #[inline]
    fn place(&self, handle: Handle) -> Option<(&Place<T>, u32)> {
        let number = handle.number();
        if number & 0xf != self.kind || number >> 56 != 0 {
            return None;
        }
        let index = (number >> 4) as usize & 0xf_ffff;
        let place = &self.chunk(index / PER_CHUNK)?[index % PER_CHUNK];
        Some((place, (number >> 24) as u32))
    }

    #[inline]
    fn chunk(&self, at: usize) -> Option<&Chunk<T>> {
        // SYNC POINT chunk: the chunk behind the pointer is made.
        let chunk = self.chunks[at].load(Ordering::Acquire);
        // SAFETY: null, or a chunk that was leaked.
        unsafe { chunk.as_ref() }
    }

    /// Makes a chunk. Called under the lock of `free`, so once for each.
    fn make_chunk(&self, at: usize) {
        if self.chunk(at).is_none() {
            let fresh = |_| Place(Mutex::new(Held { generation: 0, object: None }));
            let places: Box<[Place<T>]> = (0..PER_CHUNK).map(fresh).collect();
            let chunk = Box::into_raw(places).cast::<Chunk<T>>();
            // SYNC POINT chunk: publishes the chunk.
            self.chunks[at].store(chunk, Ordering::Release);
        }
    }

    /// The object, locked.
    #[inline]
    pub fn lock(&self, handle: Handle) -> Option<MappedMutexGuard<'_, T>> {
        let (place, generation) = self.place(handle)?;
        let held = place.0.lock();
        if held.generation != generation {
            return None;
        }
        MutexGuard::try_map(held, |held| held.object.as_mut()).ok()
    }

    /// Makes a place, and its object with the handle that it will have. `None`: the table is full.
    pub fn insert(&self, make: impl FnOnce(Handle) -> T) -> Option<Handle> {
        let index = {
            let mut free = self.free.lock();
            let index = match free.places.pop() {
                Some(index) => index,
                None if free.next == PER_CHUNK * CHUNKS => return None,
                None => {
                    free.next += 1;
                    free.next - 1
                }
            };
            self.make_chunk(index / PER_CHUNK);
            index
        };
        let chunk = self.chunk(index / PER_CHUNK)?;
        let mut held = chunk[index % PER_CHUNK].0.lock();
        held.generation = held.generation.wrapping_add(1).max(1);
        let handle = Handle::of_number(u64::from(held.generation) << 24 | (index as u64) << 4 | self.kind);
        held.object = Some(make(handle));
        Some(handle)
    }

    /// Takes the object out if `may` allows: the handle is stale from then on.
    ///
    /// # Errors
    /// `None`: no such object. Otherwise the error of `may`.
    pub fn remove<E>(
        &self,
        handle: Handle,
        may: impl FnOnce(&mut T) -> Result<(), E>,
    ) -> Option<Result<T, E>> {
        let (place, generation) = self.place(handle)?;
        let mut held = place.0.lock();
        if held.generation != generation {
            return None;
        }
        if let Err(error) = may(held.object.as_mut()?) {
            return Some(Err(error));
        }
        let object = held.object.take()?;
        drop(held);
        self.free.lock().places.push((handle.number() >> 4) as usize & 0xf_ffff);
        Some(Ok(object))
    }
}

impl<T> Table<T> {
    /// Takes out all objects that `keep` does not want.
    pub fn retain(&self, keep: impl Fn(&T) -> bool) {
        for chunk_at in 0..CHUNKS {
            let Some(chunk) = self.chunk(chunk_at) else { break };
            for (at, place) in chunk.iter().enumerate() {
                let mut held = place.0.lock();
                if held.object.as_ref().is_some_and(|object| !keep(object)) {
                    let gone = held.object.take();
                    drop(held);
                    drop(gone);
                    self.free.lock().places.push(chunk_at * PER_CHUNK + at);
                }
            }
        }
    }
}

impl<T: Clone> Table<T> {
    pub fn get(&self, handle: Handle) -> Option<T> {
        self.lock(handle).map(|object| object.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_living_handles_of_the_kind_are_found() {
        static TABLE: Table<u32> = Table::new(3);
        let one = TABLE.insert(|_| 1).unwrap();
        let two = TABLE.insert(|_| 2).unwrap();
        assert_eq!((TABLE.get(one), TABLE.get(two)), (Some(1), Some(2)));
        assert_eq!(TABLE.remove(one, |_| Ok::<_, ()>(())), Some(Ok(1)));
        assert_eq!(TABLE.get(one), None, "stale");
        let again = TABLE.insert(|_| 3).unwrap();
        assert_ne!(again, one, "the place is the same, the generation is not");
        assert_eq!(TABLE.get(one), None);
        for made_up in [0, 1, 3, u64::MAX, two.number() ^ 1, two.number() + 16, two.number() | 1 << 60] {
            assert_eq!(TABLE.get(Handle::of_number(made_up)), None, "{made_up:#x}");
        }
        assert_eq!(TABLE.remove(two, |_| Err("no")), Some(Err("no")));
        assert_eq!(TABLE.get(two), Some(2));
    }
}
