//! Management, errors, names.

use std::ffi::{CStr, c_char, c_void};

use super::{Outcome, call, nic, put, some, take};
use crate::vipl::address::{self, HOST};
use crate::vipl::error::{Callback, tell};
use crate::vipl::handle::Handle;
use crate::vipl::types::{
    AutodiscoveryList, ErrorHandler, NetAddressHead, SMI_AUTODISCOVERY, Ulong, VipReturn,
};

/// Lists the hosts that can be reached.
///
/// # Safety
/// `info` is NULL or valid for a `VIP_AUTODISCOVERY_LIST`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQuerySystemManagementInfo(
    of: Handle,
    kind: Ulong,
    info: *mut c_void,
) -> VipReturn {
    call("VipQuerySystemManagementInfo", || {
        let nic = nic(of)?;
        some(info)?;
        if kind != SMI_AUTODISCOVERY {
            return Err(VipReturn::INVALID_PARAMETER);
        }
        let hosts = nic.names.hosts();
        let list = addresses(&hosts)?;
        let found = AutodiscoveryList { hops: 1, addresses: list, count: hosts.len() as Ulong };
        // SAFETY: not NULL, so valid for writing, as C promises.
        unsafe { put(info.cast(), found) }
    })
}

unsafe extern "C" {
    fn malloc(size: usize) -> *mut c_void;
}

/// Makes a list of addresses in one piece of the C library's memory. The program frees it by its beginning.
fn addresses(hosts: &[address::Host]) -> Result<*mut *mut NetAddressHead, VipReturn> {
    let each = (size_of::<NetAddressHead>() + HOST).next_multiple_of(align_of::<usize>());
    let pointers = size_of::<usize>() * hosts.len();
    // SAFETY: asks for memory.
    let start = unsafe { malloc(pointers + each * hosts.len()) }.cast::<u8>();
    if start.is_null() {
        return Err(VipReturn::ERROR_RESOURCE);
    }
    for (nth, host) in hosts.iter().enumerate() {
        // SAFETY: within what was asked for: the pointers, then the addresses.
        unsafe {
            let to = start.add(pointers + nth * each).cast::<NetAddressHead>();
            address::write(to, host, &[]);
            start.cast::<*mut NetAddressHead>().add(nth).write(to);
        }
    }
    Ok(start.cast())
}

/// Sets the handler of errors that no call returns; NULL: the errors are written to standard error.
#[unsafe(no_mangle)]
pub extern "C" fn VipErrorCallback(
    of: Handle,
    context: *mut c_void,
    handler: Option<ErrorHandler>,
) -> VipReturn {
    call("VipErrorCallback", || {
        nic(of)?.on_error(handler.map(|handler| Callback { handler, context }));
        Ok(())
    })
}

/// Does nothing: the name service is there from the start.
#[unsafe(no_mangle)]
pub extern "C" fn VipNSInit(of: Handle, _info: *mut c_void) -> VipReturn {
    call("VipNSInit", || nic(of).map(drop))
}

/// Does nothing: the name service stays until the NIC is closed.
#[unsafe(no_mangle)]
pub extern "C" fn VipNSShutdown(of: Handle) -> VipReturn {
    call("VipNSShutdown", || nic(of).map(drop))
}

/// A host's address by its name.
///
/// # Safety
/// `name` is NULL or a C string, `to` is NULL or has room for a host address of this NIC's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipNSGetHostByName(
    of: Handle,
    name: *const c_char,
    to: *mut NetAddressHead,
    index: Ulong,
) -> VipReturn {
    call("VipNSGetHostByName", || {
        let nic = nic(of)?;
        some(name.cast_mut())?;
        some(to)?;
        // SAFETY: not NULL, so a C string, as C promises.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| VipReturn::ERROR_NAMESERVICE)?;
        let host = nic.names.host_by_name(name, index as usize).map_err(|why| {
            tell("VipNSGetHostByName", &why);
            VipReturn::ERROR_NAMESERVICE
        })?;
        // SAFETY: room for it, as C promises.
        unsafe { address::write_host(to, &host) };
        Ok(())
    })
}

/// A host's name by its address.
///
/// # Safety
/// `from` is NULL or has what it says, `len` is NULL or valid, `name` is NULL or has room for `*len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipNSGetHostByAddr(
    of: Handle,
    from: *const NetAddressHead,
    name: *mut c_char,
    len: *mut Ulong,
) -> VipReturn {
    call("VipNSGetHostByAddr", || {
        let nic = nic(of)?;
        // SAFETY: as C promises.
        let (host, room) = unsafe { (address::read_host(from), take(len.cast_const())?) };
        let host = host.ok_or(VipReturn::INVALID_PARAMETER)?;
        let found = nic.names.host_by_address(&host).map_err(|why| {
            tell("VipNSGetHostByAddr", &why);
            VipReturn::ERROR_NAMESERVICE
        })?;
        write_name(&found, name, room, len)
    })
}

/// Writes a name. Its length is written in any case.
fn write_name(found: &str, name: *mut c_char, room: Ulong, len: *mut Ulong) -> Outcome {
    let needed = found.len() + 1;
    // SAFETY: `take` has read it; valid for writing, as C promises.
    unsafe { put(len, needed as Ulong) }?;
    if (room as usize) < needed || name.is_null() {
        return Err(VipReturn::ERROR_RESOURCE);
    }
    // SAFETY: room for so many bytes, as C promises.
    unsafe {
        std::ptr::copy_nonoverlapping(found.as_ptr(), name.cast::<u8>(), found.len());
        name.add(found.len()).write(0);
    }
    Ok(())
}
