//! Registered memory: VIPL's part, over the table of `udeck-rdma`.
//!
//! A caller that looks memory up has a VI's lock, and may touch that memory until it releases the lock. `VipDeregisterMem` first ends the
//! key, and then takes the lock of each VI of the NIC once: when it returns, nobody is in that memory, and nobody finds it any more. The
//! memory of a descriptor is looked up again whenever it is used: a descriptor whose memory was deregistered meanwhile ends by a protection
//! error.

use std::collections::HashMap;
use std::ptr::NonNull;

use parking_lot::Mutex;
use udeck::via::mem::RawRegion;
use udeck::via::{Nic, Ptag};
pub(super) use udeck_rdma::memory::MAX;
use udeck_rdma::memory::{self as table, LOCAL_READ, LOCAL_WRITE, Piece, REMOTE_READ, REMOTE_WRITE};

use super::handle::Handle;
use super::types::VipReturn;

/// All registrations, by key. The lock is held while one changes.
static BOOKS: Mutex<Option<HashMap<u32, Registered>>> = Mutex::new(None);

struct Registered {
    wanted: Wanted,
    region: RawRegion,
}

/// The attributes of memory, as a program asks for them.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub ptag: Ptag,
    pub ptag_handle: Handle,
    pub write: bool,
    pub read: bool,
}

impl Wanted {
    fn rights(&self) -> u32 {
        let remote = [(self.write, REMOTE_WRITE), (self.read, REMOTE_READ)];
        remote
            .into_iter()
            .filter(|(is_wanted, _)| *is_wanted)
            .fold(LOCAL_READ | LOCAL_WRITE, |all, (_, one)| all | one)
    }
}

/// Registers `len` bytes at `start`.
pub(super) fn register(nic: &Nic, start: NonNull<u8>, len: usize, wanted: Wanted) -> Result<u32, VipReturn> {
    let memory = NonNull::slice_from_raw_parts(start, len);
    // SAFETY: C keeps memory allocated until it has deregistered it, as for any VIPL; we touch it through the table only.
    let region =
        unsafe { nic.register_raw(memory, wanted.ptag) }.map_err(|error| super::error::code(&error))?;
    let start = start.as_ptr() as usize;
    let piece =
        Piece { named: start as u64, start, len, zone: wanted.ptag.0, rights: wanted.rights(), of: 0 };
    let mut books = BOOKS.lock();
    let key = table::add(piece).map_err(|_| VipReturn::ERROR_RESOURCE)?;
    books.get_or_insert_default().insert(key, Registered { wanted, region });
    Ok(key)
}

/// Calls `with` on the books and the registration that `key` and an address in it name, if its tag `is_ours`.
fn change<R>(
    key: u32,
    address: usize,
    is_ours: impl FnOnce(Handle) -> bool,
    with: impl FnOnce(&mut HashMap<u32, Registered>, Wanted) -> Result<R, VipReturn>,
) -> Result<R, VipReturn> {
    let mut books = BOOKS.lock();
    let books = books.get_or_insert_default();
    let found = books.get(&key).ok_or(VipReturn::INVALID_PARAMETER)?;
    let memory = found.region.memory();
    let offset = address.wrapping_sub(memory.cast::<u8>().as_ptr() as usize);
    if offset >= memory.len() || !is_ours(found.wanted.ptag_handle) {
        return Err(VipReturn::INVALID_PARAMETER);
    }
    let wanted = found.wanted;
    with(books, wanted)
}

/// Ends a registration. Before the memory is the program's again, `quiesce` waits for threads that have found it.
pub(super) fn deregister(
    key: u32,
    address: usize,
    is_ours: impl FnOnce(Handle) -> bool,
    quiesce: impl FnOnce(),
) -> Result<(), VipReturn> {
    let gone = change(key, address, is_ours, |books, _| Ok((books.remove(&key), table::end(key))))?;
    quiesce();
    drop(gone);
    Ok(())
}

/// Changes the attributes of registered memory, from now on.
pub(super) fn set(
    key: u32,
    address: usize,
    is_ours: impl FnOnce(Handle) -> bool,
    wanted: Wanted,
    quiesce: impl FnOnce(),
) -> Result<(), VipReturn> {
    change(key, address, is_ours, |books, _| {
        let memory = books.get_mut(&key).ok_or(VipReturn::INVALID_PARAMETER)?;
        memory.region.set_ptag(wanted.ptag).map_err(|_| VipReturn::INVALID_PTAG)?;
        memory.wanted = wanted;
        table::change(key, wanted.ptag.0, wanted.rights());
        Ok(())
    })?;
    quiesce();
    Ok(())
}

/// Returns the attributes of registered memory.
pub(super) fn query(
    key: u32,
    address: usize,
    is_ours: impl FnOnce(Handle) -> bool,
) -> Result<Wanted, VipReturn> {
    change(key, address, is_ours, |_, wanted| Ok(wanted))
}

/// Forgets all memory with one of these tags: their NIC closes, and has no VIs any more.
pub(super) fn forget(is_of: impl Fn(Handle) -> bool) {
    let mut books = BOOKS.lock();
    books.get_or_insert_default().retain(|key, memory| {
        let is_gone = is_of(memory.wanted.ptag_handle);
        if is_gone {
            table::remove(*key);
        }
        !is_gone
    });
}
