//! Protection domains and memory regions.

use super::device::{configured, number_of};
use super::{null, number};
use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_OPTIONAL_RANGE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_ZERO_BASED, ibv_context, ibv_mr, ibv_pd,
};
use crate::config::config;
use crate::engine::key;
use crate::objects::{Domain, Region};
use crate::world::with;
use libc::{c_int, c_uint, c_void};

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: handle
    let owner = unsafe { number_of(context) };
    let made = with(|world| {
        let device = world.contexts.get(owner)?.device;
        world.alive(device).then(|| world.domains.insert(Domain { context: owner, users: 0 }))
    });
    match made {
        Some(handle) => Box::into_raw(Box::new(ibv_pd { context, handle })),
        None => null(libc::EIO),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: handle
    let handle = unsafe { (*domain).handle };
    let result = with(|world| match world.domains.get(handle) {
        None => Err(libc::EINVAL),
        Some(found) if found.users > 0 => Err(libc::EBUSY),
        Some(_) => {
            world.domains.remove(handle);
            Ok(())
        }
    });
    if result.is_ok() {
        // SAFETY: It was made so, and the program gives it up.
        drop(unsafe { Box::from_raw(domain) });
    }
    number(result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: The caller's contract is ours.
    unsafe { register(domain, address, length, address as u64, access as c_uint) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: The caller's contract is ours.
    unsafe { register(domain, address, length, iova, access as c_uint) }
}

/// Registers memory, with optional flags that may be ignored.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: The caller's contract is ours.
    unsafe { register(domain, address, length, iova, access & !IBV_ACCESS_OPTIONAL_RANGE) }
}

const KNOWN: u32 =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED;

unsafe fn register(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: handle
    let (context, handle) = unsafe { ((*domain).context, (*domain).handle) };
    // SAFETY: handle
    let Some(device) = (unsafe { configured(context) }) else { return null(libc::EINVAL) };
    if let Err(error) = check(address, length, access) {
        return null(error);
    }
    let iova = if access & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { iova };
    // The device's pages are the processor's: an address keeps its offset in the page.
    if (iova ^ address as u64) & 4095 != 0 {
        return null(libc::EINVAL);
    }
    let region = Region { domain: handle, address: address as usize, iova, length, access };
    let made = with(|world| {
        if !world.alive(usize::from(device.index)) {
            return Err(libc::EIO);
        }
        if world.registered + length as u64 > config().memlock || world.regions.live >= device.max_mr as usize
        {
            return Err(libc::ENOMEM);
        }
        world.domains.get_mut(handle).ok_or(libc::EINVAL)?.users += 1;
        world.registered += length as u64;
        Ok(world.regions.insert(region))
    });
    let handle = match made {
        Ok(handle) => handle,
        Err(error) => return null(error),
    };
    let (lkey, rkey) = (key(handle), key(handle));
    Box::into_raw(Box::new(ibv_mr { context, pd: domain, addr: address, length, handle, lkey, rkey }))
}

/// Checks as the kernel does: rights that go together, and pages that exist.
fn check(address: *mut c_void, length: usize, access: u32) -> Result<(), c_int> {
    let written_from_afar = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    if access & !KNOWN != 0 || (written_from_afar && access & IBV_ACCESS_LOCAL_WRITE == 0) {
        return Err(libc::EINVAL);
    }
    let end = (address as usize).checked_add(length).filter(|_| length > 0).ok_or(libc::EINVAL)?;
    // SAFETY: The call takes a number only.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    // The query is made in pieces, so that the answer needs little room.
    let mut answer = [0u8; 4096];
    let mut at = address as usize / page * page;
    while at < end {
        let piece = (end - at).min(answer.len() * page);
        // SAFETY: The answer has room for the piece's pages; the memory itself is not touched.
        if unsafe { libc::mincore(at as *mut c_void, piece, answer.as_mut_ptr()) } != 0 {
            return Err(libc::EFAULT);
        }
        at += piece;
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int {
    // SAFETY: handle
    let handle = unsafe { (*region).handle };
    let result = with(|world| {
        let found = world.regions.remove(handle).ok_or(libc::EINVAL)?;
        world.registered -= found.length as u64;
        if let Some(domain) = world.domains.get_mut(found.domain) {
            domain.users -= 1;
        }
        Ok(())
    });
    if result.is_ok() {
        // SAFETY: It was made so, and the program gives it up.
        drop(unsafe { Box::from_raw(region) });
    }
    number(result)
}
