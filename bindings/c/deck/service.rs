//! Objects that the ranks of a host share beside messages: `deck_semaph_t` and `deck_shmem_t`.
#![allow(unsafe_code, reason = "calls of C's")]

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::sync::Arc;

use parking_lot::Mutex;
use udeck::{Permit, Semaphore, SharedMutex, SharedMutexGuard, World};

use super::error::{CallError, Result, call, invalid};
use super::pointer::{self, Number, Structure};
use super::stage::{limit, world};
use super::table::Table;

/// `deck_semaph_t`, as `deck.h` has it.
#[repr(C)]
pub struct SemaphoreStructure {
    number: Number,
}

impl Structure for SemaphoreStructure {
    type Object = Arc<Semaphore>;
    const TABLE: &'static Table<Arc<Semaphore>> = &SEMAPHORES;

    fn number_in(structure: *mut Self) -> *mut Number {
        structure.cast()
    }
}

/// `deck_shmem_t`, as `deck.h` has it.
#[repr(C)]
pub struct MemoryStructure {
    addr: *mut c_void,
    size: c_ulong,
    number: Number,
}

impl Structure for MemoryStructure {
    type Object = Arc<Memory>;
    const TABLE: &'static Table<Arc<Memory>> = &MEMORIES;

    fn number_in(structure: *mut Self) -> *mut Number {
        structure.wrapping_byte_add(std::mem::offset_of!(MemoryStructure, number)).cast()
    }
}

static SEMAPHORES: Table<Arc<Semaphore>> = Table::new("deck_semaph_t", 0x6d65_0000);
static MEMORIES: Table<Arc<Memory>> = Table::new("deck_shmem_t", 0x6d68_0000);

/// Shared memory, and its lock while a thread of this process holds it. The guard borrows the memory, so it is dropped
/// first.
pub struct Memory {
    guard: Mutex<Option<SharedMutexGuard<'static, u64>>>,
    mutex: Arc<SharedMutex<u64>>,
}

/// Whether another thread is in a call with an object: that call holds a reference, too.
pub(super) fn is_in_use() -> bool {
    SEMAPHORES.is_in_use(|semaphore| Arc::strong_count(semaphore) > 1)
        || MEMORIES.is_in_use(|memory| Arc::strong_count(memory) > 1)
}

/// Drops all objects at the end of the job.
pub(super) fn clear() {
    SEMAPHORES.clear();
    MEMORIES.clear();
}

/// Ranks that share: those of this host.
fn host(world: &World) -> Vec<usize> {
    world.host_ranks()
}

/// `int deck_semaph_create(deck_semaph_t *semaph, const char *name, unsigned long value)`
///
/// # Safety
/// `structure` is NULL or points to a structure; `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_semaph_create(
    structure: *mut SemaphoreStructure,
    name: *const c_char,
    value: c_ulong,
) -> c_int {
    call("deck_semaph_create", || {
        let world = world()?;
        // SAFETY: our contract, for both.
        let name = unsafe {
            pointer::check_not_created(structure)?;
            pointer::name("name", name)?
        };
        let permits = u32::try_from(value)
            .map_err(|_| invalid(format!("value={value}: a semaphore starts with at most 1048576")))?;
        let semaphore = world.semaphore_of(&host(&world), name, permits)?;
        let number = pointer::insert(Arc::new(semaphore), structure)?;
        // SAFETY: our contract; it may be uninitialised.
        unsafe { structure.write(SemaphoreStructure { number }) };
        Ok(())
    })
}

/// `int deck_semaph_destroy(deck_semaph_t *semaph)`
///
/// # Safety
/// `structure` is NULL or points to a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_semaph_destroy(structure: *mut SemaphoreStructure) -> c_int {
    // SAFETY: our contract.
    call("deck_semaph_destroy", || unsafe { pointer::remove(structure) }.map(drop))
}

/// Returns the semaphore without a lock, because another thread may have to post while this one waits.
///
/// # Safety
/// A pointer that is not NULL points to a structure.
unsafe fn semaphore(structure: *mut SemaphoreStructure) -> Result<Arc<Semaphore>> {
    // SAFETY: our contract.
    unsafe { pointer::shared(structure) }
}

/// Takes one permit for good: nothing in C gives it back automatically.
///
/// # Safety
/// Same as for [`semaphore`].
unsafe fn take(
    structure: *mut SemaphoreStructure,
    acquire: impl FnOnce(&Semaphore) -> udeck::Result<Permit<'_>>,
) -> Result {
    // SAFETY: our contract.
    let semaphore = unsafe { semaphore(structure) }?;
    Ok(acquire(&semaphore)?.forget()?)
}

/// `int deck_semaph_wait(deck_semaph_t *semaph)`
///
/// # Safety
/// Same as for [`deck_semaph_destroy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_semaph_wait(structure: *mut SemaphoreStructure) -> c_int {
    // SAFETY: our contract.
    call("deck_semaph_wait", || unsafe { take(structure, Semaphore::acquire) })
}

/// `int deck_semaph_wait_timeout(deck_semaph_t *semaph, unsigned long microseconds)`
///
/// # Safety
/// Same as for [`deck_semaph_destroy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_semaph_wait_timeout(
    structure: *mut SemaphoreStructure,
    microseconds: c_ulong,
) -> c_int {
    call("deck_semaph_wait_timeout", || {
        // SAFETY: our contract.
        unsafe { take(structure, |semaphore| semaphore.acquire_timeout(limit(microseconds))) }
    })
}

/// `int deck_semaph_trywait(deck_semaph_t *semaph)`
///
/// # Safety
/// Same as for [`deck_semaph_destroy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_semaph_trywait(structure: *mut SemaphoreStructure) -> c_int {
    // SAFETY: our contract.
    call("deck_semaph_trywait", || unsafe { take(structure, Semaphore::try_acquire) })
}

/// `int deck_semaph_post(deck_semaph_t *semaph)`
///
/// # Safety
/// Same as for [`deck_semaph_destroy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_semaph_post(structure: *mut SemaphoreStructure) -> c_int {
    // SAFETY: our contract.
    call("deck_semaph_post", || Ok(unsafe { semaphore(structure) }?.release(1)?))
}

/// `int deck_shmem_create(deck_shmem_t *shmem, const char *name, unsigned long size)`
///
/// # Safety
/// `structure` is NULL or points to a structure; `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_shmem_create(
    structure: *mut MemoryStructure,
    name: *const c_char,
    size: c_ulong,
) -> c_int {
    call("deck_shmem_create", || {
        let world = world()?;
        // SAFETY: our contract, for both.
        let name = unsafe {
            pointer::check_not_created(structure)?;
            pointer::name("name", name)?
        };
        // The size is counted in words, so that the memory is aligned for every type of C.
        let words = (size as usize).div_ceil(size_of::<u64>());
        let mutex = Arc::new(world.shared_mutex_of::<u64>(&host(&world), name, words)?);
        let number = pointer::insert(Arc::new(Memory { guard: Mutex::new(None), mutex }), structure)?;
        // SAFETY: our contract; it may be uninitialised.
        unsafe { structure.write(MemoryStructure { addr: std::ptr::null_mut(), size, number }) };
        Ok(())
    })
}

/// `int deck_shmem_destroy(deck_shmem_t *shmem)`
///
/// # Safety
/// `structure` is NULL or points to a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_shmem_destroy(structure: *mut MemoryStructure) -> c_int {
    call("deck_shmem_destroy", || {
        // SAFETY: our contract.
        drop(unsafe { pointer::remove(structure) }?);
        // SAFETY: our contract; so that no pointer to it is left.
        unsafe {
            (&raw mut (*structure).addr).write_unaligned(std::ptr::null_mut());
            (&raw mut (*structure).size).write_unaligned(0);
        }
        Ok(())
    })
}

/// # Safety
/// A pointer that is not NULL points to a structure.
unsafe fn memory(structure: *mut MemoryStructure) -> Result<Arc<Memory>> {
    // SAFETY: our contract.
    unsafe { pointer::shared(structure) }
}

/// Takes the lock, and stores the address of the data for the program.
///
/// # Safety
/// Same as for [`memory`]; no other thread uses the structure's fields meanwhile.
unsafe fn lock(
    structure: *mut MemoryStructure,
    take: impl FnOnce(&SharedMutex<u64>) -> udeck::Result<SharedMutexGuard<'_, u64>>,
) -> Result {
    // SAFETY: our contract.
    let memory = unsafe { memory(structure) }?;
    let guard = take(&memory.mutex)?;
    // SAFETY: what the guard borrows lives in an `Arc` beside it, in `Memory`, which is dropped after it.
    let mut guard: SharedMutexGuard<'static, u64> = unsafe { std::mem::transmute(guard) };
    // SAFETY: our contract.
    unsafe { (&raw mut (*structure).addr).write_unaligned(guard.as_mut_ptr().cast()) };
    *memory.guard.lock() = Some(guard);
    Ok(())
}

/// `int deck_shmem_lock(deck_shmem_t *shmem)`
///
/// # Safety
/// Same as for [`deck_shmem_destroy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_shmem_lock(structure: *mut MemoryStructure) -> c_int {
    // SAFETY: our contract.
    call("deck_shmem_lock", || unsafe { lock(structure, SharedMutex::lock) })
}

/// `int deck_shmem_lock_timeout(deck_shmem_t *shmem, unsigned long microseconds)`
///
/// # Safety
/// Same as for [`deck_shmem_destroy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_shmem_lock_timeout(
    structure: *mut MemoryStructure,
    microseconds: c_ulong,
) -> c_int {
    call("deck_shmem_lock_timeout", || {
        // SAFETY: our contract.
        unsafe { lock(structure, |mutex| mutex.lock_timeout(limit(microseconds))) }
    })
}

/// `int deck_shmem_trylock(deck_shmem_t *shmem)`
///
/// # Safety
/// Same as for [`deck_shmem_destroy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_shmem_trylock(structure: *mut MemoryStructure) -> c_int {
    // SAFETY: our contract.
    call("deck_shmem_trylock", || unsafe { lock(structure, SharedMutex::try_lock) })
}

/// `int deck_shmem_recover(deck_shmem_t *shmem)`
///
/// # Safety
/// Same as for [`deck_shmem_destroy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_shmem_recover(structure: *mut MemoryStructure) -> c_int {
    // SAFETY: our contract.
    call("deck_shmem_recover", || unsafe { lock(structure, SharedMutex::recover) })
}

/// `int deck_shmem_unlock(deck_shmem_t *shmem)`
///
/// # Safety
/// Same as for [`deck_shmem_destroy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_shmem_unlock(structure: *mut MemoryStructure) -> c_int {
    call("deck_shmem_unlock", || {
        // SAFETY: our contract.
        let memory = unsafe { memory(structure) }?;
        let guard = memory.guard.lock().take().ok_or_else(not_locked)?;
        // SAFETY: our contract; so that no pointer to it is left.
        unsafe { (&raw mut (*structure).addr).write_unaligned(std::ptr::null_mut()) };
        drop(guard);
        Ok(())
    })
}

#[cold]
fn not_locked() -> CallError {
    invalid("no thread of this rank has locked the deck_shmem_t")
}

/// `int deck_shmem_barrier(deck_shmem_t *shmem)`
///
/// # Safety
/// Same as for [`deck_shmem_destroy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_shmem_barrier(structure: *mut MemoryStructure) -> c_int {
    // SAFETY: our contract.
    call("deck_shmem_barrier", || Ok(unsafe { memory(structure) }?.mutex.barrier()?))
}
