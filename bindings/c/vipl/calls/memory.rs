//! Protection tags and memory.

use std::ffi::c_void;
use std::ptr::NonNull;

use super::{call, nic, put, some, take};
use crate::vipl::engine::{NicState, OwnPtag, PTAGS};
use crate::vipl::handle::Handle;
use crate::vipl::memory::{self, Wanted};
use crate::vipl::types::{Boolean, MemAttributes, Ulong, VipReturn};

/// Makes a protection tag.
///
/// # Safety
/// `handle` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreatePtag(of: Handle, handle: *mut Handle) -> VipReturn {
    call("VipCreatePtag", || {
        let nic = nic(of)?;
        some(handle)?;
        let own = OwnPtag { nic: of, ptag: nic.nic.ptag() };
        let made = PTAGS.insert(|_| own).ok_or(VipReturn::ERROR_RESOURCE)?;
        // SAFETY: not NULL, so valid for writing, as C promises.
        unsafe { put(handle, made) }
    })
}

/// Ends a protection tag that nothing carries.
#[unsafe(no_mangle)]
pub extern "C" fn VipDestroyPtag(of: Handle, handle: Handle) -> VipReturn {
    call("VipDestroyPtag", || {
        let nic = nic(of)?;
        let may = |own: &mut OwnPtag| {
            if own.nic != of {
                return Err(VipReturn::INVALID_PTAG);
            }
            nic.nic.destroy_ptag(own.ptag).map_err(|_| VipReturn::ERROR_RESOURCE)
        };
        PTAGS.remove(handle, may).ok_or(VipReturn::INVALID_PTAG)??;
        Ok(())
    })
}

fn wanted(nic: &NicState, attributes: &MemAttributes) -> Result<Wanted, VipReturn> {
    let ptag = nic.ptag(attributes.ptag).ok_or(VipReturn::INVALID_PTAG)?;
    let (write, read) = (attributes.rdma_write != 0, attributes.rdma_read != 0);
    Ok(Wanted { ptag, ptag_handle: attributes.ptag, write, read })
}

/// Registers memory.
///
/// # Safety
/// `start` has `len` bytes, which stay until they are deregistered; `attributes` and `handle` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRegisterMem(
    of: Handle,
    start: *mut c_void,
    len: Ulong,
    attributes: *const MemAttributes,
    handle: *mut u32,
) -> VipReturn {
    call("VipRegisterMem", || {
        let nic = nic(of)?;
        some(handle)?;
        // SAFETY: NULL or valid, as C promises.
        let wanted = wanted(&nic, &unsafe { take(attributes) }?)?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(VipReturn::INVALID_PARAMETER)?;
        let end = (start.as_ptr() as usize).checked_add(len as usize);
        if len == 0 || len > isize::MAX as Ulong || end.is_none() {
            return Err(VipReturn::INVALID_PARAMETER);
        }
        let made = memory::register(&nic.nic, start, len as usize, wanted)?;
        // SAFETY: not NULL, so valid for writing, as C promises.
        unsafe { put(handle, made) }
    })
}

/// Whether memory that carries this tag is the NIC's.
fn is_of(nic: &NicState) -> impl FnOnce(Handle) -> bool {
    move |ptag| nic.ptag(ptag).is_some()
}

/// Deregisters memory.
#[unsafe(no_mangle)]
pub extern "C" fn VipDeregisterMem(of: Handle, start: *mut c_void, handle: u32) -> VipReturn {
    call("VipDeregisterMem", || {
        let nic = nic(of)?;
        memory::deregister(handle, start as usize, is_of(&nic), || nic.quiesce())
    })
}

/// Changes what memory is registered as.
///
/// # Safety
/// `attributes` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSetMemAttributes(
    of: Handle,
    address: *mut c_void,
    handle: u32,
    attributes: *const MemAttributes,
) -> VipReturn {
    call("VipSetMemAttributes", || {
        let nic = nic(of)?;
        // SAFETY: NULL or valid, as C promises.
        let wanted = wanted(&nic, &unsafe { take(attributes) }?)?;
        memory::set(handle, address as usize, is_of(&nic), wanted, || nic.quiesce())
    })
}

/// Tells what memory is registered as.
///
/// # Safety
/// `attributes` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryMem(
    of: Handle,
    address: *mut c_void,
    handle: u32,
    attributes: *mut MemAttributes,
) -> VipReturn {
    call("VipQueryMem", || {
        let nic = nic(of)?;
        some(attributes)?;
        let found = memory::query(handle, address as usize, is_of(&nic))?;
        let found = MemAttributes {
            ptag: found.ptag_handle,
            rdma_write: Boolean::from(found.write),
            rdma_read: Boolean::from(found.read),
        };
        // SAFETY: not NULL, so valid for writing, as C promises.
        unsafe { put(attributes, found) }
    })
}
