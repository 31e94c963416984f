//! Registered memory: which of the program's bytes the library may touch, and until when.
//!
//! Every access to the program's memory goes through [`find`] or [`access`], which look the registration up and check protection tag,
//! range and right. They take no lock of their own: who calls them has a VI's lock, and may touch what he has found until he
//! releases it. `VipDeregisterMem` first makes the handle invalid, and then takes the lock of each VI of the NIC once: so when it
//! returns, nobody is in that memory, and nobody finds it any more. What a descriptor names is looked up again whenever it is used:
//! a descriptor whose memory was deregistered meanwhile ends by a protection error.
//!
//! A `VIP_MEM_HANDLE` is an index and a generation, as other handles are; the generations start anywhere, so that a peer does not
//! know them.
//!
//! ```text
//!   what a place says of its registration, in one word: 0 nothing, otherwise
//!   63..32 protection tag   31..16 generation   2 it is one   1 peers may read   0 peers may write
//! ```

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use udeck::via::mem::RawRegion;
use udeck::via::{Nic, Ptag};

use super::handle::Handle;
use super::types::VipReturn;

/// What can be registered at a time.
pub(super) const MOST: usize = 1 << 16;

/// Who wants to touch it: bits of a place's word that have to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Right {
    /// This process, by a descriptor.
    Local = IS_ONE,
    /// The peer, by an RDMA write.
    RemoteWrite = IS_ONE | WRITE,
    /// The peer, by an RDMA read.
    RemoteRead = IS_ONE | READ,
}

const WRITE: u64 = 1;
const READ: u64 = 2;
const IS_ONE: u64 = 4;

struct Place {
    word: AtomicU64,
    start: AtomicUsize,
    len: AtomicUsize,
}

/// Nothing is registered: zeros, which take no memory before they are used.
static PLACES: [Place; MOST] =
    [const { Place { word: AtomicU64::new(0), start: AtomicUsize::new(0), len: AtomicUsize::new(0) } }; MOST];

/// What the fast path does not ask for. Its lock is held while a place changes.
static BOOKS: Mutex<Option<Books>> = Mutex::new(None);

#[derive(Default)]
struct Books {
    registered: HashMap<u32, Registered>,
    /// Places that were used, with the generation that each had last.
    free: Vec<(u16, u16)>,
    next: usize,
    random: RandomState,
}

struct Registered {
    wanted: Wanted,
    region: RawRegion,
}

/// What a program asks memory to be.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub ptag: Ptag,
    pub ptag_handle: Handle,
    pub write: bool,
    pub read: bool,
}

fn word(handle: u32, wanted: &Wanted) -> u64 {
    let rights = if wanted.write { WRITE } else { 0 } | if wanted.read { READ } else { 0 };
    u64::from(wanted.ptag.0) << 32 | u64::from(handle & 0xffff_0000) | IS_ONE | rights
}

fn place(handle: u32) -> &'static Place {
    &PLACES[handle as usize & (MOST - 1)]
}

/// Registers `len` bytes at `start`.
pub(super) fn register(nic: &Nic, start: NonNull<u8>, len: usize, wanted: Wanted) -> Result<u32, VipReturn> {
    let memory = NonNull::slice_from_raw_parts(start, len);
    // SAFETY: C keeps memory allocated until it has deregistered it, as for any VIPL; we touch it through `find` only.
    let region =
        unsafe { nic.register_raw(memory, wanted.ptag) }.map_err(|error| super::error::code(&error))?;
    let mut books = BOOKS.lock();
    let books = books.get_or_insert_default();
    let (index, generation) = match books.free.pop() {
        Some((index, generation)) => (index, generation),
        None if books.next == MOST => return Err(VipReturn::ERROR_RESOURCE),
        None => {
            books.next += 1;
            let index = (books.next - 1) as u16;
            (index, books.random.hash_one(index) as u16)
        }
    };
    let handle = u32::from(generation.wrapping_add(1).max(1)) << 16 | u32::from(index); // never 0
    let place = place(handle);
    place.start.store(start.as_ptr() as usize, Ordering::Relaxed);
    place.len.store(len, Ordering::Relaxed);
    // SYNC POINT registered: publishes where it lies.
    place.word.store(word(handle, &wanted), Ordering::Release);
    books.registered.insert(handle, Registered { wanted, region });
    Ok(handle)
}

/// Calls `with` on the registration that `handle` and an address in it name, if its tag `is_ours`.
fn change<R>(
    handle: u32,
    address: usize,
    is_ours: impl FnOnce(Handle) -> bool,
    with: impl FnOnce(&mut Books, Wanted) -> Result<R, VipReturn>,
) -> Result<R, VipReturn> {
    let mut books = BOOKS.lock();
    let books = books.get_or_insert_default();
    let found = books.registered.get(&handle).ok_or(VipReturn::INVALID_PARAMETER)?;
    let memory = found.region.memory();
    let offset = address.wrapping_sub(memory.cast::<u8>().as_ptr() as usize);
    if offset >= memory.len() || !is_ours(found.wanted.ptag_handle) {
        return Err(VipReturn::INVALID_PARAMETER);
    }
    let wanted = found.wanted;
    with(books, wanted)
}

/// Nobody finds the memory any more. Before it is the program's again, `quiesce` waits for who has found it.
pub(super) fn deregister(
    handle: u32,
    address: usize,
    is_ours: impl FnOnce(Handle) -> bool,
    quiesce: impl FnOnce(),
) -> Result<(), VipReturn> {
    let gone = change(handle, address, is_ours, |books, _| {
        place(handle).word.store(0, Ordering::Relaxed);
        Ok(books.registered.remove(&handle))
    })?;
    quiesce();
    drop(gone);
    give_back(&[handle]);
    Ok(())
}

/// Only now may others have the places.
fn give_back(handles: &[u32]) {
    let mut books = BOOKS.lock();
    let free = handles.iter().map(|handle| (*handle as u16, (*handle >> 16) as u16));
    books.get_or_insert_default().free.extend(free);
}

/// Changes what it is registered as, from now on.
pub(super) fn set(
    handle: u32,
    address: usize,
    is_ours: impl FnOnce(Handle) -> bool,
    wanted: Wanted,
    quiesce: impl FnOnce(),
) -> Result<(), VipReturn> {
    change(handle, address, is_ours, |books, _| {
        let memory = books.registered.get_mut(&handle).ok_or(VipReturn::INVALID_PARAMETER)?;
        memory.region.set_ptag(wanted.ptag).map_err(|_| VipReturn::INVALID_PTAG)?;
        memory.wanted = wanted;
        place(handle).word.store(word(handle, &wanted), Ordering::Release);
        Ok(())
    })?;
    quiesce();
    Ok(())
}

/// What it is registered as.
pub(super) fn query(
    handle: u32,
    address: usize,
    is_ours: impl FnOnce(Handle) -> bool,
) -> Result<Wanted, VipReturn> {
    change(handle, address, is_ours, |_, wanted| Ok(wanted))
}

/// Forgets all that carries one of these tags: their NIC closes, and has no VIs any more.
pub(super) fn forget(is_of: impl Fn(Handle) -> bool) {
    let mut books = BOOKS.lock();
    let books = books.get_or_insert_default();
    let gone: Vec<u32> = books
        .registered
        .iter()
        .filter(|(_, memory)| is_of(memory.wanted.ptag_handle))
        .map(|(handle, _)| *handle)
        .collect();
    for handle in gone {
        place(handle).word.store(0, Ordering::Relaxed);
        books.registered.remove(&handle);
        books.free.push((handle as u16, (handle >> 16) as u16));
    }
}

/// The first of `len` bytes at `address`, if they are registered by `handle` with this tag and right. They may be touched as long
/// as the caller keeps the lock of its VI. `None`: they are not, and must not be.
#[inline(always)]
pub(super) fn find(handle: u32, ptag: Ptag, address: u64, len: usize, right: Right) -> Option<*mut u8> {
    let place = &PLACES[handle as usize & (MOST - 1)];
    // SYNC POINT registered: where it lies is of this registration.
    let word = place.word.load(Ordering::Acquire);
    let right = right as u64;
    let expected = u64::from(ptag.0) << 32 | u64::from(handle & 0xffff_0000);
    if word & !(WRITE | READ | IS_ONE) != expected || word & right != right {
        return None;
    }
    let offset = (address as usize).wrapping_sub(place.start.load(Ordering::Relaxed));
    let room = place.len.load(Ordering::Relaxed);
    (offset <= room && len <= room - offset).then_some(address as usize as *mut u8)
}

/// As [`find`], for what is done at once.
#[inline(always)]
pub(super) fn access<R>(
    handle: u32,
    ptag: Ptag,
    address: u64,
    len: usize,
    right: Right,
    with: impl FnOnce(*mut u8) -> R,
) -> Option<R> {
    find(handle, ptag, address, len, right).map(with)
}
